"""The data pipeline's speed and cost: how fast Spark reads, ingests and queries, and how soon rollups are published.

Three things are measured, one after another:

lake     how fast one Spark session reads, ingests, compacts and queries a log, with nothing else running.
rollups  the time from a publish to its rollup. Server, load and pipeline share all cores, as if one machine ran them
         all: with a core reserved for the server, a machine with two would leave one for the load and all of Spark.
replies  the cost to the server: the same load without the pipeline and with it. Here the server has its own core if
         there are at least two (and `is_pinned` is set), since other processes on its core would distort the figures.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, cast
from urllib.parse import urlsplit

from bench.jobs import Rollups, behind, first_rollup, jobs, last_line, rollups
from bench.logs import fill_apart
from bench.reads import CHANNELS
from bench.rounds import disk, is_in_memory, noted, side_command, side_environment

from halley.bench.load import BenchFailed, Load, together
from halley.bench.measurement import Phase, Watch, measure
from halley.bench.result import Result
from halley.bench.target import Target, halley_command, started
from halley.processes import kill

HOURS = 24.0
"""The time over which stored events are spread; queries are for one hour of it."""


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """The size of the measurement: `stored` events are read, ingested and queried; `rate` is in publishes per second.

    `rounds` is the number of reads and queries by Spark; `master` is Spark's.
    """

    stored: int = 5_000_000
    rounds: int = 5
    rate: float = 2_000.0
    seconds: float = 30.0
    warm_up_s: float = 10.0
    processes: int = 1
    master: str = "local[2]"
    is_pinned: bool = True
    data_dir: Path | None = None

    def load(self) -> Load:
        """Return the load that is put on the server while rollups and replies are measured."""
        return Load(
            "publish",
            publishers=8,
            rate=self.rate,
            seconds=self.seconds,
            warm_up_s=self.warm_up_s,
            processes=self.processes,
        )


async def measure_pipeline(plan: PipelinePlan, watch: Watch = lambda _: None) -> PipelineFigures:
    """Make all measurements. Raises `BenchFailed`."""
    with tempfile.TemporaryDirectory(
        prefix="halley-bench-", dir=plan.data_dir or disk(), ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        shown = {key: value for key, value in asdict(plan).items() if key != "data_dir"}
        date = datetime.now(UTC).isoformat(timespec="seconds")
        found = PipelineFigures(shown, date, is_in_memory=is_in_memory(folder), cores=_core_count())
        if plan.stored:
            await fill_apart(folder / "stock", plan.stored, CHANNELS, watch, hours=HOURS)
            await _measure_lake(plan, folder, found, watch)
        await _measure_rollups(plan, folder, found, watch)
        await _measure_replies(plan, folder, found, watch)
        return found


async def _measure_lake(plan: PipelinePlan, folder: Path, found: PipelineFigures, watch: Watch) -> None:
    """Measure how one Spark session reads, ingests, compacts and queries the stored log."""
    arguments = [str(folder / "stock"), str(folder / "lake"), plan.master, str(plan.rounds)]
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *side_command("lake"),
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=errors,
            env=side_environment() | {"TMPDIR": str(folder)},
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            done = 0
            async for line in process.stdout:
                measured = json.loads(line)
                found.lake.setdefault(measured.pop("name"), []).append(measured)
                done += 1
                watch(Phase("Spark", done, 3 * plan.rounds + plan.stored / 500_000 + 2, "steps"))
            if await process.wait():
                raise BenchFailed(f"Spark has failed: {last_line(errors)}")
        finally:
            await kill(process)


async def _measure_rollups(plan: PipelinePlan, folder: Path, found: PipelineFigures, watch: Watch) -> None:
    """Measure how soon rollups are published under a load."""
    data_dir = folder / "rollups"
    async with started(halley_command(data_dir=data_dir), is_pinned=False) as target:
        server = _url(target)
        on_phase = noted(watch, "rollups")
        async with jobs(server, data_dir, plan.master, target.cores, folder) as running:
            await running.during(first_rollup(server, on_phase))
            result, times = await running.during(_timed(plan, target, on_phase))
    found.take_load("rollups", result)
    found.take_rollups(times)


async def _timed(plan: PipelinePlan, target: Target, watch: Watch) -> tuple[Result, Rollups]:
    """Put a load on the server, and measure rollups once its warm-up is over."""
    is_measuring = asyncio.Event()

    def on_phase(phase: Phase) -> None:
        if phase.name == "measuring":
            is_measuring.set()
        watch(phase)

    async def timed() -> Rollups:
        await is_measuring.wait()
        return await rollups(_url(target), plan.seconds)

    return cast("tuple[Result, Rollups]", await together([measure(plan.load(), target, on_phase), timed()]))


async def _measure_replies(plan: PipelinePlan, folder: Path, found: PipelineFigures, watch: Watch) -> None:
    """Measure how soon the server replies under a load, without the pipeline and with it."""
    for phase in ("off", "on"):
        data_dir = folder / phase
        async with started(halley_command(data_dir=data_dir), is_pinned=plan.is_pinned) as target:
            found.is_pinned = bool(target.cores)
            on_phase = noted(watch, f"pipeline {phase}")
            if phase == "off":
                found.take_load(phase, await measure(plan.load(), target, on_phase))
                continue
            server = _url(target)
            async with jobs(server, data_dir, plan.master, target.cores, folder) as running:
                await running.during(first_rollup(server, on_phase))
                found.take_load(phase, await running.during(measure(plan.load(), target, on_phase)))
                found.behind = await running.during(behind(server))


def _url(target: Target) -> str:
    return f"http://{urlsplit(target.url).netloc}"


STAGES = "as ingested", "compacted"
"""The states in which the lake's table is queried."""

