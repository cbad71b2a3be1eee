"""The sweeper: checks every deadline a few times a second, as long as the server runs.

No client waits for all of that: each sweep has a turn of the loop, or several if it has much to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from time import monotonic

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.flow import Delays
from halley.protocols.contract import Part

Sweep = Callable[[float], bool | None]
"""Does what is due, as `Part.sweep` does: True if there is more."""

_STALL_S = 1.0
"""A loop that stood still for this long (SIGSTOP, a paused machine) is worth a line in the log."""

_SLACK_S = 0.01
"""A loop that runs the sweeper later than this may have input that it has not read yet."""

_TURNS = 16
"""Turns of the loop in which waiting input is read: a new connection takes about five until its first bytes are."""

_TURNS_S = 0.25
"""The longest time for these turns: pings and holds wait for the sweeper too, however busy the loop is."""

_SLOW_SWEEP_S = 1.0
_LIVE_S = 10.0


class Swept(Part):
    """A part that is only swept, by a function."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep

    def sweep(self, now: float) -> bool | None:
        """See `Sweep`."""
        return self._sweep(now)


class Sweeper:
    """Sweeps all `parts` every `every_s` seconds, and does what is in `slow` about once a second.

    The time of each sweep is `monotonic()`. The sweeper also keeps the broker's offset between the two clocks right.
    """

    def __init__(self, every_s: float, broker: Broker, parts: Sequence[Part], slow: Sequence[Sweep]) -> None:
        self._every_s = every_s
        self._broker = broker
        self._parts = parts
        self._slow = slow
        self._swept_at = monotonic()
        self.lags = Delays()  # how late the loop ran the sweeper, or how long a turn took while it swept, if longer
        broker.clock_offset_s = time.time() - monotonic()

    @property
    def age_s(self) -> float:
        """Seconds since deadlines were last checked."""
        return monotonic() - self._swept_at

    @property
    def is_live(self) -> bool:
        """Whether deadlines were checked within the last 10 s; if not, sessions no longer end (CometD #1627)."""
        return self.age_s < _LIVE_S

    def begin(self) -> None:
        """Start counting `age_s` now: time before the sweeper runs does not count."""
        self._swept_at = monotonic()

    async def run(self) -> None:
        """Sweep until cancelled; a loop that stood still for more than a second is logged."""
        slowly_swept_at = monotonic()
        was_late = False
        idle_since = monotonic()
        turn_s = 0.0  # the longest turn of the loop in the latest sweeps
        while True:
            due = monotonic() + self._every_s
            await asyncio.sleep(self._every_s)
            now = monotonic()
            since_s = now - idle_since
            self.lags.note(int(max(now - due, turn_s) * 1_000_000))
            if since_s > _STALL_S + self._every_s:
                telemetry.log.warning("stalled", seconds=round(since_s, 3))
            self._swept_at = idle_since = now
            self._broker.clock_offset_s = time.time() - now
            # Input that waited while the loop stood still is read before any peer counts as late; uvloop runs timers
            # before it reads sockets. After a standstill peers have one sweep more, as they may have stood still too.
            # Not twice in a row: a loop that is always busy must end slow peers all the more.
            if since_s > self._every_s + _SLACK_S:
                await _turns()
            was_late = not was_late and max(since_s - self._every_s, turn_s) > self._every_s
            if was_late:
                turn_s = 0.0
                continue
            sweeps: list[Sweep] = [part.sweep for part in self._parts]
            if now - slowly_swept_at > _SLOW_SWEEP_S:
                slowly_swept_at = now
                sweeps += self._slow
            turn_s = await self._sweep(sweeps, now)
            if turn_s > _STALL_S:
                telemetry.log.warning("stalled", seconds=round(turn_s, 3))
            idle_since = monotonic()  # time spent in sweeps is not counted as a stall

    async def _sweep(self, sweeps: Sequence[Sweep], now: float) -> float:
        """Do all sweeps; returns the seconds that the longest turn of the loop took: a sweep's part, or others'."""
        longest_s = 0.0
        for sweep in sweeps:
            began = turn_began = monotonic()
            has_more = True
            while has_more:
                has_more = _sweep_once(sweep, now) and monotonic() - began < self._every_s  # the others are due, too
                await asyncio.sleep(0)
                turn_ended = monotonic()
                longest_s = max(longest_s, turn_ended - turn_began)
                turn_began = turn_ended
        return longest_s


def _sweep_once(sweep: Sweep, now: float) -> bool:
    """Do a part of a sweep; whether there is more."""
    try:
        return sweep(now) is True
    except Exception as error:  # noqa: BLE001 - a sweeper that dies leaks every session after it
        telemetry.fault("sweeper", error)
        return False


async def _turns() -> None:
    """Let the event loop read what has arrived."""
    until = monotonic() + _TURNS_S
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        if monotonic() > until:
            return
