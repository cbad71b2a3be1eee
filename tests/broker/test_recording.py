"""Events on their way through the log (P1, P2)."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
from support.broker import event, join, payloads
from support.memory_log import MemoryLog

from halley.broker.broker import Broker
from halley.broker.commits import PublishResult
from halley.broker.errors import HistoryUnavailable, KeyReused, OutcomeUnknown
from halley.broker.events import Audience, Event
from halley.broker.names import Match, Pattern
from halley.broker.ports import Durability
from halley.broker.sessions import Cursor
from halley.settings import History, Limits

NOW = 50.0
ALL = Pattern(Match.DESCENDANTS, "")


class Told:
    """A publisher that waits: it records the outcome of each event."""

    def __init__(self):
        self.news = []

    def settled(self, event, refusal, now):
        self.news.append((event.payload, type(refusal)))


@pytest.fixture
def broker():
    return Broker(Limits())


def recorded(broker):
    """Return a log for the broker, in which every topic is durable except the ones named here."""
    log = MemoryLog(broker)
    log.keepings = {"loose/a": Durability.ASYNC, "none": Durability.NONE, "none/a": Durability.NONE}
    return log


@pytest.fixture
def log(broker):
    return recorded(broker)


def hearer(broker, session_id="h", pattern=ALL):
    joined = join(broker, session_id)
    broker.subscribe(joined, pattern)
    return joined


def waiting(session):
    return payloads(session.outbox.take())


def made(payload, topic="a", idempotency_key=None, authid=None):
    return Event(topic, event(payload).payload, idempotency_key=idempotency_key, authid=authid)


def publish(broker, payload, topic="a", *, idempotency_key=None, authid=None, **fields):
    """Publish an event, and return it."""
    published = made(payload, topic, idempotency_key, authid)
    broker.publish(published, NOW, **fields)
    return published


def pend(broker, payload, topic="a", *, idempotency_key=None, **fields):
    """Publish an event that is pending then, and return that."""
    return broker.publish(made(payload, topic, idempotency_key), NOW, **fields)


# Stored, then delivered, then acknowledged


def test_a_durable_event_is_seen_by_nobody_before_it_is_on_disk(broker, log):
    """P1: a durable event is pending until the log has it, is then delivered, and its publisher is notified last."""
    me = hearer(broker)
    told = Told()
    first = pend(broker, 1)
    first.waiters.append(told)
    assert (first.is_delivered, len(me.outbox), told.news, first.position) == (False, 0, [], 0)
    log.commit(now=NOW)
    assert (waiting(me), told.news, first.position) == ([b"1"], [(b"1", type(None))], 1)
    assert not broker.commits.pending


def test_positions_have_no_holes_and_follow_the_order_of_publishing(broker, log):
    """P2: positions have no holes even where some events of a group are not recorded."""
    me, source = hearer(broker), object()
    for number, topic in enumerate(("a", "none", "b", "none", "a")):
        publish(broker, number, topic, source=source)
    log.commit(2, NOW)
    log.commit(now=NOW)
    events = me.outbox.take()
    assert payloads(events) == [b"0", b"1", b"2", b"3", b"4"]
    assert [event.position for event in events] == [1, 0, 2, 0, 3]
    assert broker.commits.tail.head == 3


def test_hearers_are_looked_up_when_the_event_is_on_disk(broker, log):
    """A session that subscribed in the meantime receives the event; one that unsubscribed does not."""
    early = hearer(broker, "early")
    publish(broker, 1)
    late = hearer(broker, "late")
    broker.unsubscribe(early, ALL)
    log.commit(now=NOW)
    assert (waiting(early), waiting(late)) == ([], [b"1"])


def test_a_publisher_does_not_get_its_own_where_that_was_wished(broker, log):
    """A51: `without` also holds for the delivery after the commit."""
    me, other = hearer(broker, "me"), hearer(broker, "other")
    publish(broker, 1, without=me)
    log.commit(now=NOW)
    assert (waiting(me), waiting(other)) == ([], [b"1"])


def test_recorded_events_that_are_not_durable_are_delivered_at_once(broker, log):
    """The log gets a copy of the event, and its commit does not deliver the event again."""
    me = hearer(broker)
    assert pend(broker, 1, "loose/a") is None
    assert waiting(me) == [b"1"]
    log.commit(now=NOW)
    assert ([each.position for each in broker.commits.tail.after(0)], waiting(me)) == ([1], [])


def test_a_publisher_s_events_stay_in_order_whatever_they_are(broker, log):
    """Events behind a pending event of the same source wait; those of other sources do not."""
    me, source = hearer(broker), object()
    publish(broker, 1, "a", source=source)
    publish(broker, 2, "none/a", source=source)
    publish(broker, 3, "loose/a", source=source)
    publish(broker, 9, "none/a", source=object())
    assert waiting(me) == [b"9"]
    log.commit(now=NOW)
    assert waiting(me) == [b"1", b"2", b"3"]
    publish(broker, 4, "none/a", source=source)
    assert waiting(me) == [b"4"]


def test_an_event_that_is_kept_refers_to_no_session(broker, log):
    """Its publisher and its source, which may be a large request, are those of the pending event, which ends."""
    me, source = hearer(broker), object()
    published = publish(broker, 1, without=me, source=source)
    log.commit(now=NOW)
    assert broker.commits.tail.after(0) == [published]
    assert not {id(me), id(source)} & {id(each) for each in gc.get_referents(published)}
    assert len(gc.get_referrers(source)) <= 1  # this function's frame, which may not count


# When the log refuses events


def test_a_refused_event_is_delivered_to_nobody_and_its_publisher_is_told(broker, log):
    """P1, H4: the events that waited behind the refused one are delivered."""
    me, source, told = hearer(broker), object(), Told()
    pend(broker, 1, source=source).waiters.append(told)
    pend(broker, 2, "none/a", source=source).waiters.append(told)
    pend(broker, 3, "loose/a", source=source).waiters.append(told)
    log.refuse(now=NOW)
    assert waiting(me) == [b"2", b"3"]
    assert told.news == [(b"1", HistoryUnavailable), (b"2", type(None)), (b"3", type(None))]
    assert broker.commits.refusals == 1
    publish(broker, 4)
    log.commit(now=NOW)
    assert [event.position for event in me.outbox.take()] == [1]


def test_recorded_rows_that_are_lost_are_counted(broker, log):
    """An event that is delivered and then not stored is counted in `history_lost`."""
    publish(broker, 1, "loose/a")
    log.refuse(now=NOW)
    assert (broker.commits.lost, broker.commits.refusals) == (1, 0)


def test_a_full_log_refuses_what_is_durable_and_sheds_the_rest(broker, log):
    """A refused publish has no effect: the event is neither delivered nor counted as published."""
    me = hearer(broker)
    log.is_full = True
    with pytest.raises(HistoryUnavailable):
        publish(broker, 1)
    publish(broker, 2, "loose/a")
    publish(broker, 3, "none/a")
    assert waiting(me) == [b"2", b"3"]
    assert (broker.commits.lost, broker.commits.refusals, broker.published) == (1, 1, 2)


def test_after_its_deadline_nobody_knows_what_becomes_of_an_event():
    """The publisher is notified once that the outcome is unknown; the event is delivered if it is stored later."""
    broker = Broker(Limits(), history=replace(History(), commit_s=10))
    log, me, told = recorded(broker), hearer(broker), Told()
    pend(broker, 1).waiters.append(told)
    broker.commits.expire(NOW + 9.9)
    assert told.news == []
    broker.commits.expire(NOW + 10)
    broker.commits.expire(NOW + 11)
    assert told.news == [(b"1", OutcomeUnknown)]
    log.commit(now=NOW + 20)
    assert waiting(me) == [b"1"]
    assert told.news == [(b"1", OutcomeUnknown)]


def test_one_event_s_fault_does_not_keep_the_others_from_their_publishers(broker, log):
    """An exception from a waiter is reported, and all others are notified."""

    class Broken:
        def settled(self, event, refusal, now):
            raise RuntimeError("boom")

    told, reported = Told(), []
    broker.commits.report = lambda *fault: reported.append(fault)
    pending = pend(broker, 1)
    pending.waiters += [Broken(), told]
    pend(broker, 2).waiters.append(told)
    log.commit(now=NOW)
    assert [(what, str(fault)) for what, fault in reported] == [("waiter", "boom")]
    assert told.news == [(b"1", type(None)), (b"2", type(None))]
    assert not broker.commits.pending


# Audience


def transient(payload, topic="a"):
    meant = Event(topic, payload)
    meant.is_transient = True
    return meant


@pytest.mark.parametrize("topic", ["a", "loose/a", "none"])
def test_what_is_meant_for_sessions_is_heard_at_once_and_never_stored(broker, log, topic):
    """W37: an event for listed sessions is not stored under any rule, since the list means nothing to later readers."""
    me = hearer(broker)
    meant = transient(b"1", topic)
    assert broker.publish(meant, NOW) is None
    assert (waiting(me), log.inbox) == ([b"1"], [])
    publish(broker, 2)
    log.commit(now=NOW)
    assert [event.payload for event in log.events] == [b"2"]
    assert meant.position == 0


def test_what_is_meant_for_sessions_keeps_its_place_behind_its_publisher_s_others(broker, log):
    """W31: an event for listed sessions waits for the events published before it, and takes no offset."""
    me, source, told = hearer(broker), object(), Told()
    publish(broker, 1, source=source)
    broker.publish(transient(b"2"), NOW, source=source).waiters.append(told)
    publish(broker, 3, source=source)
    assert waiting(me) == []
    log.commit(now=NOW)
    events = me.outbox.take()
    assert [(event.payload, event.position) for event in events] == [(b"1", 1), (b"2", 0), (b"3", 2)]
    assert [event.payload for event in log.events] == [b"1", b"3"]
    assert [event.payload for event in broker.commits.tail.after(0)] == [b"1", b"3"]
    assert told.news == [(b"2", type(None))]


def test_an_audience_holds_for_every_session(broker, log):
    """An audience is checked by authid and role, whatever the session's protocol."""
    ann, bob, eve = (hearer(broker, name) for name in ("ann", "bob", "eve"))
    ann.authid, bob.authid, eve.authid = "ann", "bob", "eve"
    ann.role = bob.role = "staff"
    meant = Event("a", b"1", audience=Audience(eligible_roles=("staff",), excluded_authids=("bob",)))
    broker.publish(meant, NOW)
    log.commit(now=NOW)
    assert (waiting(ann), waiting(bob), waiting(eve)) == ([b"1"], [], [])


