"""The load's side of one NetworkTables client: it publishes or subscribes, and counts values by their size in bytes.

Twenty of these receive two million values per second on one core, since all that is read of a frame of values is its
length and its last value, which is a time.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Any

from app.bench.websocket_link import BINARY, TEXT, WebSocketLink, frame

TOPIC = "/bench/x"
MOST_VALUES = 2_000
"""The maximum number of values in one of the publisher's frames."""

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

    When values arrive, a subscriber's `heard` is called with their number and the time in the last one. `values` counts
    them all; `flushes` counts how often values arrived after a pause.
    """

    subprotocol = "v4.1.networktables.first.wpi.edu"

    def __init__(self, host: str, path: str) -> None:
        super().__init__(host, path)
        self.values = self.flushes = 0
        self.heard: Callable[[int, float], object] = lambda *_: None
        self._value_bytes = 0
        self._last_s = 0.0

    def counted(self, frames: int, octets: int, data: bytes, start: int, end: int) -> None:  # noqa: ARG002
        """Count the values in received frames, and report them to `heard`."""
        now_s = time.monotonic()
        if now_s - self._last_s > _APART_S:
            self.flushes += 1
        self._last_s = now_s
        if not self._value_bytes or octets % self._value_bytes:
            self.lost(f"the server sent {octets} bytes of values, but a value has {self._value_bytes} bytes")
            return
        count = octets // self._value_bytes
        self.values += count
        self.heard(count, _DOUBLE.unpack_from(data, end - 8)[0])

    def takes(self, head: int, payload: bytes) -> bool:
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
