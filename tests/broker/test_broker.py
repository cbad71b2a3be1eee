"""The broker by itself: its sessions, subscriptions, deliveries, deadlines and flushes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.broker import Owner, event, join, payloads, session

from halley import is_compiled
from halley.broker.broker import DUE_AT_ONCE, FLUSHED_AT_ONCE, LARGE_FAN_OUT, Broker
from halley.broker.errors import SubscriptionsTooLarge, TooManyPatterns, TooManySessions, TooManySubscriptions
from halley.broker.names import Match, Pattern
from halley.broker.subscriptions import DROPPED_AT_ONCE
from halley.settings import Limits

NOW = 50.0
A = Pattern(Match.EXACT, "a")
B = Pattern(Match.EXACT, "b")
ALL = Pattern(Match.DESCENDANTS, "")
ONE = Pattern(Match.CHILDREN, "")


@pytest.fixture
def broker():
    return Broker(Limits())


def limited(**limits):
    return Broker(replace(Limits(), **limits))


def waiting(joined):
    return payloads(joined.outbox.take())


# Sessions


def test_a_full_broker_admits_nobody():
    """S22: a session beyond the limit is refused and leaves nothing behind; one can join after another has ended."""
    broker = limited(sessions=2)
    first = join(broker, "1")
    join(broker, "2")
    with pytest.raises(TooManySessions):
        join(broker, "3")
    assert list(broker.sessions) == ["1", "2"]
    assert len(broker.deadlines) == 2
    assert broker.census.opened["test"] == 2
    broker.close(first, "left")
    join(broker, "3")


def test_a_session_ends_once_and_leaves_nothing(broker):
    """A55: no subscription, event or deadline is left; the reason is counted, and closing again has no effect."""
    me = join(broker, "1", deadline=100)
    broker.subscribe(me, A)
    broker.publish(event(), NOW)
    assert broker.close(me, "left") is True
    assert broker.close(me, "again") is False
    assert me.closed == "left"
    assert (broker.sessions, me.subscriptions, broker.index.subscriptions) == ({}, {}, {})
    assert (len(me.outbox), me.outbox.nbytes, len(broker.deadlines)) == (0, 0, 0)
    assert broker.closed == {"left": 1}


def test_an_ended_session_stays_ended(broker):
    """B14: an ended session receives nothing, cannot subscribe, has no deadline, and its owner is not called."""
    owner = Owner()
    me = join(broker, "1", owner, deadline=100)
    broker.subscribe(me, A)
    broker.publish(event(), NOW)
    broker.close(me, "left")
    broker.touch(me, 1)
    broker.publish(event(), NOW)
    assert broker.deliver(me, event(), NOW) is False
    assert broker.subscribe(me, A) is False
    broker.flush(NOW)
    broker.due(1_000)
    assert owner.heard == []
    assert len(me.outbox) == 0
    assert broker.index.subscriptions == {}


def test_each_owner_is_called_when_its_sessions_deadline_has_come(broker):
    """B10: the owner is not called before the deadline, and is called again until it closes or moves the session."""
    owner = Owner()
    early, late = join(broker, "early", owner, deadline=60), join(broker, "late", owner, deadline=70)
    broker.due(59.9)
    assert owner.heard == []
    broker.due(60)
    assert owner.heard == [("due", "early", 60)]
    broker.touch(early, 80)
    broker.touch(late, 61)
    broker.due(65)
    assert owner.heard[1:] == [("due", "late", 65)]
    broker.due(66)
    assert owner.heard[2:] == [("due", "late", 66)]


def test_a_session_that_anothers_owner_ends_is_not_called_any_more(broker):
    """The first owner that is called ends all sessions that are due in the same sweep; no other owner is called."""

    class Killer(Owner):
        def due(self, session, now):
            super().due(session, now)
            for other in list(broker.sessions.values()):
                broker.close(other, "killed")

    killer = Killer()
    for number in range(3):
        join(broker, str(number), killer, deadline=60)
    broker.due(60)
    assert len(killer.heard) == 1
    assert len(broker.deadlines) == 0


# Subscriptions


def test_subscribing_twice_counts_once(broker):
    """A44, A50: a second subscribe changes nothing, and one unsubscribe ends the subscription."""
    me = join(broker, "1")
    assert broker.subscribe(me, A) is True
    assert broker.subscribe(me, A) is False
    broker.publish(event(), NOW)
    assert waiting(me) == [b"0"]
    assert broker.unsubscribe(me, A) is True
    assert broker.unsubscribe(me, A) is False
    broker.publish(event(), NOW)
    assert waiting(me) == []


def test_a_subscription_is_one_object_for_all_its_sessions(broker):
    """Sessions with the same pattern share one subscription and its name, and an event is matched and encoded once."""
    first, second = join(broker, "1"), join(broker, "2")
    broker.subscribe(first, Pattern(*A))
    broker.subscribe(second, Pattern(*A))
    [name], [other] = first.subscriptions, second.subscriptions
    assert name is other
    assert first.subscriptions[A] is second.subscriptions[A] is broker.index.subscriptions[A]
    assert list(broker.index.subscriptions[A].sessions) == [first, second]


def test_room_for_subscriptions_is_counted_with_what_is_there():
    """S16: repeating a subscription costs no room; an excess one is refused before anything changes."""
    broker = limited(subscriptions=2, patterns=1)
    me = join(broker, "1")
    broker.subscribe(me, A)
    broker.check_capacity(me, [A, B])
    broker.check_capacity(me, [A, ALL, ALL])
    with pytest.raises(TooManySubscriptions):
        broker.check_capacity(me, [B, ALL])
    broker.subscribe(me, ALL)
    broker.check_capacity(me, [A, ALL])
    with pytest.raises(TooManySubscriptions):
        broker.check_capacity(me, [B])
    broker.unsubscribe(me, A)
    with pytest.raises(TooManyPatterns):
        broker.check_capacity(me, [ONE])
    assert list(me.subscriptions) == [ALL]


@pytest.mark.parametrize(("letter", "fitting"), [("x", 4), ("\u00fc", 2), ("\U0001f600", 2)])
def test_room_for_subscriptions_is_counted_in_bytes(letter, fitting):
    """The memory of a session's names is bounded, whatever their letters; what ends makes room."""
    broker = limited(subscription_bytes=8_192)
    me = join(broker, "1")
    names = [Pattern(Match.EXACT, str(number) + letter * 699) for number in range(5)]
    for name in names[:fitting]:
        broker.check_capacity(me, [name, name, *me.subscriptions])
        broker.subscribe(me, name)
        broker.subscribe(me, name)
    for _ in range(2):
        with pytest.raises(SubscriptionsTooLarge):
            broker.check_capacity(me, [names[fitting]])
    assert broker.hits == {"subscription_bytes": 2}
    broker.unsubscribe(me, names[0])
    broker.unsubscribe(me, names[0])
    broker.check_capacity(me, [names[fitting]])
    with pytest.raises(TooManySubscriptions):
        broker.check_capacity(me, [names[0], names[fitting]])
    broker.close(me, "over")
    assert me.subscription_bytes == 0