# Sessions that replay


def replaying(broker):
    joined = hearer(broker)
    joined.cursor = Cursor()
    joined.cursor.seek(ALL, broker.commits.tail.head, broker.commits.tail.head)
    return joined


def test_a_live_replay_session_hears_recorded_events_when_they_are_committed(broker, log):
    """Recorded events are delivered at their commit, so there is one border; events not recorded arrive immediately."""
    me = replaying(broker)
    publish(broker, 1, "loose/a")
    publish(broker, 2, "none/a")
    assert waiting(me) == [b"2"]
    publish(broker, 3, "a")
    log.commit(now=NOW)
    assert waiting(me) == [b"1", b"3"]


def test_a_replay_session_that_reads_is_given_nothing_that_it_will_read(broker, log):
    """A session that reads the log is delivered only the events that are not recorded."""
    me = replaying(broker)
    publish(broker, 1)
    log.commit(now=NOW)
    me.outbox.take()
    me.cursor.seek(ALL, 0, 1)
    publish(broker, 2, "loose/a")
    publish(broker, 3)
    publish(broker, 4, "none/a")
    log.commit(now=NOW)
    assert waiting(me) == [b"4"]
    assert me.cursor.wanted() == ((ALL, 0),)


def test_a_live_replay_session_that_overflows_goes_back_to_reading():
    """The session reads the events that did not fit from the log, and does not end."""
    broker = Broker(replace(Limits(), queue_events=2))
    log, me = recorded(broker), replaying(broker)
    for number in range(4):
        publish(broker, number)
    log.commit(now=NOW)
    assert (me.closed, me.cursor.is_live, me.cursor.wanted()) == (None, False, ((ALL, 2),))
    assert waiting(me) == [b"0", b"1"]


