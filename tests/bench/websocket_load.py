"""The load's side of WebSockets: one sends requests, and counts the messages that a measurement is about.

Written for speed, since very many of these share a core: frames are found by their headers, those to be counted are
recognized by their first bytes, and their payload is not parsed.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self, cast
from urllib.parse import urlsplit

from halley.bench.load import BenchFailed

TEXT, BINARY = 0x81, 0x82  # whole messages; servers have no reason to fragment those that are counted
PING, PONG = 0x89, 0x8A
_MASKED = 0x80
_NO_MASK = b"\0\0\0\0"  # a client must mask its frames; this mask leaves the payload unchanged
_ANSWER_S = 20.0
_LOOKED_EVERY_S = 0.005


def frame(payload: bytes, head: int = TEXT) -> bytes:
    """Return a client's WebSocket frame, with a payload of less than 64 KiB."""
    length = len(payload)
    if length < 126:
        return struct.pack("!BB", head, _MASKED | length) + _NO_MASK + payload
    return struct.pack("!BBH", head, _MASKED | 126, length) + _NO_MASK + payload


class WebSocketLink(asyncio.Protocol):
    """A WebSocket that counts frames; create it with `open`. Each protocol has a subclass.

    Frames with the first byte `counted_head` whose payload begins with `counted_begin` are counted: `counted` is called
    after each read that has any, and `each`, if it is set, for every single one. `handle` handles all other frames.
    `lost` is called with the reason when the server can no longer be used.
    """

    subprotocol: str
    counted_head = 0
    counted_begin = b""
    transport: asyncio.Transport

    def __init__(self, host: str, path: str) -> None:
        self.each: Callable[[bytes, int, int], object] | None = None
        self.lost: Callable[[str], object] = self._refused
        self._request = (
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n"
            f"Sec-WebSocket-Protocol: {self.subprotocol}\r\n\r\n"
        ).encode()
        self._rest = b""
        self._is_open = False
        self._is_left = False
        self._answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to a server that speaks the subprotocol. Raises `BenchFailed`."""
        parts = urlsplit(url)
        try:
            _, link = await asyncio.get_running_loop().create_connection(
                lambda: cls(parts.netloc, parts.path), parts.hostname or "127.0.0.1", parts.port or 80
            )
        except OSError as error:
            raise BenchFailed(f"cannot connect to {parts.netloc}: {error.strerror or error}") from None
        try:
            await link.answer()
        except BaseException:
            link.leave()
            raise
        return link

    def counted(self, frames: int, octets: int, data: bytes, start: int, end: int) -> None:
        """Handle `frames` counted frames of together `octets` bytes; the payload of the last is `data[start:end]`."""
        raise NotImplementedError

    def handle(self, head: int, payload: bytes) -> bool:
        """Handle a frame that is not counted; return False if the protocol does not have such frames."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request for a WebSocket."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end to `lost`, unless this side has closed the connection."""
        if not self._is_left:
            self.lost(f"the server closed a connection{f': {exc}' if exc else ''}")

    def data_received(self, data: bytes) -> None:
        """Split received bytes into frames, count those to be counted, and handle the others."""
        if self._rest:
            data = self._rest + data
        at, end, frames, octets = 0, len(data), 0, 0
        if not self._is_open:
            at = self._open(data)
            if not self._is_open:
                self._rest = data
                return
        last = last_after = 0
        head, begin, each = self.counted_head, self.counted_begin, self.each
        while end - at >= 2:
            length, start = data[at + 1], at + 2
            if length >= 126:
                start = at + (4 if length == 126 else 10)
                length = int.from_bytes(data[at + 2 : start], "big")
            after = start + length
            if after > end:
                break
            if data[at] == head and data.startswith(begin, start):
                frames += 1
                octets += length
                last, last_after = start, after
                if each is not None:
                    each(data, start, after)
            else:
                self._uncounted(data[at], data[start:after])
            at = after
        self._rest = data[at:]
        if frames:
            self.counted(frames, octets, data, last, last_after)

    def _open(self, data: bytes) -> int:
        """Handle the response to the request for a WebSocket; return where the first frame begins."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return 0
        if b" 101 " not in data[:16]:
            self.lost(f"the server does not speak {self.subprotocol}: {data[:end].decode('latin-1')[:200]}")
            return 0
        self._is_open = True
        self.answered()
        return end + 4

    def _uncounted(self, head: int, payload: bytes) -> None:
        if head == PING:
            self.transport.write(frame(payload, PONG))
        elif not self.handle(head, payload):
            self.lost(f"the server sent an unexpected frame {head:#x}: {payload[:200]!r}")

    def answered(self) -> None:
        """End the wait for the reply to the last request."""
        if not self._answer.done():
            self._answer.set_result(None)

    def _refused(self, why: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(BenchFailed(why))

    async def ask(self, written: bytes) -> None:
        """Write frames, and wait until `answered` is called. Raises `BenchFailed`."""
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(written)
        await self.answer()

    async def answer(self) -> None:
        """Wait for the reply to the last request, which may already have been received. Raises `BenchFailed`."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._answer
        except TimeoutError:
            raise BenchFailed(f"no response from the server within {_ANSWER_S:g} s") from None

    def leave(self) -> None:
        """Close the connection immediately, without a closing handshake."""
        self._is_left = True
        self.transport.abort()


class FanOutLoad:
    """What the workers of both protocols have in common: subscribers that count, and waits that end if one is lost.

    `grace_s` is how long missing events are waited for while none arrives. `arrived` counts all that have.
    """

    def __init__(self, grace_s: float) -> None:
        self.arrived = 0
        self._grace_s = grace_s
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Prepare for the load, once all connections are open."""
        gc.collect()
        gc.freeze()
        gc.disable()  # no cycles are created here, and pauses of the collector would look like the server's

    async def wait(self, seconds: float) -> None:
        """Wait for some seconds. Raises `BenchFailed` if the server can no longer be used."""
        if seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(self._failure)

    async def settle(self, expected: Callable[[], int]) -> None:
        """Wait until all expected events have arrived, as long as any arrive. Raises `BenchFailed` as `wait` does."""
        seen, seen_s = -1, time.monotonic()
        while self.arrived < expected():
            if self.arrived != seen:
                seen, seen_s = self.arrived, time.monotonic()
            elif time.monotonic() - seen_s >= self._grace_s:
                return
            await self.wait(_LOOKED_EVERY_S)

    def fail(self, why: str) -> None:
        """Fail all waits, since the server can no longer be used; an open connection calls this when it is `lost`."""
        if not self._failure.done():
            self._failure.set_exception(BenchFailed(why))