QUANTILES = {"p50": 0.5, "p95": 0.95}
"""The quantiles of the times from publish to rollup."""

_SIZES = "rows", "files", "skipped"
_PHASES = {"rollups": "rollups", "off": "replies without the pipeline", "on": "replies with the pipeline"}


@dataclass(slots=True)
class PipelineFigures:
    """The figures that were measured. A figure that was not measured is missing, or None.

    cores        cores of the machine; `is_pinned`: whether the server had its own core while replies were timed
    lake         each round's report, by name (`session`, `source`, `ingest`, `compact`, `query`)
    rollup_ms    times from a publish until a subscriber received the first rollup that includes it; `rollups_missed`
                 is the number of publishes that were in no rollup
    reply_ms     times of the load's publishes, by phase (`off`: without the pipeline, `on`: with it, `rollups`), by
                 quantile
    publishes_per_s, unsent    of the load, by phase: the rate reached, and the publishes that were due but not sent
    behind       events not yet ingested when the load with the pipeline ended: an idle pipeline costs nothing
    wrong        faults, which a healthy server with a healthy pipeline does not have
    warnings     reasons to doubt figures
    """

    plan: dict[str, Any]
    date: str
    is_in_memory: bool
    cores: int
    is_pinned: bool = False
    lake: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rollup_ms: list[float] = field(default_factory=list)
    rollups_missed: int = 0
    reply_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    publishes_per_s: dict[str, float] = field(default_factory=dict)
    unsent: dict[str, int] = field(default_factory=dict)
    behind: int | None = None
    wrong: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether everything went as it should; speed does not count."""
        return not self.wrong

    def take_load(self, phase: str, result: Result) -> None:
        """Add the result of a load on the server."""
        self.reply_ms[phase] = result.latency_ms
        self.publishes_per_s[phase] = result.publishes_per_s
        self.unsent[phase] = result.unsent
        name = _PHASES[phase]
        if not result.is_clean:
            self.wrong.append(f"{name}: {result.lost} lost, {result.repeated} repeated, errors {result.errors}")
        if result.unsent:
            self.warnings.append(
                f"{name}: {result.unsent:,} due publishes were not sent, because no publisher was free"
            )
        if result.limit == "load":
            self.warnings.append(f"{name}: the load generator was the limit")

    def take_rollups(self, found: Rollups) -> None:
        """Add the times of rollups."""
        self.rollup_ms, self.rollups_missed = found.took_ms, found.missed
        if found.missed:
            of = found.missed + len(found.took_ms)
            self.wrong.append(
                f"rollups: {found.missed} of {of} publishes were not in a rollup after {found.waited_s:g} s"
            )

    def rate(self, name: str) -> float | None:
        """Return rows per second, the median of the rounds; without ingest's first batch, in which Spark warms up."""
        rounds = self.lake.get(name, [])[1 if name == "ingest" else 0 :]
        rates = [each["rows"] / each["seconds"] for each in rounds if each["rows"] and each["seconds"]]
        return median(rates) if rates else None

    def query(self, stage: str) -> dict[str, Any] | None:
        """Return the median time of the queries at a stage, and what they read, which is the same in each round."""
        rounds = [each for each in self.lake.get("query", []) if each["stage"] == stage]
        if not rounds:
            return None
        return {"seconds": median(each["seconds"] for each in rounds)} | {name: rounds[0][name] for name in _SIZES}

    def rollup(self, name: str) -> float | None:
        """Return a quantile of the times to a rollup, in ms; missed rollups rank as the slowest, and have no time."""
        ranked = sorted(self.rollup_ms)
        at = math.ceil(QUANTILES[name] * (len(ranked) + self.rollups_missed)) - 1
        return ranked[at] if 0 <= at < len(ranked) else None

    def as_json(self) -> dict[str, Any]:
        """Return the results as they are saved and compared."""
        medians: dict[str, Any] = {name: self.rate(name) for name in ("source", "ingest", "compact")}
        medians["query"] = {stage: self.query(stage) for stage in STAGES}
        medians["rollup_ms"] = {name: self.rollup(name) for name in QUANTILES}
        return {"verb": "pipeline", "load": self.plan, "medians": medians, **asdict(self)}