# The tail


def test_the_tail_has_the_youngest_events_without_a_hole(broker, log):
    """A session that has read up to the tail goes live in the same step; one that has not gets None and reads on."""
    for number in range(3):
        publish(broker, number)
    log.commit(now=NOW)
    tail = broker.commits.tail
    assert payloads(tail.after(1)) == [b"1", b"2"]
    assert tail.after(3) == []
    log.commit(now=NOW)
    publish(broker, 3)
    broker.commits.committed(log.entries, 10, NOW)  # the log has lost some offsets and continues above them
    assert (tail.head, tail.after(3), payloads(tail.after(9))) == (10, None, [b"3"])


def test_the_tail_is_bounded_by_bytes():
    broker = Broker(Limits(), history=replace(History(), tail_bytes=5_000))
    log = recorded(broker)
    for number in range(1_000):
        publish(broker, number)
    log.commit(now=NOW)
    held = [offset for offset in range(1_001) if broker.commits.tail.after(offset) is not None]
    assert held == list(range(held[0], 1_001))
    assert 2 < len(held) < 10


# Publishing twice


def test_a_repeat_is_known_while_it_is_pending_and_after(broker, log):
    """A repeat finds the pending event, and after the commit its publication and position."""
    first = pend(broker, 1, idempotency_key="k")
    repeat = Event("a", b"1", idempotency_key="k")
    assert broker.commits.repeated(repeat, NOW) is first
    log.commit(now=NOW)
    assert broker.commits.repeated(repeat, NOW) == PublishResult("a", 1, first.event.publication)


