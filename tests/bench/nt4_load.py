"""The worker that measures NetworkTables' fan-out: `python -m bench.nt4_load`, a publisher and its subscribers.

It executes the orders `open`, then any number of `paced`: publish at a rate, with a frame of values every few
milliseconds. `nt4.py` leads it. It reads frames itself and does not use Halley's client, for speed: twenty subscribers
receive two million values per second on one core, since all that is read of a frame of values is its length and its
last value, which is a time.
"""

from __future__ import annotations

import json
import struct
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench.websocket_load import BINARY, TEXT, FanOutLoad, WebSocketLink, frame

from halley.bench.orders import Orders, run_worker
from halley.bench.tally import percentiles

TOPIC = "/bench/x"
MOST_VALUES = 2_000
"""The maximum number of values in one of the publisher's frames."""

_US = 1_000_000
_APART_S = 0.002
_PUBUID = 1
_TIME = b"\x94\xff\x00\x02\x00"  # [-1, 0, int, 0]: a request for the server's time
_VALUE = struct.Struct("!BBBQBBd")
_DOUBLE = struct.Struct("!d")


def values(count: int, now_s: float) -> bytes:
    """Return a frame of `count` doubles, each with the value `now_s`."""
    return frame(_VALUE.pack(0x94, _PUBUID, 0xCF, int(time.time() * 1e6), 1, 0xCB, now_s) * count, BINARY)


class Nt4Link(WebSocketLink):
    """A client that publishes or subscribes to the topic of the bench; create it with `open`.

    When values arrive, a subscriber's `on_values` is called with their number and the time in the last one. `values`
    counts them all; `flushes` counts how often values arrived after a pause.
    """

    subprotocol = "v4.1.networktables.first.wpi.edu"

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self.values = self.flushes = 0
        self.on_values: Callable[[int, float], object] = lambda *_: None
        self._value_bytes = 0
        self._last_s = 0.0

    def counted(self, frames: int, octets: int, data: bytes, start: int, end: int) -> None:
        """Count the values in received frames, and report them to `on_values`."""
        now_s = time.monotonic()
        if now_s - self._last_s > _APART_S:
            self.flushes += 1
        self._last_s = now_s
        if not self._value_bytes or octets % self._value_bytes:
            self.lost(f"the server sent {octets} bytes of values, but a value has {self._value_bytes} bytes")
            return
        count = octets // self._value_bytes
        self.values += count
        self.on_values(count, _DOUBLE.unpack_from(data, end - 8)[0])

    def handle(self, head: int, payload: bytes) -> bool:
        """Handle an announce or, for a publisher, the reply with the server's time."""
        if head == TEXT:
            for message in json.loads(payload):
                if message["method"] == "announce":
                    self._announced(message["params"]["id"])
        elif head == BINARY:
            self.answered()
        return head in (TEXT, BINARY)

    def _announced(self, topic_id: int) -> None:
        id_bytes = next(size for size, most in ((1, 0x7F), (2, 0xFF), (3, 0xFFFF), (5, 0xFFFFFFFF)) if topic_id <= most)
        self._value_bytes = _VALUE.size - 1 + id_bytes
        self.answered()

    async def publish(self) -> None:
        """Send the publish message, and wait until the server must have processed it. Raises `BenchFailed`."""
        publish = _message("publish", name=TOPIC, pubuid=_PUBUID, type="double", properties={})
        await self.ask(publish + frame(_TIME, BINARY))

    async def subscribe(self, periodic_s: float) -> None:
        """Subscribe to every value, and wait for the announce. Raises `BenchFailed`."""
        self.counted_head = BINARY
        options = {"all": True, "periodic": periodic_s}
        await self.ask(_message("subscribe", topics=[TOPIC], subuid=1, options=options))


def _message(method: str, **params: Any) -> bytes:
    return frame(json.dumps([{"method": method, "params": params}]).encode())


class Nt4Load(FanOutLoad):
    """The publisher, which writes every `every_s`, and the subscribers, which request all values every `periodic_s`.

    If no value arrives for `grace_s` after the end, missing ones are given up.
    """

    def __init__(self, url: str, subscribers: int, periodic_s: float, every_s: float, grace_s: float) -> None:
        super().__init__(grace_s)
        self._url = url
        self._count = subscribers
        self._periodic_s = periodic_s
        self._every_s = every_s
        self._subscribers: list[Nt4Link] = []
        self._publisher: Nt4Link | None = None
        self._last_s = 0.0
        self._took_us: Counter[int] = Counter()

    async def open(self) -> dict[str, Any]:
        """Connect all; the publisher first, so that its topic has a small id on every server."""
        self._publisher = await Nt4Link.open(self._url)
        await self._publisher.publish()
        for _ in range(self._count):
            link = await Nt4Link.open(self._url)
            self._subscribers.append(link)
            await link.subscribe(self._periodic_s)
            link.on_values, link.lost = self._received, self.fail
        self._publisher.lost = self.fail
        self.begin()
        return {}

    async def paced(self, rate: float, seconds: float) -> dict[str, Any]:
        """Publish `rate` values per second and return the counts.

        The lag is the time from writing the newest value of each flush until it is received.
        """
        assert self._publisher is not None
        self._took_us, self.arrived = Counter(), 0
        before = [(link.values, link.flushes) for link in self._subscribers]
        busy_s, began_s, published = time.process_time(), time.monotonic(), 0
        while (now_s := time.monotonic()) - began_s < seconds:
            due = int((now_s - began_s) * rate) - published
            while due > 0 and not self._publisher.transport.get_write_buffer_size():  # else the server holds it back
                self._publisher.transport.write(values(min(due, MOST_VALUES), now_s))
                published += min(due, MOST_VALUES)
                due -= MOST_VALUES
            await self.wait(self._every_s)
        published_s = time.monotonic() - began_s
        await self.settle(lambda: published * self._count)
        took_s = max(self._last_s - began_s, published_s)
        busy_s = time.process_time() - busy_s
        received = [link.values - count for link, (count, _) in zip(self._subscribers, before, strict=True)]
        flushes = sum(link.flushes - count for link, (_, count) in zip(self._subscribers, before, strict=True))
        return {
            "published": published,
            "offered_per_s": published / published_s,
            "deliveries": sum(received),
            "repeated": sum(max(each - published, 0) for each in received),
            "seconds": took_s,
            "flushes_per_s": flushes / took_s / self._count,
            "lag_ms": percentiles(self._took_us),
            "load_cpu_share": busy_s / took_s,
        }

    def _received(self, count: int, sent_s: float) -> None:
        now_s = time.monotonic()
        self.arrived += count
        self._last_s = now_s
        self._took_us[int((now_s - sent_s) * _US)] += 1


def _begin(_: Callable[..., None], **arguments: Any) -> Orders:
    load = Nt4Load(**arguments)
    return {"open": load.open, "paced": load.paced}


if __name__ == "__main__":
    run_worker(_begin)
