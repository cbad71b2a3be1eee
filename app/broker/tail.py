"""The youngest part of the log, in memory: whoever reads the history up to here can go live in the same step."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.broker.events import Event


class Tail:
    """The latest committed events, at most `max_bytes` of them, without a hole. `head` is the last offset of all."""

    def __init__(self, max_bytes: int) -> None:
        self.head = 0
        self._max_bytes = max_bytes
        self._events: deque[Event] = deque()
        self._nbytes = 0

    def append(self, event: Event) -> None:
        """The next event is on disk. What the log has lost before it must have been told by `skip_to`."""
        self.head = event.position
        self._events.append(event)
        self._nbytes += event.nbytes
        while self._nbytes > self._max_bytes:
            self._nbytes -= self._events.popleft().nbytes

    def skip_to(self, head: int) -> None:
        """What was before is to be read from disk."""
        self.head = head
        self._events.clear()
        self._nbytes = 0

    def after(self, offset: int) -> list[Event] | None:
        """All events above `offset`; None where the tail does not reach back so far."""
        missing = self.head - offset
        if missing > len(self._events):
            return None
        return list(islice(self._events, len(self._events) - missing, None)) if missing > 0 else []