def test_a_refused_event_s_key_is_free_again(broker, log):
    """Repeating an event that was not stored is a new attempt."""
    publish(broker, 1, idempotency_key="k")
    log.refuse(now=NOW)
    assert broker.commits.repeated(Event("a", b"1", idempotency_key="k"), NOW) is None


@pytest.mark.parametrize("topic", ["none/a", "loose/a"])
def test_repeats_are_known_of_events_that_are_not_durable(broker, log, topic):
    """Keys of events that are not durable are remembered while the server runs, and also with the history off."""
    first = publish(broker, 1, topic, idempotency_key="k")
    found = broker.commits.repeated(Event(topic, b"1", idempotency_key="k"), NOW)
    assert found == PublishResult(topic, 0, first.publication)


def test_a_key_belongs_to_one_identity_and_one_channel(broker, log):
    """An identity cannot use up another's keys; using a key again for another channel is refused with `KeyReused`."""
    publish(broker, 1, idempotency_key="k", authid="ann")
    assert broker.commits.repeated(Event("a", b"1", idempotency_key="k", authid="bob"), NOW) is None
    with pytest.raises(KeyReused):
        broker.commits.repeated(Event("b", b"1", idempotency_key="k", authid="ann"), NOW)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("topic", ["a", "async", "loose"])
def test_a_key_belongs_to_what_was_sent_with_it(broker, log, topic, is_committed):
    """Other data are refused, also while the first is pending. Where one side does not know them the topic decides."""

    def sent(digest):
        event = Event(topic, b"changed by a listener", idempotency_key="k")
        event.key_digest = digest
        return event

    broker.publish(sent(b"as sent."), NOW)
    if is_committed:
        log.commit(now=NOW)
    for digest in (b"as sent.", None):
        assert broker.commits.repeated(sent(digest), NOW) is not None
    with pytest.raises(KeyReused):
        broker.commits.repeated(sent(b"another."), NOW)
    broker.commits.keys.remember(None, "k", PublishResult(topic, 1, 1), NOW)
    assert broker.commits.repeated(sent(b"another."), NOW) == PublishResult(topic, 1, 1)


def test_keys_are_bounded_by_number_and_age():
    """The settings `keys` and `key_age_s` bound the keys, by default 100,000 for 10 minutes; the oldest go first."""
    broker = Broker(Limits(), history=replace(History(), keys=2, key_age_s=600))
    keys = broker.commits.keys
    for number in range(3):
        keys.remember(None, str(number), PublishResult("a", number, 0), 1_000.0 + number)
    used = Event("a", b"")
    assert [keys.find(used, str(number), 1_010.0) is not None for number in range(3)] == [False, True, True]
    assert keys.find(used, "1", 1_601.5) is None
    keys.sweep(1_601.5)
    assert broker.hits == {"keys": 1}
    assert len(keys) == 1
    keys.remember(None, "3", PublishResult("a", 3, 0), 1_602.5)
    keys.remember(None, "4", PublishResult("a", 4, 0), 1_602.5)
    keys.sweep(1_602.5)
    assert broker.hits == {"keys": 1}, "that key was too old already"


