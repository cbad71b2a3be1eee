"""Values for a full outbox: a slow reader gets the newest value of each topic (G8)."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.broker import event, payloads
from support.values import value

from halley.broker.broker import Broker
from halley.broker.names import Match, Pattern
from halley.broker.outbox import Conflation, Outbox
from halley.broker.sessions import Cursor
from halley.broker.waiting import QueuedBytes
from halley.settings import Limits
from tests.support.broker import join

TOPICS = "abcd"


class Model(RuleBasedStateMachine):
    """An outbox compared with lists of everything that was put and everything that arrived.

    Ordinary events arrive once each, in order. Of a topic's values some arrive, in order and including the newest; the
    others are counted as dropped. In a session that replays, recorded values all arrive. Events that were taken are put
    back, arrive, or are retained until acknowledged.
    """

    @initialize(
        max_events=st.integers(1, 6),
        max_bytes=st.integers(70, 600),
        most_topics=st.integers(0, len(TOPICS) + 1),
        is_replaying=st.booleans(),
    )
    def start(self, max_events, max_bytes, most_topics, is_replaying):
        self.conflation = Conflation(most_topics, 400)
        self.waiting = QueuedBytes(1_000)
        self.outbox = Outbox(max_events, max_bytes, self.conflation, self.waiting)
        self.outbox.is_replaying = is_replaying
        self.put_in, self.arrived, self.taken, self.kept = [], [], [], []

    def may_yield(self, event):
        """Whether it is a value for which a newer one of its topic may be delivered instead."""
        return event.nt4_type is not None and not (event.position and self.outbox.is_replaying)

    @rule(topic=st.sampled_from(TOPICS), size=st.integers(0, 100), is_recorded=st.booleans())
    def put_value(self, topic, size, is_recorded):
        new = value(topic, str(len(self.put_in)).ljust(size).encode())
        if is_recorded:
            new.position = len(self.put_in) + 1
        if self.outbox.put(new):
            self.put_in.append(new)
        elif self.may_yield(new):  # only because of the bounds of the values that are set apart
            assert self.outbox.limit(new).startswith("conflated_")

    @rule(size=st.integers(0, 100))
    def put_ordinary(self, size):
        """An ordinary event is refused only where no value can make room for it."""
        new = event(str(len(self.put_in)).ljust(size), topic="a")
        if self.outbox.put(new):
            self.put_in.append(new)
        elif self.conflation.most_topics > len(TOPICS):
            others = [waiting for waiting in self.outbox if not self.may_yield(waiting)]
            is_aside_full = sum(len(waiting.payload) + 64 for waiting in self.outbox if self.may_yield(waiting)) > 300
            counted = [*others, *self.kept]
            nbytes = sum(len(each.payload) + 64 for each in [*counted, new])
            full = len(counted) >= self.outbox.max_events or nbytes > self.outbox.max_bytes
            assert full or is_aside_full

    @precondition(lambda self: self.put_in and not self.outbox.is_replaying)
    @rule(number=st.integers(0, 100))
    def commit(self, number):
        """A value that was delivered is stored now, which changes nothing for a session that does not replay."""
        self.put_in[number % len(self.put_in)].position = number + 1

    @precondition(lambda self: not self.taken)
    @rule()
    def take(self):
        waiting = len(self.outbox)
        self.taken = self.outbox.take()
        assert len(self.taken) <= self.outbox.max_events
        assert self.taken or not waiting or self.kept  # waiting events can be taken, unless some are retained

    @rule()
    def put_back(self):
        self.outbox.put_back(self.taken)
        self.taken = []

    @rule()
    def arrive(self):
        self.waiting.release(self.taken)
        self.arrived += self.taken
        self.taken = []

    @rule()
    def retain(self):
        self.outbox.retain(self.taken)
        self.kept += self.taken
        self.arrived += self.taken
        self.taken = []

    @rule(count=st.integers(0, 6))
    def release(self, count):
        self.outbox.release(self.kept[:count])
        self.kept = self.kept[count:]

    @invariant()
    def counts_are_true(self):
        everything = [*self.arrived, *self.taken, *self.outbox]
        assert len(self.put_in) == len(everything) + self.conflation.dropped
        assert len(set(everything)) == len(everything)
        assert len(self.outbox) == len(list(self.outbox))
        assert self.outbox.nbytes == sum(len(each.payload) + 64 for each in [*self.outbox, *self.kept])
        assert self.waiting.value == sum(each.nbytes for each in [*self.outbox, *self.taken, *self.kept])

    @invariant()
    def ordinary_events_are_all_there_in_order(self):
        everything = [*self.arrived, *self.taken, *self.outbox]
        assert [each for each in everything if not each.nt4_type] == [each for each in self.put_in if not each.nt4_type]

    @invariant()
    def what_can_be_read_again_does_not_yield(self):
        everything = {*self.arrived, *self.taken, *self.outbox}
        assert not [each for each in self.put_in if not self.may_yield(each) and each not in everything]

    @invariant()
    def of_each_topic_values_come_in_order_and_the_newest_last(self):
        everything = [*self.arrived, *self.taken, *self.outbox]
        for topic in TOPICS:
            given = [each for each in everything if each.nt4_type and each.topic == topic]
            put_in = [each for each in self.put_in if each.nt4_type and each.topic == topic]
            assert given == [each for each in put_in if each in set(given)]
            assert given[-1:] == put_in[-1:]

    @invariant()
    def it_is_bounded(self):
        assert len(self.outbox) <= 2 * self.outbox.max_events + self.conflation.most_topics

    def teardown(self):
        """Take all that is left: the newest value of each topic is among it."""
        if hasattr(self, "outbox"):
            self.outbox.put_back(self.taken)
            self.outbox.release(self.kept)
            while len(self.outbox):
                self.taken = self.outbox.take()
                self.arrive()
            self.of_each_topic_values_come_in_order_and_the_newest_last()


TestModel = Model.TestCase


def filled(*events, most_topics=100):
    """Return an outbox for three events, after putting all of `events`."""
    outbox = Outbox(3, 1_000_000, Conflation(most_topics, 1_000_000))
    assert all(outbox.put(each) for each in events)
    return outbox


def test_the_queue_in_order_then_the_newest():
    """A topic's values that are set apart arrive as one, the newest; its older values in the queue are dropped."""
    outbox = filled(
        value("a", b"1"), event("x"), value("b", b"2"), value("a", b"3"), value("c", b"4"), value("a", b"5")
    )
    assert payloads(outbox.take()) == [b"x", b"2", b"5"]
    assert payloads(outbox.take()) == [b"4"]
    assert not len(outbox)


