"""Times as text (RFC 3339): how every protocol writes an event's time, and reads the bounds of a query.

Events are stamped in microseconds and written with six digits, so that a written time finds the same event again. A
time that is read may be finer than that: it is compared exactly, without rounding it first.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

SECONDS_TO_2026 = 1_767_225_600
"""Seconds from 1970 to 2026; counters that begin with the clock start there, so that they stay small."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:)(\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_LEAP = "60"

BOUNDS = ("from", "after", "before", "until")
"""The bounds of a query, by time or publication: at or after, after, before, at or before."""


def to_text(time_us: int) -> str:
    """Microseconds since 1970 as RFC 3339 in UTC with six digits."""
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def to_ns(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time; a leap second counts as the second after it.

    Raises `ValueError`, also for a time without an offset from UTC: it would be ambiguous.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 time")
    day, minute, second, fraction, offset, _ = match.groups()
    is_leap = second == _LEAP
    zone = "+00:00" if offset in "Zz" else offset
    moment = datetime.fromisoformat(f"{day}T{minute}{'59' if is_leap else second}{zone}")
    if is_leap and (moment - _EPOCH) % timedelta(days=1) != timedelta(hours=23, minutes=59, seconds=59):
        raise ValueError("there is no leap second at that time")
    whole_us = (moment - _EPOCH) // _MICROSECOND + is_leap * 1_000_000  # `datetime` may not hold the last second of all
    return whole_us * 1_000 + int((fraction or "").ljust(9, "0"))


class Span:
    """The combination of several bounds of time, as inclusive microseconds; None where there is no bound."""

    def __init__(self) -> None:
        self.from_us: int | None = None
        self.until_us: int | None = None

    def narrow(self, bound: str, time_ns: int) -> None:
        """Add a bound: one of `BOUNDS`, and its time in nanoseconds since 1970."""
        floor_us, ceiling_us = time_ns // 1_000, -(-time_ns // 1_000)
        if bound in ("from", "after"):
            low = ceiling_us if bound == "from" else floor_us + 1
            self.from_us = low if self.from_us is None else max(self.from_us, low)
        else:
            high = floor_us if bound == "until" else ceiling_us - 1
            self.until_us = high if self.until_us is None else min(self.until_us, high)
