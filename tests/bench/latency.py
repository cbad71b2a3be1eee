"""How long a client waits while the server works for others: the same client without loads and with each of them.

The client publishes at a steady rate and receives what it publishes; each event is durable, and its latency counts from
the time at which it was due. A further connection sends polls to which the server replies immediately, which shows how
long the event loop is busy with other work. The loads are in `latency_load.py`, in a separate process. On request, the
turns of the event loop are timed too, by `turns.py`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.figures import Figures, cell, columns, rounds_of
from bench.latency_load import has_spark
from bench.logs import fill_apart
from bench.reads import CHANNELS, off_the_servers_core, probing
from bench.rounds import disk, in_turn, is_in_memory, side_command, side_environment
from bench.turns import turns_us

from halley.bench.coordinator import Coordinator, Report
from halley.bench.load import Load, Share
from halley.bench.measurement import Phase, Watch
from halley.bench.orders import WorkerHandle, running_worker
from halley.bench.tally import percentiles
from halley.bench.target import Target, Usage, halley_command, started
from halley.processes import module_command

NOTHING, FAN_OUT = "nothing", "fanout"


class _Load(NamedTuple):
    """What the table calls a load, its units, and the settings of the history on which it needs the server."""

    title: str
    units: str
    settings: dict[str, int] = {}  # noqa: RUF012 - nobody changes it
    is_stored: bool = True


_SMALL_SEGMENTS = {"SEGMENT_BYTES": 65_536}
_SMALL_LOG = _SMALL_SEGMENTS | {"MAX_BYTES": 1_048_576}

LOADS = {
    NOTHING: _Load("nothing else", ""),
    "replay": _Load("a replay of the history", "events"),
    "history": _Load("pages of the history", "pages"),
    "console": _Load("a console with everything open", "events"),
    "bodies": _Load("bodies of 256 KiB", "requests"),
    "batches": _Load("bodies of 1,000 events", "requests"),
    "retention": _Load("retention", "segments deleted", _SMALL_LOG, is_stored=False),
    "sealing": _Load("sealing", "segments sealed", _SMALL_SEGMENTS, is_stored=False),
    "folder": _Load("a read of the folder", "events"),
    FAN_OUT: _Load("{receivers:,} receivers, {fan_out_rate:g} publishes/s", "deliveries"),
}
"""The loads, by name; the first one is what others are compared with."""

_PHASES = {"delivery": "publish to receive", "reply": "reply to a poll", "turn": "a turn of the event loop, CPU time"}
_PUBLISHERS = 8  # so that an event that is due need not wait for the reply to the one before
_CHANNEL = 900_000  # no load uses it
_POLLED_EVERY_S = 0.005
_START_S = 120.0
_MOST_BYTES = 1 << 40  # of the log, so that retention does not interfere


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """The size of the measurement: the client publishes `rate` events per second.

    `loads` are names; none means all. `stored` events are in the log that is read. `reader`: by what the folder is
    read, `spark` or `folder`. It is wrong if a load adds more than `most_added_ms` to the p99 of the client.
    `has_turns`: the turns of the event loop are timed, which then is not uvloop's.
    """

    loads: Sequence[str] = ()
    rate: float = 100.0
    stored: int = 200_000
    receivers: int = 1_000
    fan_out_rate: float = 4.0
    rounds: int = 3
    seconds: float = 10.0
    warm_up_s: float = 1.0
    reader: str | None = None
    most_added_ms: float | None = None
    has_turns: bool = False
    is_pinned: bool = True
    data_dir: Path | None = None

    @property
    def names(self) -> list[str]:
        """The names of the loads that are measured, in the table's order."""
        return [name for name in LOADS if name == NOTHING or not self.loads or name in self.loads]

    def shown(self) -> dict[str, Any]:
        """Return the plan as it is in the result."""
        shown = asdict(self) | {"loads": self.names, "reader": self.reader or ("spark" if has_spark() else "folder")}
        return {name: value for name, value in shown.items() if name != "data_dir"}


