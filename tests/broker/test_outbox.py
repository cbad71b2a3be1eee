"""A session's queue: it is bounded and ordered, and events that are put back are neither lost nor moved."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.broker import event, payloads

from halley.broker.outbox import Outbox
from halley.broker.waiting import QueuedBytes

OVERHEAD_BYTES = 64


def cost(events):
    return sum(len(event.payload) + OVERHEAD_BYTES for event in events)


def fitting(events, outbox):
    """Return how many of the first events are within the outbox's bounds: at least one, however large."""
    count = min(len(events), outbox.max_events)
    while count > 1 and cost(events[:count]) > outbox.max_bytes:
        count -= 1
    return count


class Model(RuleBasedStateMachine):
    """An outbox compared with three lists: events that wait, that were taken, and that are retained.

    As in the engine, nothing more is taken until the events taken before have arrived, were put back or were retained.
    """

    @initialize(max_events=st.integers(1, 6), max_bytes=st.integers(1, 600))
    def start(self, max_events, max_bytes):
        self.bytes = QueuedBytes(1_000)
        self.outbox = Outbox(max_events, max_bytes, waiting=self.bytes)
        self.waiting, self.taken, self.kept = [], [], []
        self.count = 0

    @rule(size=st.integers(0, 200))
    def put(self, size):
        """An event beyond a bound changes nothing; a single event always fits into an empty outbox."""
        self.count += 1
        new = event(f"{self.count}:".ljust(size, "x"))
        counted = [*self.waiting, *self.kept]
        fits = not counted or (len(counted) < self.outbox.max_events and cost([*counted, new]) <= self.outbox.max_bytes)
        assert self.outbox.put(new) is fits
        if fits:
            self.waiting.append(new)

    @precondition(lambda self: not self.taken)
    @rule()
    def take(self):
        """All events are taken, oldest first, or those within the bounds if there are more."""
        count = fitting(self.waiting, self.outbox)
        self.taken, self.waiting = self.waiting[:count], self.waiting[count:]
        assert payloads(self.outbox.take()) == payloads(self.taken)

    @rule()
    def put_back(self):
        """Events that did not arrive are put in front of all later ones, in their order, even beyond the bounds."""
        self.outbox.put_back(self.taken)
        self.waiting = [*self.taken, *self.waiting]
        self.taken = []

    @rule()
    def arrive(self):
        """The events that were taken have arrived."""
        self.bytes.release(self.taken)
        self.taken = []

    @rule()
    def retain(self):
        """The events that were taken count towards the bounds until they are acknowledged."""
        self.outbox.retain(self.taken)
        self.kept.extend(self.taken)
        self.taken = []

    @rule(count=st.integers(0, 6))
    def release(self, count):
        self.outbox.release(self.kept[:count])
        self.kept = self.kept[count:]

    @rule()
    def clear(self):
        self.outbox.clear()
        self.waiting = []

    @invariant()
    def counts_are_true(self):
        assert len(self.outbox) == len(self.waiting)
        assert self.outbox.nbytes == cost([*self.waiting, *self.kept])
        assert self.bytes.value == sum(event.nbytes for event in [*self.waiting, *self.taken, *self.kept])

    @invariant()
    def it_never_holds_more_than_twice_its_bounds(self):
        """Events are put back in front of newer ones, however often; a single event can exceed the bound of bytes."""
        largest = max(map(len, payloads(self.waiting)), default=0) + OVERHEAD_BYTES
        assert len(self.waiting) <= 2 * self.outbox.max_events
        assert cost(self.waiting) <= 2 * max(self.outbox.max_bytes, largest)


TestModel = Model.TestCase


def test_an_event_larger_than_the_bound_fits_into_an_empty_outbox():
    """An event's size is checked on receipt, so one event must not end a session whose outbox is empty."""
    outbox = Outbox(10, 100)
    large = event("x" * 1_000)
    assert outbox.put(large)
    assert not outbox.put(event())
    assert outbox.take() == [large]
    assert outbox.nbytes == 0


def test_a_peer_that_never_acknowledges_fills_its_outbox():
    """B17: events that were sent and not acknowledged count towards the bounds of events and of bytes."""
    for outbox in (Outbox(3, 1_000_000), Outbox(1_000, 3 * OVERHEAD_BYTES + 3)):
        for number in range(3):
            assert outbox.put(event(number))
            outbox.retain(outbox.take())
        assert not outbox.put(event(3))


def test_events_that_came_back_may_stand_above_the_bound():
    """Events that are put back are never refused; newer ones are refused until the queue is below its bound again."""
    outbox = Outbox(2, 1_000_000)
    outbox.put(event(0))
    outbox.put(event(1))
    taken = outbox.take()
    outbox.put(event(2))
    outbox.put(event(3))
    outbox.put_back(taken)
    assert not outbox.put(event(4))
    assert payloads(outbox.take()) == [b"0", b"1"]
    assert not outbox.put(event(4))
    assert payloads(outbox.take()) == [b"2", b"3"]
    assert outbox.put(event(4))


def test_no_further_turn_is_asked_for_where_all_was_taken():
    """`has_more` is about what waits: not about events that are retained, however many bytes they have."""
    outbox = Outbox(10, 2 * (10 + OVERHEAD_BYTES))
    events = [event("x" * 8), event("y" * 8)]
    for each in events:
        assert outbox.put(each)
    taken = outbox.take()
    outbox.retain(taken)
    outbox.put_back(taken)
    assert outbox.nbytes > outbox.max_bytes
    assert (outbox.take(), outbox.has_more) == (events, False)
    outbox.put_back([*events, *events])
    assert (len(outbox.take()), outbox.has_more) == (2, True)
