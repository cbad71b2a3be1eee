"""Compare Halley with other servers: the same loads on the same machine, in interleaved rounds.

    npm ci --prefix tests/bench && python tests/bench/peers.py [--rounds 5] [--compiled PYTHON] [--markdown] [--readme]

The others are Faye, cometd-nodejs-server, CometD's Java server, nchan, which does not speak Bayeux but holds polls and
streams events, and a loop in C that only writes (`servers.py`); those that a machine lacks are left out. In every
round, each load is put on each server in turn, each time on a freshly started one; the tables have the medians. The
server runs on one core and the load on another, so use an otherwise idle machine with two or more cores. On a shared
machine, trust only ratios within one run. For a fair comparison the others have keep-alive for the whole run, a long
accept queue, and no limit of sessions per browser; all hold polls for 25 s. What is unfair all the same is printed with
the versions.

`--compiled PYTHON` also measures the Halley that is installed, compiled, for that Python. `--halley CMD` measures
another Halley instead of this interpreter's, with `{port}` in CMD replaced by its port. `--only` selects the loads to
run, `--servers` the servers. `--readme` writes the tables into README.md of this folder, between two comments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shlex
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from halley.bench.load import BenchFailed, Load
from halley.bench.measurement import measure
from halley.bench.result import Result

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)  # in which this folder is the package `bench`

from bench import servers  # noqa: E402 - only now can it be found
from bench.servers import (  # noqa: E402
    COMETD_JAVA,
    COMETD_NODE,
    COMPILED,
    FAYE,
    FLOOR,
    HALLEY,
    NCHAN,
    POLLS,
    SOCKETS,
    STREAMS,
    Server,
)

README = HERE / "README.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
HALLEYS = HALLEY, COMPILED
NODE = FAYE, COMETD_NODE
PEERS: dict[str, Callable[[], Server]] = {
    FAYE: servers.faye,
    COMETD_NODE: servers.cometd_nodejs,
    COMETD_JAVA: servers.cometd_java,
    NCHAN: servers.nchan,
    FLOOR: servers.floor,
}

LOADS = {
    "fanout": Load("fanout", receivers=1_000, rate=4),
    "one-to-one": Load("one-to-one", receivers=100, channels=100, publishers=16, rate=1_000),
    "publish": Load("publish", publishers=32),
    "idle": Load("idle", receivers=1_000, publishers=0, warm_up_s=0, seconds=3),
    "idle-browser": Load("idle", receivers=1_000, publishers=0, warm_up_s=0, seconds=3, browser_headers=True),
    "crowd": Load("idle", receivers=10_000, publishers=1, rate=1, warm_up_s=0, seconds=15),
    "socket-fanout": Load("fanout", receivers=1_000),
    "socket-one-to-one": Load("one-to-one", receivers=100, channels=100, publishers=16, rate=1_000),
    "socket-idle": Load("idle", receivers=1_000, publishers=0, warm_up_s=0, seconds=3),
    "stream-fanout": Load("fanout", receivers=1_000),
    "stream-crowd": Load("idle", receivers=10_000, publishers=1, rate=1, warm_up_s=0, seconds=15),
}
HALLEY_ONLY = {"crowd", "stream-crowd"}


def way_of(load_name: str) -> str:
    """Return the way in which the receivers of a load get their events."""
    return {"socket": SOCKETS, "stream": STREAMS}.get(load_name.partition("-")[0], POLLS)


def publishes_per_cpu_s(result: Result) -> float | None:
    """Return the acknowledged publishes per second of the server's CPU time."""
    return 1e6 / result.server_cpu_us if result.server_cpu_us else None


@dataclass(frozen=True)
class Figure:
    """A figure of one load, in `unit`. Smaller ones are better, unless `is_rate` is set."""

    name: str
    load: str
    of: Callable[[Result], float | None]
    unit: str
    is_rate: bool = False


