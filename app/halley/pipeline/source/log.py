"""The interface of a log for readers: its head, its rows in order, and a reason for each offset without a row.

Ranges are half-open, [first, until), except in texts for people ("offsets 5 to 9") and in faults.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, Self
from zlib import crc32

from orjson import dumps

from halley.history.damage import outside
from halley.history.row_filter import EVERY_ROW, RowFilter
from halley.pipeline.errors import JobFailed

Row = tuple[Any, ...]
"""An undamaged stored event, purged or not: the values of `COLUMNS` (`halley/history/stored.py`)."""

BATCH_ROWS, BATCH_BYTES = 4_096, 8_388_608
"""The maximum of rows and of bytes that a task has in memory at a time; the one that is reached first counts."""

_POLL_S = 0.2

Why = Literal["damaged", "hole", "missing"]


class Gone(JobFailed):
    """Retention has deleted events that were to be read."""

    @classmethod
    def of(cls, first: int, last: int, now: int) -> Self:
        """Return the error for the offsets `first` to `last` of a log that begins at the offset `now`."""
        return cls(f"{offsets(first, last)} of the log are deleted, it now begins at {now}; {_GO_ON}")


class GapFound(JobFailed):
    """Offsets are missing in the log for no known reason, or are in a damaged segment, which may yet be salvaged."""

    @classmethod
    def of(cls, fault: Fault) -> Self:
        """Return the error for a fault."""
        reason = "are missing in the log, see `halley history verify`"
        if fault.why == "damaged":
            reason = (
                "are in a damaged segment of the log: stop the server and run `halley history salvage`, which saves "
                "what is intact of it, and then the same command again"
            )
        return cls(f"{offsets(fault.first, fault.last)} {reason}; {_GO_ON}")


_GO_ON = "to go on without them: --accept-gap, or the option accept_gap=true"


class LogHead(NamedTuple):
    """The extent of a log: `first` is the first offset still stored, `next` the one after the last committed offset.

    holes   ranges of offsets, first and last, that the log has recorded as lost
    damage  ranges of offsets, first and last, that the log has recorded as damaged
    """

    log_id: str
    first: int
    next: int
    holes: tuple[tuple[int, int], ...] = ()
    damage: tuple[tuple[int, int], ...] = ()


class Fault(NamedTuple):
    """A range of offsets, first and last, without rows, and the reason."""

    first: int
    last: int
    why: Why


class Log(Protocol):
    """A log that can be read from any process: it can be pickled, and holds nothing open."""

    @property
    def options(self) -> dict[str, str]:
        """The source's options, as far as they have changed, with which another process goes on reading."""

    def head(self) -> LogHead:
        """Return the log's present extent. Raises `JobRejected`, `JobFailed`."""

    def read(self, first: int, until: int, wanted: RowFilter = EVERY_ROW) -> Iterator[list[Row] | Fault]:
        """Yield every offset of a range once, in order: in batches of rows, or in faults.

        With a filter the offsets of intact rows that it does not match are left out; faults are yielded as without
        one, each before any row behind it that is not in the same batch.

        The range must end at `head().next` or before. Raises `JobRejected`, `JobFailed`.
        """

    def commit(self, consumer: str, offset: int) -> None:
        """Report that a consumer needs nothing below an offset any more. Raises `JobRejected`, `JobFailed`."""


def caught_up(log: Log, offset: int, behind_s: float) -> LogHead:
    """Return the extent of a log, as soon as it reaches an offset that was read before, or after `behind_s` seconds.

    What was read at one keeper of a cluster, another one may have a little later. Raises `JobRejected`, `JobFailed`.
    """
    until = time.monotonic() + behind_s
    while (head := log.head()).next < offset and time.monotonic() < until:
        time.sleep(_POLL_S)
    return head


def offsets(first: int, last: int) -> str:
    """Return a range as text for people; `last` is included."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def split(first: int, until: int, rows: int) -> list[tuple[int, int]]:
    """Split a range into half-open ranges of about the same size, of at most `rows` offsets each."""
    length = max(0, until - first)
    parts = -(-length // rows)
    bounds = [first + length * part // parts for part in range(parts)] + [until] if parts else []
    return list(pairwise(bounds))


def explained(first: int, last: int, known: Iterable[tuple[int, int]], why: Why, otherwise: Why) -> list[Fault]:
    """Return the faults of a range without rows, in order; all ranges are given as first and last.

    The reason is `why` for what lies within the `known` ranges, which do not overlap, else `otherwise`.
    """
    clipped = [(max(low, first), min(high, last)) for low, high in known]
    within = [Fault(low, high, why) for low, high in clipped if low <= high]
    return sorted([*within, *(Fault(low, high, otherwise) for low, high in outside(first, last, clipped))])


def are_intact(rows: list[Row]) -> bool:
    """Whether each row has its checksum (`halley/history/stored.py`)."""
    try:
        return all(crc32(dumps(row[:-1])) == row[-1] for row in rows)
    except TypeError:  # a flipped bit has turned a text into bytes
        return False


def are_sound(rows: list[Row], first: int, until: int) -> bool:
    """Whether these are all rows of a range, and each has its checksum (`halley/history/stored.py`)."""
    try:
        return [row[0] for row in rows if crc32(dumps(row[:-1])) == row[-1]] == list(range(first, until))
    except TypeError:  # a flipped bit has turned a text into bytes
        return False
