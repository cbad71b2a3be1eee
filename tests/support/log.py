"""A log without a disk: what is appended waits until a test says what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.errors import HistoryUnavailable
from app.broker.log import Keeping
from app.broker.topics import Match

if TYPE_CHECKING:
    from app.broker.broker import Broker
    from app.broker.events import Event
    from app.broker.topics import Pattern


class HandLog:
    """Topics below `loose` are written after delivery, those below `none` not at all, all others are durable."""

    def __init__(self, broker: Broker, head: int = 0) -> None:
        self.broker = broker
        self.log_id = "hand"
        self.waiting: list[Event] = []
        self.stored: list[Event] = []  # in their order, from the first offset on
        self.is_full = False
        broker.recording.begin(self, head)

    def keeping(self, topic: str) -> Keeping:
        """By the first segment."""
        first = topic.partition("/")[0]
        return {"loose": Keeping.AFTERWARDS, "none": Keeping.NOT}.get(first, Keeping.DURABLE)

    def append(self, event: Event) -> None:
        """Let it wait."""
        if self.is_full:
            raise HistoryUnavailable
        self.waiting.append(event)

    def start_of(self, pattern: Pattern) -> int:
        """Nothing has been removed."""
        assert isinstance(pattern.match, Match)
        return 1

    def commit(self, now: float, count: int | None = None, first: int | None = None) -> None:
        """The oldest `count` of those waiting, or all, are on disk."""
        group, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        self.stored += [event for event in group if event.is_recorded]
        self.broker.recording.committed(group, first or self.broker.recording.tail.head + 1, now)

    def refuse(self, now: float, count: int | None = None) -> None:
        """They are not."""
        group, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        self.broker.recording.refused(group, HistoryUnavailable(), now)
