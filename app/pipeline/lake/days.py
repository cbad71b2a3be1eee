"""Days, by which tables are partitioned: those of UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

DAY_US = 86_400_000_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_us(text: str) -> int:
    """The microseconds since 1970 of a moment of UTC, or of a day's first one, as ISO 8601. Raises `ValueError`."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
