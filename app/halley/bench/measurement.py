"""One measurement, from the first connection to the last event: the order of its steps, and when usage is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from halley.bench.coordinator import StartWorker, bayeux_worker, coordinated
from halley.bench.load import BenchFailed, Load
from halley.bench.result import Result, limit, slope_per_minute
from halley.bench.tally import COUNTS, percentiles
from halley.bench.target import Target, Usage

Found = TypeVar("Found")

_REHEARSED = 0.05  # of the receivers, opened first: what the server allocates only once is not memory per session
_REHEARSED_FROM = 200
_SETTLE_S = 0.5
_SAMPLES = 20
_SHORTEST_SAMPLE_S, _LONGEST_SAMPLE_S = 1.0, 10.0
_DEATH_S = 1.0
_AGING_S = 1_800.0
_KB, _MB = 1_000, 1_000_000


class Phase(NamedTuple):
    """The progress of a measurement: `done` of `total` (such as sessions or seconds), and a `note` for the user."""

    name: str
    done: float
    total: float
    note: str


Watch = Callable[[Phase], object]
"""Takes the progress of a measurement."""


async def measure(
    load: Load, target: Target, watch: Watch = lambda _: None, start_worker: StartWorker = bayeux_worker
) -> Result:
    """Put a load on a server and return the result; `watch` is called with the progress. Raises `BenchFailed`.

    `start_worker` starts the processes that are the load, for a server with another protocol than Bayeux.
    """
    return await while_alive(target.died(), _measure(load, target, watch, start_worker))


async def while_alive(died: Coroutine[Any, Any, str], measuring: Coroutine[Any, Any, Found]) -> Found:
    """Return what `measuring` returns. Raises `BenchFailed` if the server ends meanwhile (`Target.died`)."""
    work = asyncio.create_task(measuring)
    death = asyncio.create_task(died)
    try:
        await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and isinstance(work.exception(), BenchFailed):
            await asyncio.wait({death}, timeout=_DEATH_S)  # connections can be lost before the server's end is seen
        if death.done():
            raise BenchFailed(death.result())
        return await work
    finally:
        work.cancel()
        death.cancel()
        await asyncio.wait({work, death})


async def _measure(load: Load, target: Target, watch: Watch, start_worker: StartWorker) -> Result:
    async with coordinated(load, target.url, target.token, target.cores, start_worker) as workers:
        workers.on_progress = lambda opened, *_: watch(Phase("opening", opened, load.sessions, "sessions"))
        before = await target.usage()
        rehearsed = 0
        if load.receivers >= _REHEARSED_FROM:
            rehearsed, _ = await workers.open(_REHEARSED)
            await asyncio.sleep(_SETTLE_S)
            before = await target.usage()
        opened, connects_per_s = await workers.open(1)
        await asyncio.sleep(_SETTLE_S)  # until the last polls are held
        opened_usage = await target.usage()
        if load.age:
            workers.on_progress = _clock("aging", _AGING_S, watch)
            aged = await workers.round(1, _AGING_S, load.age)
            if aged.counts["deliveries"] < load.age * load.receivers:
                raise BenchFailed(f"{load.age:,} events for each receiver take longer than {_AGING_S:g} s")
        elif load.warm_up_s:
            workers.on_progress = _clock("warming up", load.warm_up_s, watch)
            await workers.round(1, load.warm_up_s)
        samples: list[tuple[float, float]] = []
        sampling = asyncio.create_task(_sample(target, load.seconds, samples))
        try:
            begun = await target.usage()
            workers.on_progress = _clock("measuring", load.seconds, watch)
            report = await workers.round(2, load.seconds)
            ended = await target.usage()
        finally:
            sampling.cancel()
            await asyncio.wait({sampling})
    memory_kb, rss_mb = None, []
    if before.rss_bytes is not None and opened_usage.rss_bytes is not None:
        memory_kb = (opened_usage.rss_bytes - before.rss_bytes) / _KB / max(opened, 1)
        rss_mb = [_point(0.0, opened_usage), *samples, _point(report.seconds, ended)]
    cpu_s, _, waited_s = ended.since(begun)
    counts: dict[str, Any] = {name: report.counts[name] for name in (*COUNTS, "lost")}
    units = counts["acknowledged"] if load.verb == "publish" else counts["deliveries"]
    cpu_share = None if cpu_s is None else cpu_s / report.seconds
    return Result(
        load=load,
        server=target.name,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=report.seconds,
        sessions=opened + rehearsed,
        connects_per_s=connects_per_s,
        **counts,
        errors=dict(report.errors),
        publishes_per_s=counts["acknowledged"] / report.seconds,
        deliveries_per_s=counts["deliveries"] / report.seconds,
        latency_ms=percentiles(report.latencies_us),
        server_cpu_us=cpu_s * 1e6 / units if cpu_s is not None and units else None,
        server_cpu_share=cpu_share,
        server_waited_share=None if waited_s is None else waited_s / report.seconds,
        memory_kb=memory_kb,
        rss_mb=rss_mb,
        rss_slope_kb_per_minute=slope_per_minute([(at, mb * _MB / _KB) for at, mb in rss_mb]),
        load_cpu_shares=report.busy_shares,
        limit=limit(report.busy_shares, cpu_share, is_closed=not load.rate and load.verb != "idle"),
    )


async def _sample(target: Target, seconds: float, samples: list[tuple[float, float]]) -> None:
    interval_s = min(max(seconds / _SAMPLES, _SHORTEST_SAMPLE_S), _LONGEST_SAMPLE_S)
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(interval_s)
        usage = await target.usage()
        if usage.rss_bytes is not None:
            samples.append(_point(time.monotonic() - began_s, usage))


def _clock(name: str, seconds: float, watch: Watch) -> Callable[[int, int, int, int], None]:
    """Return what shows the progress of a round that begins now, from the sums over all workers."""
    began_s = time.monotonic()

    def progressed(_: int, deliveries: int, acknowledged: int, errors: int) -> None:
        done = f"{deliveries:,} deliveries" if deliveries else f"{acknowledged:,} publishes"
        note = done + (f", {errors:,} errors" if errors else "")
        watch(Phase(name, min(time.monotonic() - began_s, seconds), seconds, note))

    return progressed


def _point(at_s: float, usage: Usage) -> tuple[float, float]:
    return round(at_s, 1), round((usage.rss_bytes or 0) / _MB, 3)
