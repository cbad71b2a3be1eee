"""A robot that drives around its field, or where it is sent. Pure: the time that has passed is an argument."""

from __future__ import annotations

import math
from random import Random
from typing import Literal

Mode = Literal["auto", "disabled"]
MODES: tuple[Mode, ...] = ("auto", "disabled")

WIDTH_M, HEIGHT_M = 16.5, 8.2
_TOUR = ((2.0, 1.5), (8.0, 4.1), (14.5, 1.5), (14.5, 6.7), (8.0, 4.1), (2.0, 6.7))
_FASTEST_M_S = 2.5
_FASTER_M_S2 = 2.0
_TURN_RAD_S = 2.2
_NEAR_M = 0.4
_WHEELS_APART_M = 0.6
_REST_S = 5.0
"""The time for which it rests where it was sent, before it resumes its tour."""

_FULL_V, _EMPTY_V = 12.9, 11.4
_DRAIN_V_M = 0.0015
_SAG_V = 0.25
_NOISE_V = 0.01


class Drive:
    """The state of the robot: its place (metres, radians), its speed and its battery.

    `wish` is the place to which it was sent, `laps` counts tours.
    """

    def __init__(self, random: Random) -> None:
        self.x_m, self.y_m = _TOUR[0]
        self.heading_rad = 0.0
        self.left_m_s = self.right_m_s = 0.0
        self.mode: Mode = "auto"
        self.wish: tuple[float, float] | None = None
        self.laps = 0
        self._random = random
        self._speed_m_s = 0.0
        self._charge_v = _FULL_V
        self._stop = 1
        self._rest_s = 0.0

    @property
    def voltage_v(self) -> float:
        """The voltage of the battery, which sags while the robot drives."""
        sag_v = _SAG_V * self._speed_m_s / _FASTEST_M_S
        return round(self._charge_v - sag_v + self._random.gauss(0, _NOISE_V), 3)

    def send_to(self, x_m: float, y_m: float) -> None:
        """Drive to a place, or as near to it as the field allows."""
        self.wish = min(max(x_m, 0.0), WIDTH_M), min(max(y_m, 0.0), HEIGHT_M)
        self._rest_s = 0.0

    def step(self, passed_s: float) -> None:
        """Move by the time that has passed, in seconds."""
        x_m, y_m = self.wish or _TOUR[self._stop]
        away_m = math.hypot(x_m - self.x_m, y_m - self.y_m)
        is_there = away_m < _NEAR_M
        off_rad = math.remainder(math.atan2(y_m - self.y_m, x_m - self.x_m) - self.heading_rad, math.tau)
        is_still = self.mode == "disabled" or (is_there and self.wish is not None)
        turn_rad_s = 0.0 if is_still else min(max(4 * off_rad, -_TURN_RAD_S), _TURN_RAD_S)
        wanted_m_s = 0.0 if is_still else min(_FASTEST_M_S, 0.4 + away_m) * max(0.0, math.cos(off_rad))
        change_m_s = min(max(wanted_m_s - self._speed_m_s, -2 * _FASTER_M_S2 * passed_s), _FASTER_M_S2 * passed_s)
        self._speed_m_s += change_m_s
        self._move(turn_rad_s, passed_s)
        if is_there:
            self._arrive(passed_s)

    def _move(self, turn_rad_s: float, passed_s: float) -> None:
        way_m = self._speed_m_s * passed_s
        self.heading_rad = math.remainder(self.heading_rad + turn_rad_s * passed_s, math.tau)
        self.x_m = min(max(self.x_m + way_m * math.cos(self.heading_rad), 0.0), WIDTH_M)
        self.y_m = min(max(self.y_m + way_m * math.sin(self.heading_rad), 0.0), HEIGHT_M)
        lead_m_s = turn_rad_s * _WHEELS_APART_M / 2
        self.left_m_s, self.right_m_s = self._speed_m_s - lead_m_s, self._speed_m_s + lead_m_s
        self._charge_v -= _DRAIN_V_M * way_m
        if self._charge_v < _EMPTY_V:
            self._charge_v = _FULL_V  # the battery is replaced

    def _arrive(self, passed_s: float) -> None:
        if self.wish is not None:
            self._rest_s += passed_s
            if self._rest_s >= _REST_S:
                self.wish = None
            return
        self._stop = (self._stop + 1) % len(_TOUR)
        self.laps += self._stop == 0

    def ranges_m(self, rays: int) -> list[float]:
        """Return the distances to the walls of the field, in `rays` directions all around."""
        return [self._range_m(self.heading_rad + math.tau * ray / rays) for ray in range(rays)]

    def _range_m(self, at_rad: float) -> float:
        across, along = math.cos(at_rad), math.sin(at_rad)
        x_m = (WIDTH_M - self.x_m if across > 0 else self.x_m) / max(abs(across), 1e-9)
        y_m = (HEIGHT_M - self.y_m if along > 0 else self.y_m) / max(abs(along), 1e-9)
        return min(x_m, y_m)
