"""A proxy before a server that treats WebSockets as some proxies do, and passes everything else on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OPEN, REFUSING, BUSY, SILENT, SWALLOWING, CLOSING = "open", "refusing", "busy", "silent", "swallowing", "closing"
BLOCKING = (REFUSING, SILENT, SWALLOWING, CLOSING)
"""How a gate can treat a WebSocket: answer 400 or 503, not at all, pass on nothing behind the 101, or close it then."""

_ANSWERS = {REFUSING: b"400 Bad Request", BUSY: b"503 Service Unavailable"}


class SocketGate:
    """A relay to a server: `way` says what becomes of each new WebSocket, `asked` counts them."""

    def __init__(self, server_port: int) -> None:
        self.way = OPEN
        self.port = 0
        self.asked = 0
        self.heads: list[bytes] = []
        self._server_port = server_port
        self._sockets: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address of the gate, for clients."""
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all WebSockets that are open."""
        for writer in self._sockets:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        way = OPEN
        if b"upgrade: websocket" in head.lower():
            self.asked += 1
            way = self.way
            self._sockets.add(writer)
        if way in _ANSWERS:
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % _ANSWERS[way])
            await writer.drain()
        elif way == SILENT:
            await reader.read()
        else:
            ours, theirs = await asyncio.open_connection("127.0.0.1", self._server_port)
            try:
                theirs.write(head)
                if way == OPEN:
                    await asyncio.gather(_pass_on(reader, theirs), _pass_on(ours, writer))
                else:
                    writer.write(await ours.readuntil(b"\r\n\r\n"))
                    await writer.drain()
                if way == SWALLOWING:
                    await reader.read()
            finally:
                theirs.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until there are no more; then close the connection that they went to."""
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def gate(server_port: int) -> AsyncIterator[SocketGate]:
    """Run a gate before a server of this machine until the block ends."""
    served = SocketGate(server_port)
    async with await asyncio.start_server(served._accept, "127.0.0.1", 0) as server:
        served.port = server.sockets[0].getsockname()[1]
        yield served
        server.close()
        for task in [*served._tasks]:
            task.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*served._tasks)
