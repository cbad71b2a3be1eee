"""What the durable history costs: the same loads with it and without it, in turn, and reads of logs of several sizes.

The event loop's lag is measured from outside: while the load runs, an otherwise idle connection sends a poll every few
milliseconds to which the server replies immediately, so the reply takes as long as the loop is busy with other work.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from app.bench.asker import asker, off_the_servers_core
from app.bench.disk import disk, is_in_memory
from app.bench.durability import Durability, Figures
from app.bench.load import Load
from app.bench.measurement import Phase, measure, noted
from app.bench.result import Result
from app.bench.stock import CHANNELS, fill, read
from app.bench.tally import percentiles
from app.bench.target import Target, halley_command, started
from app.bench.wide import RARE_EVENTS, WIDE_CHANNELS, read_wide

Watch = Callable[[Phase], object]

STORED = (10_000, 1_000_000)
_ASKED_EVERY_S = 0.005
_WARM_UP_S = 2.0
_MOST_BYTES = 1 << 40  # of the log, so that retention does not interfere
_SWITCHES = "off", "on"


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the measurement: `rate` is in recorded events per second, while the event loop's lag is measured.

    `stored` are the sizes of the logs that are read, in events; `batch` is the events per request in the batched loads.
    """

    publishers: int = 100
    batch: int = 20
    rate: float = 20_000.0
    stored: Sequence[int] = STORED
    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = _WARM_UP_S
    processes: int = 1
    is_pinned: bool = True
    data_dir: Path | None = None

    def loads(self) -> dict[str, Load]:
        """Return the loads, by name, that are put on a server with the history and on one without it."""
        single = Load(
            "publish",
            publishers=self.publishers,
            seconds=self.seconds,
            warm_up_s=self.warm_up_s,
            processes=self.processes,
        )
        batched = replace(single, batch=self.batch)
        return {
            "single": single,
            "batched": batched,
            "received": replace(single, verb="one-to-one", receivers=1, publishers=1),
            "steady": replace(batched, rate=self.rate),
        }


async def measure_history(plan: Plan, fill_command: Sequence[str], watch: Watch = lambda _: None) -> Durability:
    """Measure every load `plan.rounds` times, and read logs that `fill_command` makes. Raises `BenchFailed`."""
    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=plan.data_dir or disk()) as name:
        folder = Path(name)
        found = Durability(
            plan=_shown(plan),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            is_in_memory=is_in_memory(folder),
        )
        for number in range(1, plan.rounds + 1):
            for load_name, load in plan.loads().items():
                for switch in _SWITCHES if number % 2 else reversed(_SWITCHES):
                    data_dir = folder / f"{load_name}-{number}" if switch == "on" else None
                    async with _serving(plan, data_dir) as target:
                        told = noted(watch, f"{number}/{plan.rounds} {load_name}, {switch}")
                        found.take(load_name, switch, await _loaded(load, target, told))
        for count in plan.stored:
            stock = folder / f"stock-{count}"
            await fill(fill_command, stock, count, watch)
            async with _serving(plan, stock) as target:
                found.stock[count] = await read(target, count, watch)
            found.wide[count] = {}
            for reader, legible in (("all", None), ("rare", RARE_EVENTS)):
                stock = folder / f"wide-{reader}-{count}"
                await fill(fill_command, stock, count, watch, channels=WIDE_CHANNELS, legible=legible)
                async with _serving(plan, stock) as target:
                    found.wide[count][reader] = await read_wide(target, count, watch, is_rare=reader == "rare")
        return found


async def _loaded(load: Load, target: Target, watch: Watch) -> tuple[Result, Figures]:
    """Measure one load; if it has a fixed rate, also measure how long the event loop keeps another client waiting."""
    if not load.rate:
        return await measure(load, target, watch), {}
    with off_the_servers_core(target):
        async with asker(target) as asking:
            measuring = asyncio.create_task(measure(load, target, watch))
            try:
                polls = iter(lambda: b"" if measuring.done() else asking.poll(), b"")
                times_us, _ = await asking.times_us(polls, every_s=_ASKED_EVERY_S)
            finally:
                result = await measuring
    return result, {f"lag_{name}": value for name, value in percentiles(times_us).items()}


def _serving(plan: Plan, data_dir: Path | None) -> AbstractAsyncContextManager[Target]:
    environment = {"HALLEY_HISTORY_MAX_BYTES": str(_MOST_BYTES)}
    return started(halley_command(data_dir=data_dir), is_pinned=plan.is_pinned, environment=environment)


def _shown(plan: Plan) -> dict[str, object]:
    return {
        "publishers": plan.publishers,
        "batch": plan.batch,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "channels": CHANNELS,
    }