def test_a_value_that_comes_back_yields_to_a_newer_one():
    """A value that a dead poll returns is dropped if a newer one of its topic is set apart."""
    outbox = filled(value("a", b"1"), value("b", b"2"))
    taken = outbox.take()
    for number in range(10, 16):
        assert outbox.put(value("a", b"%d" % number))
    outbox.put_back(taken)
    assert payloads(outbox.take()) == [b"2", b"15"]


def test_values_make_room_for_what_cannot_yield():
    """An ordinary event ends no session as long as values can be set apart to make room."""
    outbox = filled(*[value("a", b"%d" % number) for number in range(3)], event("x"), event("y"), event("z"))
    assert not outbox.put(event("too much"))
    assert outbox.limit(event()) == "queue_events"
    assert payloads(outbox.take()) == [b"x", b"y", b"z"]
    assert payloads(outbox.take()) == [b"2"]


def test_a_value_that_cannot_be_set_apart_outdates_the_older_one_that_was():
    """Where its size keeps it in the queue, no older value of its topic comes behind it."""
    outbox = Outbox(2, 190, Conflation(100, 400))
    assert outbox.put(value("c", b"0" * 54))
    assert outbox.put(value("b", b"1" * 94))  # is set apart
    taken = outbox.take()
    assert payloads(taken) == [b"0" * 54]
    assert outbox.put(value("a", b"2"))
    assert outbox.put(value("a", b"3" * 61))
    outbox.put_back(taken)
    assert outbox.put(event("x"))
    rest = []
    while len(outbox):
        rest += payloads(outbox.take())
    assert rest == [b"3" * 61, b"x", b"1" * 94, b"0" * 54]


