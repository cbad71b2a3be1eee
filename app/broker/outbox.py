"""A session's outbox: the events that wait for it, in order, bounded by number and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from app.broker.events import Event

_OVERHEAD_BYTES = 64
"""What an event costs beside its payload: its name and the queue's own slot."""


class Outbox:
    """A bounded queue that events can be given back to.

    Events that were sent but must be kept until the peer acknowledges them count towards the bounds too (`retain`,
    `release`), else a peer that never acknowledges could grow without end.
    """

    __slots__ = ("_events", "_nbytes", "_retained", "_retained_bytes", "max_bytes", "max_events")

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self._events: list[Event] = []
        self._nbytes = 0
        self._retained = 0
        self._retained_bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        """What waits, oldest first."""
        return iter(self._events)

    @property
    def room(self) -> int:
        """How many events more it may have, if they are small."""
        return max(0, self.max_events - len(self._events) - self._retained)

    @property
    def nbytes(self) -> int:
        """What waits and what is retained, with what an event costs beside its payload."""
        return self._nbytes + self._retained_bytes

    def put(self, event: Event) -> bool:
        """Append; False, and nothing kept, when that would pass a bound.

        A single event always fits into an empty outbox: the door has checked its size.
        """
        count = len(self._events) + self._retained
        nbytes = self._nbytes + len(event.payload) + _OVERHEAD_BYTES
        if count and (count >= self.max_events or nbytes + self._retained_bytes > self.max_bytes):
            return False
        self._events.append(event)
        self._nbytes = nbytes
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
        events = self._events
        if len(events) <= self.max_events and self._nbytes + self._retained_bytes <= self.max_bytes:
            self._events, self._nbytes = [], 0
            return events
        count, nbytes = 0, 0
        for event in events[: self.max_events]:
            if count and nbytes + _cost(event) > self.max_bytes:
                break
            nbytes += _cost(event)
            count += 1
        self._events, self._nbytes = events[count:], self._nbytes - nbytes
        return events[:count]

    def put_back(self, events: Sequence[Event]) -> None:
        """Return events that were taken but did not arrive, before all others and in their order.

        They passed the bounds when they first came, so none is refused now: an outbox holds at most twice its bounds,
        and takes nothing new until it is below them.
        """
        self._events[:0] = events
        self._nbytes += sum(map(_cost, events))

    def discard(self, is_unwanted: Callable[[Event], bool]) -> None:
        """Drop the events of which that is true."""
        self._events = [event for event in self._events if not is_unwanted(event)]
        self._nbytes = sum(map(_cost, self._events))

    def retain(self, events: Sequence[Event]) -> None:
        """Count events that were taken as if they still waited."""
        self._retained += len(events)
        self._retained_bytes += sum(map(_cost, events))

    def release(self, events: Sequence[Event]) -> None:
        """Undo `retain`."""
        self._retained -= len(events)
        self._retained_bytes -= sum(map(_cost, events))

    def clear(self) -> None:
        """Drop all."""
        self._events.clear()
        self._nbytes = self._retained = self._retained_bytes = 0


def _cost(event: Event) -> int:
    return len(event.payload) + _OVERHEAD_BYTES
