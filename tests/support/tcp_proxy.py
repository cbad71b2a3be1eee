"""A TCP relay between a client and the server that can do what bad networks do.

It can cut all connections at the same time, pass on nothing for a while, drop responses that the server has already
sent, hide from the server that clients have disconnected, and stop reading responses until it resets the connection. It
does not interpret the bytes, but keeps all that clients have sent, so that tests can count requests.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import struct
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


_BUFFER_BYTES = 16_384
"""The limit of bytes that are read ahead; all further bytes wait in the kernels, and then in the server."""

_CHECK_S = 0.01
_UPGRADE = re.compile(rb"(?:connection|upgrade): [^\r\n]*upgrade[^\r\n]*\r\n|upgrade: [^\r\n]*\r\n", re.IGNORECASE)


class TcpProxy:
    """Relays from `port` to the server's port. `sent` are the bytes from clients, `vanished` the number of lost bytes.

    With `loses_answers` it drops the server's bytes, with `hides_ends` the server does not learn that a client has
    disconnected, with `holds_answers` it relays no more of the server's bytes, with `holds` no more bytes at all.
    `accepted` counts connections; those after the first `passes` wait until that is more. With `strips_upgrades` it
    passes on no request for a WebSocket as one, as a proxy that was not told about them; with `holds_upgrades` such
    requests wait. New connections are to `server_port`.
    """

    def __init__(self, server_port: int) -> None:
        self.port = 0
        self.sent = bytearray()
        self.loses_answers = False
        self.hides_ends = False
        self.holds_answers = False
        self.holds = False
        self.vanished = 0
        self.accepted = 0
        self.passes = math.inf
        self.strips_upgrades = False
        self.holds_upgrades = False
        self.server_port = server_port
        self._is_down = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Break every connection, on both sides, and accept no client until `mend`."""
        self._is_down = True
        for writer in self._writers:
            writer.transport.abort()

    def reset(self) -> None:
        """Break every connection with a TCP reset, as a crashed peer does."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def mend(self) -> None:
        """Accept clients again."""
        self._is_down = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._relays.add(task)
        self.accepted += 1
        number = self.accepted
        try:
            server_reader, server_writer = await asyncio.open_connection(
                "127.0.0.1", self.server_port, limit=_BUFFER_BYTES
            )
        except OSError:
            writer.transport.abort()
        else:
            self._writers |= {writer, server_writer}
            if self._is_down:
                self.cut()
            ways = (reader, server_writer, True), (server_reader, writer, False)
            await asyncio.gather(*(self._relay(number, source, to, up=up) for source, to, up in ways))
            self._writers -= {writer, server_writer}
            server_writer.close()  # a client's hidden end is over now
        finally:
            self._relays.discard(task)

    async def _relay(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                if up:
                    self.sent += data
                    if self.strips_upgrades:
                        data = _UPGRADE.sub(b"", data)
                elif self.loses_answers:
                    self.vanished += len(data)
                    continue
                while self._is_held(number, data, up=up) and not writer.is_closing():
                    await asyncio.sleep(_CHECK_S)
                writer.write(data)
                await writer.drain()
        if up and self.hides_ends:
            return
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def _is_held(self, number: int, data: bytes, *, up: bool) -> bool:
        if self.holds or number > self.passes or (self.holds_answers and not up):
            return True
        return self.holds_upgrades and up and _UPGRADE.search(data) is not None


@asynccontextmanager
async def relaying(server_port: int) -> AsyncIterator[TcpProxy]:
    """Relay to a port of this machine within the block."""
    proxy = TcpProxy(server_port)
    listener = await asyncio.start_server(proxy._accept, "127.0.0.1", 0)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        proxy.cut()
        await asyncio.gather(*proxy._relays)
