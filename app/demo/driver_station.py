"""The driver station: receives over NetworkTables everything that the robot publishes."""

from __future__ import annotations

from random import Random

from app.demo.comeback import come_back
from app.demo.nt4_link import linked
from app.demo.robot import TOPICS


async def driver_station(server: str, random: Random) -> None:
    """Watch the robot until cancelled; `server` is a `ws://` address."""
    await come_back(lambda: _visit(server), random)


async def _visit(server: str) -> None:
    async with linked(server, "driver-station", {}, [*TOPICS]) as link:
        await link.listen(lambda _name, _value: None)