def test_no_wildcards_at_all_is_a_setting():
    """With the limit `patterns` at 0, names can be subscribed to and wildcards cannot."""
    broker = limited(patterns=0)
    me = join(broker, "1")
    broker.check_capacity(me, [A])
    with pytest.raises(TooManyPatterns):
        broker.check_capacity(me, [ALL])


# Publishing


def test_an_event_is_stamped_when_it_is_published(broker):
    """An event gets a publication number, and the time of day computed from the clock's offset."""
    broker.clock_offset_s = 1_700_000_000.0
    first, second = event(), event()
    broker.publish(first, 50.25)
    broker.publish(second, 50.5)
    numbers = [broker.publications.number_of(each.publication) for each in (first, second)]
    assert numbers == [1, 2]
    assert (first.time_us, second.time_us) == (1_700_000_050_250_000, 1_700_000_050_500_000)
    assert broker.published == 2


def test_an_event_reaches_everyone_who_hears_it_once(broker):
    """A49, A50: each subscriber gets one copy, however many of its patterns match; other sessions get none."""
    by_name, by_all, other = join(broker, "1"), join(broker, "2"), join(broker, "3")
    for pattern in (A, ALL, ONE):
        broker.subscribe(by_all, pattern)
    broker.subscribe(by_name, A)
    broker.subscribe(other, B)
    shared = event()
    broker.publish(shared, NOW)
    assert by_name.outbox.take() == by_all.outbox.take() == [shared]
    assert len(other.outbox) == 0
    assert broker.delivered == 2