def test_a_value_that_does_not_yield_outdates_an_older_one_that_does():
    """In a session that replays: what is recorded stays in the queue, and nothing older is set apart behind it."""
    outbox = Outbox(2, 1_000, Conflation(100, 400))
    outbox.is_replaying = True
    assert outbox.put(value("a", b"1"))
    recorded = value("a", b"2")
    recorded.position = 1
    assert outbox.put(recorded)
    assert outbox.put(event("x"))
    assert payloads(outbox.take()) == [b"2", b"x"]
    assert len(outbox) == 0


def test_topics_beyond_the_bound_end_it():
    """With values of too many topics set apart, a further topic overflows; a newer value of those topics fits."""
    outbox = filled(*[value(topic, b"1") for topic in "abcde"], most_topics=2)
    assert not outbox.put(value("f", b"1"))
    assert outbox.limit(value("f", b"1")) == "conflated_topics"
    assert outbox.put(value("e", b"2"))
    assert payloads(outbox.take()) == [b"1"] * 3
    assert payloads(outbox.take()) == [b"1", b"2"]


def test_who_never_acknowledges_does_not_grow():
    """B17: retained events count, so values that are set apart wait until something is acknowledged."""
    outbox = filled(value("a", b"1"), value("b", b"1"), value("c", b"1"))
    retained = outbox.take()
    outbox.retain(retained)
    for number in range(5):
        assert outbox.put(value("d", b"%d" % number))
    assert outbox.take() == []
    outbox.release(retained)
    assert payloads(outbox.take()) == [b"4"]


def test_what_is_unwanted_goes_wherever_it_waits():
    """Discarding removes events from the queue and from the values set apart, and they no longer count."""
    outbox = filled(*[value(topic, b"1") for topic in "abcab"])
    outbox.discard(lambda each: each.topic == "a")
    assert payloads(outbox.take()) == [b"1", b"1"]
    outbox = filled(*[value("a", b"1")] * 5)
    outbox.discard(lambda each: each.topic == "a")
    assert (len(outbox), outbox.nbytes, outbox.take()) == (0, 0, [])
    outbox = filled(*[value("a", b"1")] * 5)
    outbox.clear()
    assert (len(outbox), outbox.nbytes, list(outbox)) == (0, 0, [])


def test_what_can_be_read_again_does_not_yield():
    """A session that replays goes back to reading the log instead, and misses no recorded value."""
    broker = Broker(Limits(queue_events=2))
    session = join(broker, "s")
    session.cursor = cursor = Cursor()
    session.outbox.is_replaying = True
    cursor.seek(Pattern(Match.EXACT, "a"), 0, 0)
    for position in range(1, 4):
        kept = value("a", b"%d" % position)
        kept.position = position
        assert broker.deliver(session, kept, 0.0)
    assert not cursor.is_live
    assert cursor.wanted() == ((Pattern(Match.EXACT, "a"), 2),)
    assert payloads(session.outbox.take()) == [b"1", b"2"]
    assert broker.conflated == 0


def test_a_recorded_value_outdates_one_that_is_not():
    """In a session that replays, a recorded value replaces the value of its topic that was set apart unrecorded."""
    outbox = filled(*[value("a", b"%d" % number) for number in range(5)])
    outbox.is_replaying = True
    taken = outbox.take()
    assert payloads(taken) == [b"4"]
    outbox.waiting.release(taken)
    for number in range(5):
        assert outbox.put(value("a", b"%d" % number))
    recorded = value("a", b"recorded")
    recorded.position = 1
    assert outbox.put(recorded)
    taken = outbox.take()
    assert payloads(taken) == [b"recorded"]
    assert outbox.nbytes == 0
    outbox.waiting.release(taken)
    assert outbox.waiting.value == 0


def test_it_is_no_overflow_and_it_is_counted():
    """G8: dropped values are counted, and the session continues."""
    broker = Broker(Limits(queue_events=2))
    session = join(broker, "s")
    for number in range(10):
        assert broker.deliver(session, value("a", b"%d" % number), 0.0)
    assert payloads(session.outbox.take()) == [b"9"]
    assert (broker.conflated, broker.overflows, broker.closed) == (9, 0, {})
    assert session.owner.heard == []
