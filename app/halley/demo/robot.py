"""The robot, over NetworkTables: it drives around its field, and obeys `/robot/mode` and `/robot/setpoint`."""

from __future__ import annotations

import asyncio
import math
import struct
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

from halley.client.nt4 import Nt4Client

_MODE, _SETPOINT = "/robot/mode", "/robot/setpoint"
TOPICS = {
    "/robot/pose": ("double[]", 1),
    "/robot/wheel_speeds": ("double[]", 5),
    "/robot/battery": ("double", 10),
    "/robot/enabled": ("boolean", 1),
    "/robot/laps": ("int", 1),
    "/robot/lidar": ("raw", 10),
    _MODE: ("string", 1),
    _SETPOINT: ("double[]", 1),
}
"""The type of each topic, and every how many ticks it is published if it has changed."""

_TICK_S = 0.2
"""Five poses a second show it move, and leave room for other events in the console."""

WIDTH_M, HEIGHT_M = 16.5, 8.2
_TOUR = ((2.0, 1.5), (8.0, 4.1), (14.5, 1.5), (14.5, 6.7), (8.0, 4.1), (2.0, 6.7))
_NEAR_M = 0.05
_FASTEST_M_S, _SLOWEST_M_S = 2.5, 0.4
_REST_S = 5.0
"""The time for which it rests where it was sent, before it resumes its tour."""

_FULL_V, _DRAIN_V_M = 12.9, 0.0015
_BATTERY_M = 1_000.0
"""The way after which the battery is replaced."""


class Robot:
    """A robot without inertia: its place (metres) and heading (radians), and where it was sent. Pure."""

    def __init__(self) -> None:
        self.x_m, self.y_m = _TOUR[0]
        self.mode = "auto"
        self.destination: tuple[float, float] | None = None
        self._heading_rad = self._speed_m_s = self._way_m = self._rest_s = 0.0
        self._stops = 1

    def obey(self, name: str, value: Any) -> None:
        """Obey a value that was set; invalid ones are ignored, and a place off the field becomes the nearest on it."""
        if name == _MODE and value in ("auto", "disabled"):
            self.mode = value
        elif name == _SETPOINT and isinstance(value, list) and len(value) == 2 and all(map(math.isfinite, value)):
            x_m, y_m = value
            self.destination = min(max(x_m, 0.0), WIDTH_M), min(max(y_m, 0.0), HEIGHT_M)
            self._rest_s = _REST_S

    def step(self, passed_s: float) -> None:
        """Move by the time that has passed, in seconds: straight to the next place, and slower near it."""
        x_m, y_m = self.destination or _TOUR[self._stops % len(_TOUR)]
        away_m = math.hypot(x_m - self.x_m, y_m - self.y_m)
        self._speed_m_s = 0.0
        if self.mode == "disabled":
            return
        if away_m > _NEAR_M:
            self._speed_m_s = min(_FASTEST_M_S, _SLOWEST_M_S + away_m)
            self._heading_rad = math.atan2(y_m - self.y_m, x_m - self.x_m)
            way_m = min(self._speed_m_s * passed_s, away_m)
            self.x_m += way_m * math.cos(self._heading_rad)
            self.y_m += way_m * math.sin(self._heading_rad)
            self._way_m += way_m
        elif self.destination is None:
            self._stops += 1
        else:
            self._rest_s -= passed_s
            self.destination = self.destination if self._rest_s > 0 else None

    def values(self) -> dict[str, Any]:
        """Return the value of each topic; the lidar has the distances to the four walls in millimetres.

        A setpoint that was reached becomes empty.
        """
        ranges_m = self.x_m, WIDTH_M - self.x_m, self.y_m, HEIGHT_M - self.y_m
        return {
            "/robot/pose": [round(each, 3) for each in (self.x_m, self.y_m, self._heading_rad)],
            "/robot/wheel_speeds": [round(self._speed_m_s, 3)] * 2,
            "/robot/battery": round(_FULL_V - _DRAIN_V_M * (self._way_m % _BATTERY_M), 3),
            "/robot/enabled": self.mode != "disabled",
            "/robot/laps": self._stops // len(_TOUR),
            "/robot/lidar": struct.pack("<4H", *(int(1_000 * max(far_m, 0)) for far_m in ranges_m)),
            _MODE: self.mode,
            _SETPOINT: [*map(float, self.destination or ())],
        }


async def drive(server: str, _random: Random) -> None:
    """Drive and publish until the connection is lost; `server` is a `ws://` address."""
    robot = Robot()
    published: dict[str, Any] = {}
    async with Nt4Client(server, "robot") as client:
        for number, (name, (kind, _)) in enumerate(TOPICS.items(), 1):
            await client.publish(name, number, kind)
        await client.subscribe(_MODE, _SETPOINT)
        for tick in count():
            robot.step(_TICK_S)
            due = {name: value for name, value in robot.values().items() if tick % TOPICS[name][1] == 0}
            if changed := {name: value for name, value in due.items() if value != published.get(name)}:
                await client.put_all(changed)
                published |= changed
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    async for value in client:
                        robot.obey(value.name, value.value)


async def driver_station(server: str, _random: Random) -> None:
    """Receive everything that the robot publishes until the connection is lost."""
    async with Nt4Client(server, "driver-station") as client:
        await client.subscribe(*TOPICS)
        async for _ in client:
            pass