def test_an_event_can_be_published_past_one_session(broker):
    """A50, E47: `without` leaves one session out, such as a publisher that does not want its own events."""
    me, other = join(broker, "1"), join(broker, "2")
    broker.subscribe(me, A)
    broker.subscribe(other, A)
    broker.publish(event(), NOW, without=me)
    assert (len(me.outbox), len(other.outbox)) == (0, 1)
    assert not me.is_ready


def test_an_event_can_be_sent_to_one_session_unsubscribed(broker):
    """A20: services and programs deliver to one session, whether it is subscribed or not."""
    me, other = join(broker, "1"), join(broker, "2")
    assert broker.deliver(me, event(), NOW) is True
    assert (len(me.outbox), len(other.outbox)) == (1, 0)


def test_events_wait_in_the_order_they_were_published(broker):
    """P2: the order holds across topics, and across publishing and delivering to one session."""
    me = join(broker, "1")
    broker.subscribe(me, ALL)
    broker.subscribe(me, A)
    broker.publish(event(1, "a"), NOW)
    broker.deliver(me, event(2), NOW)
    broker.publish(event(3, "b/c"), NOW)
    assert waiting(me) == [b"1", b"2", b"3"]


def test_a_full_outbox_is_its_owners_matter():
    """The owner is called once, at the first event that does not fit; the broker itself drops and ends nothing."""
    broker = limited(queue_events=2)
    owner = Owner()
    me, other = join(broker, "1", owner), join(broker, "2")
    broker.subscribe(me, A)
    broker.subscribe(other, A)
    for number in range(3):
        broker.publish(event(number), NOW)
        other.outbox.take()
    assert owner.heard == [("overflow", "1", NOW)]
    assert broker.overflows == 1
    assert me.closed is None
    assert waiting(me) == [b"0", b"1"]


def test_a_session_that_ends_by_its_overflow_was_not_delivered_to():
    """B14: an event that made a session end is not counted as delivered to it; other subscribers get the event."""
    broker = limited(queue_events=1)

    class Ending(Owner):
        def overflow(self, session, event, now):
            broker.close(session, "slow_consumer")

    slow, other = join(broker, "1", Ending()), join(broker, "2")
    for joined in (slow, other):
        broker.subscribe(joined, A)
    broker.publish(event(0), NOW)
    other.outbox.take()
    delivered = broker.delivered
    broker.publish(event(1), NOW)
    assert slow.closed == "slow_consumer"
    assert waiting(other) == [b"1"]
    assert broker.delivered == delivered + 1


def test_a_session_that_has_ended_keeps_no_names():
    """Its observers are told what it had. After that a connection may refer to it for long, and names are long."""
    broker, noted = limited(), []

    class Observer:
        def opened(self, session): ...

        def subscribed(self, session, names): ...

        def closed(self, session, reason):
            noted.append(session.subscription_names())

    broker.add_observer(Observer())
    session = join(broker, "1")
    broker.subscribe(session, A)
    broker.close(session, "test")
    assert noted == [[A]]
    assert session.subscription_names() == []


