"""The robot, over NetworkTables: it drives around its field, and obeys `/robot/mode` and `/robot/setpoint`."""

from __future__ import annotations

import asyncio
import math
import struct
from random import Random
from typing import Any

from app.client.nt4 import Nt4Client

_MODE, _SETPOINT = "/robot/mode", "/robot/setpoint"
TOPICS = {
    "/robot/pose": "double[]",
    "/robot/wheel_speeds": "double[]",
    "/robot/battery": "double",
    "/robot/enabled": "boolean",
    "/robot/laps": "int",
    "/robot/lidar": "raw",
    _MODE: "string",
    _SETPOINT: "double[]",
}
MODES = ("auto", "disabled")

WIDTH_M, HEIGHT_M = 16.5, 8.2
_TOUR = ((2.0, 1.5), (8.0, 4.1), (14.5, 1.5), (14.5, 6.7), (8.0, 4.1), (2.0, 6.7))
_FASTEST_M_S, _TURN_RAD_S = 2.5, 2.2
_NEAR_M, _WHEELS_APART_M = 0.4, 0.6
_REST_S = 5.0
"""The time for which it rests where it was sent, before it resumes its tour."""

_FULL_V, _EMPTY_V = 12.9, 11.4
_DRAIN_V_M, _SAG_V_S_M, _NOISE_V = 0.0015, 0.1, 0.01

_TICK_S = 0.02
_LONGEST_S = 0.1
"""The longest time for which one step moves the robot; on a busy machine the rest is skipped."""

_TICKS = {"/robot/pose": 10, "/robot/wheel_speeds": 50, "/robot/battery": 100, "/robot/lidar": 100}
"""Ticks between two values: five poses a second show it move, and leave room for other events in the console. Other
topics are published when they change."""


class Robot:
    """The state of the robot: its place (metres, radians), its wheels' speeds and its battery. Pure.

    `wish` is the place to which it was sent, `laps` counts tours.
    """

    def __init__(self, random: Random) -> None:
        self.x_m, self.y_m = _TOUR[0]
        self.heading_rad = self._speed_m_s = self._turn_rad_s = 0.0
        self.mode = MODES[0]
        self.wish: tuple[float, float] | None = None
        self.laps = 0
        self._random = random
        self._charge_v = _FULL_V
        self._stop = 1
        self._rest_s = 0.0

    @property
    def voltage_v(self) -> float:
        """The voltage of the battery, which sags while the robot drives."""
        return round(self._charge_v - _SAG_V_S_M * self._speed_m_s + self._random.gauss(0, _NOISE_V), 3)

    @property
    def ranges_m(self) -> list[float]:
        """The distances to the four walls of the field."""
        return [self.x_m, WIDTH_M - self.x_m, self.y_m, HEIGHT_M - self.y_m]

    def obey(self, name: str, value: Any) -> None:
        """Obey a value that was set; invalid ones are ignored, and a place off the field becomes the nearest on it."""
        if name == _MODE and value in MODES:
            self.mode = value
        elif name == _SETPOINT and isinstance(value, list) and len(value) == 2 and all(map(math.isfinite, value)):
            self.wish = _limit(value[0], 0.0, WIDTH_M), _limit(value[1], 0.0, HEIGHT_M)
            self._rest_s = 0.0

    def step(self, passed_s: float) -> None:
        """Move by the time that has passed, in seconds."""
        x_m, y_m = self.wish or _TOUR[self._stop]
        away_m = math.hypot(x_m - self.x_m, y_m - self.y_m)
        is_there = away_m < _NEAR_M
        off_rad = math.remainder(math.atan2(y_m - self.y_m, x_m - self.x_m) - self.heading_rad, math.tau)
        self._turn_rad_s = self._speed_m_s = 0.0
        if self.mode == "auto" and not (is_there and self.wish):
            self._turn_rad_s = _limit(4 * off_rad, -_TURN_RAD_S, _TURN_RAD_S)
            self._speed_m_s = min(_FASTEST_M_S, 0.4 + away_m) * max(0.0, math.cos(off_rad))
        self.heading_rad = math.remainder(self.heading_rad + self._turn_rad_s * passed_s, math.tau)
        way_m = self._speed_m_s * passed_s
        self.x_m = _limit(self.x_m + way_m * math.cos(self.heading_rad), 0.0, WIDTH_M)
        self.y_m = _limit(self.y_m + way_m * math.sin(self.heading_rad), 0.0, HEIGHT_M)
        self._charge_v -= _DRAIN_V_M * way_m
        if self._charge_v < _EMPTY_V:
            self._charge_v = _FULL_V  # the battery is replaced
        if is_there and self.wish:
            self._rest_s += passed_s
            self.wish = None if self._rest_s >= _REST_S else self.wish
        elif is_there:
            self._stop = (self._stop + 1) % len(_TOUR)
            self.laps += self._stop == 0

    def values(self) -> dict[str, Any]:
        """Return the value of each topic. The pose is x and y in metres and the heading in radians.

        A setpoint that was reached becomes empty.
        """
        lead_m_s = self._turn_rad_s * _WHEELS_APART_M / 2
        return {
            "/robot/pose": [round(each, 3) for each in (self.x_m, self.y_m, self.heading_rad)],
            "/robot/wheel_speeds": [round(self._speed_m_s - lead_m_s, 3), round(self._speed_m_s + lead_m_s, 3)],
            "/robot/battery": self.voltage_v,
            "/robot/enabled": self.mode != "disabled",
            "/robot/laps": self.laps,
            "/robot/lidar": struct.pack("<4H", *(int(1_000 * far_m) for far_m in self.ranges_m)),
            _MODE: self.mode,
            _SETPOINT: [*map(float, self.wish or ())],
        }


def _limit(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


async def drive(server: str, random: Random, robot: Robot | None = None) -> None:
    """Drive and publish until the connection is lost; `server` is a `ws://` address."""
    robot = robot or Robot(random)
    clock = asyncio.get_running_loop().time

    async def obey(client: Nt4Client) -> None:
        async for value in client:
            robot.obey(value.name, value.value)

    async with Nt4Client(server, "robot") as client, asyncio.TaskGroup() as group:
        for number, (name, kind) in enumerate(TOPICS.items(), 1):
            await client.publish(name, number, kind)
        await client.subscribe(_MODE, _SETPOINT)
        group.create_task(obey(client))
        published: dict[str, Any] = {}
        tick, now_s = 0, clock()
        while True:
            before_s, now_s = now_s, clock()
            robot.step(min(now_s - before_s, _LONGEST_S))
            values = robot.values()
            due = {name: values[name] for name, ticks in _TICKS.items() if tick % ticks == 0}
            changed = {name for name, value in values.items() if published.get(name) != value}
            due |= {name: values[name] for name in changed - _TICKS.keys()}
            if due:
                await client.put_all(due)
            published = values
            tick += 1
            await asyncio.sleep(max(0.0, now_s + _TICK_S - clock()))


async def driver_station(server: str, _random: Random) -> None:
    """Receive everything that the robot publishes until the connection is lost."""
    async with Nt4Client(server, "driver-station") as client:
        await client.subscribe(*TOPICS)
        async for _ in client:
            pass
