"""The load process of `halley bench wamp`: `python -m app.bench.wamp_load`, with one publisher and all its subscribers.

It takes orders as JSON lines on its standard input and replies to each with one on its standard output: `open`, then
any number of `closed` (a number of publications is under way, each until all subscribers have it) and `paced` (a
publication is due at fixed times, and latency counts from then). It ends when its input ends. `wamp.py` is the other
side.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from app.bench.load import BenchFailed
from app.bench.load_process import be_load_process
from app.bench.orders import Orders, obey
from app.bench.tally import percentiles
from app.bench.wamp_link import TOPIC, WampLink, joined, number_of

_NS, _US = 1_000_000_000, 1_000


class WampLoad:
    """The publisher and the subscribers. Publications are numbered from 1, over all phases."""

    def __init__(self, url: str, subscribers: int, payload_chars: int, grace_s: float) -> None:
        self._url = url
        self._count = subscribers
        self._pad = "x" * payload_chars
        self._grace_s = grace_s
        self._subscribers: list[WampLink] = []
        self._publisher: WampLink | None = None
        self._published = self._arrived = self._begun = 0
        self._ruined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._whole: Callable[[], object] = lambda: None
        self._sent_ns: dict[int, int] = {}
        self._took_us: Counter[int] = Counter()
        self._repeated = 0

    async def open(self) -> dict[str, Any]:
        """Connect the publisher and all subscribers, and subscribe."""
        for _ in range(self._count):
            link = await joined(self._url)
            self._subscribers.append(link)
            await link.subscribe()
            link.heard, link.lost = self._heard, self._ruin
        self._publisher = await joined(self._url)
        self._publisher.lost = self._ruin
        gc.collect()
        gc.freeze()
        gc.disable()  # no cycles are created here, and pauses of the collector would look like the router's
        return {}

    async def closed(self, under_way: int, seconds: float) -> dict[str, Any]:
        """Keep `under_way` publications under way for some seconds, and return the counts.

        The latency of a publication is the time until the last subscriber has it.
        """
        end_s = time.monotonic() + seconds

        def whole() -> None:
            now_ns = time.monotonic_ns()
            done = self._begun + self._arrived // self._count
            for number in [each for each in self._sent_ns if each <= done]:
                self._took_us[(now_ns - self._sent_ns.pop(number)) // _US] += 1
            if now_ns < end_s * _NS:
                while self._published - done < under_way:
                    self._publish(time.monotonic_ns())

        return await self._phase(seconds, whole, [None] * under_way)

    async def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        """Publish at fixed times, and return the counts.

        Latencies are of single deliveries, and count from the time at which the publication was due.
        """

        def heard(data: bytes, start: int, end: int) -> None:
            if sent_ns := self._sent_ns.get(number_of(data, start, end)):
                self._took_us[(time.monotonic_ns() - sent_ns) // _US] += 1

        for link in self._subscribers:
            link.each = heard
        try:
            return await self._phase(seconds, lambda: None, [each / rate for each in range(int(rate * seconds))])
        finally:
            for link in self._subscribers:
                link.each = None

    async def _phase(self, seconds: float, whole: Callable[[], None], due_s: list[float | None]) -> dict[str, Any]:
        """Publish at the times `due_s` (seconds from the start; None: immediately), and return the counts.

        `whole` is called whenever another publication has arrived everywhere, and can publish more.
        """
        self._sent_ns, self._took_us, self._arrived, self._begun = {}, Counter(), 0, self._published
        self._whole = whole
        before = [link.events for link in self._subscribers]
        busy_s, began_ns = time.process_time(), time.monotonic_ns()
        for each in due_s:
            due_ns = began_ns + int((each or 0) * _NS)
            await self._unless_ruined((due_ns - time.monotonic_ns()) / _NS)
            self._publish(due_ns)
        await self._unless_ruined((began_ns - time.monotonic_ns()) / _NS + seconds)
        arrived, took_s = self._arrived, (time.monotonic_ns() - began_ns) / _NS
        busy_s = time.process_time() - busy_s
        await self._settle()
        published = self._published - self._begun
        heard = [link.events - events for link, events in zip(self._subscribers, before, strict=True)]
        return {
            "published": published,
            "deliveries": sum(heard),
            "deliveries_per_s": arrived / took_s,
            "seconds": took_s,
            "lost": sum(max(published - each, 0) for each in heard),
            "repeated": sum(max(each - published, 0) for each in heard),
            "disordered": sum(link.last != self._published for link in self._subscribers),
            "latency_ms": percentiles(self._took_us),
            "load_cpu_share": busy_s / took_s,
        }

    async def _settle(self) -> None:
        """Wait for events that are under way, as long as any arrive."""
        seen, seen_s = -1, time.monotonic()
        while self._arrived < (self._published - self._begun) * self._count:
            if self._arrived != seen:
                seen, seen_s = self._arrived, time.monotonic()
            elif time.monotonic() - seen_s >= self._grace_s:
                return
            await self._unless_ruined(0.005)

    async def _unless_ruined(self, seconds: float) -> None:
        """Wait for some seconds. Raises `BenchFailed` if the router can no longer be used."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(self._ruined)

    def _publish(self, due_ns: int) -> None:
        assert self._publisher is not None
        self._published += 1
        self._sent_ns[self._published] = due_ns
        self._publisher.say(
            b'[16,%d,{},"%s",[%d,"%s"]]' % (self._published, TOPIC.encode(), self._published, self._pad.encode())
        )

    def _heard(self, events: int) -> None:
        before = self._arrived // self._count
        self._arrived += events
        if self._arrived // self._count > before:
            self._whole()

    def _ruin(self, why: str) -> None:
        if not self._ruined.done():
            self._ruined.set_exception(BenchFailed(why))


def _begin(**asked: Any) -> Orders:
    load = WampLoad(**asked)
    return {"open": load.open, "closed": load.closed, "paced": load.paced}


if __name__ == "__main__":
    be_load_process(lambda: obey(_begin))
