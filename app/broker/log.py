"""The event history as the broker and the engines see it: durability, appending, queries and their results.

The history itself (`app/history/`) stores bytes and has threads; this module has only the types that both sides share.
An **offset** numbers the events of a log from 1 on, without holes; shown to a client it is called a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from app.broker.events import Event
from app.broker.topics import Pattern

USUAL_LIMIT = 100
"""The number of events in a page if the query does not give a limit."""


class Keeping(Enum):
    """Whether and when a topic's events are written to the log."""

    NOT = "not"  # delivered only
    AFTERWARDS = "afterwards"  # delivered immediately, then written
    DURABLE = "durable"  # on disk first, then delivered, then acknowledged


class Log(Protocol):
    """The store of the broker's events. Its methods are called on the event loop and never block.

    The result of each append is reported to `Recording.committed` or `refused`, in the order of appending.
    """

    @property
    def log_id(self) -> str:
        """An id that is unique to this log; a restored copy has another."""

    def keeping(self, topic: str) -> Keeping:
        """Whether and when the events of a canonical topic are written."""

    def append(self, event: Event) -> None:
        """Queue an event to be written, or, if `event.is_recorded` is False, only to be reported in its order.

        Raises `HistoryUnavailable` if there is no room for the event or the disk cannot be written.
        """

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on no event that `pattern` matches has been deleted."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the history. All bounds are inclusive, except the offsets in `wanted`.

    wanted         patterns, each with the offset after which its events are wanted (0: from the start); an event is
                   found if any of the patterns matches its topic and its offset is above that pattern's
    last           the highest offset; always given, and never above the broker's `head`
    first          the lowest offset
    authid, role   the identity that events with an audience are checked against
    *_time_us      bounds of the events' time, in wall-clock microseconds
    *_publication  bounds by the place of a publication in the log; `after_` and `before_` exclude that event
    limit, max_bytes   the most events and bytes in a page; one event always fits
    is_reverse     newest first
    """

    wanted: tuple[tuple[Pattern, int], ...]
    last: int
    first: int = 1
    authid: str | None = None
    role: str = "anonymous"
    from_time_us: int | None = None
    until_time_us: int | None = None
    from_publication: int | None = None
    after_publication: int | None = None
    before_publication: int | None = None
    until_publication: int | None = None
    limit: int = USUAL_LIMIT
    max_bytes: int = 524_288
    is_reverse: bool = False


@dataclass(slots=True)
class Page:
    """A page of query results.

    events       oldest first, or newest first for a query in reverse; each with its `position`
    reached      every offset up to this one (down to it, in reverse) has been examined: the next page continues here
    is_end       nothing is left within the query's bounds
    gaps         examined ranges of offsets, each as its first and last, in which events are missing: damaged or lost
    is_cut_off   within the examined range, events that the query asks for may have been deleted
    publication  the publication of the last event examined, even if the reader may not read that event; the next page
                 continues after it (before it, in reverse). None at the end, and where no event there can be read
    """

    events: list[Event]
    reached: int
    is_end: bool
    gaps: list[tuple[int, int]]
    is_cut_off: bool = False
    publication: int | None = None


class UnknownPublication(Exception):
    """A query names a publication that the log does not have, or no longer has."""
