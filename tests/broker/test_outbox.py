"""A session's queue: bounded, in order, and nothing put back is lost or moved."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.broker import event, payloads

from app.broker.outbox import Outbox

OVERHEAD_BYTES = 64


def cost(events):
    return sum(len(event.payload) + OVERHEAD_BYTES for event in events)


def fitting(events, outbox):
    """How many of the first events are within the bounds: at least one, however large."""
    count = min(len(events), outbox.max_events)
    while count > 1 and cost(events[:count]) > outbox.max_bytes:
        count -= 1
    return count


class Model(RuleBasedStateMachine):
    """An outbox beside three plain lists: what waits, what was taken, what is kept until it is acknowledged.

    As in the engine, nothing more is taken until it is known what became of what was taken before.
    """

    @initialize(max_events=st.integers(1, 6), max_bytes=st.integers(1, 600))
    def start(self, max_events, max_bytes):
        self.outbox = Outbox(max_events, max_bytes)
        self.waiting, self.taken, self.kept = [], [], []
        self.count = 0

    @rule(size=st.integers(0, 200))
    def put(self, size):
        """At a bound nothing changes; a single event always fits into what is empty."""
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
        """Oldest first: all of it, or where that is beyond the bounds, what is within."""
        count = fitting(self.waiting, self.outbox)
        self.taken, self.waiting = self.waiting[:count], self.waiting[count:]
        assert payloads(self.outbox.take()) == payloads(self.taken)

    @rule()
    def put_back(self):
        """What did not arrive stands before all that came since, in its order, whatever the bounds say."""
        self.outbox.put_back(self.taken)
        self.waiting = [*self.taken, *self.waiting]
        self.taken = []

    @rule()
    def arrive(self):
        """What was taken has arrived and is nobody's any more."""
        self.taken = []

    @rule()
    def retain(self):
        """What was taken counts on until it is acknowledged."""
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
        self.waiting, self.taken, self.kept = [], [], []

    @invariant()
    def counts_are_true(self):
        assert len(self.outbox) == len(self.waiting)
        assert self.outbox.nbytes == cost([*self.waiting, *self.kept])

    @invariant()
    def it_never_holds_more_than_twice_its_bounds(self):
        """However often events come back beside newer ones; a single event may be larger than the bound of bytes."""
        largest = max(map(len, payloads(self.waiting)), default=0) + OVERHEAD_BYTES
        assert len(self.waiting) <= 2 * self.outbox.max_events
        assert cost(self.waiting) <= 2 * max(self.outbox.max_bytes, largest)


TestModel = Model.TestCase


def test_an_event_larger_than_the_bound_fits_into_an_empty_outbox():
    """Its size was checked at the door: one event must not end a session that has nothing else waiting."""
    outbox = Outbox(10, 100)
    large = event("x" * 1_000)
    assert outbox.put(large)
    assert not outbox.put(event())
    assert outbox.take() == [large]
    assert outbox.nbytes == 0


def test_a_peer_that_never_acknowledges_fills_its_outbox():
    """B17: events that were sent and not acknowledged count towards the bound of events, and of bytes."""
    for outbox in (Outbox(3, 1_000_000), Outbox(1_000, 3 * OVERHEAD_BYTES + 3)):
        for number in range(3):
            assert outbox.put(event(number))
            outbox.retain(outbox.take())
        assert not outbox.put(event(3))


def test_events_that_came_back_may_stand_above_the_bound():
    """They passed it when they first came; newer ones are refused until there is room again."""
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
