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
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from app.bench.disk import disk, is_in_memory
from app.bench.jobs import behind, jobs
from app.bench.load import BenchFailed, Load, together
from app.bench.measurement import Phase, measure, noted
from app.bench.pipeline_figures import PipelineFigures
from app.bench.processes import end, last_line
from app.bench.result import Result
from app.bench.rollups import Rollups, first_rollup, rollups
from app.bench.stock import fill
from app.bench.target import Target, core_count, halley_command, started
from app.interpreter import module_command, module_environment

Watch = Callable[[Phase], object]

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


async def measure_pipeline(
    plan: PipelinePlan, fill_command: Sequence[str], watch: Watch = lambda _: None
) -> PipelineFigures:
    """Make all measurements; `fill_command` makes the stored log. Raises `BenchFailed`."""
    with tempfile.TemporaryDirectory(
        prefix="halley-bench-", dir=plan.data_dir or disk(), ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        shown = {key: value for key, value in asdict(plan).items() if key != "data_dir"}
        date = datetime.now(UTC).isoformat(timespec="seconds")
        found = PipelineFigures(shown, date, is_in_memory=is_in_memory(folder), cores=core_count())
        if plan.stored:
            await fill(fill_command, folder / "stock", plan.stored, watch, HOURS)
            await _lake(plan, folder, found, watch)
        await _rollups(plan, folder, found, watch)
        await _replies(plan, folder, found, watch)
        return found


async def _lake(plan: PipelinePlan, folder: Path, found: PipelineFigures, watch: Watch) -> None:
    """Measure how one Spark session reads, ingests, compacts and queries the stored log."""
    arguments = [str(folder / "stock"), str(folder / "lake"), plan.master, str(plan.rounds)]
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *module_command("app.cli.bench_lake"),
            *arguments,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=said,
            env=module_environment() | {"TMPDIR": str(folder)},
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            done = 0
            async for line in process.stdout:
                told = json.loads(line)
                found.lake.setdefault(told.pop("name"), []).append(told)
                done += 1
                watch(Phase("Spark", done, 3 * plan.rounds + plan.stored / 500_000 + 2, "steps"))
            if await process.wait():
                raise BenchFailed(f"Spark has failed: {last_line(said)}")
        finally:
            await end(process)


async def _rollups(plan: PipelinePlan, folder: Path, found: PipelineFigures, watch: Watch) -> None:
    """Measure how soon rollups are published under a load."""
    data_dir = folder / "rollups"
    async with started(halley_command(data_dir=data_dir), is_pinned=False) as target:
        server = _url(target)
        told = noted(watch, "rollups")
        async with jobs(server, data_dir, plan.master, target.cores, folder) as running:
            await running.during(first_rollup(server, told))
            result, times = await running.during(_timed(plan, target, told))
    found.take_load("rollups", result)
    found.take_rollups(times)


async def _timed(plan: PipelinePlan, target: Target, watch: Watch) -> tuple[Result, Rollups]:
    """Put a load on the server, and measure rollups once its warm-up is over."""
    is_measuring = asyncio.Event()

    def told(phase: Phase) -> None:
        if phase.name == "measuring":
            is_measuring.set()
        watch(phase)

    async def timed() -> Rollups:
        await is_measuring.wait()
        return await rollups(_url(target), plan.seconds)

    return cast("tuple[Result, Rollups]", await together([measure(plan.load(), target, told), timed()]))


async def _replies(plan: PipelinePlan, folder: Path, found: PipelineFigures, watch: Watch) -> None:
    """Measure how soon the server replies under a load, without the pipeline and with it."""
    for phase in ("off", "on"):
        data_dir = folder / phase
        async with started(halley_command(data_dir=data_dir), is_pinned=plan.is_pinned) as target:
            found.is_pinned = bool(target.cores)
            told = noted(watch, f"pipeline {phase}")
            if phase == "off":
                found.take_load(phase, await measure(plan.load(), target, told))
                continue
            server = _url(target)
            async with jobs(server, data_dir, plan.master, target.cores, folder) as running:
                await running.during(first_rollup(server, told))
                found.take_load(phase, await running.during(measure(plan.load(), target, told)))
                found.behind = await running.during(behind(server))


def _url(target: Target) -> str:
    return f"http://{urlsplit(target.url).netloc}"
