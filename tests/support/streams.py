"""Readers of streams of events: one that keeps what a browser's `EventSource` keeps, and one on a raw connection."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from support.wire import DEADLINE_S, Response, Wire, request

if TYPE_CHECKING:
    from support.server import Served


class Block(NamedTuple):
    """What a block of a stream dispatches: the event's type, its id and its data; without data it fires nothing."""

    type: str
    id: str
    data: Any


class EventSource:
    """The reading of server-sent events as WHATWG HTML, 9.2.6, has it, except for what Halley never sends.

    `last_id` is what it would send as `Last-Event-ID`.
    """

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.retry_ms: int | None = None
        self._rest = ""

    def feed(self, text: bytes) -> list[Block]:
        """Read a piece of a stream and return the blocks that end in it and have data."""
        *blocks, self._rest = (self._rest + text.decode()).split("\n\n")
        return [found for block in blocks if (found := self._read(block)) is not None]

    def _read(self, block: str) -> Block | None:
        kind, data = "message", None
        for line in block.split("\n"):
            if line.startswith(":"):
                continue
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "retry":
                self.retry_ms = int(value)
            elif name == "event":
                kind = value
            elif name == "data":
                assert data is None, "two lines of data"
                data = value
            else:
                assert not line, f"not of a stream: {line}"
        return None if data is None else Block(kind, self.last_id, json.loads(data))


class StreamReader:
    """A stream on a connection of its own: `response` is its head, `source` what a browser would know."""

    def __init__(self, wire: Wire, response: Response) -> None:
        self.wire = wire
        self.response = response
        self.source = EventSource()
        self.came = b""  # the body as far as it was read
        self.is_over = False

    @classmethod
    async def open(cls, served: Served, target: str, wire: Wire | None = None, **headers: str) -> StreamReader:
        """Ask for a stream, by default on a new connection to the server."""
        wire = wire or await served.wire()
        return cls(wire, await wire.request(request("GET", target, b"", **headers)))

    async def piece(self) -> bytes:
        """Return the next chunk; empty at the end."""
        async with asyncio.timeout(DEADLINE_S):
            length = int(await self.wire.reader.readuntil(b"\r\n"), 16)
            piece = (await self.wire.reader.readexactly(length + 2))[:-2]
        self.came += piece
        self.is_over = not length
        return piece

    async def blocks(self, count: int) -> list[Block]:
        """Read on until there are `count` blocks that fire an event, and return them."""
        found: list[Block] = []
        while len(found) < count:
            piece = await self.piece()
            assert piece, f"the stream ended after {found}"
            found += self.source.feed(piece)
        assert len(found) == count, found
        return found

    async def data(self, count: int) -> list[Any]:
        """Read on until there are `count` events, and return what was published."""
        return [block.data["data"] for block in await self.blocks(count)]

    async def rest(self) -> bytes:
        """Read to the end, and return the whole body."""
        while not self.is_over:
            await self.piece()
        return self.came
