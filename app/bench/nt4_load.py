"""The load process of `halley bench nt4`: `python -m app.bench.nt4_load`, with one publisher and all its subscribers.

It takes the order `open`, then any number of `paced`: publish at a rate, with a frame of values every few milliseconds.
`nt4.py` is the other side.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from app.bench.load import BenchFailed
from app.bench.load_process import be_load_process
from app.bench.nt4_link import MOST_VALUES, Nt4Link, values
from app.bench.orders import Orders, obey
from app.bench.tally import percentiles

_US = 1_000_000


class Nt4Load:
    """The publisher, which writes every `every_s`, and the subscribers, which request all values every `periodic_s`.

    If no value arrives for `grace_s` after the end, missing ones are given up.
    """

    def __init__(self, url: str, subscribers: int, periodic_s: float, every_s: float, grace_s: float) -> None:
        self._url = url
        self._count = subscribers
        self._periodic_s = periodic_s
        self._every_s = every_s
        self._grace_s = grace_s
        self._subscribers: list[Nt4Link] = []
        self._publisher: Nt4Link | None = None
        self._arrived = 0
        self._arrived_s = 0.0
        self._took_us: Counter[int] = Counter()
        self._ruined: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> dict[str, Any]:
        """Connect all; the publisher first, so that its topic has a small id on every server."""
        self._publisher = await Nt4Link.open(self._url)
        await self._publisher.publish()
        for _ in range(self._count):
            link = await Nt4Link.open(self._url)
            self._subscribers.append(link)
            await link.subscribe(self._periodic_s)
        for link in (self._publisher, *self._subscribers):
            link.heard, link.lost = self._heard, self._ruin
        gc.collect()
        gc.freeze()
        gc.disable()  # no cycles are created here, and pauses of the collector would look like the server's
        return {}

    async def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        """Publish `rate` values per second and return the counts.

        The lag is the time from writing the newest value of each flush until it is received.
        """
        assert self._publisher is not None
        self._took_us, self._arrived = Counter(), 0
        before = [(link.values, link.flushes) for link in self._subscribers]
        busy_s, began_s, published = time.process_time(), time.monotonic(), 0
        while (now_s := time.monotonic()) - began_s < seconds:
            due = int((now_s - began_s) * rate) - published
            while due > 0 and not self._publisher.transport.get_write_buffer_size():  # else the server holds it back
                self._publisher.transport.write(values(min(due, MOST_VALUES), now_s))
                published += min(due, MOST_VALUES)
                due -= MOST_VALUES
            await self._unless_ruined(self._every_s)
        published_s = time.monotonic() - began_s
        await self._settle(published * self._count)
        took_s = max(self._arrived_s - began_s, published_s)
        busy_s = time.process_time() - busy_s
        heard = [link.values - count for link, (count, _) in zip(self._subscribers, before, strict=True)]
        flushes = sum(link.flushes - count for link, (_, count) in zip(self._subscribers, before, strict=True))
        return {
            "published": published,
            "offered_per_s": published / published_s,
            "deliveries": sum(heard),
            "repeated": sum(max(each - published, 0) for each in heard),
            "seconds": took_s,
            "flushes_per_s": flushes / took_s / self._count,
            "lag_ms": percentiles(self._took_us),
            "load_cpu_share": busy_s / took_s,
        }

    async def _settle(self, expected: int) -> None:
        """Wait for values that are under way, as long as any arrive."""
        seen, seen_s = -1, time.monotonic()
        while self._arrived < expected:
            if self._arrived != seen:
                seen, seen_s = self._arrived, time.monotonic()
            elif time.monotonic() - seen_s >= self._grace_s:
                return
            await self._unless_ruined(self._every_s)

    async def _unless_ruined(self, seconds: float) -> None:
        """Wait for some seconds. Raises `BenchFailed` if the server can no longer be used."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ruined)

    def _heard(self, count: int, sent_s: float) -> None:
        now_s = time.monotonic()
        self._arrived += count
        self._arrived_s = now_s
        self._took_us[int((now_s - sent_s) * _US)] += 1

    def _ruin(self, why: str) -> None:
        if not self._ruined.done():
            self._ruined.set_exception(BenchFailed(why))


def _begin(**asked: Any) -> Orders:
    load = Nt4Load(**asked)
    return {"open": load.open, "paced": load.paced}


if __name__ == "__main__":
    be_load_process(lambda: obey(_begin))
