"""Compare Halley with Faye and cometd-nodejs-server: the same loads on the same machine, in interleaved rounds.

    npm ci --prefix tests/bench && python tests/bench/peers.py [--rounds 5] [--markdown] [--readme]

In every round, each load is put on each server in turn, each time on a freshly started one; the table has the medians.
The server runs on one core and the load on another, so use an otherwise idle machine with two or more cores. On a
shared machine, trust only ratios within one run. For a fair comparison the peers have keep-alive for the whole run, a
long accept queue, and no limit of sessions per browser; all three hold polls for 25 s.

`--halley CMD` measures another Halley, with `{port}` in CMD replaced by its port; by default, the one of this
interpreter is measured. `--only` selects the loads to run. `--readme` writes the table into README.md of this folder,
between two comments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shlex
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.bench import BenchFailed, Load, halley_command, measure, started

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from app.bench import Result

HERE = Path(__file__).parent
README = HERE / "README.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
HALLEY = "Halley"
PEERS = {
    "Faye": ["node", str(HERE / "faye_server.js"), "{port}"],
    "cometd-nodejs": ["node", str(HERE / "cometd_server.js"), "{port}"],
}

LOADS = {
    "fanout": Load("fanout", receivers=1_000, rate=4),
    "one-to-one": Load("one-to-one", receivers=100, channels=100, publishers=16, rate=1_000),
    "publish": Load("publish", publishers=32),
    "idle": Load("idle", receivers=1_000, publishers=0, warm_up_s=0, seconds=3),
    "idle-browser": Load("idle", receivers=1_000, publishers=0, warm_up_s=0, seconds=3, browser_headers=True),
    "crowd": Load("idle", receivers=10_000, publishers=1, rate=1, warm_up_s=0, seconds=15),
}
HALLEY_ONLY = {"crowd"}


@dataclass(frozen=True)
class Target:
    """A line of the table: a figure of one load, in `unit`, with its target.

    `wanted` and `stretch` are ratios to the better peer (`is_ratio`) or bounds of the figure itself. Smaller figures
    are better, unless `is_rate` is set.
    """

    name: str
    load: str
    figure: Callable[[Result], float | None]
    unit: str
    wanted: float
    stretch: float | None
    is_ratio: bool = True
    is_rate: bool = False

    def is_met(self, value: float, ratio: float | None, bound: float | None) -> bool | None:
        """Whether the target is met; None if there is nothing to compare with."""
        if bound is None or (self.is_ratio and ratio is None):
            return None
        measured = ratio if self.is_ratio and ratio is not None else value
        return measured >= bound if self.is_rate else measured <= bound


def publishes_per_cpu_s(result: Result) -> float | None:
    """Return the acknowledged publishes per second of the server's CPU time."""
    return 1e6 / result.server_cpu_us if result.server_cpu_us else None


TARGETS = [
    Target("CPU per delivery, 1 to 1,000", "fanout", lambda result: result.server_cpu_us, "us", 0.25, 0.2),
    Target("CPU per delivery, 1 to 1", "one-to-one", lambda result: result.server_cpu_us, "us", 0.4, 1 / 3),
    Target("publishes per CPU-second", "publish", publishes_per_cpu_s, "", 2.5, 3.5, is_rate=True),
    Target("p99 of 1 to 1,000, against peers", "fanout", lambda result: result.latency_ms["p99"], "ms", 1.0, None),
    Target("p99 of 1 to 1,000", "fanout", lambda result: result.latency_ms["p99"], "ms", 50, 20, is_ratio=False),
    Target("memory per held poll", "idle", lambda result: result.memory_kb, "KB", 12, 9, is_ratio=False),
    Target(
        "the same, browser headers", "idle-browser", lambda result: result.memory_kb, "KB", 16, None, is_ratio=False
    ),
    Target("10,000 held polls: memory", "crowd", lambda result: result.rss_mb[-1][1], "MB", 250, None, is_ratio=False),
    Target(
        "10,000 held polls: connects accepted",
        "crowd",
        lambda result: result.connects_per_s,
        "/s",
        3_000,
        None,
        is_ratio=False,
        is_rate=True,
    ),
    Target(
        "10,000 held polls: p99 of 1 publish/s",
        "crowd",
        lambda result: result.latency_ms["p99"],
        "ms",
        500,
        None,
        is_ratio=False,
    ),
]

Results = dict[tuple[str, str], list["Result"]]


async def compare(loads: dict[str, Load], servers: dict[str, list[str]], rounds: int) -> Results:
    """Measure every load on every server, round by round. Raises `BenchFailed`."""
    results: Results = defaultdict(list)
    for number in range(1, rounds + 1):
        for load_name, load in loads.items():
            if load_name in HALLEY_ONLY and number > 1:
                continue
            for name, command in servers.items():
                if load_name in HALLEY_ONLY and name != HALLEY:
                    continue
                try:
                    async with started(command, name) as target:
                        result = await measure(load, target)
                except BenchFailed as error:
                    raise BenchFailed(f"{load_name} at {name}: {error}") from error
                results[load_name, name].append(result)
                print(
                    f"round {number} of {rounds}: {load_name} at {name}: {summary(result)}", file=sys.stderr, flush=True
                )
    return results