def test_no_key_is_remembered_where_the_setting_says_so():
    """That is no limit that anybody has hit."""
    broker = Broker(Limits(), history=replace(History(), keys=0))
    publish(broker, 1, idempotency_key="k")
    assert broker.commits.repeated(Event("a", b"1", idempotency_key="k"), NOW) is None
    broker.commits.keys.sweep(NOW)
    assert broker.hits == {}


def test_strangers_have_only_their_own_keys_forgotten():
    """However many they use: a member's repeat is recognized, and what they have used last is, as there is room."""
    broker = Broker(Limits(), history=replace(History(), keys=100))
    order = publish(broker, 7, idempotency_key="order 7", authid="ann")
    for number in range(1_010):
        publish(broker, number, idempotency_key=str(number))
    repeat = Event("a", b"7", idempotency_key="order 7", authid="ann")
    assert broker.commits.repeated(repeat, NOW) == PublishResult("a", 0, order.publication)
    assert [number for number in range(1_010) if broker.commits.keys.has(None, str(number), NOW)] == [
        *range(911, 1_010)
    ]
    broker.commits.keys.sweep(NOW)
    assert broker.hits == {"keys": 911}
    for number in range(200):
        publish(broker, number, idempotency_key=str(number), authid="ann")
    assert [number for number in range(200) if broker.commits.keys.has("ann", str(number), NOW)] == [*range(100, 200)]


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0])
def test_a_clock_that_is_set_makes_no_key_older_or_younger(broker, log, step_s):
    """The age of a key is the time that has passed, however the wall clock was set meanwhile."""
    first = publish(broker, 1, idempotency_key="k")
    log.commit(now=NOW)
    broker.clock_offset_s += step_s
    broker.commits.keys.sweep(NOW + 1)
    repeat = Event("a", b"1", idempotency_key="k")
    assert broker.commits.repeated(repeat, NOW + 1) == PublishResult("a", 1, first.publication)
    assert broker.commits.repeated(repeat, NOW + 601) is None


# Time


def test_time_does_not_run_backwards_by_a_little(broker):
    """H9: small corrections of the clock do not turn back events' times; steps of a second or more do."""
    times = []
    for offset_s in (100.0, 99.9, 100.0, 90.0, 90.1):
        broker.clock_offset_s = offset_s
        times.append(publish(broker, 0).time_us)
    assert times == [150_000_000, 150_000_000, 150_000_000, 140_000_000, 140_100_000]


# The server's own events


def test_the_servers_own_event_on_a_durable_topic_waits_for_no_commit(broker, log):
    """It is delivered at once, and recorded behind that."""
    me = hearer(broker)
    broker.announce(made(1), NOW)
    assert (waiting(me), len(log.inbox)) == ([b"1"], 1)
    log.commit(now=NOW)
    assert (waiting(me), broker.commits.recorded, broker.commits.lost) == ([], 1, 0)


def test_the_servers_own_event_is_never_refused(broker, log):
    """What cannot be recorded is delivered and counted as lost, whether the log says so at once or later."""
    me = hearer(broker)
    log.is_full = True
    broker.announce(made(1), NOW)
    log.is_full = False
    broker.announce(made(2), NOW)
    log.refuse(now=NOW)
    assert waiting(me) == [b"1", b"2"]
    assert (broker.commits.lost, broker.commits.refusals, broker.hits) == (2, 0, {})


def test_where_other_servers_have_the_log_the_servers_own_event_is_not_refused_either(broker, log):
    """It is delivered in its place among theirs, or as soon as it is known that it has none."""
    me, shared = hearer(broker), []
    broker.commits.begin(log, 0, share=shared.append)
    log.is_full = True
    broker.announce(made(1), NOW)
    log.is_full = False
    broker.announce(made(2), NOW)
    assert ([each.payload for each in shared], waiting(me)) == ([b"1"], [b"1"])
    log.refuse(now=NOW)
    assert (waiting(me), broker.commits.lost) == ([b"2"], 2)


def test_a_log_that_raises_takes_nothing(broker, log):
    """A durable event is refused, and nobody gets it; the fault is reported."""
    me, reported = hearer(broker), []
    broker.commits.report = lambda *fault: reported.append(fault)

    def fail(pending):
        raise KeyError

    log.append = fail
    with pytest.raises(HistoryUnavailable):
        publish(broker, 1)
    publish(broker, 2, "loose/a")
    assert (waiting(me), [what for what, _ in reported], broker.commits.lost) == ([b"2"], ["log", "log"], 1)
