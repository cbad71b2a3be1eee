"""Events on their way through the log (P1, P2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.broker import event, join, payloads
from support.memory_log import MemoryLog

from app.broker.broker import Broker
from app.broker.cursors import Cursor
from app.broker.errors import HistoryUnavailable, KeyReused, OutcomeUnknown
from app.broker.events import Audience, Event
from app.broker.keys import Published
from app.broker.log import Keeping
from app.broker.topics import Match, Pattern
from app.settings import History, Limits

NOW = 50.0
ALL = Pattern(Match.DESCENDANTS, "")


class Told:
    """A publisher that waits: what it was told of each event."""

    def __init__(self):
        self.news = []

    def settled(self, event, refusal, now):
        self.news.append((event.payload, type(refusal)))


@pytest.fixture
def broker():
    return Broker(Limits())


def recorded(broker):
    """Give it a log, in which everything is durable but what these topics say."""
    log = MemoryLog(broker)
    log.keepings = {"loose/a": Keeping.AFTERWARDS, "none": Keeping.NOT, "none/a": Keeping.NOT}
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


def publish(broker, payload, topic="a", **fields):
    published = event(payload, topic)
    for name in ("idempotency_key", "authid"):
        setattr(published, name, fields.pop(name, None))
    broker.publish(published, NOW, **fields)
    return published


# Stored, then delivered, then acknowledged


def test_a_durable_event_is_seen_by_nobody_before_it_is_on_disk(broker, log):
    """P1: it waits, is delivered when the log has it, and its publisher is told after that."""
    me = hearer(broker)
    told = Told()
    first = publish(broker, 1)
    first.waiters.append(told)
    assert (first.is_pending, len(me.outbox), told.news, first.position) == (True, 0, [], 0)
    log.commit(now=NOW)
    assert (first.is_pending, waiting(me), told.news, first.position) == (False, [b"1"], [(b"1", type(None))], 1)


def test_positions_have_no_holes_and_follow_the_order_of_publishing(broker, log):
    """P2: also where some of a group are not recorded."""
    me, source = hearer(broker), object()
    for number, topic in enumerate(("a", "none", "b", "none", "a")):
        publish(broker, number, topic, source=source)
    log.commit(2, NOW)
    log.commit(now=NOW)
    events = me.outbox.take()
    assert payloads(events) == [b"0", b"1", b"2", b"3", b"4"]
    assert [event.position for event in events] == [1, 0, 2, 0, 3]
    assert broker.recording.tail.head == 3


def test_hearers_are_looked_up_when_the_event_is_on_disk(broker, log):
    """Who subscribed meanwhile hears it, who left does not."""
    early = hearer(broker, "early")
    publish(broker, 1)
    late = hearer(broker, "late")
    broker.unsubscribe(early, ALL)
    log.commit(now=NOW)
    assert (waiting(early), waiting(late)) == ([], [b"1"])


def test_a_publisher_does_not_get_its_own_where_that_was_wished(broker, log):
    """A51: `without` holds for the delivery after the commit too."""
    me, other = hearer(broker, "me"), hearer(broker, "other")
    publish(broker, 1, without=me)
    log.commit(now=NOW)
    assert (waiting(me), waiting(other)) == ([], [b"1"])


def test_recorded_events_that_are_not_durable_are_delivered_at_once(broker, log):
    """The log gets a copy, and delivery does not come twice."""
    me = hearer(broker)
    published = publish(broker, 1, "loose/a")
    assert (published.is_pending, waiting(me)) == (False, [b"1"])
    log.commit(now=NOW)
    assert (published.position, waiting(me)) == (1, [])


def test_a_publisher_s_events_stay_in_order_whatever_they_are(broker, log):
    """Behind a pending event of the same source everything waits; other sources go ahead."""
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


# When the log takes nothing


def test_a_refused_event_is_delivered_to_nobody_and_its_publisher_is_told(broker, log):
    """P1, H4: neither is what waited behind it lost."""
    me, source, told = hearer(broker), object(), Told()
    publish(broker, 1, source=source).waiters.append(told)
    publish(broker, 2, "none/a", source=source).waiters.append(told)
    publish(broker, 3, "loose/a", source=source).waiters.append(told)
    log.refuse(now=NOW)
    assert waiting(me) == [b"2", b"3"]
    assert told.news == [(b"1", HistoryUnavailable), (b"2", type(None)), (b"3", type(None))]
    assert broker.recording.refusals == 1
    publish(broker, 4)
    log.commit(now=NOW)
    assert [event.position for event in me.outbox.take()] == [1]


def test_recorded_rows_that_are_lost_are_counted(broker, log):
    """Delivered, and then not written: `history_lost`."""
    publish(broker, 1, "loose/a")
    log.refuse(now=NOW)
    assert (broker.recording.lost, broker.recording.refusals) == (1, 0)


def test_a_full_log_refuses_what_is_durable_and_sheds_the_rest(broker, log):
    """Nothing of a refused publish has happened."""
    me = hearer(broker)
    log.is_full = True
    with pytest.raises(HistoryUnavailable):
        publish(broker, 1)
    publish(broker, 2, "loose/a")
    publish(broker, 3, "none/a")
    assert waiting(me) == [b"2", b"3"]
    assert (broker.recording.lost, broker.recording.refusals, broker.published) == (1, 1, 2)


def test_after_its_deadline_nobody_knows_what_becomes_of_an_event():
    """Its publisher is told so once; the event still comes, in its order, if the log gets there."""
    broker = Broker(Limits(), history=replace(History(), commit_s=10))
    log, me, told = recorded(broker), hearer(broker), Told()
    publish(broker, 1).waiters.append(told)
    broker.recording.expire(NOW + 9.9)
    assert told.news == []
    broker.recording.expire(NOW + 10)
    broker.recording.expire(NOW + 11)
    assert told.news == [(b"1", OutcomeUnknown)]
    log.commit(now=NOW + 20)
    assert waiting(me) == [b"1"]
    assert told.news == [(b"1", OutcomeUnknown)]


def test_one_event_s_fault_does_not_keep_the_others_from_their_publishers(broker, log):
    """A waiter that raises is heard of when all have had their turn."""

    class Broken:
        def settled(self, event, refusal, now):
            raise RuntimeError("boom")

    told = Told()
    publish(broker, 1).waiters.append(Broken())
    publish(broker, 2).waiters.append(told)
    with pytest.raises(RuntimeError, match="boom"):
        log.commit(now=NOW)
    assert told.news == [(b"2", type(None))]
    assert not broker.recording.pending


# Audience


def fleeting(broker, payload, topic="a", **fields):
    meant = Event(topic, payload)
    meant.is_fleeting = True
    broker.publish(meant, NOW, **fields)
    return meant


@pytest.mark.parametrize("topic", ["a", "loose/a", "none"])
def test_what_is_meant_for_sessions_is_heard_at_once_and_never_stored(broker, log, topic):
    """W37: whatever the topic's rule says, a list of sessions means nothing to who reads it later."""
    me = hearer(broker)
    meant = fleeting(broker, b"1", topic)
    assert (meant.is_recorded, meant.is_durable, meant.is_pending) == (False, False, False)
    assert (waiting(me), log.inbox) == ([b"1"], [])
    publish(broker, 2)
    log.commit(now=NOW)
    assert [event.payload for event in log.events] == [b"2"]
    assert meant.position == 0


