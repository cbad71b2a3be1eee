"""What the broker needs of others: the log of its events, the keeper of last values, and holders of events' data.

The history (`halley/history/`) stores bytes and has threads; here are only the types that both sides share. An
**offset** numbers the events of a log from 1 on, without holes; clients call it a position.

Topics with a type and a last value are NetworkTables', whose clients share them with the clients of all protocols. The
broker passes each publication of another protocol to the keeper of these values (`Values`). A value is delivered
immediately and recorded afterwards at a limited rate, even if its topic is durable otherwise.

On an erasure the log erases its own rows (`halley/history/`). Everything else that keeps data of events after their
delivery is in `Broker.holders`. Not among these are the queues of sessions: what is in them may still be delivered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from halley.broker.events import Event
from halley.broker.names import RESERVED, Pattern, matches
from halley.broker.nesting import has_more_levels
from halley.broker.pending import Pending
from halley.broker.sessions import Session

USUAL_LIMIT = 100
"""The number of events in a page if the query does not give a limit."""


class Durability(Enum):
    """Whether and when a topic's events are written to the log."""

    NONE = "none"  # delivered only
    ASYNC = "async"  # delivered immediately, then written
    DURABLE = "durable"  # on disk first, then delivered, then acknowledged


class Log(Protocol):
    """The store of the broker's events. Its methods are called on the event loop and never block.

    The result of each append is reported to `Commits.committed` or `refused`, in the order of appending.
    """

    @property
    def log_id(self) -> str:
        """An id that is unique to this log; a restored copy has another."""

    def durability_of(self, topic: str) -> Durability:
        """Whether and when the events of a canonical topic are written."""

    def append(self, pending: Pending) -> None:
        """Queue an event to be written, or, if `pending.is_recorded` is False, only to be reported in its order.

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


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads the history.

    sharer    whose part of the server's readers is used (`limits.sharer_of`)
    is_there  whether somebody still wants the page: a read whose turn comes is dropped if nobody does. None where the
              read is cancelled then
    """

    sharer: str
    is_there: Callable[[], bool] | None = None

    @classmethod
    def of(cls, session: Session) -> Reader:
        """A session as reader, until it has ended."""
        return cls(session.sharer, lambda: session.closed is None)


class NobodyReads(Exception):
    """A read of the history was dropped, since its reader had gone before its turn."""


Work = Callable[[], None]
"""What remains to be done on disk: it blocks, so a thread calls it. Raises `OSError`."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """Which events to erase: those whose topic `pattern` matches, or those of `publisher` (an authid).

    One of the two is None. With a publisher go also the server's own events about it: its sessions and subscriptions.
    """

    pattern: Pattern | None
    publisher: str | None

    def concerns(self, topic: str, authid: str | None, payload: str | bytes | None = None) -> bool:
        """Whether an event on `topic` that was published by `authid` is to be erased; `payload` is JSON text."""
        if self.pattern is not None:
            return matches(self.pattern, topic)
        return authid == self.publisher or (topic.startswith(f"{RESERVED}/") and self._is_about_publisher(payload))

    def _is_about_publisher(self, payload: str | bytes | None) -> bool:
        try:
            content = None if payload is None or has_more_levels(payload) else json.loads(payload)
        except ValueError:  # that of another server may be anything, before it is an event
            return False
        return isinstance(content, dict) and content.get("authid") == self.publisher


class Erasable(Protocol):
    """Something that keeps data of events after their delivery, in memory or in a file next to the log."""

    def erase(self, erasure: Erasure) -> Work | None:
        """Drop from memory all that it has of the events concerned, and return what remains to be done on disk.

        It is called on the event loop, never blocks, and may be repeated.
        """


class Values(Protocol):
    """The keeper of typed topics and their last values. Its methods are called on the event loop and never block."""

    def accepts(self, topic: str) -> bool:
        """Whether events that are published on a canonical topic become its value."""

    def publish(self, event: Event, now: float, without: Session | None, source: object) -> Pending | None:
        """Make an event of another protocol a value, and have it delivered to all protocols (`LastValues.deliver`).

        The event has a time and a publication, and is not restricted to an audience. `source` is the publishing
        session, which may have ended (WAMP's testaments), or a request without one. Where another server takes it, what
        is returned is settled later (`Commits.settle_value`). Raises `WrongType` and `TooManyTopics`; then nothing is
        done.
        """

    def latest(self, patterns: Collection[Pattern], most: int) -> list[Event]:
        """The last values of topics that match any pattern, as new events: the newest `most`, oldest first."""

    def closed(self, session: Session) -> None:
        """Remove a session of another protocol, which has ended, from the publishers of its topics."""

    def subscribers_changed(self) -> None:
        """Note that a session of another protocol has subscribed or unsubscribed."""


def type_and_time(event: Event) -> bytes:
    """A value's NetworkTables type and time in microseconds, as a JSON object."""
    type_name = json.dumps(event.nt4_type, ensure_ascii=False).encode()
    return b'{"type":%b,"time":%d}' % (type_name, event.nt4_time_us or 0)