FAN_OUT = Figure("CPU per delivery, 1 to 1,000", "fanout", lambda result: result.server_cpu_us, "us")
ONE_TO_ONE = Figure("CPU per delivery, 1 to 1", "one-to-one", lambda result: result.server_cpu_us, "us")
PUBLISHES = Figure("publishes per CPU-second", "publish", publishes_per_cpu_s, "", is_rate=True)
P99 = Figure("p99 of 1 to 1,000", "fanout", lambda result: result.latency_ms["p99"], "ms")
WORST = Figure("longest of 1 to 1,000", "fanout", lambda result: result.latency_ms["max"], "ms")
MEMORY = Figure("memory per held poll", "idle", lambda result: result.memory_kb, "KB")
BROWSER_MEMORY = Figure("the same, browser headers", "idle-browser", lambda result: result.memory_kb, "KB")
CROWD_MEMORY = Figure("10,000 held polls: memory", "crowd", lambda result: result.rss_mb[-1][1], "MB")
CROWD_CONNECTS = Figure(
    "10,000 held polls: connects accepted", "crowd", lambda result: result.connects_per_s, "/s", is_rate=True
)
CROWD_P99 = Figure("10,000 held polls: p99 of 1 publish/s", "crowd", lambda result: result.latency_ms["p99"], "ms")
SOCKET_FAN_OUT = Figure(
    "WebSockets, 1 to 1,000: CPU per delivery", "socket-fanout", lambda result: result.server_cpu_us, "us"
)
SOCKET_ONE_TO_ONE = Figure(
    "WebSockets, 1 to 1: CPU per delivery", "socket-one-to-one", lambda result: result.server_cpu_us, "us"
)
SOCKET_MEMORY = Figure("memory per idle WebSocket", "socket-idle", lambda result: result.memory_kb, "KB")
STREAM_FAN_OUT = Figure(
    "event streams, 1 to 1,000: CPU per delivery", "stream-fanout", lambda result: result.server_cpu_us, "us"
)
STREAM_MEMORY = Figure("10,000 event streams: memory", "stream-crowd", lambda result: result.rss_mb[-1][1], "MB")
FIGURES = [
    FAN_OUT, ONE_TO_ONE, PUBLISHES, P99, WORST, MEMORY, BROWSER_MEMORY, CROWD_MEMORY, CROWD_CONNECTS, CROWD_P99,
    SOCKET_FAN_OUT, SOCKET_ONE_TO_ONE, SOCKET_MEMORY, STREAM_FAN_OUT, STREAM_MEMORY,
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """What a figure of Halley should be, `pure` (None: of any size) or `compiled`.

    Both are bounds of the figure itself or, if there are `others`, of its ratio to the best of theirs; `than` says
    whose.
    """

    figure: Figure
    pure: float | None
    compiled: float
    others: tuple[str, ...] = ()
    than: str = ""

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.figure.name}, to {self.than}" if self.than else self.figure.name

    def bound(self, wanted: float | None) -> str:
        """Return a bound as it is shown."""
        if wanted is None:
            return "-"
        sign = ">=" if self.figure.is_rate else "<="
        return f"{sign} {wanted:.2g} x" if self.others else f"{sign} {wanted:,g} {self.figure.unit}".rstrip()

    def verdict(self, value: float | None, wanted: float | None) -> str:
        """Return whether a figure or ratio is as it should be, as it is shown."""
        if value is None or wanted is None:
            return "-"
        return "met" if (value >= wanted if self.figure.is_rate else value <= wanted) else "missed"


_BETTER_NODE, _JAVA = "the better on Node.js", COMETD_JAVA
TARGETS = [
    Target(FAN_OUT, 0.32, 0.2, NODE, _BETTER_NODE),
    Target(FAN_OUT, 0.48, 0.3, (COMETD_JAVA,), _JAVA),
    Target(FAN_OUT, 1.3, 0.85, (NCHAN,), NCHAN),
    Target(ONE_TO_ONE, 0.62, 0.48, NODE, _BETTER_NODE),
    Target(ONE_TO_ONE, 0.68, 0.53, (COMETD_JAVA,), _JAVA),
    Target(PUBLISHES, 2.2, 3.4, NODE, _BETTER_NODE),
    Target(PUBLISHES, 1.35, 2.0, (COMETD_JAVA,), _JAVA),
    Target(P99, 1.0, 1.0, (*NODE, COMETD_JAVA), "the best of Bayeux"),
    Target(P99, 20, 20),
    Target(WORST, 60, 60),
    Target(MEMORY, 5, 5),
    Target(BROWSER_MEMORY, 16, 16),
    Target(CROWD_MEMORY, 250, 250),
    Target(CROWD_CONNECTS, 3_000, 3_000),
    Target(CROWD_P99, 500, 500),
    Target(SOCKET_FAN_OUT, None, 0.5, (FAYE,), FAYE),
    Target(SOCKET_FAN_OUT, None, 0.5, (COMETD_JAVA,), _JAVA),
    Target(SOCKET_FAN_OUT, None, 1.5, (FLOOR,), "a floor in C"),
    Target(SOCKET_ONE_TO_ONE, None, 0.5, (FAYE, COMETD_JAVA), "the better of both"),
    Target(SOCKET_MEMORY, 8, 8),
    Target(STREAM_FAN_OUT, None, 1.0, (NCHAN,), NCHAN),
    Target(STREAM_MEMORY, 120, 120),
]

