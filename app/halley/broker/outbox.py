"""A session's queue of events that are not yet delivered, and the values for which it has no room.

Of NetworkTables values that the queue cannot take only the newest of each topic waits, apart from the queue. So a
client that reads too slowly receives fewer values, and in the end the last one of each topic; its session is not closed
for that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from typing import Final

from halley.broker.events import MOST_AROUND_BYTES, Event
from halley.broker.names import is_reserved
from halley.broker.waiting import QueuedBytes

OVERHEAD_BYTES: Final = 64
"""What an event counts in addition to its payload: for its name and its slot in the queue."""


class Conflation:
    """The bounds on one session's conflated values, and the count of values dropped for newer ones in all sessions."""

    __slots__ = ("dropped", "most_bytes", "most_topics")

    def __init__(self, most_topics: int, most_bytes: int) -> None:
        self.most_topics = most_topics
        self.most_bytes = most_bytes
        self.dropped = 0


class ConflatedValues:
    """One outbox's conflated values: one for each topic, the topic that has waited longest first."""

    __slots__ = ("_bounds", "_events", "_waiting", "nbytes")

    def __init__(self, bounds: Conflation, waiting: QueuedBytes) -> None:
        self._bounds = bounds
        self._waiting = waiting
        self._events: OrderedDict[str, Event] = OrderedDict()
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
        if before is not None:
            self._bounds.dropped += 1
            self._waiting.release((before,))
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
            self._waiting.release((dropped,))

    def discard(self, is_unwanted: Callable[[Event], bool]) -> None:
        """Drop the events for which `is_unwanted` is true."""
        dropped = [event for event in self._events.values() if is_unwanted(event)]
        for event in dropped:
            del self._events[event.topic]
        self._waiting.release(dropped)
        self.nbytes = sum(map(cost, self._events.values()))


def cost(event: Event) -> int:
    """The number of bytes that an event counts in an outbox."""
    return len(event.payload) + OVERHEAD_BYTES


_NO_CONFLATION = Conflation(0, 0)