def summary(result: Result) -> str:
    """Return a line with a few figures and the faults of a result."""
    cpu = "-" if result.server_cpu_us is None else f"{result.server_cpu_us:.1f} us"
    memory = "-" if result.memory_kb is None else f"{result.memory_kb:.1f} KB"
    busy = f"busy: server {result.server_cpu_share or 0:.0%}, load {max(result.load_cpu_shares):.0%}"
    busy += f", kept waiting {result.server_waited_share or 0:.0%}"
    text = f"CPU {cpu}, p99 {result.latency_ms.get('p99', 0):.1f} ms, {memory}, {busy}, limit: {result.limit}"
    wrong = {"lost": result.lost, "repeated": result.repeated, "unsent": result.unsent, **result.errors}
    return text + "".join(f", {count} {what}" for what, count in wrong.items() if count)


def rows(results: Results, peers: Sequence[str]) -> list[list[str]]:
    """Return the table's lines: name, target, stretch, each server's median, ratio to the better peer, verdict."""
    lines = []
    for target in TARGETS:
        medians = {}
        for name in (HALLEY, *peers):
            figures = [target.figure(result) for result in results.get((target.load, name), [])]
            known = [figure for figure in figures if figure is not None]
            medians[name] = statistics.median(known) if known else None
        value = medians[HALLEY]
        if value is None:
            continue
        others = [other for name in peers if (other := medians[name]) is not None]
        better = (max if target.is_rate else min)(others, default=None)
        ratio = value / better if better else None
        met = {bound: target.is_met(value, ratio, bound) for bound in (target.wanted, target.stretch)}
        verdict = (
            "stretch met" if met[target.stretch] else {True: "met", False: "missed", None: "-"}[met[target.wanted]]
        )
        cells = [_figure(medians[name], target.unit) for name in (HALLEY, *peers)]
        lines.append(
            [
                target.name,
                _bound(target, target.wanted),
                _bound(target, target.stretch),
                *cells,
                "-" if ratio is None else f"{ratio:.2f}",
                verdict,
            ]
        )
    return lines


def _bound(target: Target, bound: float | None) -> str:
    if bound is None:
        return "-"
    sign = ">=" if target.is_rate else "<="
    return f"{sign} {bound:.2g} x" if target.is_ratio else f"{sign} {bound:,g} {target.unit}".rstrip()


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return (f"{value:,.0f} {unit}" if value >= 1_000 else f"{value:.1f} {unit}").rstrip()


def text(lines: list[list[str]], peers: Sequence[str], *, is_markdown: bool) -> str:
    """Return the table for a terminal, or in Markdown."""
    header = ["", "target", "stretch", HALLEY, *peers, "ratio to the better peer", ""]
    if is_markdown:
        ruled = [header, ["---"] * len(header), *lines]
        return "\n".join("| " + " | ".join(line) + " |" for line in ruled)
    widths = [max(len(line[column]) for line in (header, *lines)) for column in range(len(header))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (header, *lines))
    return "\n".join("  ".join(line).rstrip() for line in padded)


def provenance(arguments: Sequence[str], rounds: int) -> str:
    """Return a line with the command that made the table, the date, and the machine."""
    command = shlex.join(["python", "tests/bench/peers.py", *arguments])
    runs = "one round" if rounds == 1 else f"medians of {rounds} rounds"
    return (
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {runs}, Python {platform.python_version()}, {platform.machine()}."
    )


def write_readme(file: Path, table: str, made_by: str) -> None:
    """Replace the text between the two comments. Raises `ValueError` if they are missing."""
    before, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file} has no place for the table: {BEGIN} and {END}")
    file.write_text(f"{before}{BEGIN}\n\n{table}\n\n{made_by}\n\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="duration of each measurement (default: that of each load)")
    parser.add_argument("--only", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--receivers", type=int, help="fewer receivers, to try the script itself")
    parser.add_argument("--halley", type=shlex.split, default=halley_command(), metavar="CMD")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--readme", action="store_true")
    parser.add_argument("--save", type=Path, metavar="FILE", help="every single result, as JSON")
    options = parser.parse_args(arguments)
    if not (HERE / "node_modules").is_dir():
        parser.error("the peers are missing: npm ci --prefix tests/bench")
    if options.readme and (options.receivers or options.seconds or options.only != list(LOADS)):
        parser.error("--readme needs the whole comparison: leave out --only, --receivers and --seconds")
    changed: dict[str, Any] = {"seconds": options.seconds} if options.seconds else {}
    loads = {name: replace(LOADS[name], **changed) for name in options.only}
    if options.receivers:
        for name in [name for name in loads if loads[name].receivers]:
            loads[name] = replace(loads[name], receivers=options.receivers, channels=options.receivers)
    try:
        results = asyncio.run(compare(loads, {HALLEY: options.halley, **PEERS}, options.rounds))
    except BenchFailed as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 1
    peers = list(PEERS)
    lines = rows(results, peers)
    made_by = provenance(arguments, options.rounds)
    print(text(lines, peers, is_markdown=options.markdown), made_by, sep="\n\n")
    if options.readme:
        write_readme(README, text(lines, peers, is_markdown=True), made_by)
    if options.save:
        options.save.write_text(json.dumps([each.as_json() for found in results.values() for each in found]))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
