"""A worker of a Bayeux load: `python -m halley.bench.worker`, led by `coordinator.py`.

It begins with its share of the load, and executes the orders `open`, `prepare`, `round` and `settle`; `others_arrived`
says what arrived in other workers. A worker for another protocol differs in its `Sessions` only (`begin`).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from halley.bench.load import BenchFailed, Load, Share
from halley.bench.loops import ClosedLoop, LoadLoop, OpenLoop
from halley.bench.orders import Orders, run_worker
from halley.bench.sessions import Sessions
from halley.bench.tally import COUNTS, Tally

_REPORTED_EVERY_S = 0.2
_RENEWED_EVERY_S = 4.0  # servers end a session that has not connected for 10 s
_STALLED_S = 2.0
_NS = 1_000_000_000

MakeSessions = Callable[[Share, str, str | None, Tally], Sessions]
"""A kind of `Sessions`, or what makes them."""


class Worker:
    """The sessions of a worker, their load, and their counts; `report` sends a report to the coordinator."""

    def __init__(
        self, kind: MakeSessions, share: Share, url: str, token: str | None, report: Callable[..., None]
    ) -> None:
        self._share = share
        self._report = report
        self._tally = Tally()
        self._tally.lost_all = self._lost_all
        self._sessions = kind(share, url, token, self._tally)
        self._loop: LoadLoop | None = None
        self._failure: asyncio.Future[None] | None = None

    async def open(self, receivers: int) -> dict[str, Any]:
        """Open sessions until there are `receivers` receivers, after the last one the publishers; report the times."""
        connected, connecting_s = await self._sessions.open(receivers, lambda count: self._report(opened=count))
        load, publishers = self._share.load, self._sessions.publishers  # none before the last receiver
        if publishers and (load.rate or load.verb != "idle"):
            self._loop = (OpenLoop if load.rate else ClosedLoop)(publishers, self._tally, self._share)
        return {"connected": connected, "connecting_s": connecting_s}

    async def prepare(self, number: int) -> None:
        """Prepare for the events of a round; no worker may publish before all are prepared."""
        self._tally.begin(number)
        for receiver in self._sessions.receivers:
            receiver.begin()
        if self._share.fan and self._share.load.is_shared and not self._share.load.rate and self._loop is None:
            self._report_arrivals()
        gc.collect()
        gc.freeze()
        gc.disable()  # no cycles are created here, and pauses of the collector would look like the server's

    async def round(self, seconds: float, events: int = 0) -> dict[str, Any]:
        """Run the load for some seconds, and report how many events were published.

        If `events` is not 0, it ends as soon as each receiver has got that number of them.
        """
        tally, loop = self._tally, self._loop
        deliveries = events * len(self._sessions.receivers)
        self._failure = asyncio.get_running_loop().create_future()
        before_s, began_ns = time.process_time(), time.monotonic_ns()
        heartbeat = asyncio.create_task(self._heartbeat())
        try:
            if loop is not None:
                loop.begin()
            if events:
                await self._until(lambda: tally.deliveries >= deliveries, seconds)
            else:
                await self._wait(seconds)
            busy_s, took_s = time.process_time() - before_s, (time.monotonic_ns() - began_ns) / _NS
            if loop is not None:
                loop.stop()
                await self._until(lambda: not loop.unanswered, self._share.load.grace_s)
                if loop.unanswered:
                    tally.errors["publish unanswered"] += loop.unanswered
            return {
                "published": tally.published,
                "began_ns": began_ns,
                "seconds": took_s,
                "busy_share": busy_s / took_s,
            }
        finally:
            heartbeat.cancel()

    async def settle(self, published: int) -> dict[str, Any]:
        """Wait for events that are still under way, and report all counts; `published` is by all workers."""
        tally = self._tally
        expected = self._expected(published)
        await self._until(lambda: tally.deliveries >= sum(expected), self._share.load.grace_s)
        lost = sum(receiver.settle(count) for receiver, count in zip(self._sessions.receivers, expected, strict=True))
        latencies = Counter(tally.latencies_us)
        self._failure = None
        return {
            "counts": {"lost": lost, **{name: getattr(tally, name) for name in COUNTS}},
            "errors": dict(tally.errors),
            "last_ns": tally.last_ns,
            "latencies_us": [list(latencies.keys()), list(latencies.values())],
        }

    def others_arrived(self, arrived: int) -> None:
        """Take the number of events that have arrived at all receivers in the other workers."""
        if isinstance(self._loop, ClosedLoop):
            self._loop.others_arrived(arrived)

    def _expected(self, published: int) -> list[int]:
        if self._share.load.is_shared:
            return [published] * len(self._sessions.receivers)
        return self._loop.groups.published[:] if self._loop and self._sessions.receivers else []

    def _report_arrivals(self) -> None:
        """Report each event that has arrived at all receivers here to the worker that publishes in a closed loop."""
        tally, fan = self._tally, self._share.fan

        def reached() -> None:
            arrived = tally.deliveries // fan
            tally.goal = (arrived + 1) * fan
            self._report(arrived=arrived)

        tally.goal = fan
        tally.reached = reached

    async def _heartbeat(self) -> None:
        """Report progress, keep the publishers' sessions alive, and detect a closed loop that stalls."""
        loop = asyncio.get_running_loop()
        tally, renewed_s = self._tally, loop.time()
        moved_s, moved = loop.time(), -1
        while True:
            await asyncio.sleep(_REPORTED_EVERY_S)
            now_s, count = loop.time(), tally.deliveries
            self._report(progress=[count, tally.acknowledged, sum(tally.errors.values())])
            if self._loop is not None and now_s - renewed_s >= _RENEWED_EVERY_S:
                self._loop.renew()
                renewed_s = now_s
            if count != moved:
                moved_s, moved = now_s, count
            elif now_s - moved_s >= _STALLED_S and isinstance(self._loop, ClosedLoop):
                self._loop.write_off()
                moved_s = now_s

    async def _until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Wait for a condition, at most for a time, and as long as there are connections."""
        end_ns = time.monotonic_ns() + int(within_s * _NS)
        while not condition() and time.monotonic_ns() < end_ns:
            await self._wait(0.01)

    async def _wait(self, seconds: float) -> None:
        assert self._failure is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._failure)

    def _lost_all(self) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_exception(BenchFailed("the server has closed every connection"))


def begin(
    kind: MakeSessions, report: Callable[..., None], share: dict[str, Any], url: str, token: str | None
) -> Orders:
    """Return the orders of a worker with sessions of this kind, for `run_worker`."""
    worker = Worker(kind, Share(**{**share, "load": Load(**share["load"])}), url, token, report)
    names = ("open", "prepare", "round", "settle", "others_arrived")
    return {name: getattr(worker, name) for name in names}


if __name__ == "__main__":
    run_worker(partial(begin, Sessions))
