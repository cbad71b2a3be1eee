"""Both entries for NetworkTables: the separate listener and `/nt/NAME` on the public one; engines only echo."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from support.frames import ACCEPT, opening
from support.server import brisk, serving
from support.tables import ECHOING, NEW, EchoTables

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.server import Served
    from support.wire import Wire

DOORS = ("own", "public")


class Doors:
    """A server with both entries; `tables` has its engines."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.house = served.house
        self.tables = cast(EchoTables, served.house.protocol("nt4"))

    async def wire(self, door: str = "own") -> Wire:
        """Open a connection to one of the entries."""
        return await self.served.wire(port=self.served.nt4_port if door == "own" else None)

    async def shaken(self, door: str = "own", protocol: str = NEW, **headers: str) -> Wire:
        """Open a WebSocket at one of the entries."""
        wire = await self.wire(door)
        answer = await wire.request(opening("/nt/robot", protocol, **headers))
        assert (answer.status, answer.headers.get("sec-websocket-accept")) == (101, ACCEPT)
        assert answer.headers["sec-websocket-protocol"] == protocol
        return wire


@asynccontextmanager
async def doors(nt4: dict[str, Any] | None = None, **changed: Any) -> AsyncIterator[Doors]:
    """Serve both entries within the block; `nt4` are settings of NetworkTables, the others as for `brisk`."""
    options = {"enabled": True, "port": 0, "kill_s": 0.05} | (nt4 or {})
    async with serving(brisk(nt4=options, **changed), protocols=ECHOING) as served:
        opened = Doors(served)
        yield opened
    assert [engine.lost_times for engine in opened.tables.engines] == [1] * len(opened.tables.engines)
