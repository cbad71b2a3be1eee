"""A front: a node without a data folder. Where a keeper has its folder (`store.Store`), a front has this.

The events that the stream gives it are reported to its log, and so delivered and acknowledged, when they count as
stored: with `settled_by = "stream"` at once, with `keeper` when a keeper has said that they are on its disk. The front
itself keeps the newest of them in memory only (`Commits.tail`). Older ones are at the keepers (`keeper_client.py`), and
what has been deleted of them is deleted for the front too: it learns the first offset that the keepers still have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from sys import maxsize
from time import monotonic
from typing import Any

from halley import telemetry
from halley.broker.errors import HistoryUnavailable, InboxFull, OutcomeUnknown
from halley.broker.events import EventRange
from halley.broker.names import Pattern
from halley.broker.pending import Entry
from halley.broker.ports import Durability
from halley.cluster.keeper_client import KeeperClient, KeeperState
from halley.history.rules import Rules
from halley.history.writer import Committed, NotWritten, Report

_NO_KEEPER_S = 2.5
"""After how long without a keeper durable publishes are refused: two of its messages are missing.

A keeper that is started again sooner is not noticed by publishers but by their waiting for it.
"""


class NoKeeper(HistoryUnavailable):
    """No keeper is there, or none of them can write to its disk."""

    cause = "no_keeper"


class Front:
    """The events of a front that are not known to be stored, in the log's order.

    `report` is called with those that are; `is_waiting`: they are when a keeper has said so, else at once. Without a
    keeper a front that does not wait goes on until `is_filling` says that the stream has little room left: what is in
    it stays there for the keepers.
    """

    def __init__(
        self,
        state: KeeperState,
        rules: Rules,
        keepers: KeeperClient,
        report: Callable[[Report], None],
        is_filling: Callable[[], bool],
        *,
        is_waiting: bool,
        inbox_bytes: int,
    ) -> None:
        self.log_id = state.log_id
        self.publication_key = state.publication_key
        self.head: int = state.applied["offset"]
        self.refusal: HistoryUnavailable | None = None
        self._rules = rules
        self._keepers = keepers
        self._report = report
        self._is_filling = is_filling
        self._is_waiting = is_waiting
        self._inbox_bytes = inbox_bytes
        self._entries: deque[Any] = deque()  # `Entry`, and `EventRange`
        self._bytes = 0
        self._began_at = monotonic()
        self._is_alone = False  # which is logged
        self._is_due = False
        self.change: None = None  # a front that starts again asks a keeper
        self.later: Callable[[Callable[[], None]], object] | None = None
        """Calls a function at the end of the event loop's turn (`loop.call_soon`); None without a loop."""

    def durability_of(self, topic: str) -> Durability:
        """How a topic's events are kept."""
        return self._rules.durability_of(topic)

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on no event that `pattern` matches was removed at the keepers."""
        return self._keepers.start_of(pattern)

    def append(self, entry: Entry | EventRange) -> None:
        """Report events when they are stored, and one that is not recorded when it has had its turn.

        Raises `InboxFull`.
        """
        nbytes = entry.nbytes
        if self._bytes and self._bytes + nbytes > self._inbox_bytes:
            raise InboxFull
        self._entries.append(entry)
        self._bytes += nbytes
        if self.later is None:
            self.report_stored()
        elif not self._is_due:  # once for all events of a frame
            self._is_due = True
            self.later(self.report_stored)

    def report_stored(self) -> None:
        """Report the events that are stored by now; to be called when a keeper has written more."""
        self._is_due = False
        stored: list[Any] = []
        first, written = self.head + 1, self._keepers.written if self._is_waiting else maxsize
        while self._entries and (not self._entries[0].is_recorded or self._entries[0].position <= written):
            entry = self._entries.popleft()
            self._bytes -= entry.nbytes
            if entry.is_recorded:
                self.head = entry.position
            stored.append(entry)
            if isinstance(entry, EventRange):  # which may take as long to deliver as all before it
                self._report(Committed(stored, first))
                first, stored = self.head + 1, []
        if stored:
            self._report(Committed(stored, first))

    def check(self, now: float) -> None:
        """See which keepers are there; call it once a second."""
        self._keepers.check()
        self.report_stored()
        keepers = self._keepers.keepers()
        is_there = now - max((each.received_at for each in keepers), default=self._began_at) < _NO_KEEPER_S
        is_alone = not (is_there and (not keepers or any(each.takes for each in keepers)))
        if is_alone and not self._is_alone:
            telemetry.log.warning("cluster_no_keeper")
        self._is_alone = is_alone
        self.refusal = NoKeeper() if is_alone and (self._is_waiting or self._is_filling()) else None

    def close(self) -> None:
        """Report the rest: it is in the stream, but whether a keeper has it is unknown."""
        if self._entries:
            self._report(NotWritten([*self._entries], OutcomeUnknown()))
            self._entries.clear()
