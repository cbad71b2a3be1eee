"""The load's side of one NetworkTables client: publish or subscribe, and a count of values by the bytes they take.

Twenty of these take two million values a second on one core: of a frame of values nothing is read but its length and
the last value, which is a time.
"""

from __future__ import annotations

import json
import struct
import time
from typing import TYPE_CHECKING, Any

from app.bench.websocket_link import BINARY, TEXT, WebSocketLink, frame

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "/bench/x"
MOST_VALUES = 2_000
"""In one of the publisher's frames."""

_APART_S = 0.002
_PUBUID = 1
_TIME = b"\x94\xff\x00\x02\x00"  # [-1, 0, int, 0]: what time is it?
_VALUE = struct.Struct("!BBBQBBd")
_DOUBLE = struct.Struct("!d")


def values(count: int, now_s: float) -> bytes:
    """A frame of doubles, each of which is that time."""
    return frame(_VALUE.pack(0x94, _PUBUID, 0xCF, int(time.time() * 1e6), 1, 0xCB, now_s) * count, BINARY)


class Nt4Link(WebSocketLink):
    """A subscriber's `heard` is told how many values came, and the time in the last of them.

    `values` counts them, `flushes` the pieces that came a while after one another.
    """

    subprotocol = "v4.1.networktables.first.wpi.edu"

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self.values = self.flushes = 0
        self.heard: Callable[[int, float], object] = lambda *_: None
        self._value_bytes = 0
        self._last_s = 0.0

    def counted(self, frames: int, octets: int, data: bytes, start: int, end: int) -> None:  # noqa: ARG002
        """Count the values."""
        now_s = time.monotonic()
        if now_s - self._last_s > _APART_S:
            self.flushes += 1
        self._last_s = now_s
        if not self._value_bytes or octets % self._value_bytes:
            self.lost(f"the server has sent {octets} bytes of values of {self._value_bytes}")
            return
        count = octets // self._value_bytes
        self.values += count
        self.heard(count, _DOUBLE.unpack_from(data, end - 8)[0])

    def takes(self, head: int, payload: bytes) -> bool:
        """An announce; or the time, for a publisher."""
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
        """Begin to publish, and wait until the server must have done it. Raises `BenchFailed`."""
        publish = _message("publish", name=TOPIC, pubuid=_PUBUID, type="double", properties={})
        await self.ask(publish + frame(_TIME, BINARY))

    async def subscribe(self, periodic_s: float) -> None:
        """Hear every value, and wait for the announce. Raises `BenchFailed`."""
        self.counted_head = BINARY
        options = {"all": True, "periodic": periodic_s}
        await self.ask(_message("subscribe", topics=[TOPIC], subuid=1, options=options))


def _message(method: str, **params: Any) -> bytes:
    return frame(json.dumps([{"method": method, "params": params}]).encode())
