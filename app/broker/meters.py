"""How fast somebody may go: a token bucket for each session, or for each address where there is no session.

A bucket is one number, the time at which it will be full again; a token costs the time in which it is filled (the
generic cell rate algorithm). So an idle one costs nothing, and one that is full again need not be kept.
"""

from __future__ import annotations

_METERS = 10_000


class Meter:
    """Admits `per_s` a second on average, and `burst` at once after a silence."""

    __slots__ = ("_burst_s", "_full_at", "_token_s")

    def __init__(self, per_s: float, burst: int) -> None:
        self._token_s = 1 / per_s
        self._burst_s = (burst + 0.01) * self._token_s  # lest rounding cost a whole token
        self._full_at = 0.0

    def admits(self, now: float) -> bool:
        """Take one token, if there is one."""
        full_at = max(self._full_at, now) + self._token_s
        if full_at - now > self._burst_s:
            return False
        self._full_at = full_at
        return True

    def admits_some(self, wanted: int, now: float) -> int:
        """Take as many tokens as there are, at most so many; how many those are."""
        begin = max(self._full_at, now)
        there = max(0, int((now + self._burst_s - begin) / self._token_s))
        taken = min(wanted, there)
        self._full_at = begin + taken * self._token_s
        return taken

    def is_full(self, now: float) -> bool:
        """Whether it knows no more than a new one would."""
        return self._full_at <= now


class Meters:
    """A meter for each of many names, at most `most`; beyond that newcomers share one until others are full again."""

    def __init__(self, per_s: float, burst: int, most: int = _METERS) -> None:
        self._per_s = per_s
        self._burst = burst
        self._most = most
        self._meters: dict[str, Meter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def new(self) -> Meter | None:
        """A meter for somebody who keeps it; None where there is no limit."""
        return Meter(self._per_s, self._burst) if self._per_s else None

    def admits(self, name: str, now: float) -> bool:
        """Take one of that name's tokens, if there is one."""
        if name not in self._meters and len(self._meters) >= self._most:
            name = ""
        meter = self._meters.get(name) or self.new()
        if meter is None:
            return True
        self._meters[name] = meter
        return meter.admits(now)

    def sweep(self, now: float) -> None:
        """Forget the ones that are full."""
        for name in [name for name, meter in self._meters.items() if meter.is_full(now)]:
            del self._meters[name]