Line = tuple[str, str]

_NONE = "not measured"


def pipeline_table(found: PipelineFigures) -> str:
    """Return all results as a table, each part below the conditions under which it was measured, and warnings."""
    parts = []
    if found.plan["stored"]:
        parts.append((_lake_title(found), [*_lake(found)]))
    parts += [(_rollups_title(found), [*_rollups(found)]), (_replies_title(found), [*_replies(found)])]
    width = max(len(name) for _, lines in parts for name, _ in lines)
    text = [line for title, lines in parts for line in (title, *(f"  {name:<{width}}  {cell}" for name, cell in lines))]
    return "\n".join([*text, *_warnings(found)])


def _warnings(found: PipelineFigures) -> Iterator[str]:
    yield from found.warnings
    if found.is_in_memory:
        yield "The log and the lake were in memory, not on a disk: use --data-dir."
    yield from found.wrong


def _lake_title(found: PipelineFigures) -> str:
    rounds = "1 round" if found.plan["rounds"] == 1 else f"medians of {found.plan['rounds']} rounds"
    return (
        f"lake: {found.plan['stored']:,} events stored; master {found.plan['master']}, nothing else running; {rounds}"
    )


def _lake(found: PipelineFigures) -> Iterator[Line]:
    names = {"source": "read from the log", "ingest": "ingested, after the first batch", "compact": "compacted"}
    for name, what in names.items():
        per_s = found.rate(name)
        yield what, _NONE if per_s is None else f"{per_s:,.0f} rows/s"
    for stage in STAGES:
        query = found.query(stage)
        read = query and f"{query['rows']:,} rows; {query['files']} files read, {query['skipped']} skipped"
        yield f"one channel, one hour, {stage}", f"{query['seconds']:.2f} s, {read}" if query else _NONE


def _rollups_title(found: PipelineFigures) -> str:
    return f"rollups: {_load(found, 'rollups')}; server, load and pipeline on the same {_cores(found.cores)}"


def _rollups(found: PipelineFigures) -> Iterator[Line]:
    for name in QUANTILES:
        took_ms = found.rollup(name)
        yield f"publish to rollup, {name}", _NONE if took_ms is None else f"{took_ms:,.0f} ms"


def _replies_title(found: PipelineFigures) -> str:
    where = f"server, load and pipeline on the same {_cores(found.cores)}"
    if found.is_pinned:
        where = f"the server on its own core, load and pipeline on {_cores(found.cores - 1)}"
    return f"replies: {_load(found, 'off', 'on')}; {where}"


def _replies(found: PipelineFigures) -> Iterator[Line]:
    for name in ("p50", "p99"):
        off, on = (found.reply_ms.get(phase, {}).get(name) for phase in ("off", "on"))
        cell = _NONE
        if off and on is not None:
            cell = f"{off:.2f} ms, with the pipeline {on:.2f} ms, {on / off:.2f} x"
        yield f"reply, {name}", cell
    reached_per_s = found.publishes_per_s.get("on")
    behind = _NONE
    if found.behind is not None and reached_per_s:
        behind = f"{found.behind:,} events, {found.behind / reached_per_s:.1f} s of publishes"
    yield "not yet ingested at the end", behind


def _load(found: PipelineFigures, *phases: str) -> str:
    """Describe the load, with the rate that was reached if it is lower than the plan's."""
    plan = found.plan
    rate = f"{plan['rate']:,.0f}"
    if any(found.unsent.get(phase) for phase in phases):
        rate = f"{min(found.publishes_per_s[phase] for phase in phases):,.0f} of {rate}"
    return f"{rate} publishes/s for {plan['seconds']:g} s after a warm-up of {plan['warm_up_s']:g} s"


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _core_count() -> int:
    """Return the number of cores on which this process can run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