def test_what_is_meant_for_sessions_keeps_its_place_behind_its_publisher_s_others(broker, log):
    """W31: it waits for what was published before it, and takes no offset."""
    me, source, told = hearer(broker), object(), Told()
    publish(broker, 1, source=source)
    fleeting(broker, b"2", source=source).waiters.append(told)
    publish(broker, 3, source=source)
    assert waiting(me) == []
    log.commit(now=NOW)
    events = me.outbox.take()
    assert [(event.payload, event.position) for event in events] == [(b"1", 1), (b"2", 0), (b"3", 2)]
    assert [event.payload for event in log.events] == [b"1", b"3"]
    assert [event.payload for event in broker.recording.tail.after(0)] == [b"1", b"3"]
    assert told.news == [(b"2", type(None))]


def test_an_audience_holds_for_every_session(broker, log):
    """By authid and role, whatever the session's protocol."""
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
    joined.cursor.seek(ALL, broker.recording.tail.head, broker.recording.tail.head)
    return joined


def test_a_live_replay_session_hears_recorded_events_when_they_are_committed(broker, log):
    """The committed position is the one border; what is never recorded comes at once."""
    me = replaying(broker)
    publish(broker, 1, "loose/a")
    publish(broker, 2, "none/a")
    assert waiting(me) == [b"2"]
    publish(broker, 3, "a")
    log.commit(now=NOW)
    assert waiting(me) == [b"1", b"3"]


