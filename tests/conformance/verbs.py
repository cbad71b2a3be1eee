"""The command `python tests/conformance`: try one server, or all that this machine has, and write the table of both."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bench.servers import Missing
from bench.wamp_load import REALM
from conformance import servers
from conformance.bayeux import BAYEUX
from conformance.checks import MAY, MUST, Check, Checks, Outcome, run_checks
from conformance.nt4 import NT4
from conformance.servers import Tried
from conformance.wamp import WAMP

from halley.bench.load import BenchFailed

PAGE = Path(__file__).parent / "README.md"

PROTOCOLS: Mapping[str, Checks] = {"bayeux": BAYEUX, "wamp": WAMP, "nt4": NT4}
_SCHEMES = {"bayeux": ("http", "https"), "wamp": ("ws", "wss", "http", "https"), "nt4": ("http", "https", "ws", "wss")}
_OPTIONS = {"realm": REALM, "history": ""}
_WAIT_S = 5.0

HELD, BROKEN, NOT_THERE = "yes", "no", "-"


def main() -> None:
    """Do what the command line says, and exit with 0 if all that must hold holds, 1 if not, 2 after wrong use."""
    arguments = _parser().parse_args()
    if arguments.verb == "table":
        sys.exit(asyncio.run(_table(arguments)))
    if urlsplit(arguments.url).scheme not in _SCHEMES[arguments.verb]:
        sys.exit(
            _wrong(f"{arguments.url} is not the address of a server: it begins with {_SCHEMES[arguments.verb][0]}://")
        )
    sys.exit(asyncio.run(_one(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tests/conformance", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name in PROTOCOLS:
        verb = verbs.add_parser(name, help=f"try a server that speaks {name}")
        verb.add_argument("url", metavar="URL")
        verb.add_argument("--only", metavar="CHECK", action="append", default=[], help="can be given several times")
        verb.add_argument("--json", action="store_true", help="print the outcomes as JSON")
        _waiting(verb)
        if name == "wamp":
            verb.add_argument("--realm", default=_OPTIONS["realm"], help="that anonymous clients join [%(default)s]")
            verb.add_argument("--history", default="", metavar="TOPIC", help="whose events the router keeps")
    verb = verbs.add_parser("table", help="try all servers that this machine has, and write the table of README.md")
    verb.add_argument("--crossbar", type=Path, metavar="PROGRAM", help="crossbar, in an environment of its own")
    verb.add_argument("--only", choices=PROTOCOLS, action="append", default=[], help="only servers of this protocol")
    verb.add_argument("--print", action="store_true", help="print the tables, and leave the page as it is")
    _waiting(verb)
    return parser


def _waiting(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--wait-s", type=float, default=_WAIT_S, help="how long an answer may take [%(default)g]")


async def _one(arguments: argparse.Namespace) -> int:
    known = {check.name: check for check in PROTOCOLS[arguments.verb]}
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        return _wrong(f"no check is called {unknown[0]}; there are {', '.join(known)}")
    chosen = [known[name] for name in arguments.only or known]
    if not await _listens(arguments.url, arguments.wait_s):
        return _wrong(f"nothing listens at {arguments.url}")
    options = {name: getattr(arguments, name, usual) for name, usual in _OPTIONS.items()}
    shown = _silent if arguments.json else _show
    outcomes = await run_checks(chosen, arguments.url, wait_s=arguments.wait_s, shown=shown, **options)
    broken = [each for each in outcomes if each.fault and each.check.kind == MUST]
    if arguments.json:
        print(json.dumps([_as_json(each) for each in outcomes], indent=1))
    else:
        missing = sum(bool(each.fault) for each in outcomes) - len(broken)
        print(f"{len(outcomes)} checks: {len(broken)} do not hold, {missing} are of what the server does not offer")
    return 1 if broken else 0


def _silent(_: Outcome) -> None:
    pass


def _show(outcome: Outcome) -> None:
    word = "holds" if not outcome.fault else "DOES NOT HOLD" if outcome.check.kind == MUST else "not offered"
    print(f"{word:13}  {outcome.check.name}: {outcome.check.claim}", flush=True)
    if outcome.fault:
        print(f"{'':13}  {outcome.fault} ({outcome.check.source})", flush=True)


def _as_json(outcome: Outcome) -> dict[str, object]:
    check = outcome.check
    return {
        "check": check.name,
        "claim": check.claim,
        "source": check.source,
        "kind": check.kind,
        "holds": not outcome.fault,
        "fault": outcome.fault,
        "seconds": round(outcome.seconds, 3),
    }


async def _listens(url: str, wait_s: float) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
    try:
        async with asyncio.timeout(wait_s):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _wrong(sentence: str) -> int:
    print(f"conformance: {sentence}", file=sys.stderr)
    return 2


# The table


async def _table(arguments: argparse.Namespace) -> int:
    makes = {"bayeux": servers.bayeux(), "wamp": servers.wamp(arguments.crossbar), "nt4": servers.nt4()}
    page, is_halley_right = PAGE.read_text(encoding="utf-8"), True
    for protocol in arguments.only or PROTOCOLS:
        columns = await _columns(PROTOCOLS[protocol], makes[protocol], arguments.wait_s)
        lines = [*table(PROTOCOLS[protocol], columns)]
        print("\n".join(lines))
        page = replaced(page, protocol, lines)
        is_halley_right &= all(not each.fault for name, found in columns.items() if "Halley" in name for each in found)
    if not arguments.print:
        PAGE.write_text(page, encoding="utf-8")
    return 0 if is_halley_right else 1


async def _columns(
    checks: Checks, makes: Mapping[str, Callable[[], Tried]], wait_s: float
) -> dict[str, Sequence[Outcome]]:
    """Try each server, and return what came of it by name and version; of those that are missing, nothing."""
    columns: dict[str, Sequence[Outcome]] = {}
    for name, make in makes.items():
        try:
            server = await asyncio.to_thread(make)
            with tempfile.TemporaryDirectory(prefix="halley-conformance-") as folder:
                async with server.start(Path(folder)) as target:
                    options = _OPTIONS | dict(server.options)
                    found = await run_checks(checks, _url(target.url, checks), wait_s=wait_s, shown=_silent, **options)
        except (Missing, BenchFailed) as missing:
            print(f"{name} is left out: {missing}.", file=sys.stderr)
            continue
        number = re.search(r"\d\S*", server.version)
        columns[f"{name} {number[0]}" if number else name] = found
    return columns


def _url(url: str, checks: Checks) -> str:
    if checks is WAMP:
        return re.sub("^http", "ws", url)
    return re.sub("/nt/bench$", "", url) if checks is NT4 else url


def table(checks: Checks, columns: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with a row for each check, a column for each server, and notes below.

    What a server must do and does not has a note that says what was seen.
    """
    notes: list[str] = []
    yield f"| check | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for number, check in enumerate(checks):
        cells = [_cell(check, name, found[number], notes) for name, found in columns.items()]
        yield f"| {check.claim} | {' | '.join(cells)} |"
    yield ""
    yield from notes


def _cell(check: Check, name: str, outcome: Outcome, notes: list[str]) -> str:
    if not outcome.fault:
        return HELD
    if check.kind == MAY:
        return NOT_THERE
    notes.append(f"{len(notes) + 1}. {name}, {check.name}: {_escaped(outcome.fault)}")
    return f"{BROKEN} ({len(notes)})"


def _escaped(text: str) -> str:
    """Return a fault as it can stand in Markdown: in one line, of 160 characters at most, with no random names."""
    text = re.sub(r"\bc[0-9a-f]{8}(?=[a-z])", "", text)
    text = re.sub(r"'(?:id|clientId)': '[^']*'", lambda found: found[0].split(":")[0] + ": '...'", text)
    return "`" + re.sub(r"\s+", " ", text)[:160].replace("`", "'").replace("|", "/") + "`"


def replaced(page: str, protocol: str, lines: Sequence[str]) -> str:
    """Return the page with the lines between the two comments that name the protocol."""
    begin, end = f"<!-- {protocol} -->\n", f"<!-- end of {protocol} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}{chr(10).join(lines).rstrip()}\n{end}{after}"
