"""The load's side of one WAMP session: a WebSocket, just enough of WAMP to join and subscribe, and a count of events.

Written for speed, since a hundred of these share a core: frames are found by their headers, events counted by how
they begin, and nothing of them is parsed but, where somebody asks, the number that the publisher gave them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from app.bench.failure import BenchFailed

if TYPE_CHECKING:
    from collections.abc import Callable

REALM, TOPIC = "realm1", "com.halley.bench"
SUBPROTOCOL = "wamp.2.json"

_TEXT, _PING, _PONG = 0x81, 0x89, 0x8A  # whole messages; no router has a reason to send events in pieces
_MASKED = 0x80
_NO_MASK = b"\0\0\0\0"  # a client must mask; by this it changes nothing
_EVENT = b"[36,"
_WELCOME, _SUBSCRIBED = 2, 33
_ANSWER_S = 20.0
_HELLO: dict[str, Any] = {"roles": {"publisher": {}, "subscriber": {}}}


def frame(payload: bytes, head: int = _TEXT) -> bytes:
    """A client's WebSocket frame."""
    length = len(payload)
    if length < 126:
        return struct.pack("!BB", head, _MASKED | length) + _NO_MASK + payload
    return struct.pack("!BBH", head, _MASKED | 126, length) + _NO_MASK + payload


class WampLink(asyncio.Protocol):
    """Make it with `joined`.

    `events` counts those that came; `heard` is told how many after each read, `each` the number of every single one.
    `lost` is told why the router can be used no more.
    """

    transport: asyncio.Transport

    def __init__(self, host: str, path: str) -> None:
        self.events = 0
        self.heard: Callable[[int], object] = lambda _: None
        self.each: Callable[[WampLink, int], object] | None = None
        self.lost: Callable[[str], object] = self._refused
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        ).encode()
        self._rest = b""
        self._last = b""
        self._is_open = False
        self._is_left = False
        self._answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    @property
    def last(self) -> int:
        """The number of the event that came last; 0 before the first."""
        return _number(self._last, 0, len(self._last)) if self._last else 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a WebSocket."""
        self.transport = cast("asyncio.Transport", transport)
        transport.write(self._request)  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so, unless it was our wish."""
        if not self._is_left:
            self.lost(f"the router has closed a connection{f': {exc}' if exc else ''}")

    def data_received(self, data: bytes) -> None:
        """Count the events in what came; hand out the rest."""
        if self._rest:
            data = self._rest + data
        at, end, events = 0, len(data), 0
        if not self._is_open:
            at = self._open(data)
            if not self._is_open:
                self._rest = data
                return
        last = (0, 0)
        while end - at >= 2:
            length, start = data[at + 1], at + 2
            if length >= 126:
                start = at + (4 if length == 126 else 10)
                length = int.from_bytes(data[at + 2 : start], "big")
            after = start + length
            if after > end:
                break
            if data.startswith(_EVENT, start) and data[at] == _TEXT:
                events += 1
                last = start, after
                if self.each is not None:
                    self.each(self, _number(data, start, after))
            else:
                self._came(data[at], data[start:after])
            at = after
        self._rest = data[at:]
        if events:
            self.events += events
            self._last = data[slice(*last)]
            self.heard(events)

    def _open(self, data: bytes) -> int:
        """Where the first frame begins, after the answer to our request."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        if b" 101 " not in data[:16]:
            self.lost(f"the router speaks no {SUBPROTOCOL}: {data[:end].decode('latin-1')[:200]}")
            return 0
        self._is_open = True
        self._answered([])
        return end + 4

    def _came(self, head: int, payload: bytes) -> None:
        if head == _PING:
            self.transport.write(frame(payload, _PONG))
        elif head == _TEXT:
            message = json.loads(payload)
            if message[0] in (_WELCOME, _SUBSCRIBED):
                self._answered(message)
            else:
                self.lost(f"the router said {payload[:200].decode()}")
        else:
            self.lost(f"the router has sent a frame of kind {head:#x}: {payload[:200]!r}")

    def _answered(self, message: list[Any]) -> None:
        if not self._answer.done():
            self._answer.set_result(message)

    def _refused(self, why: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(BenchFailed(why))

    async def ask(self, message: list[Any]) -> None:
        """Say something and wait for its answer. Raises `BenchFailed`."""
        self._answer = asyncio.get_running_loop().create_future()
        self.say(json.dumps(message).encode())
        await self.answer()

    async def answer(self) -> None:
        """Wait for the answer to what was said last; that to our first request may be here already."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._answer
        except TimeoutError:
            raise BenchFailed(f"the router has not answered within {_ANSWER_S:g} s") from None

    def say(self, message: bytes) -> None:
        """Send a message."""
        self.transport.write(frame(message))

    def leave(self) -> None:
        """Close, without a farewell."""
        self._is_left = True
        self.transport.abort()


def _number(data: bytes, start: int, end: int) -> int:
    """The first of an event's arguments; the text after it has no bracket."""
    begins = data.rfind(b"[", start, end) + 1
    return int(data[begins : data.index(b",", begins, end)])


async def joined(url: str) -> WampLink:
    """A session at the router there. Raises `BenchFailed`."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    try:
        _, link = await loop.create_connection(
            lambda: WampLink(parts.netloc, parts.path), parts.hostname or "127.0.0.1", parts.port or 80
        )
    except OSError as error:
        raise BenchFailed(f"cannot connect to {parts.netloc}: {error.strerror or error}") from None
    try:
        await link.answer()
        await link.ask([1, REALM, _HELLO])
    except BaseException:
        link.leave()
        raise
    return link
