"""Values that found an outbox full: of each topic only the newest waits, beside the queue (design 4.12).

Whoever reads too slowly gets fewer values, and in the end the last one of each topic; no session ends for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from app.broker.events import Event

OVERHEAD_BYTES = 64
"""What an event costs beside its payload: its name and the queue's own slot."""


class Conflation:
    """How much may wait so of one session, and how many values of all sessions have yielded to newer ones."""

    __slots__ = ("dropped", "most_bytes", "most_topics")

    def __init__(self, most_topics: int, most_bytes: int) -> None:
        self.most_topics = most_topics
        self.most_bytes = most_bytes
        self.dropped = 0


class Newest:
    """One outbox's: a value a topic. The topic that has waited longest is the first."""

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
        """Whether a newer value of its topic waits here: everything in the queue is older."""
        return event.topic in self._events

    def put(self, event: Event) -> bool:
        """Have a value, which is newer than all here; False, and nothing changed, where there is no room for it.

        A single value always fits, unless there are to be none.
        """
        before = self._events.get(event.topic)
        nbytes = self.nbytes + cost(event) - (cost(before) if before is not None else 0)
        count = len(self._events) + (before is None)
        if count > self._bounds.most_topics or (count > 1 and nbytes > self._bounds.most_bytes):
            return False
        self._events[event.topic] = event  # where the older one stood: no topic waits behind the others for ever
        self.nbytes = nbytes
        self._bounds.dropped += before is not None
        return True

    def take(self, count: int, nbytes: int, at_least: int) -> list[Event]:
        """The first of them, so many and so many bytes at most; but `at_least` so many, however large."""
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
        """Drop the value of a topic, if there is one: a newer one has found another place."""
        dropped = self._events.pop(topic, None)
        if dropped is not None:
            self.nbytes -= cost(dropped)
            self._bounds.dropped += 1

    def discard(self, is_unwanted: Callable[[Event], bool]) -> None:
        """Drop the events of which that is true."""
        self._events = {topic: event for topic, event in self._events.items() if not is_unwanted(event)}
        self.nbytes = sum(map(cost, self._events.values()))


def cost(event: Event) -> int:
    """What an event takes of an outbox' bytes."""
    return len(event.payload) + OVERHEAD_BYTES
