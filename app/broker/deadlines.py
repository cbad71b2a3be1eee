"""The deadlines of all sessions, in one heap.

Most deadlines move while they wait (each poll moves one), so only a move to an earlier time touches the heap: an entry
whose session's deadline is later by now is put back when its time is reached. Each session has exactly one live entry,
its `alarm`, which is never later than its deadline. Other entries of the session are stale, and dropped at their time.
"""

from __future__ import annotations

import heapq
from math import inf

from app.broker.sessions import Session

_STALE_ENTRIES_KEPT = 1_000


class Deadlines:
    """The sessions that are watched, and the time at which each is due (monotonic seconds)."""

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
        """Change the deadline of a watched session."""
        session.deadline = deadline
        if session.alarm is not None and deadline < session.alarm[0]:
            self._arm(session)

    def remove(self, session: Session) -> None:
        """Stop watching a session; its entry is dropped when its time is reached."""
        session.alarm = None
        self._live -= 1
        if len(self._heap) > 2 * self._live + _STALE_ENTRIES_KEPT:
            self._heap = [entry for entry in self._heap if entry is entry[2].alarm]
            heapq.heapify(self._heap)

    def next(self) -> float:
        """The earliest time at which `due` may return a session; infinity when nothing is watched."""
        return self._heap[0][0] if self._heap else float("inf")

    def due(self, now: float) -> list[Session]:
        """The sessions whose deadline has passed; each is watched until its owner moves its deadline or closes it."""
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
        if session.deadline < inf:  # an entry without an end would never be dropped, nor the session that it refers to
            heapq.heappush(self._heap, session.alarm)