# Waking and flushing


def test_a_flush_is_asked_for_once_however_much_comes():
    """B7: one wake-up serves all events and sessions of a turn of the event loop."""
    woken = []
    broker = Broker(Limits(), wake=lambda: woken.append(True))
    owner = Owner()
    for number in range(3):
        broker.subscribe(join(broker, str(number), owner), A)
    for number in range(5):
        broker.publish(event(number), NOW)
    assert len(woken) == 1
    broker.flush(NOW)
    assert owner.heard == [("flush", str(number), NOW) for number in range(3)]
    broker.flush(NOW)
    assert len(owner.heard) == 3
    broker.publish(event(), NOW)
    assert len(woken) == 2


def test_a_large_flush_is_spread_over_turns():
    """P5: at most 500 sessions are flushed in a turn; further turns are requested until all have been flushed."""
    woken = []
    broker = Broker(Limits(), wake=lambda: woken.append(True))
    owner = Owner()
    count = 2 * FLUSHED_AT_ONCE + 1
    for number in range(count):
        broker.subscribe(join(broker, str(number), owner), A)
    broker.publish(event(), NOW)
    for turn, flushed in enumerate([FLUSHED_AT_ONCE, 2 * FLUSHED_AT_ONCE, count], 1):
        assert len(woken) == turn
        broker.flush(NOW)
        assert len(owner.heard) == flushed
    assert len(woken) == 3
    assert [session_id for _, session_id, _ in owner.heard] == list(map(str, range(count)))


def test_who_is_alone_with_an_event_does_not_wait_for_many():
    """P5: of an event to many and one to few, the sessions are flushed in turns; a session is flushed once."""
    broker, owner = Broker(Limits()), Owner()
    count = 2 * LARGE_FAN_OUT
    for number in range(count):
        broker.subscribe(join(broker, f"many{number}", owner), A)
    alone = join(broker, "alone", owner)
    broker.subscribe(alone, Pattern(Match.EXACT, "b"))
    broker.publish(event(), NOW)
    broker.publish(event(topic="b"), NOW)
    broker.flush(NOW)
    flushed = [session_id for _, session_id, _ in owner.heard]
    assert flushed.index("alone") < LARGE_FAN_OUT / 2
    flushed.remove("alone")
    assert flushed == [f"many{number}" for number in range(count)]


def test_a_flush_ends_when_its_time_is_over():
    """P5: the caller says when; the sessions that are left are flushed in the next turn, first of all."""
    woken = []
    broker = Broker(Limits(), wake=lambda: woken.append(True))
    owner = Owner()
    for number in range(100):
        broker.subscribe(join(broker, str(number), owner), A)
    broker.publish(event(), NOW)
    answers = iter([False, True])
    broker.flush(NOW, lambda: next(answers))
    flushed = [session_id for _, session_id, _ in owner.heard]
    assert 0 < len(flushed) < 100
    broker.publish(event(), NOW)
    assert len(woken) == 2
    broker.flush(NOW)
    again = [session_id for _, session_id, _ in owner.heard[len(flushed) :]]
    assert again == [*map(str, range(len(flushed), 100)), *flushed]


def test_a_fault_of_one_owner_does_not_keep_events_from_the_others():
    """P5, S42: the sessions behind the one that failed are flushed in the same turn."""
    woken = []
    reported = []
    broker = Broker(Limits(), wake=lambda: woken.append(True), report=lambda *fault: reported.append(fault))

    class Failing(Owner):
        def flush_session(self, session, now):
            raise {"1": ZeroDivisionError, "3": KeyError}[session.id]

    owner = Owner()
    for joined in (join(broker, "1", Failing()), join(broker, "2", owner), join(broker, "3", Failing())):
        broker.subscribe(joined, A)
    broker.publish(event(), NOW)
    broker.flush(NOW)
    assert [(what, type(fault)) for what, fault in reported] == [("flush", ZeroDivisionError), ("flush", KeyError)]
    assert owner.heard == [("flush", "2", NOW)]
    assert [*broker.sessions] == ["2"]  # the others may have lost an event


