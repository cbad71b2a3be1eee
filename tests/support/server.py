"""A real server, on a free port, in the test's own event loop: real sockets and HTTP, and its rooms within reach."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.embed import Halley
from app.host.connection import Watch
from app.host.server import HalleyServer, bind, url_of
from app.settings import Drain, Settings
from support.wire import DEADLINE_S, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from app.server import House


def brisk(**changed: Any) -> Settings:
    """Settings for tests: short deadlines, no spread. Tables are changed as `bayeux={"hold_s": 1}`."""
    settings = Settings(port=0, sweep_s=0.02, drain=Drain(spread_s=0, grace_s=2))
    for name, value in changed.items():
        part = getattr(settings, name)
        settings = replace(settings, **{name: replace(part, **value) if isinstance(value, dict) else value})
    return settings


class Served:
    """A running server: its address, and its rooms."""

    def __init__(self, halley: Halley, server: HalleyServer, watch: Watch, url: str) -> None:
        self.halley = halley
        self.server = server
        self.watch = watch
        self.url = url
        self.bayeux = f"{url}/bayeux"
        self.port = int(url.rpartition(":")[2])
        self._wires: list[Wire] = []

    @property
    def house(self) -> House:
        """The rooms."""
        return self.halley.house

    async def wire(self, *, receive_buffer_bytes: int | None = None) -> Wire:
        """A connection, closed with the server at the latest."""
        wire = await Wire.open(self.port, receive_buffer_bytes=receive_buffer_bytes)
        self._wires.append(wire)
        return wire

    async def hang_up(self) -> None:
        """Close all connections."""
        for wire in self._wires:
            await wire.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to become true."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(settings: Settings | None = None, register: Callable[[Halley], None] | None = None) -> AsyncIterator[Served]:
    """Serve within the block. `register` gets the embedding API first.

    When the block ends the server drains as on SIGTERM, and must leave no task behind.
    """
    settings = settings or brisk()
    halley = Halley(settings)
    if register is not None:
        register(halley)
    before = asyncio.all_tasks()
    socket = bind(settings.host, settings.port, "--port")
    url = url_of(socket)
    watch = Watch(settings.limits)
    server = HalleyServer(halley.house, watch)
    running = asyncio.create_task(server.serve([socket]))
    served = Served(halley, server, watch, url)
    try:
        await served.until(lambda: server.started)
        yield served
    finally:
        server.should_exit = True
        async with asyncio.timeout(DEADLINE_S):
            await running
        await served.hang_up()
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
