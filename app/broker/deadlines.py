"""The deadlines of all sessions, in one heap.

Most deadlines move while they wait (each poll moves one), so a move costs nothing unless it is towards now: an entry
whose session has been given more time is put back when it comes up. Each session has exactly one live entry, its
`alarm`, which is never later than its deadline; any other entry of its is stale and dropped when it comes up.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.broker.sessions import Session

_STALE_ENTRIES_KEPT = 1_000


class Deadlines:
    """When something must happen to which session."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Session]] = []
        self._count = 0  # breaks ties, so that sessions are never compared
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, session: Session, deadline: float) -> None:
        """Watch a new session."""
        self._live += 1
        session.deadline = deadline
        self._arm(session)

    def move(self, session: Session, deadline: float) -> None:
        """Give a watched session another deadline."""
        session.deadline = deadline
        if session.alarm is not None and deadline < session.alarm[0]:
            self._arm(session)

    def remove(self, session: Session) -> None:
        """Watch it no longer; its entry is dropped when it comes up."""
        session.alarm = None
        self._live -= 1
        if len(self._heap) > 2 * self._live + _STALE_ENTRIES_KEPT:
            self._heap = [entry for entry in self._heap if entry is entry[2].alarm]
            heapq.heapify(self._heap)

    def next(self) -> float:
        """The earliest time at which `due` may have something to tell; infinity when nothing is watched."""
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> list[Session]:
        """The sessions whose deadline has come; each stays watched, for its owner to move or close."""
        sessions = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            session = entry[2]
            if entry is not session.alarm:
                continue
            if session.deadline > now:
                self._arm(session)
            else:
                sessions.append(session)
        for session in sessions:
            self._arm(session)
        return sessions

    def _arm(self, session: Session) -> None:
        self._count += 1
        session.alarm = (session.deadline, self._count, session)
        if session.deadline < inf:  # what never comes up would never be dropped either, with all that it holds
            heapq.heappush(self._heap, session.alarm)