def test_events_that_come_during_a_flush_have_a_flush_of_their_own():
    """E49: an owner that publishes while it is flushed causes another flush of the subscribers, itself included."""
    woken = []
    broker = Broker(Limits(), wake=lambda: woken.append(True))

    class Echoing(Owner):
        def flush_session(self, session, now):
            super().flush_session(session, now)
            if len(self.heard) == 1:
                broker.publish(event("echo"), now)
            return ()

    owner = Echoing()
    me = join(broker, "1", owner)
    broker.subscribe(me, A)
    broker.publish(event(), NOW)
    broker.flush(NOW)
    assert len(woken) >= 2
    broker.flush(NOW)
    assert len(owner.heard) == 2
    assert waiting(me) == [b"0", b"echo"]


# A single session


def test_a_session_begins_with_nothing():
    """A new session is anonymous, has no subscriptions, is not closed and is not queued for a flush."""
    new = session("1")
    assert (new.authid, new.role, new.subscriptions, new.closed, new.is_ready) == (None, "anonymous", {}, None, False)


def test_an_event_tells_what_it_is_without_its_payload():
    """S41: an event's `repr` can reach a log, so it contains no payload."""
    told = event("secret", "a/b")
    told.publication = 7
    assert repr(told) == "<Event 7 on a/b>"


def test_many_deadlines_that_pass_together_are_handled_in_parts():
    """Sessions that came in one burst expire in one; the caller is told that there are more until all are handled."""
    broker = Broker(Limits())

    class Ending(Owner):
        def due(self, session, now):
            super().due(session, now)
            broker.close(session, "expired")

    owner, count = Ending(), 2 * DUE_AT_ONCE + 1
    for number in range(count):
        join(broker, str(number), owner, deadline=1.0)
    parts = 0
    while broker.due(2.0):
        parts += 1
        assert len(owner.heard) <= parts * DUE_AT_ONCE
    assert [session_id for _, session_id, _ in owner.heard] == list(map(str, range(count)))
    assert parts >= 2


def test_a_cache_of_many_topics_is_dropped_in_parts():
    """A subscription with a wildcard counts at once, and what it makes of no use is dropped by the sweeps."""
    broker, owner = Broker(Limits()), Owner()
    me, count = join(broker, "1", owner), 2 * DROPPED_AT_ONCE + 1
    before = [broker.index.match(f"a/{number}") for number in range(count)]
    assert broker.due(0) is False
    broker.subscribe(me, Pattern(Match.DESCENDANTS, "a"))
    assert broker.index.subscribers("a/0") == (me,)
    assert before[1].subscribers == ()
    parts = 1
    while broker.due(0):
        parts += 1
    assert parts == 3
    assert not broker.index.has_stale


def test_f5_a_fault_at_one_deadline_ends_that_session_and_no_other():
    """F5 (CometD #1627): the other deadlines are handled in the same sweep, and the next sweep raises nothing."""

    class Faulty(Owner):
        def due(self, session, now):
            raise RuntimeError("injected")

    reported = []
    broker, owner = Broker(Limits(), report=lambda *fault: reported.append(fault)), Owner()
    join(broker, "faulty", Faulty(), deadline=1.0)
    join(broker, "sound", owner, deadline=2.0)
    broker.due(3.0)
    assert [what for what, _ in reported] == ["deadline"]
    assert owner.heard == [("due", "sound", 3.0)]
    assert broker.closed == {"fault": 1}
    broker.due(3.0)


@pytest.mark.skipif(is_compiled(), reason="a compiled object has no dictionary")
def test_it_has_no_more_attributes_than_can_be_found_fast():
    """CPython shares at most 29 names among the objects of a class; with more, each publish costs 2 % more."""
    assert len(vars(Broker(Limits()))) <= 29