def test_a_replay_session_that_reads_is_given_nothing_that_it_will_read(broker, log):
    """And what no log has, it gets as everyone does."""
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
    """What can be read again is read again, and the session does not end."""
    broker = Broker(replace(Limits(), queue_events=2))
    log, me = recorded(broker), replaying(broker)
    for number in range(4):
        publish(broker, number)
    log.commit(now=NOW)
    assert (me.closed, me.cursor.is_live, me.cursor.wanted()) == (None, False, ((ALL, 2),))
    assert waiting(me) == [b"0", b"1"]


# The tail


def test_the_tail_has_the_youngest_events_without_a_hole(broker, log):
    """Who has read up to it goes live in the same step; who has not is told to read on."""
    for number in range(3):
        publish(broker, number)
    log.commit(now=NOW)
    tail = broker.recording.tail
    assert payloads(tail.after(1)) == [b"1", b"2"]
    assert tail.after(3) == []
    log.commit(now=NOW)
    publish(broker, 3)
    broker.recording.committed(log.inbox, 10, NOW)  # the log has lost some, and goes on above them
    assert (tail.head, tail.after(3), payloads(tail.after(9))) == (10, None, [b"3"])


def test_the_tail_is_bounded_by_bytes():
    """Every queue has a bound."""
    broker = Broker(Limits(), history=replace(History(), tail_bytes=5_000))
    log = recorded(broker)
    for number in range(1_000):
        publish(broker, number)
    log.commit(now=NOW)
    held = [offset for offset in range(1_001) if broker.recording.tail.after(offset) is not None]
    assert held == list(range(held[0], 1_001))
    assert 2 < len(held) < 10


# Publishing twice


def test_a_repeat_is_known_while_it_is_pending_and_after(broker, log):
    """It is answered with the first one's publication, and with its position once there is one."""
    first = publish(broker, 1, idempotency_key="k")
    repeat = Event("a", b"1", idempotency_key="k")
    wall_s = first.time_us / 1_000_000
    assert broker.recording.repeated(repeat, wall_s) is first
    log.commit(now=NOW)
    assert broker.recording.repeated(repeat, wall_s) == Published("a", 1, first.publication)


def test_a_refused_event_s_key_is_free_again(broker, log):
    """A repeat of what was not stored is a new attempt."""
    first = publish(broker, 1, idempotency_key="k")
    log.refuse(now=NOW)
    assert broker.recording.repeated(Event("a", b"1", idempotency_key="k"), first.time_us / 1_000_000) is None


@pytest.mark.parametrize("topic", ["none/a", "loose/a"])
def test_repeats_are_known_of_events_that_are_not_durable(broker, log, topic):
    """As long as the server lives, and with history off."""
    first = publish(broker, 1, topic, idempotency_key="k")
    found = broker.recording.repeated(Event(topic, b"1", idempotency_key="k"), first.time_us / 1_000_000)
    assert found == Published(topic, 0, first.publication)


def test_a_key_belongs_to_one_identity_and_one_channel(broker, log):
    """Nobody can use up another's key; used for something else it is a mistake that its user hears of."""
    first = publish(broker, 1, idempotency_key="k", authid="ann")
    wall_s = first.time_us / 1_000_000
    assert broker.recording.repeated(Event("a", b"1", idempotency_key="k", authid="bob"), wall_s) is None
    with pytest.raises(KeyReused):
        broker.recording.repeated(Event("b", b"1", idempotency_key="k", authid="ann"), wall_s)


def test_keys_are_bounded_by_number_and_age():
    """100,000 keys, 10 minutes, both settings; the oldest go first."""
    broker = Broker(Limits(), history=replace(History(), keys=2, key_age_s=600))
    keys = broker.recording.keys
    for number in range(3):
        keys.remember(None, str(number), Published("a", number, 0), 1_000.0 + number)
    assert [keys.find(None, str(number), "a", 1_010.0) is not None for number in range(3)] == [False, True, True]
    assert keys.find(None, "1", "a", 1_601.5) is None
    keys.sweep(1_601.5)
    assert len(keys) == 1


# Time


def test_time_does_not_run_backwards_by_a_little(broker):
    """Clocks are corrected all the time; only a step of a second or more is told as what it is (H9)."""
    times = []
    for offset_s in (100.0, 99.9, 100.0, 90.0, 90.1):
        broker.clock_offset_s = offset_s
        times.append(publish(broker, 0).time_us)
    assert times == [150_000_000, 150_000_000, 150_000_000, 140_000_000, 140_100_000]
