"""Retained events: the latest event of each topic, for later subscribers (Advanced Profile, 5.9.5).

For each topic the latest event without an audience and the later ones with an audience are kept, so that each
subscriber gets the latest event that it may receive. They are in memory, bounded by topics and bytes: the topic that
was retained longest ago is dropped first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from app.broker.erasure import Erasure
from app.broker.events import Event
from app.broker.topics import Pattern, matcher, span

if TYPE_CHECKING:
    from app.protocols.wamp.sessions import WampSession

_MOST_OF_A_TOPIC = 32
"""The most events of one topic, for different audiences."""


class Retained:
    """The retained events of one realm; `dropped` counts the topics that were dropped at a limit."""

    def __init__(self, most_topics: int, most_bytes: int) -> None:
        self._most_topics = most_topics
        self._most_bytes = most_bytes
        self._nbytes = 0
        self._events: dict[str, list[Event]] = {}  # by topic, the one retained longest ago first
        self._topics: list[str] = []  # the same topics, sorted
        self.dropped = 0  # topics that were dropped at a limit

    def __len__(self) -> int:
        return len(self._events)

    def keep(self, event: Event) -> None:
        """Retain an event that has been published."""
        before = self._events.pop(event.topic, None)
        if before is None:
            insort(self._topics, event.topic)
            before = []
        is_for_all = event.audience is None and event.chosen is None
        kept = [event] if is_for_all else [*before[1 - _MOST_OF_A_TOPIC :], event]
        self._events[event.topic] = kept
        self._nbytes += sum(each.nbytes for each in kept) - sum(each.nbytes for each in before)
        while len(self._events) > self._most_topics or (self._nbytes > self._most_bytes and len(self._events) > 1):
            self._drop(next(iter(self._events)))

    def of(self, pattern: Pattern, session: WampSession, most: int) -> list[Event]:
        """Return the retained events for a new subscriber: the latest that it may receive of each matching topic.

        These are the youngest `most`, oldest first.
        """
        first, end = span(pattern)
        topics = self._topics[bisect_left(self._topics, first) : bisect_left(self._topics, end)]
        found = (self._latest(topic, session) for topic in filter(matcher(pattern), topics))
        events = sorted((event for event in found if event is not None), key=lambda event: event.time_us)
        return events[-most:]

    def erase(self, erasure: Erasure) -> None:
        """Drop the events that an erasure concerns (`broker.erasure.Holder`)."""
        for topic, events in tuple(self._events.items()):
            left = [each for each in events if not erasure.concerns(topic, each.authid, each.payload)]
            self._nbytes += sum(each.nbytes for each in left) - sum(each.nbytes for each in events)
            self._events[topic] = left
            if not left:
                self._remove(topic)

    def _latest(self, topic: str, session: WampSession) -> Event | None:
        for event in reversed(self._events[topic]):
            is_among = event.audience is None or event.audience.admits(session.authid, session.role)
            if is_among and (event.chosen is None or event.chosen.admits(session.id)):
                return event
        return None

    def _drop(self, topic: str) -> None:
        self._remove(topic)
        self.dropped += 1

    def _remove(self, topic: str) -> None:
        self._nbytes -= sum(event.nbytes for event in self._events.pop(topic))
        del self._topics[bisect_left(self._topics, topic)]
