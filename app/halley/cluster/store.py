"""Where the events of the stream go at one node, be it a folder or memory: to its store, and then to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Protocol

from halley.broker.commits import Commits, PublishResult
from halley.broker.errors import HistoryUnavailable, Refusal, Unstorable
from halley.broker.events import EventRange
from halley.broker.faults import for_each
from halley.broker.pending import Entry, Pending
from halley.broker.ports import Log
from halley.cluster.applied import StreamState
from halley.cluster.availability import FAULT, Availability
from halley.history.state import Change

UNSTORABLE, UNDELIVERED = f"{FAULT}{Unstorable.__name__}", f"{FAULT}a position was passed over"

_RETRY_S = 0.3


class Store(Log, Protocol):
    """Where a node's events go when the stream has given them their offsets: its data folder, or a front's memory.

    What has become of each event is reported to `StoreWriter.committed` and `refused`, in the order of appending.
    """

    @property
    def publication_key(self) -> int:
        """The key of the log's publication ids."""

    @property
    def head(self) -> int:
        """The last offset that is stored."""

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What recorded events are refused with at present, if they are."""

    def append(self, entry: Entry) -> None:
        """Queue an event, which has its offset if it is recorded. Raises `HistoryUnavailable`, and nothing is done."""

    @property
    def change(self) -> Callable[[Change], None] | None:
        """Queues a change of what is saved, to be written behind the events that were appended before.

        None where nothing is saved.
        """


class StoreWriter:
    """Gives events to the store, and reports to the broker those that are stored; all in the stream's order.

    What the store cannot write is in the stream all the same: it is written as soon as that is possible, and nothing
    before. `is_stalled` while the store takes nothing. `firsts` as in `arrivals.EventFactory`.
    """

    def __init__(
        self, store: Store, commits: Commits, availability: Availability, firsts: dict[Pending, PublishResult]
    ) -> None:
        self.is_stalled = False
        self._store = store
        self._append: Callable[[Any], None] = store.append  # that of a front takes ranges, too
        self._change = store.change
        self._commits = commits
        self._availability = availability
        self._firsts = firsts
        self._unwritten: list[Entry | Change] = []  # by the disk's fault; they are given to the store again
        self._head = store.head  # what the stream gives up to this offset is on disk already

    async def write(self, entries: Sequence[Entry | EventRange]) -> None:
        """Give the store the events that `accept` did not, when it takes some again."""
        for entry in entries:
            while not self._availability.is_diverged and not self.accept(entry):
                self.is_stalled = True
                await asyncio.sleep(_RETRY_S)
        self.is_stalled = False

    def accept(self, entry: Entry | EventRange) -> bool:
        """Give the store an event; False while it takes none. What a restart applies again is on disk."""
        if entry.is_recorded and entry.position <= self._head:
            return True
        if self._unwritten:
            return False
        try:
            self._append(entry)
        except HistoryUnavailable:
            return False
        return True

    def save(self, applied: StreamState) -> None:
        """Have the store save what the last message has changed, behind the events that it was given."""
        if self._change is None:
            return
        if self._unwritten:
            self._unwritten.append(applied.changed())
        else:
            self._change(applied.changed())

    def check(self) -> None:
        """Give the store what it could not write, if it can now."""
        if self._unwritten and self._store.refusal is None and not self._availability.is_diverged:
            entries, self._unwritten = self._unwritten, []
            for at, entry in enumerate(entries):
                try:
                    if isinstance(entry, Change):
                        assert self._change is not None
                        self._change(entry)
                    else:
                        self._append(entry)
                except HistoryUnavailable:
                    self._unwritten = entries[at:]
                    return

    def give_up(self) -> list[Pending]:
        """The events of this node that are not written."""
        return [entry for entry in self._unwritten if isinstance(entry, Pending)]

    # What the store reports

    def committed(self, entries: Sequence[Any], _first: int, now: float) -> None:
        """Report to the broker the events that are stored, or have had their turn."""
        if self._unwritten and not any(entry.is_recorded for entry in entries):  # their turn comes behind those
            self._unwritten += entries
            return
        runs = [list(run) for _, run in groupby(entries, _is_own)]
        for_each(runs, self._commit, now, self._commits.report, "commit")
        last = next((entry.position for entry in reversed(entries) if entry.is_recorded), 0)
        if self._commits.tail.head < last:  # there was an error
            self._availability.diverge(UNDELIVERED)

    def _commit(self, run: list[Any], now: float) -> None:
        if not _is_own(run[0]):
            self._commits.arrived([each.event if isinstance(each, Entry) else each for each in run], now)
            return
        for is_repeat, group in groupby(run, _is_repeat):
            if not is_repeat:
                self._commits.committed(list(group), self._commits.tail.head + 1, now)
                continue
            for pending in group:
                self._commits.repeated_late(pending, self._firsts.pop(pending), now)

    def refused(self, entries: Sequence[Entry | Change], refusal: Refusal, _now: float) -> None:
        """Keep events that could not be written, in their order. One that never can be ends the node's log."""
        self._unwritten += entries
        if isinstance(refusal, Unstorable):
            self._availability.diverge(UNSTORABLE)


def _is_own(entry: Entry | EventRange) -> bool:
    """Whether this node has published the event, so that it is pending here."""
    return isinstance(entry, Pending)


def _is_repeat(pending: Pending) -> bool:
    """Whether an own event got no offset, since another event had its key: its position is that one's."""
    return pending.position > 0 and not pending.is_recorded
