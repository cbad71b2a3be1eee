"""The event history as the broker and the engines see it: what is kept, how to append, what to ask and what comes back.

The history itself (`app/history/`) stores bytes and has threads; here are only the words in which both sides speak.
An **offset** numbers the events of a log from 1 on, without holes; shown to a client it is called a position.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from app.broker.events import Event
    from app.broker.topics import Pattern


USUAL_LIMIT = 100
"""Events in a page, for whoever has not said how many."""


class Keeping(Enum):
    """What becomes of a topic's events."""

    NOT = "not"  # delivered, and forgotten
    AFTERWARDS = "afterwards"  # delivered at once, then written
    DURABLE = "durable"  # on disk first, then delivered, then acknowledged


class Log(Protocol):
    """Where the broker's events are kept. Called on the event loop; none of it waits.

    What becomes of appended events is reported to `Recording.committed` and `refused`, in the order of appending.
    """

    @property
    def log_id(self) -> str:
        """Names this log among all; a restored copy has another."""

    def keeping(self, topic: str) -> Keeping:
        """What is to become of a topic's events."""

    def append(self, event: Event) -> None:
        """Have an event written, or, where `event.is_recorded` is False, only passed on in its turn.

        Raises `HistoryUnavailable` where there is no room for it or the disk takes nothing.
        """

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on nothing that `pattern` matches has been removed."""


@dataclass(frozen=True, slots=True)
class Query:
    """What somebody wants from the history; all bounds are inclusive but `after` in `wanted`.

    wanted         patterns, each with the offset after which its events are wanted (0: from the start); an event is
                   found if any of them matches its topic and lies below it
    last           no offset above this one; always given, and never above the broker's `head`
    first          none below
    authid, role   whose rights decide about events with an audience
    *_time_us      bounds of the events' time
    *_publication  bounds by the place of a publication in the log; `after_` and `before_` leave out itself
    limit, max_bytes   of a page; one event always fits
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
    """What was found.

    events       oldest first, or newest first if that was asked; each with its `position`
    reached      every offset up to this one (down to it, in reverse) has been looked at: where to go on
    is_end       nothing is left within the query's bounds
    gaps         offsets within those looked at, first and last each, at which events are missing: damaged, or lost
    is_cut_off   what was asked for, as far as it was looked at, may have had events that are no longer kept
    publication  where nothing else is to be named: of the last event looked at, whoever may read it. After it (before
                 it, in reverse) it goes on. None at the end, and where nothing there can be read
    """

    events: list[Event]
    reached: int
    is_end: bool
    gaps: list[tuple[int, int]]
    is_cut_off: bool = False
    publication: int | None = None


class UnknownPublication(Exception):
    """A query names a publication that the log does not have, or has no longer."""
