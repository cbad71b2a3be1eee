"""A session's outbox: the events that wait for it, in order, bounded by number and bytes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.broker.events import Event

_OVERHEAD_BYTES = 64
"""What an event costs beside its payload: its name and the queue's own slot."""


class Outbox:
    """A bounded queue that events can be given back to.

    Events that were sent but must be kept until the peer acknowledges them count towards the bounds too (`retain`,
    `release`), else a peer that never acknowledges could grow without end.
    """

    __slots__ = ("_events", "_retained", "max_bytes", "max_events", "nbytes")

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._retained = 0
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> bool:
        """Append; False, and nothing kept, when that would pass a bound.

        A single event always fits into an empty outbox: the door has checked its size.
        """
        count = len(self._events) + self._retained
        nbytes = self.nbytes + _cost(event)
        if count and (count >= self.max_events or nbytes > self.max_bytes):
            return False
        self._events.append(event)
        self.nbytes = nbytes
        return True

    @property
    def limit(self) -> str:
        """The setting that said no when `put` did."""
        return "queue_events" if len(self._events) + self._retained >= self.max_events else "queue_bytes"

    def take(self) -> list[Event]:
        """What waits, oldest first.

        Where events came back beside newer ones, that can be more than the bounds allow. The rest then waits for the
        next time, else the outbox of a peer whose sockets always die would grow without end.
        """
        if len(self._events) <= self.max_events and self.nbytes <= self.max_bytes:
            events = list(self._events)
            self._events.clear()
            self.nbytes -= sum(map(_cost, events))
            return events
        events, nbytes = [], 0
        while self._events and len(events) < self.max_events:
            cost = _cost(self._events[0])
            if events and nbytes + cost > self.max_bytes:
                break
            events.append(self._events.popleft())
            nbytes += cost
        self.nbytes -= nbytes
        return events

    def put_back(self, events: Sequence[Event]) -> None:
        """Return events that were taken but did not arrive, before all others and in their order.

        They passed the bounds when they first came, so none is refused now: an outbox holds at most twice its bounds,
        and takes nothing new until it is below them.
        """
        self._events.extendleft(reversed(events))
        self.nbytes += sum(map(_cost, events))

    def retain(self, events: Sequence[Event]) -> None:
        """Count events that were taken as if they still waited."""
        self._retained += len(events)
        self.nbytes += sum(map(_cost, events))

    def release(self, events: Sequence[Event]) -> None:
        """Undo `retain`."""
        self._retained -= len(events)
        self.nbytes -= sum(map(_cost, events))

    def clear(self) -> None:
        """Drop all."""
        self._events.clear()
        self._retained = 0
        self.nbytes = 0


def _cost(event: Event) -> int:
    return len(event.payload) + _OVERHEAD_BYTES