Results = dict[tuple[str, str], list[Result]]


async def compare(
    loads: Mapping[str, Load], measured: Mapping[str, Server], rounds: int, warm_up_s: float | None = None
) -> Results:
    """Measure every load on every server, round by round; every other round is in reverse order.

    `warm_up_s` replaces each server's own warm-up. Raises `BenchFailed`.
    """
    results: Results = defaultdict(list)
    for number in range(1, rounds + 1):
        for load_name, load in loads.items():
            if load_name in HALLEY_ONLY and number > 1:
                continue
            for name in measured if number % 2 else reversed([*measured]):
                server = measured[name]
                if not _takes(server, load_name):
                    continue
                try:
                    result = await _measured(load_name, load, server, warm_up_s)
                except BenchFailed as error:
                    raise BenchFailed(f"{load_name} at {name}: {error}") from error
                results[load_name, name].append(result)
                print(
                    f"round {number} of {rounds}: {load_name} at {name}: {summary(result)}", file=sys.stderr, flush=True
                )
    return results


def _takes(server: Server, load_name: str) -> bool:
    if load_name in HALLEY_ONLY and server.name not in HALLEYS:
        return False
    return way_of(load_name) in server.workers and (server.loads is None or load_name in server.loads)


async def _measured(load_name: str, load: Load, server: Server, warm_up_s: float | None) -> Result:
    if load.warm_up_s:
        load = replace(load, warm_up_s=max(load.warm_up_s, server.warm_up_s) if warm_up_s is None else warm_up_s)
    with tempfile.TemporaryDirectory(prefix="halley-bench-") as folder:
        async with server.started(Path(folder)) as target:
            return await measure(load, target, start_worker=server.workers[way_of(load_name)])


def summary(result: Result) -> str:
    """Return a line with a few figures and the faults of a result."""
    cpu = "-" if result.server_cpu_us is None else f"{result.server_cpu_us:.1f} us"
    memory = "-" if result.memory_kb is None else f"{result.memory_kb:.1f} KB"
    busy = f"busy: server {result.server_cpu_share or 0:.0%}, load {max(result.load_cpu_shares):.0%}"
    busy += f", kept waiting {result.server_waited_share or 0:.0%}"
    text = f"CPU {cpu}, p99 {result.latency_ms.get('p99', 0):.1f} ms, {memory}, {busy}, limit: {result.limit}"
    wrong = {"lost": result.lost, "repeated": result.repeated, "unsent": result.unsent, **result.errors}
    return text + "".join(f", {count} {what}" for what, count in wrong.items() if count)


def median(results: Results, figure: Figure, server: str) -> float | None:
    """Return the median of a server's figure; None if it was not measured."""
    found = (figure.of(result) for result in results.get((figure.load, server), []))
    return statistics.median(known) if (known := [each for each in found if each is not None]) else None


def figure_rows(results: Results, names: Sequence[str]) -> list[list[str]]:
    """Return a head, and a row for each figure that was measured: its name and the medians of these servers."""
    rows = [["", *names]]
    for figure in FIGURES:
        medians = [median(results, figure, name) for name in names]
        if any(each is not None for each in medians):
            rows.append([figure.name, *(_shown(each, figure.unit) for each in medians)])
    return rows


