"""What becomes of the events in a frame that counts, at one node: they get their offsets, times and publications.

A front makes the events of other nodes only when somebody there needs them (`broker.events.EventRange`): most have no
subscriber there, and to count a whole frame costs a twentieth. A keeper writes them all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from halley.broker.commits import PublishResult
from halley.broker.events import Event, EventRange, Publications
from halley.broker.pending import Entry, Pending
from halley.cluster.applied import StreamState
from halley.cluster.frames import Frame, events_of

_RANGE_EVENTS = 200
"""The most events in a range: these are delivered in one turn of the event loop."""


class EventFactory:
    """The events of the frames that `applied` has admitted.

    `firsts` has, for each own event whose idempotency key another event has used before, that one.
    """

    def __init__(self, applied: StreamState, publication_key: int, *, is_front: bool) -> None:
        self.firsts: dict[Pending, PublishResult] = {}
        self._applied = applied
        self._publications = Publications(publication_key)
        self._is_front = is_front

    def own(self, frame: Frame, entries: list[Pending]) -> list[Pending]:
        """Count and return this node's own `entries`: those of the frame, and what has its turn among them."""
        events = [entry.event for entry in entries if entry.is_recorded]
        first, time_us = self._applied.offset + 1, self._applied.time_us
        if frame.is_plain:
            self._applied.skip(frame)
            self._stamp(events, first, range(len(events)), time_us)
            return entries
        numbered = self._applied.number(frame)
        self._stamp(events, first, [each.offset - first for each in numbered], time_us)
        for entry, each in zip([entry for entry in entries if entry.is_recorded], numbered, strict=True):
            if each.repeats is not None:
                entry.event.time_us = each.time_us
                entry.is_recorded = False
                digest = self._applied.digests.get(each.offset)
                self.firsts[entry] = PublishResult(each.repeats.topic, each.offset, entry.event.publication, digest)
        return entries

    def others(self, frame: Frame) -> Sequence[Entry | EventRange]:
        """Count and return the events of another node's frame; those that repeat others are left out."""
        if frame.is_plain:
            ranges = self._ranges(frame)
            return ranges if self._is_front else [Entry(event) for each in ranges for event in each.events(each.topics)]
        first, time_us = self._applied.offset + 1, self._applied.time_us
        events = events_of([each.row for each in self._applied.number(frame) if each.repeats is None])
        self._stamp(events, first, range(len(events)), time_us)
        return [Entry(event) for event in events]

    def _ranges(self, frame: Frame) -> list[EventRange]:
        first, ends, time_us = self._applied.skip(frame), frame.ends, self._applied.time_us

        def events(begin: int, end: int, topics: Collection[str]) -> list[Event]:
            indexes, found = frame.events(begin, end, topics)
            self._stamp(found, first, indexes, time_us)
            return found

        pieces = [(begin, min(begin + _RANGE_EVENTS, frame.count)) for begin in range(0, frame.count, _RANGE_EVENTS)]
        return [
            EventRange(first + begin, end - begin, frame.topics, ends[end] - ends[begin], partial(events, begin, end))
            for begin, end in pieces
        ]

    def _stamp(self, events: Sequence[Event], first: int, indexes: Sequence[int], time_us: int) -> None:
        """The numbers of publications grow with the offset, and are the same on all nodes."""
        number = self._applied.lead + first
        if len(events) == 1:  # as in most frames of a cluster that is not busy
            event, index = events[0], indexes[0]
            event.position, event.time_us = first + index, time_us
            event.publication = self._publications.id_of(number + index)
            return
        publications = self._publications.ids_of(number, indexes)
        for event, index, publication in zip(events, indexes, publications, strict=True):
            event.position, event.time_us, event.publication = first + index, time_us, publication
