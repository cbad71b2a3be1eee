"""A proxy that sends each request of each connection to the next of several servers, without looking at it."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.process import Server

Nodes = dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]]
"""The connections that the proxy has opened for one client, by port."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class RoundRobin:
    """The proxy. A node that refuses a connection is passed over; a client that hangs up is hung up on everywhere."""

    def __init__(self, ports: list[int]) -> None:
        self.port = 0
        self._ports = cycle(ports)
        self._count = len(ports)
        self._served: set[asyncio.Task[Any] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        self._served.add(task := asyncio.current_task())
        nodes: Nodes = {}
        try:
            while (asked := await _message(reader)) and (
                answer := await self._answer_unless_gone(asked, reader, nodes)
            ):
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writers = [writer, *(to_node for _, to_node in nodes.values())]
            for each in writers:  # all of them before the first wait, in which this may be cancelled once more
                each.transport.abort()
            for each in writers:
                with suppress(ConnectionError):
                    await each.wait_closed()
            self._served.discard(task)

    async def _answer_unless_gone(self, asked: bytes, reader: asyncio.StreamReader, nodes: Nodes) -> bytes | None:
        answer = asyncio.create_task(self._answer(asked, nodes))
        try:
            while not (answer.done() or reader.at_eof()):
                await asyncio.wait((answer,), timeout=0.01)
            return answer.result() if answer.done() else None
        finally:
            answer.cancel()
            await asyncio.wait((answer,))

    async def _answer(self, asked: bytes, nodes: Nodes) -> bytes | None:
        """Return the next node's response; None if it has closed the connection."""
        for _ in range(self._count):
            port = next(self._ports)
            try:
                if port not in nodes:
                    nodes[port] = await asyncio.open_connection("127.0.0.1", port, limit=4_194_304)
                reader, writer = nodes[port]
                writer.write(asked)
                return await _message(reader)
            except ConnectionRefusedError:
                continue
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        return None

    def use(self, *servers: Server) -> None:
        """Send the next requests to these servers."""
        ports = [server.port for server in servers]
        self._ports, self._count = cycle(ports), len(ports)

    async def close(self) -> None:
        """Cut all connections."""
        served = [task for task in self._served if task is not None]
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower():  # as Node.js sends it
        return head + await reader.readuntil(b"\r\n0\r\n\r\n")
    length = _LENGTH.search(head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


@asynccontextmanager
async def round_robin(*servers: Server) -> AsyncIterator[RoundRobin]:
    """Put the proxy in front of servers within the block."""
    proxy = RoundRobin([server.port for server in servers])
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=4_194_304)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.close()
