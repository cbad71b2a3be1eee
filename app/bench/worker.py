"""One load process: `python -m app.bench.worker`.

It takes orders as JSON lines on its standard input and replies on its standard output. The first line has its share of
the load; `open`, `prepare`, `round` and `settle` follow. It ends when its input ends, so it cannot outlive the process
that started it. `fleet.py` is the other side.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from app.bench.crowd import Crowd
from app.bench.failure import BenchFailed
from app.bench.load import Load, Share
from app.bench.load_process import be_load_process
from app.bench.pace import ClosedLoop, Groups, OpenLoop, Pace
from app.bench.tally import Tally

_TOLD_EVERY_S = 0.2
_RENEWED_EVERY_S = 4.0  # servers end a session that has not connected for 10 s
_STALLED_S = 2.0
_NS = 1_000_000_000


class Worker:
    """The sessions of one process, and their counts. `tell` sends a message to the leading process."""

    def __init__(self, share: Share, url: str, token: str | None, tell: Callable[..., None]) -> None:
        self._share = share
        self._tell = tell
        self._tally = Tally()
        self._tally.lost_all = self._lost_all
        self.crowd = Crowd(share, url, token, self._tally)
        self._pace: Pace | None = None
        self._ruined: asyncio.Future[None] | None = None
        self._fan = (share.receivers if share.load.is_shared else 1) if share.receivers else 0

    async def open(self, receivers: int) -> None:
        """Open sessions until there are `receivers` receivers, after the last one the publishers; report the times."""
        connected, connecting_s = await self.crowd.open(receivers, lambda count: self._tell(opened=count))
        if receivers == self._share.receivers:
            self._set_pace()
        self._tell(ready=True, connected=connected, connecting_s=connecting_s)

    def _set_pace(self) -> None:
        share, load, publishers = self._share, self._share.load, self.crowd.publishers
        if not publishers:
            return
        if load.is_shared or not share.receivers:
            channels = [range(share.first_channel, share.first_channel + share.channels)]
        else:
            channels = [share.channels_of(receiver) for receiver in range(share.receivers)]
        groups = Groups(share.first_group, channels)
        if load.rate:
            self._pace = OpenLoop(publishers, groups, self._tally, batch=load.batch, rate=share.rate)
        elif load.verb != "idle":
            self._pace = ClosedLoop(
                publishers, groups, self._tally, batch=load.batch, fan=self._fan, has_others=share.has_others
            )

    async def prepare(self, number: int) -> None:
        """Prepare for the events of a round; no process may publish before all are prepared."""
        self._tally.begin(number)
        for receiver in self.crowd.receivers:
            receiver.begin()
        if self._fan and self._share.load.is_shared and not self._share.load.rate and self._pace is None:
            self._tell_arrivals()
        gc.collect()
        gc.freeze()
        gc.disable()  # no cycles are created here, and pauses of the collector would look like the server's
        self._tell(prepared=True)

    async def round(self, seconds: float) -> None:
        """Run the load for some seconds, and report how many events were published."""
        tally, pace = self._tally, self._pace
        self._ruined = asyncio.get_running_loop().create_future()
        before_s, began_ns = time.process_time(), time.monotonic_ns()
        beats = asyncio.create_task(self._beat())
        try:
            if pace is not None:
                pace.begin()
            await self._unless_ruined(seconds)
            busy_s, took_s = time.process_time() - before_s, (time.monotonic_ns() - began_ns) / _NS
            if pace is not None:
                pace.stop()
                await self._until(lambda: pace.is_done)
                if pace.unanswered:
                    tally.errors["publish unanswered"] += pace.unanswered
            self._tell(published=tally.published, began_ns=began_ns, seconds=took_s, busy_share=busy_s / took_s)
        finally:
            beats.cancel()

    async def settle(self, published: int) -> None:
        """Wait for events that are still under way, and report all counts; `published` is by all processes."""
        share, tally = self._share, self._tally
        expected = self._expected(published)
        await self._until(lambda: tally.deliveries >= sum(expected))
        lost = sum(receiver.settle(count) for receiver, count in zip(self.crowd.receivers, expected, strict=True))
        latencies = Counter(tally.latencies_us)
        self._ruined = None
        self._tell(
            report={
                "deliveries": tally.deliveries,
                "expected": sum(expected),
                "lost": lost,
                "repeated": tally.repeated,
                "polls": tally.polls,
                "acknowledged": tally.acknowledged,
                "unsent": tally.unsent,
                "errors": dict(tally.errors),
                "last_ns": tally.last_ns,
                "latencies_us": [list(latencies.keys()), list(latencies.values())],
                "process": share.number,
            }
        )

    def elsewhere(self, arrived: int) -> None:
        """Take the number of events that have arrived at all receivers in the other processes."""
        if isinstance(self._pace, ClosedLoop):
            self._pace.arrived_elsewhere(arrived)

    def _expected(self, published: int) -> list[int]:
        if self._share.load.is_shared:
            return [published] * len(self.crowd.receivers)
        return self._pace.groups.published[:] if self._pace and self.crowd.receivers else []

    def _tell_arrivals(self) -> None:
        """Report each event that has arrived at all receivers here to the process that publishes in a closed loop."""
        tally, fan = self._tally, self._fan

        def reached() -> None:
            arrived = tally.deliveries // fan
            tally.goal = (arrived + 1) * fan
            self._tell(arrived=arrived)

        tally.goal = fan
        tally.reached = reached

    async def _beat(self) -> None:
        """Report progress, keep the publishers' sessions alive, and detect a closed loop that stalls."""
        loop = asyncio.get_running_loop()
        tally, renewed_s = self._tally, loop.time()
        moved_s, moved = loop.time(), -1
        while True:
            await asyncio.sleep(_TOLD_EVERY_S)
            now_s, count = loop.time(), tally.deliveries
            self._tell(progress=[count, tally.acknowledged, sum(tally.errors.values())])
            if self._pace is not None and now_s - renewed_s >= _RENEWED_EVERY_S:
                self._pace.renew()
                renewed_s = now_s
            if count != moved:
                moved_s, moved = now_s, count
            elif now_s - moved_s >= _STALLED_S and isinstance(self._pace, ClosedLoop):
                self._pace.write_off()
                moved_s = now_s

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, for at most `grace_s` and as long as there are connections."""
        end_ns = time.monotonic_ns() + int(self._share.load.grace_s * _NS)
        while not condition() and time.monotonic_ns() < end_ns:
            await self._unless_ruined(0.01)

    async def _unless_ruined(self, seconds: float) -> None:
        assert self._ruined is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ruined)

    def _lost_all(self) -> None:
        if self._ruined is not None and not self._ruined.done():
            self._ruined.set_exception(BenchFailed("the server has closed every connection"))


def _tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def _work() -> None:
    """Execute orders until standard input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    plan = json.loads(await reader.readline())
    share = Share(**{**plan["share"], "load": Load(**plan["share"]["load"])})
    worker = Worker(share, plan["url"], plan["token"], _tell)
    orders: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "open": worker.open,
        "prepare": worker.prepare,
        "round": worker.round,
        "settle": worker.settle,
    }
    order: asyncio.Task[None] | None = None
    try:
        async for line in reader:
            message = json.loads(line)
            what = message.pop("do")
            if what == "elsewhere":
                worker.elsewhere(**message)
            else:
                order = asyncio.create_task(_obey(orders[what](**message)))
    finally:
        if order is not None:
            order.cancel()
        worker.crowd.close()


async def _obey(work: Any) -> None:
    try:
        await work
    except BenchFailed as error:
        _tell(failed=str(error))
    except Exception as error:
        _tell(failed=f"a load process failed: {error!r}")
        raise


if __name__ == "__main__":
    be_load_process(_work)