class Outbox:
    """A bounded queue to which events can be returned.

    Events that were sent but must be kept until the peer acknowledges them count towards the bounds too (`retain`,
    `release`), else the outbox of a peer that never acknowledges would grow without end. Values for which the queue
    has no room wait apart from it, only the newest of each topic, within their own bounds (`conflation`). Where
    `is_replaying` is set, recorded values are treated as other events: they can be read again from the history. `queue`
    and `conflated` are for the hot path to see whether any event waits. What is here counts in `waiting` once for all
    outboxes (`waiting.py`).
    """

    __slots__ = (
        "_conflation",
        "_nbytes",
        "_retained",
        "_retained_bytes",
        "conflated",
        "has_more",
        "is_replaying",
        "max_bytes",
        "max_events",
        "queue",
        "waiting",
    )

    def __init__(
        self,
        max_events: int,
        max_bytes: int,
        conflation: Conflation = _NO_CONFLATION,
        waiting: QueuedBytes | None = None,
    ) -> None:
        self.max_events = max_events
        self.max_bytes = max_bytes
        self.is_replaying = False
        self.has_more = False  # whether the latest `take` has left events for the next
        self._conflation = conflation
        self.waiting = QueuedBytes(inf) if waiting is None else waiting
        self.queue: list[Event] = []
        self._nbytes = 0
        self._retained = 0
        self._retained_bytes = 0
        self.conflated: ConflatedValues | None = None  # None nearly always

    def __len__(self) -> int:
        return len(self.queue) if self.conflated is None else len(self.queue) + len(self.conflated)

    def __iter__(self) -> Iterator[Event]:
        """The waiting events, oldest first."""
        return chain(self.queue, self.conflated or ())

    @property
    def room(self) -> int:
        """The number of further events that fit, if they are small."""
        return max(0, self.max_events - len(self.queue) - self._retained)

    @property
    def nbytes(self) -> int:
        """The bytes of waiting and retained events, including each event's overhead."""
        return self._nbytes + self._retained_bytes + (self.conflated.nbytes if self.conflated is not None else 0)

    @property
    def most_waiting_bytes(self) -> int:
        """The most that waiting and retained events may count in `waiting`: their `nbytes` would take long to add."""
        return 2 * self.nbytes + (len(self) + self._retained) * MOST_AROUND_BYTES

    @property
    def undelivered(self) -> int:
        """The number of waiting events that would be lost with the session: others are in the log, where it has one.

        Those on the server's own topics are not counted. They are about the server; and the session of a page with the
        console, which a browser ends without a word, nearly always has some.
        """
        return sum(not event.position and not is_reserved(event.topic) for event in self)

    def put(self, event: Event) -> bool:
        """Append an event; False, and nothing changed, if that would pass a bound.

        A single event always fits into an empty outbox: its size was checked when it was received. A value is set
        apart from the queue if the queue is full or another value of its topic waits there. Values in a full queue are
        also set apart to make room for other events.
        """
        if not self.put_uncounted(event):
            return False
        self.waiting.retain(event)
        return True

    def put_uncounted(self, event: Event) -> bool:
        """Do the same as `put`, for a caller that counts an event as waiting in many outboxes at once."""
        count = len(self.queue) + self._retained
        nbytes = self._nbytes + len(event.payload) + OVERHEAD_BYTES
        if (
            count and (count >= self.max_events or nbytes + self._retained_bytes > self.max_bytes)
        ) or self.conflated is not None:
            return self._put_or_conflate(event)
        self.queue.append(event)
        self._nbytes = nbytes
        return True

    def limit(self, event: Event) -> str:
        """The setting whose limit made `put` return False."""
        if self._may_conflate(event) and self.conflated is not None:
            return "conflated_topics" if len(self.conflated) >= self._conflation.most_topics else "conflated_bytes"
        return "queue_events" if len(self.queue) + self._retained >= self.max_events else "queue_bytes"

    def take(self) -> list[Event]:
        """Take the waiting events, oldest first, then the values set apart; values that those outdate are dropped.

        What is taken still counts in `waiting`, until it is put back, retained or released there by the caller.

        When events were returned in front of newer ones, or many values are set apart, there can be more than the
        bounds allow. The rest then waits for the next call (`has_more`), else the outbox of a peer whose sockets always
        die would grow without end.
        """
        if self.conflated is not None:
            self._drop_outdated(self.conflated.outdates)
        events = self.queue
        if len(events) <= self.max_events and self._nbytes + self._retained_bytes <= self.max_bytes:
            self.queue, self._nbytes, self.has_more = [], 0, False
            return events if self.conflated is None else self._fill_up(events, self.conflated)
        count = nbytes = 0
        for event in events[: self.max_events]:
            if count and nbytes + cost(event) > self.max_bytes:
                break
            nbytes += cost(event)
            count += 1
        self.queue, self._nbytes = events[count:], self._nbytes - nbytes
        self.has_more = len(self) > 0
        return events[:count]

    def put_back(self, events: Sequence[Event]) -> None:
        """Return events that were taken but did not arrive, in front of all others and in their order.

        They passed the bounds when they were first put, so none is refused now: an outbox holds at most twice its
        bounds, and takes nothing new until it is below them.
        """
        self.queue[:0] = events
        self._nbytes += sum(map(cost, events))

    def discard(self, is_unwanted: Callable[[Event], bool]) -> None:
        """Drop the events for which `is_unwanted` is true."""
        dropped, left = _split(self.queue, is_unwanted)
        self.waiting.release(dropped)
        self.queue, self._nbytes = left, sum(map(cost, left))
        if self.conflated is not None:
            self.conflated.discard(is_unwanted)
            self._drop_if_empty()

    def retain(self, events: Sequence[Event]) -> None:
        """Count events that were taken as if they still waited, until `release`."""
        self._retained += len(events)
        self._retained_bytes += sum(map(cost, events))

    def release(self, events: Sequence[Event]) -> None:
        """Stop counting events that were retained."""
        self._retained -= len(events)
        self._retained_bytes -= sum(map(cost, events))
        self.waiting.release(events)

    def clear(self) -> None:
        """Drop all events that wait; those that are retained are the caller's to release."""
        dropped = list(self)
        self.queue.clear()
        self._nbytes, self.conflated = 0, None
        self.waiting.release(dropped)

    # Values set apart from the queue

    def _put_or_conflate(self, event: Event) -> bool:
        """Put an event where the queue is full or values are set apart from it."""
        conflated = self.conflated
        may_conflate = self._may_conflate(event)
        if may_conflate and (not self._has_room(event) or (conflated is not None and conflated.outdates(event))):
            return self._conflate(event)
        if not self._has_room(event):
            self._conflate_queue()
            if not self._has_room(event):
                return False
        if event.nt4_type is not None and self.conflated is not None and not may_conflate:
            self.conflated.drop(event.topic)
            self._drop_if_empty()
        self.queue.append(event)
        self._nbytes += cost(event)
        return True

    def _may_conflate(self, event: Event) -> bool:
        return event.nt4_type is not None and not (event.position and self.is_replaying)

    def _has_room(self, event: Event) -> bool:
        count = len(self.queue) + self._retained
        nbytes = self._nbytes + self._retained_bytes + cost(event)
        return not count or (count < self.max_events and nbytes <= self.max_bytes)

    def _conflate(self, event: Event) -> bool:
        if self.conflated is None:
            self.conflated = ConflatedValues(self._conflation, self.waiting)
        return self.conflated.put(event)

    def _conflate_queue(self) -> None:
        """Set the values in the queue apart, to make room for an event that is not a value.

        One for which there is no room stays in the queue, as a recorded one does in a session that replays. These are
        delivered before what is set apart, so only the newest value of a topic may be set apart.
        """
        newest = {event.topic: event for event in self if event.nt4_type is not None}
        self._drop_outdated(lambda event: newest[event.topic] is not event)
        self.queue = [event for event in self.queue if not self._may_conflate(event) or not self._conflate(event)]
        self._nbytes = sum(map(cost, self.queue))

    def _drop_outdated(self, is_outdated: Callable[[Event], bool]) -> None:
        """Drop the values in the queue for which `is_outdated` is true, unless they do not yield to others."""
        outdated, fresh = _split(self.queue, lambda event: self._may_conflate(event) and is_outdated(event))
        self._conflation.dropped += len(outdated)
        self.waiting.release(outdated)
        self.queue, self._nbytes = fresh, sum(map(cost, fresh))

    def _fill_up(self, events: list[Event], conflated: ConflatedValues) -> list[Event]:
        """Add to `events`, which were taken, as many of the values set apart as the bounds leave room for."""
        count = self.max_events - self._retained - len(events)
        nbytes = self.max_bytes - self._retained_bytes - sum(map(cost, events))
        is_alone = not events and not self._retained
        taken = events + conflated.take(count, nbytes, at_least=int(is_alone))
        self._drop_if_empty()
        self.has_more = self.conflated is not None
        return taken

    def _drop_if_empty(self) -> None:
        """Delete the store of values set apart once it is empty, so that `put` is fast again."""
        if self.conflated is not None and len(self.conflated) == 0:  # compiled, an empty object is true
            self.conflated = None


def _split(events: Iterable[Event], is_unwanted: Callable[[Event], bool]) -> tuple[list[Event], list[Event]]:
    """The events for which `is_unwanted` is true, and the others."""
    dropped: list[Event] = []
    left: list[Event] = []
    for event in events:
        (dropped if is_unwanted(event) else left).append(event)
    return dropped, left
