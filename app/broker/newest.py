"""Values for which an outbox had no room: only the newest of each topic waits, apart from the queue.

A client that reads too slowly receives fewer values, and in the end the last one of each topic. Its session is not
closed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from app.broker.events import Event

OVERHEAD_BYTES = 64
"""What an event counts in addition to its payload: for its name and its slot in the queue."""


class Conflation:
    """The bounds on one session's conflated values, and the count of values dropped for newer ones in all sessions."""

    __slots__ = ("dropped", "most_bytes", "most_topics")

    def __init__(self, most_topics: int, most_bytes: int) -> None:
        self.most_topics = most_topics
        self.most_bytes = most_bytes
        self.dropped = 0


class Newest:
    """One outbox's conflated values: one for each topic, the topic that has waited longest first."""

    __slots__ = ("_bounds", "_events", "nbytes")

    def __init__(self, bounds: Conflation) -> None:
        self._bounds = bounds
        self._events: dict[str, Event] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events.values())

    def outdates(self, event: Event) -> bool:
        """Whether a value of the event's topic waits here, and so makes every value of it in the queue outdated."""
        return event.topic in self._events

    def put(self, event: Event) -> bool:
        """Add a value that is newer than all here; False, and nothing changed, if there is no room for it.

        A single value always fits, unless the bound on topics is 0.
        """
        before = self._events.get(event.topic)
        nbytes = self.nbytes + cost(event) - (cost(before) if before is not None else 0)
        count = len(self._events) + (before is None)
        if count > self._bounds.most_topics or (count > 1 and nbytes > self._bounds.most_bytes):
            return False
        self._events[event.topic] = event  # in the older one's place, so that no topic waits behind the others forever
        self.nbytes = nbytes
        self._bounds.dropped += before is not None
        return True

    def take(self, count: int, nbytes: int, at_least: int) -> list[Event]:
        """Take the first values: at most `count` events and `nbytes` bytes, but always `at_least` events."""
        taken: list[Event] = []
        for event in self._events.values():
            nbytes -= cost(event)
            if len(taken) >= at_least and (len(taken) >= count or nbytes < 0):
                break
            taken.append(event)
        for event in taken:
            del self._events[event.topic]
        self.nbytes -= sum(map(cost, taken))
        return taken

    def drop(self, topic: str) -> None:
        """Drop the value of a topic, if there is one, because a newer one is in the queue."""
        dropped = self._events.pop(topic, None)
        if dropped is not None:
            self.nbytes -= cost(dropped)
            self._bounds.dropped += 1

    def discard(self, is_unwanted: Callable[[Event], bool]) -> None:
        """Drop the events for which `is_unwanted` is true."""
        self._events = {topic: event for topic, event in self._events.items() if not is_unwanted(event)}
        self.nbytes = sum(map(cost, self._events.values()))


def cost(event: Event) -> int:
    """The number of bytes that an event counts in an outbox."""
    return len(event.payload) + OVERHEAD_BYTES
