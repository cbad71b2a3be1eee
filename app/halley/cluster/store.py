"""Where the events of the stream go at one node, be it a folder or memory: to its store, and then to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from typing import Any, Protocol

from halley.broker.commits import Commits, Published
from halley.broker.errors import HistoryUnavailable, Refusal
from halley.broker.events import Event, EventRange
from halley.broker.faults import for_each
from halley.broker.names import Pattern
from halley.broker.ports import Durability
from halley.cluster.availability import Availability
from halley.history.stored import Stored, row_of

_RETRY_S = 0.3
_REACH_S = 2.0


class Store(Protocol):
    """Where a node's events go when the stream has given them their offsets: its data folder, or a front's memory.

    What has become of each event is reported to `StoreWriter.committed` and `refused`, in the order of appending.
    """

    @property
    def log_id(self) -> str:
        """The id of the log, which is the same at all nodes of the cluster."""

    @property
    def publication_key(self) -> int:
        """The key of the log's publication ids."""

    @property
    def head(self) -> int:
        """The last offset that is stored."""

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What recorded events are refused with at present, if they are."""

    def durability_of(self, topic: str) -> Durability:
        """How a topic's events are kept."""

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on no event that `pattern` matches was removed."""

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The rows between two offsets that this node has on disk."""

    def append(self, event: Event) -> None:
        """Queue an event, which has its offset if it is recorded. Raises `HistoryUnavailable`, and nothing is done."""


class StoreWriter:
    """Gives events to the store, and reports to the broker those that are stored; all in the stream's order.

    What the store cannot write is in the stream all the same: it is written as soon as that is possible, and nothing
    before. `is_stalled` while the store takes nothing. `first_topics` as in `arrivals.Arrivals`.
    """

    def __init__(
        self, store: Store, commits: Commits, availability: Availability, offset: int, first_topics: dict[Event, str]
    ) -> None:
        """`offset` is the last one that was applied: rows behind it are on disk and will be applied again."""
        self.is_stalled = False
        self._store = store
        self._append: Callable[[Any], None] = store.append  # that of a front takes ranges, too
        self._commits = commits
        self._availability = availability
        self._first_topics = first_topics
        self._unwritten: list[Event] = []  # by the disk's fault; they are given to the store again
        self._delivered = asyncio.Event()  # set when more is delivered, and then replaced
        self._head = store.head  # what the stream gives up to this offset is on disk already
        on_disk = chain.from_iterable(store.rows(offset + 1, self._head))
        self._on_disk = {row.offset: row.crc for row in on_disk if not row.is_purged}

    async def write(self, entries: Sequence[Event | EventRange]) -> None:
        """Give the store the events that `take` did not, when it takes some again."""
        for entry in entries:
            while not self._availability.is_diverged and not self.take(entry):
                self.is_stalled = True
                await asyncio.sleep(_RETRY_S)
        self.is_stalled = False

    def take(self, event: Event | EventRange) -> bool:
        """Give the store an event; False while it takes none. What a restart applies again is on disk."""
        known = self._on_disk.pop(event.position, None) if event.is_recorded else None
        if known is not None or (event.is_recorded and event.position <= self._head):
            if isinstance(event, Event) and known not in (None, row_of(event, event.position).crc):
                self._availability.diverge("the stream has another event at an offset than this node's folder")
            return True
        if self._unwritten:
            return False
        try:
            self._append(event)
        except HistoryUnavailable:
            return False
        return True

    def look(self) -> None:
        """Give the store what it could not write, if it can now."""
        if self._unwritten and self._store.refusal is None:
            events, self._unwritten = self._unwritten, []
            for at, event in enumerate(events):
                try:
                    self._store.append(event)
                except HistoryUnavailable:
                    self._unwritten = events[at:]
                    return

    def give_up(self) -> list[Event]:
        """The events of this node that are not written."""
        return [event for event in self._unwritten if _is_own(event)]

    async def reach(self, offset: int) -> None:
        """Wait until all events up to an offset are delivered here, for `_REACH_S` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REACH_S):
                while self._commits.tail.head < offset:
                    await self._delivered.wait()

    # What the store reports

    def committed(self, events: Sequence[Any], _first: int, now: float) -> None:
        """Report to the broker the events that are stored, or have had their turn."""
        if self._unwritten and not any(event.is_recorded for event in events):  # their turn comes behind those
            self._unwritten += events
            return
        try:
            for_each([list(run) for _, run in groupby(events, _is_own)], self._commit, now)
        finally:
            self._delivered.set()
            self._delivered = asyncio.Event()

    def _commit(self, run: list[Any], now: float) -> None:
        (self._own_committed if _is_own(run[0]) else self._commits.arrived)(run, now)

    def _own_committed(self, events: list[Event], now: float) -> None:
        for is_repeat, group in groupby(events, _is_repeat):
            if not is_repeat:
                self._commits.committed(list(group), self._commits.tail.head + 1, now)
                continue
            for event in group:
                first = Published(self._first_topics.pop(event), event.position, event.publication)
                self._commits.repeated_late(event, first, now)

    def refused(self, events: Sequence[Event], _refusal: Refusal, _now: float) -> None:
        """Keep events that could not be written, in their order."""
        self._unwritten += events


def _is_own(event: Event | EventRange) -> bool:
    """Whether a session of this node has published the event, and waits for it: not so for values of NetworkTables."""
    return isinstance(event, Event) and event.pending_since > 0


def _is_repeat(event: Event) -> bool:
    """Whether an own event got no offset, since another event had its key: its position is that one's."""
    return event.position > 0 and not event.is_recorded
