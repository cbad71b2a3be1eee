"""The newest part of the log, in memory, so that a session that has read up to it can go live in the same step."""

from __future__ import annotations

from collections import deque
from itertools import islice

from app.broker.erasure import Erasure
from app.broker.events import Event


class Tail:
    """The latest committed events, at most `max_bytes` bytes, without a hole. `head` is the log's last offset."""

    def __init__(self, max_bytes: int) -> None:
        self.head = 0
        self._max_bytes = max_bytes
        self._events: deque[Event] = deque()
        self._nbytes = 0

    def append(self, event: Event) -> None:
        """Add the next event, which is on disk; offsets lost before it must have been passed to `skip_to`."""
        self.head = event.position
        self._events.append(event)
        self._nbytes += event.nbytes
        while self._nbytes > self._max_bytes:
            self._nbytes -= self._events.popleft().nbytes

    def skip_to(self, head: int) -> None:
        """Set the last offset and drop all events: those before are read from disk."""
        self.head = head
        self._events.clear()
        self._nbytes = 0

    def erase(self, erasure: Erasure) -> None:  # noqa: ARG002 - a part of the log must have no hole
        """Drop all events (`erasure.Holder`); they are read from disk from now on."""
        self.skip_to(self.head)

    def after(self, offset: int) -> list[Event] | None:
        """All events above `offset`; None if the tail does not reach back that far."""
        missing = self.head - offset
        if missing > len(self._events):
            return None
        return list(islice(self._events, len(self._events) - missing, None)) if missing > 0 else []