def target_rows(results: Results) -> list[list[str]]:
    """Return a head, and a row for each target: its name and, for each Halley, target, median or ratio, and verdict."""
    rows = [["", "target", HALLEY, "", "compiled: target", COMPILED, ""]]
    for target in TARGETS:
        figure = target.figure
        pick = max if figure.is_rate else min
        others = [other for name in target.others if (other := median(results, figure, name)) is not None]
        best = pick(others, default=None)
        row, is_measured = [target.name], False
        for halley, wanted in zip(HALLEYS, (target.pure, target.compiled), strict=True):
            value = median(results, figure, halley)
            is_measured |= value is not None
            if value is not None and target.others:
                value = value / best if best else None
            shown = "-" if value is None else f"{value:.2f} x" if target.others else _shown(value, figure.unit)
            row += [target.bound(wanted), shown, target.verdict(value, wanted)]
        if is_measured:
            rows.append(row)
    return rows


def server_rows(measured: Mapping[str, Server]) -> list[list[str]]:
    """Return a head, and a row for each server: its version, its runtime, and what is unfair."""
    rows = [[server.name, server.version, server.runtime, server.unfair] for server in measured.values()]
    return [["", "version", "runtime", "what is unfair"], *rows]


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return (f"{value:,.0f} {unit}" if value >= 1_000 else f"{value:.1f} {unit}").rstrip()


def text(rows: Sequence[Sequence[str]], *, is_markdown: bool) -> str:
    """Return a table, whose first row is its head, for a terminal or in Markdown."""
    if is_markdown:
        ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        return "\n".join("| " + " | ".join(row) + " |" for row in ruled)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in padded)


def report(
    results: Results, measured: Mapping[str, Server], left_out: Sequence[str], *, is_markdown: bool = False
) -> str:
    """Return all tables, and a line for each server that was left out."""
    tables = figure_rows(results, list(measured)), target_rows(results), server_rows(measured)
    parts = [text(rows, is_markdown=is_markdown) for rows in tables if len(rows) > 1]
    return "\n\n".join([*parts, *left_out])


def provenance(arguments: Sequence[str], rounds: int) -> str:
    """Return a line with the command that made the tables, the date, and the machine."""
    command = shlex.join(["python", "tests/bench/peers.py", *arguments])
    runs = "one round" if rounds == 1 else f"medians of {rounds} rounds"
    return f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {runs}, {platform.machine()}."


def write_readme(file: Path, tables: str, made_by: str) -> None:
    """Replace the text between the two comments. Raises `ValueError` if they are missing."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file} has no place for the table: {BEGIN} and {END}")
    file.write_text(f"{before}{BEGIN}\n\n{tables}\n\n{made_by}\n\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="duration of each measurement (default: that of each load)")
    parser.add_argument("--warm-up", type=float, help="seconds of load before each (default: what each server needs)")
    parser.add_argument("--only", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--servers", nargs="+", choices=[*HALLEYS, *PEERS], default=[*HALLEYS, *PEERS])
    parser.add_argument("--receivers", type=int, help="fewer receivers, to try the script itself")
    parser.add_argument("--halley", type=shlex.split, metavar="CMD")
    parser.add_argument("--compiled", type=Path, metavar="PYTHON")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--save", type=Path, metavar="FILE", help="every single result, as JSON")
    options = parser.parse_args(arguments)
    whole = ("receivers", "seconds", "warm_up", "only", "servers")
    if options.readme and any(getattr(options, each) != parser.get_default(each) for each in whole):
        parser.error("--readme needs the whole comparison: leave out --only, --servers, --receivers and all seconds")
    changed: dict[str, Any] = {"seconds": options.seconds} if options.seconds else {}
    loads = {name: replace(LOADS[name], **changed) for name in options.only}
    if options.receivers:
        for name in [name for name in loads if loads[name].receivers]:
            loads[name] = replace(loads[name], receivers=options.receivers, channels=options.receivers)
    makes: dict[str, Callable[[], Server]] = {
        HALLEY: partial(servers.halley, options.halley),
        COMPILED: partial(servers.halley_compiled, options.compiled),
        **PEERS,
    }
    measured, left_out = servers.available({name: make for name, make in makes.items() if name in options.servers})
    print(*left_out, sep="\n", end="\n" * bool(left_out), file=sys.stderr)
    try:
        results = asyncio.run(compare(loads, measured, options.rounds, options.warm_up))
    except BenchFailed as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 1
    made_by = provenance(arguments, options.rounds)
    print(report(results, measured, left_out, is_markdown=options.markdown), made_by, sep="\n\n")
    if options.readme:
        write_readme(README, report(results, measured, left_out, is_markdown=True), made_by)
    if options.save:
        options.save.write_text(json.dumps([each.as_json() for found in results.values() for each in found]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