async def measure_latency(plan: LatencyPlan, watch: Watch = lambda _: None) -> LatencyFigures:
    """Measure the client under each load in turn, `plan.rounds` times. Raises `BenchFailed`."""
    with tempfile.TemporaryDirectory(
        prefix="halley-bench-", dir=plan.data_dir or disk(), ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        found = LatencyFigures(
            plan=plan.shown(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            is_in_memory=is_in_memory(folder),
        )
        stock = folder / "stock"
        await fill_apart(stock, plan.stored, CHANNELS, watch)
        await in_turn(
            plan.names, plan.rounds, folder, partial(_serving, plan, stock), partial(_measure, found, folder), watch
        )
        found.judge(plan.most_added_ms)
        return found


@asynccontextmanager
async def _serving(plan: LatencyPlan, stock: Path, name: str, folder: Path) -> AsyncIterator[Target]:
    """Start a server on a copy of the stored log, or on a new one if the load makes its own."""
    load, data_dir = LOADS[name], _data_dir(folder)
    if load.is_stored:
        await asyncio.to_thread(shutil.copytree, stock, data_dir)
    settings = {"MAX_BYTES": _MOST_BYTES} | load.settings
    environment = {f"HALLEY_HISTORY_{setting}": str(value) for setting, value in settings.items()}
    command = halley_command(data_dir=data_dir)
    if plan.has_turns:
        command = [*side_command("turns"), str(_turns(data_dir)), *command[command.index("serve") :]]
        environment["PYTHONPATH"] = side_environment()["PYTHONPATH"]
    async with started(command, is_pinned=plan.is_pinned, environment=environment) as target:
        target.name = str(data_dir)
        yield target
    await asyncio.to_thread(shutil.rmtree, data_dir)


def _data_dir(folder: Path) -> Path:
    return folder / "log"


def _turns(data_dir: Path) -> Path:
    return data_dir.with_name("turns")


async def _measure(found: LatencyFigures, temporary: Path, name: str, target: Target, watch: Watch) -> None:
    """Measure the client under one load."""
    plan = found.plan
    async with AsyncExitStack() as stack:
        stack.enter_context(off_the_servers_core(target))
        load = None
        if name != NOTHING:  # first of all: Spark takes longer to start than an idle session lives
            load = await stack.enter_async_context(_loading(plan, target, temporary))
            await load.ask("start", work=name, seconds=_START_S)
        probe = await stack.enter_async_context(probing(target))
        client = await stack.enter_async_context(_client(plan, target, watch))
        if plan["warm_up_s"]:
            await client.round(1, plan["warm_up_s"])
        before, began_s = await target.usage(), time.monotonic()
        counting = asyncio.ensure_future(load.ask("count", seconds=plan["seconds"])) if load else None
        measuring = asyncio.create_task(client.round(2, plan["seconds"]))
        try:
            polls = iter(lambda: b"" if measuring.done() else probe.poll(), b"")
            polls_us, _ = await probe.times_us(polls, every_s=_POLLED_EVERY_S)
        finally:
            report = await measuring
        used = (await target.usage()).since(before)
        found.take(name, report, percentiles(polls_us), await counting if counting else {}, used)
        if plan["has_turns"]:
            found.add("turn", name, percentiles(turns_us(_turns(Path(target.name)), began_s)))


@asynccontextmanager
async def _client(plan: dict[str, Any], target: Target, watch: Watch) -> AsyncIterator[Coordinator]:
    """Start the process of the client that is measured; it is off the server's core."""
    load = Load("one-to-one", receivers=1, publishers=_PUBLISHERS, rate=plan["rate"])
    share = Share(load, 0, 1, _PUBLISHERS, 0, _CHANNEL, 1, plan["rate"], has_others=False)
    core = target.cores[0] if target.cores else None
    command = module_command("halley.bench.worker")
    async with running_worker(command, core, share=asdict(share), url=target.url, token=None) as worker:
        client = Coordinator([share], [worker])
        await client.open(1)
        client.on_progress = lambda _, deliveries, *__: watch(Phase("measuring", 0, 1, f"{deliveries:,} deliveries"))
        yield client


@asynccontextmanager
async def _loading(plan: dict[str, Any], target: Target, temporary: Path) -> AsyncIterator[WorkerHandle]:
    """Start the process of a load; it is off the server's core, and off the client's if there are three."""
    arguments = {
        "data_dir": target.name,
        "stored": plan["stored"],
        "receivers": plan["receivers"],
        "rate": plan["fan_out_rate"],
        "reader": plan["reader"],
        "cores": [*(target.cores[1:] or target.cores)],
    }
    environment = side_environment() | {"TMPDIR": str(temporary)}  # a killed process cannot remove its files
    async with running_worker(side_command("latency_load"), None, environment, url=target.url, **arguments) as worker:
        yield worker


@dataclass(slots=True)
class LatencyFigures(Figures):
    """Figures in ms by phase (`delivery`, `reply`, `turn`, and `fanout`: the fan-out's own deliveries) and by load.

    In the phase `work`, `per_s` is what a load did meanwhile, in its units per second, and `done` their number.
    """

    verb = "latency"
    order = tuple(LOADS)

    def take(self, load: str, report: Report, polls_ms: dict[str, float], work: dict[str, Any], used: Usage) -> None:
        """Add the figures of one measurement."""
        self.add("delivery", load, percentiles(report.latencies_us))
        self.add("reply", load, polls_ms)
        if work:
            self.add("work", load, {"done": work["done"], "per_s": work["done"] / work["seconds"]})
        if "latency_ms" in work:
            self.add("fanout", load, work["latency_ms"])
        counts = report.counts
        if counts["lost"] or counts["repeated"] or report.errors:
            errors = dict(report.errors)
            self.wrong.append(f"{load}: {counts['lost']} lost, {counts['repeated']} repeated, errors {errors}")
        if counts["unsent"]:
            what = f"{counts['unsent']:,} due events were not sent, because no publisher was free"
            self.warnings.append(f"{load}: {what}")
        if load == NOTHING:  # under a load, the threads of the server itself use its core too
            self.warn_if_core_was_shared(load, {"seconds": report.seconds}, used)

    def added_ms(self, phase: str, load: str) -> float | None:
        """Return what a load adds to the client's p99; None for the load that is nothing."""
        with_it, without = self.median(phase, load, "p99"), self.median(phase, NOTHING, "p99")
        return None if load == NOTHING or with_it is None or without is None else with_it - without

    def worst_ms(self, phase: str, load: str) -> float | None:
        """Return the longest that the client has waited in any round; None if it has received nothing."""
        return max(self.figures[phase][load].get("max", ()), default=None)

    def judge(self, most_added_ms: float | None) -> None:
        """Note which loads add more than that to the client's p99; None: none does."""
        for phase in ("delivery", "reply"):
            for load in self.servers:
                added_ms = self.added_ms(phase, load)
                if added_ms is not None and most_added_ms is not None and added_ms > most_added_ms:
                    self.wrong.append(f"{load} adds {added_ms:.1f} ms to the p99 of {_PHASES[phase]}")


def latency_table(found: LatencyFigures) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = f"latency at halley: {plan['rate']:g} publishes/s to one receiver; {rounds_of(plan)}"
    rows = [["", "p50", "p99", "worst", "adds to p99", "meanwhile"], *_rows(found)]
    return "\n".join([title, *columns(rows), *found.sentences])


def _rows(found: LatencyFigures) -> Iterator[list[str]]:
    plan = found.plan
    for phase, what in _PHASES.items():
        if phase not in found.figures:
            continue
        yield [what, *[""] * 5]
        for load in found.servers:
            title = LOADS[load].title.format(**plan)
            added_ms = found.added_ms(phase, load)
            per_s = found.median("work", load, "per_s")
            yield [
                f"  {title}, by Spark" if load == "folder" and plan["reader"] == "spark" else f"  {title}",
                *_times(found, phase, load),
                "" if added_ms is None else f"{added_ms:+.1f} ms",
                "" if per_s is None else f"{cell(per_s, '')} {LOADS[load].units}/s",
            ]
    if FAN_OUT in found.figures.get("fanout", {}):
        yield [f"each delivery to {plan['receivers']:,} receivers", *_times(found, "fanout", FAN_OUT), "", ""]


def _times(found: LatencyFigures, phase: str, load: str) -> list[str]:
    worst = cell(found.worst_ms(phase, load), "ms")
    return [*(cell(found.median(phase, load, name), "ms") for name in ("p50", "p99")), worst]
