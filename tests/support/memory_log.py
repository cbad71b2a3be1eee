"""A history in memory, as `broker/ports.py` requires it: the test moves its writer, and its reader needs no time.

It does not judge whether a replay is right: it only stores, finds and forgets events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halley.broker.errors import HistoryUnavailable
from halley.broker.events import Event
from halley.broker.names import receiving_patterns
from halley.broker.pending import Pending
from halley.broker.ports import Durability, Page, Query

if TYPE_CHECKING:
    from collections.abc import Generator

    from halley.broker.broker import Broker
    from halley.broker.names import Pattern

LOG_ID = "log-in-memory"


class Reading:
    """What `read` returns. It is never awaited: a test takes its `query` and passes the page on itself."""

    def __init__(self, query: Query) -> None:
        self.query = query

    def __await__(self) -> Generator[None, None, Page]:
        raise AssertionError("the engine awaits nothing")


class MemoryLog:
    """The log of one broker. `keepings` states by topic what is not durable.

    Appended events wait for `commit` or `refuse`. `short` limits the number of offsets that one page looks at.
    """

    log_id = LOG_ID

    def __init__(self, broker: Broker, *, short: int = 1_000_000) -> None:
        self.broker = broker
        self.keepings: dict[str, Durability] = {}
        self.short = short
        self.entries: list[Pending] = []  # not yet reported
        self.events: list[Event] = []  # the event with offset n is at index n - 1
        self.gaps: list[tuple[int, int]] = []
        self.reads: list[Query] = []
        self.is_full = False
        self._start = 1
        broker.commits.begin(self, 0)

    @property
    def inbox(self) -> list[Event]:
        """The events that wait for `commit` or `refuse`."""
        return [pending.event for pending in self.entries]

    # broker.ports.Log

    def durability_of(self, topic: str) -> Durability:
        return self.keepings.get(topic, Durability.DURABLE)

    def append(self, pending: Pending) -> None:
        if self.is_full or len(self.entries) >= 1_000:
            raise HistoryUnavailable
        self.entries.append(pending)

    def start_of(self, pattern: Pattern) -> int:
        return self._start

    # The reader

    def read(self, query: Query) -> Reading:
        """Note the query, and return an awaitable for it, as the engine requires."""
        self.reads.append(query)
        return Reading(query)

    def page(self, query: Query) -> Page:
        """Return the page that the query is for."""
        events: list[Event] = []
        nbytes, reached = 0, min((after for _, after in query.wanted), default=query.last)
        first = reached + 1
        while reached < query.last and reached < first - 1 + self.short:
            event = self.events[reached]
            if self._is_found(event, query):
                nbytes += len(event.payload)
                if len(events) >= query.limit or (events and nbytes > query.max_bytes):
                    break
                events.append(_from_disk(event))
            reached += 1
        gaps = [(max(low, first), min(high, reached)) for low, high in self.gaps if low <= reached and high >= first]
        return Page(events, reached, reached >= query.last, gaps)

    def _is_found(self, event: Event, query: Query) -> bool:
        if event.position < self._start or any(low <= event.position <= high for low, high in self.gaps):
            return False
        if event.audience is not None and not event.audience.admits(query.authid, query.role):
            return False
        heard = set(receiving_patterns(event.topic))
        return any(event.position > after and pattern in heard for pattern, after in query.wanted)

    # What a test does to it

    def commit(self, count: int | None = None, now: float = 0.0) -> None:
        """Commit the oldest `count` of the waiting events, or all."""
        group, self.entries = self.entries[:count], self.entries[len(self.entries[:count]) :]
        first = len(self.events) + 1
        self.events += [pending.event for pending in group if pending.is_recorded]
        self.broker.commits.committed(group, first, now)

    def refuse(self, count: int | None = None, now: float = 0.0) -> None:
        """Refuse the oldest `count` of the waiting events, or all."""
        group, self.entries = self.entries[:count], self.entries[len(self.entries[:count]) :]
        self.broker.commits.refused(group, HistoryUnavailable(), now)

    def remove_before(self, offset: int) -> None:
        """Remove the events before an offset, as retention does."""
        self._start = offset

    def forget_tail(self) -> None:
        """Forget the newest events that are also in memory, as a restart does."""
        self.broker.commits.tail.skip_to(len(self.events))


def _from_disk(event: Event) -> Event:
    """Return an event as it is read from disk: with the columns, and without the state it had in memory."""
    read = Event(event.topic, event.payload, publisher=event.publisher, authid=event.authid, audience=event.audience)
    read.position, read.publication, read.time_us = event.position, event.publication, event.time_us
    read.details = event.details
    return read
