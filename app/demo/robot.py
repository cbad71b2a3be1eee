"""The robot: publishes its state over NetworkTables, and obeys `/robot/mode` and `/robot/setpoint`."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from app.demo.beside import beside
from app.demo.comeback import come_back
from app.demo.drive import MODES, Drive
from app.demo.nt4_link import Nt4Link, linked

_MODE, _SETPOINT = "/robot/mode", "/robot/setpoint"
TOPICS: Mapping[str, str] = MappingProxyType({
    "/robot/pose": "double[]",
    "/robot/wheel_speeds": "double[]",
    "/robot/battery": "double",
    "/robot/enabled": "boolean",
    "/robot/laps": "int",
    "/robot/lidar": "raw",
    _MODE: "string",
    _SETPOINT: "double[]",
})  # fmt: skip

_TICK_S = 0.02
_LONGEST_S = 0.1
"""The longest time for which one step moves the robot; on a busy machine the rest is skipped."""

_POSE_TICKS, _WHEELS_TICKS, _SLOW_TICKS = 10, 50, 100
"""Ticks between two values: five poses a second show it move, and leave room for other events in the console."""

_RAYS = 36


async def robot(server: str, random: Random) -> None:
    """Drive until cancelled; `server` is a `ws://` address."""
    drive = Drive(random)
    await come_back(lambda: _visit(server, drive), random)


async def _visit(server: str, drive: Drive) -> None:
    def hear(name: str, value: Any) -> None:
        obey(drive, name, value)

    async with linked(server, "robot", TOPICS, [_MODE, _SETPOINT]) as link, beside(link.listen(hear)) as listening:
        await _tell(link, drive, listening)


def obey(drive: Drive, name: str, value: Any) -> None:
    """Obey a value that was set; invalid ones are ignored."""
    if name == _MODE and value in MODES:
        drive.mode = value
    elif name == _SETPOINT and isinstance(value, list) and len(value) == 2 and all(map(math.isfinite, value)):
        drive.send_to(*value)


async def _tell(link: Nt4Link, drive: Drive, listening: asyncio.Task[None]) -> None:
    clock = asyncio.get_running_loop().time
    told: dict[str, Any] = {}
    tick, now_s = 0, clock()
    while not listening.done():
        before_s, now_s = now_s, clock()
        drive.step(min(now_s - before_s, _LONGEST_S))
        values = _values(drive, tick)
        seldom = _seldom(drive)
        values |= {name: value for name, value in seldom.items() if told.get(name) != value}
        told = seldom
        if values:
            await link.put(values)
        tick += 1
        await asyncio.sleep(max(0.0, now_s + _TICK_S - clock()))


def _values(drive: Drive, tick: int) -> dict[str, Any]:
    """Return the values that are due regularly. The pose is x and y in metres and the heading in radians."""
    values: dict[str, Any] = {}
    if tick % _POSE_TICKS == 0:
        values["/robot/pose"] = [round(drive.x_m, 3), round(drive.y_m, 3), round(drive.heading_rad, 3)]
    if tick % _WHEELS_TICKS == 0:
        values["/robot/wheel_speeds"] = [round(drive.left_m_s, 3), round(drive.right_m_s, 3)]
    if tick % _SLOW_TICKS == 0:
        values["/robot/battery"] = drive.voltage_v
        values["/robot/lidar"] = struct.pack(f"<{_RAYS}H", *(int(1_000 * far_m) for far_m in drive.ranges_m(_RAYS)))
    return values


def _seldom(drive: Drive) -> dict[str, Any]:
    """Return the values that are published when they change; a setpoint that was reached becomes empty."""
    return {
        "/robot/enabled": drive.mode != "disabled",
        "/robot/laps": drive.laps,
        _MODE: drive.mode,
        _SETPOINT: [*map(float, drive.wish or ())],
    }
