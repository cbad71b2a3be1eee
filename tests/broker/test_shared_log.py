"""A log that several servers share, seen by the broker of one of them."""

from __future__ import annotations

import pytest
from support.broker import event, join, payloads
from support.memory_log import MemoryLog

from halley.broker.broker import Broker
from halley.broker.commits import PublishResult
from halley.broker.errors import HistoryUnavailable, KeyReused
from halley.broker.names import Match, Pattern
from halley.broker.ports import Durability
from halley.settings import Limits

NOW = 50.0
ALL = Pattern(Match.DESCENDANTS, "")


class Told:
    """A publisher that waits: it records position, publication and refusal of each outcome."""

    def __init__(self):
        self.news = []

    def settled(self, event, refusal, now):
        self.news.append((event.position, event.publication, type(refusal)))


@pytest.fixture
def broker():
    return Broker(Limits())


@pytest.fixture
def shared():
    return []


@pytest.fixture
def log(broker, shared):
    log = MemoryLog(broker)
    log.keepings = {"loose": Durability.ASYNC, "none": Durability.NONE}
    broker.commits.begin(log, 0, shared.append)
    return log


@pytest.fixture
def hearer(broker):
    joined = join(broker, "h")
    broker.subscribe(joined, ALL)
    return joined


def publish(broker, payload, topic="a", *, source=None, key=None):
    published = event(payload, topic)
    published.idempotency_key = key
    return broker.publish(published, NOW, source=source)


def stranger(payload, position, topic="a", key=None):
    arrived = event(payload, topic)
    arrived.idempotency_key = key
    arrived.position, arrived.publication = position, 1_000 + position
    return arrived


def test_what_arrives_is_delivered_in_the_logs_order(broker, log, hearer):
    """Own events and others' are one sequence of positions, for live subscribers and in the tail."""
    publish(broker, 1)
    broker.commits.arrived([stranger("x", 1), stranger("y", 2)], NOW)
    broker.commits.committed(log.entries, 3, NOW)
    heard = hearer.outbox.take()
    assert payloads(heard) == [b"x", b"y", b"1"]
    assert [each.position for each in heard] == [1, 2, 3]
    assert [each.position for each in broker.commits.tail.after(0)] == [1, 2, 3]
    assert (broker.commits.recorded, len(broker.commits.pending)) == (3, 0)


def test_what_arrives_above_a_hole_is_read_from_disk(broker, log, hearer):
    """The tail has no holes: it begins anew behind one."""
    broker.commits.arrived([stranger("x", 1), stranger("y", 7)], NOW)
    assert (broker.commits.tail.head, broker.commits.tail.after(0)) == (7, None)


def test_an_event_that_is_not_durable_waits_for_its_place_too(broker, log, hearer):
    """Else its own server would deliver it in another order than all others."""
    loose = publish(broker, 1, "loose")
    assert (loose.is_delivered, len(hearer.outbox)) == (False, 0)
    broker.commits.arrived([stranger("x", 1)], NOW)
    broker.commits.committed(log.entries, 2, NOW)
    assert payloads(hearer.outbox.take()) == [b"x", b"1"]


def test_an_event_that_is_not_durable_is_delivered_even_without_a_log(broker, log, hearer, shared):
    """It is counted as lost, and the other servers get it as one that is not recorded."""
    log.is_full = True
    assert publish(broker, 1, "loose") is None
    assert payloads(hearer.outbox.take()) == payloads(shared) == [b"1"]
    assert broker.commits.lost == 1
    log.is_full = False
    publish(broker, 2, "loose")
    log.refuse(now=NOW)
    assert (broker.commits.lost, payloads(hearer.outbox.take())) == (2, [b"2"])


def test_a_durable_event_that_is_refused_is_delivered_nowhere(broker, log, hearer, shared):
    """Neither here nor at the other servers."""
    log.is_full = True
    with pytest.raises(HistoryUnavailable):
        publish(broker, 1)
    log.is_full = False
    publish(broker, 2)
    log.refuse(now=NOW)
    assert (len(hearer.outbox), shared, broker.commits.lost) == (0, [], 0)


def test_an_event_that_is_not_recorded_is_shared_at_once(broker, log, hearer, shared):
    """It is delivered here, and handed over for the others."""
    assert publish(broker, 1, "none") is None
    assert payloads(hearer.outbox.take()) == payloads(shared) == [b"1"]


def test_behind_a_pending_event_of_its_publisher_it_is_shared_later(broker, log, hearer, shared):
    """The events of one publisher stay in order, also those that are not recorded."""
    source = object()
    publish(broker, 1, source=source)
    waits = publish(broker, 2, "none", source=source)
    assert shared == []
    log.commit(now=NOW)
    assert (payloads(hearer.outbox.take()), shared) == ([b"1", b"2"], [waits.event])


def test_what_others_share_is_delivered_without_a_position(broker, log, hearer, shared):
    """It is not shared again."""
    broker.commits.arrived([stranger("x", 0, "none")], NOW)
    assert (payloads(hearer.outbox.take()), broker.commits.tail.head, shared) == ([b"x"], 0, [])


def test_a_key_of_another_server_is_known_here(broker, log, hearer):
    """A repeat at this server is answered at the door."""
    broker.commits.arrived([stranger("x", 1, key="k")], NOW)
    again = event("x")
    again.idempotency_key = "k"
    assert broker.commits.repeated(again, NOW) == PublishResult("a", 1, 1_001)


def test_the_same_key_at_two_servers_at_once_is_one_event(broker, log, hearer):
    """The publisher whose event came second gets the position of the first, and nobody hears the second."""
    me, told = publish(broker, 1, key="k"), Told()
    me.waiters.append(told)
    broker.commits.arrived([stranger("x", 1, key="k")], NOW)
    broker.commits.repeated_late(me, PublishResult("a", 1, 1_001), NOW)
    assert (told.news, payloads(hearer.outbox.take())) == ([(1, 1_001, type(None))], [b"x"])
    assert (len(broker.commits.pending), broker.commits.tail.head) == (0, 1)
    again = event("x")
    again.idempotency_key = "k"
    assert broker.commits.repeated(again, NOW) == PublishResult("a", 1, 1_001)


@pytest.mark.parametrize(
    ("own", "of_the_first", "refusal"),
    [(b"11111111", b"22222222", KeyReused), (b"11111111", b"11111111", type(None)), (b"11111111", None, type(None))],
)
def test_a_key_that_another_server_used_for_other_data_is_refused(broker, log, hearer, own, of_the_first, refusal):
    """Both were published at once, and neither server knew of the other; nobody hears the second in any case."""
    published, told = event(1), Told()
    published.idempotency_key, published.key_digest = "k", own
    me = broker.publish(published, NOW)
    me.waiters.append(told)
    broker.commits.arrived([stranger("x", 1, key="k")], NOW)
    broker.commits.repeated_late(me, PublishResult("a", 1, 1_001, of_the_first), NOW)
    assert (told.news, payloads(hearer.outbox.take())) == ([(1, 1_001, refusal)], [b"x"])


def test_a_key_that_another_server_used_for_another_topic_is_refused(broker, log, hearer):
    """As it would be at one server."""
    me, told = publish(broker, 1, key="k"), Told()
    me.waiters.append(told)
    broker.commits.repeated_late(me, PublishResult("b", 1, 1_001), NOW)
    assert (told.news[0][2], len(hearer.outbox)) == (KeyReused, 0)
