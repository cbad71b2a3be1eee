"""The days of UTC, by which tables are partitioned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

DAY_US = 86_400_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(text: str) -> int:
    """Return the microseconds since 1970 of a time in UTC, or of a day's start, in ISO 8601. Raises `ValueError`."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
