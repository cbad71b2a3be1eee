"""Halley in uvicorn's own host, whose WebSocket implementation is not Halley's."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from halley.embed import Halley
from halley.server.protocols import PROTOCOLS
from support.server import brisk
from support.tables import ECHOING, EchoTables
from support.wire import DEADLINE_S, Wire, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from halley.server.protocols import Compose


class Foreign:
    """A running server; `tables` are the engines of NetworkTables, if that is enabled."""

    until = staticmethod(until)

    def __init__(self, halley: Halley, port: int) -> None:
        self.halley = halley
        self.tables = cast(EchoTables, next((each for each in halley.server.protocols if each.name == "nt4"), None))
        self.port = port
        self._wires: list[Wire] = []

    async def wire(self) -> Wire:
        """Open a connection, which is closed with the server."""
        self._wires.append(await Wire.open(self.port))
        return self._wires[-1]

    async def hang_up(self) -> None:
        """Close all connections."""
        for wire in self._wires:
            await wire.close()


@asynccontextmanager
async def foreign(
    *, echoes: bool = True, protocols: Sequence[Compose] = PROTOCOLS, **changed: Any
) -> AsyncIterator[Foreign]:
    """Serve within the block; settings are changed as by `brisk`.

    If NetworkTables are enabled, their engines only echo, unless `echoes` is False.
    """
    settings = brisk(**changed)
    halley = Halley(settings, ECHOING if settings.nt4.enabled and echoes else protocols)
    config = uvicorn.Config(halley.app, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    served = Foreign(halley, server.servers[0].sockets[0].getsockname()[1])
    try:
        yield served
    finally:
        await served.hang_up()
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await running
    if served.tables is not None and echoes:
        assert [engine.lost_times for engine in served.tables.engines] == [1] * len(served.tables.engines)
