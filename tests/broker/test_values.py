"""The broker and a store of values: which events become values, which are delivered, and which are recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halley.broker.broker import Broker
from halley.broker.commits import PublishResult
from halley.broker.errors import KeyReused, NotForAll, TooManyTopics, WrongType
from halley.broker.events import Audience, Event, SessionFilter
from halley.broker.names import Match, Pattern
from halley.broker.ports import Durability
from halley.broker.sessions import Cursor
from halley.settings import Limits
from tests.support.broker import event, join, payloads
from tests.support.memory_log import MemoryLog
from tests.support.values import FakeValues, value

if TYPE_CHECKING:
    from halley.broker.outbox import Outbox

_NOW = 5.0
_A = Pattern(Match.EXACT, "a")


@pytest.fixture
def broker() -> Broker:
    return Broker(Limits())


def _replaying(broker: Broker, name: str) -> Outbox:
    """Return the outbox of a session that replays and has reached the head."""
    session = join(broker, name)
    session.cursor = Cursor()
    session.cursor.seek(_A, broker.commits.tail.head, broker.commits.tail.head)
    broker.subscribe(session, _A)
    return session.outbox


def test_what_is_published_on_a_typed_topic_becomes_a_value(broker: Broker) -> None:
    """G5: a value is delivered immediately, even where the topic's events are durable."""
    values, log = FakeValues(broker, a="double"), MemoryLog(broker)
    publisher, hearer = join(broker, "p"), join(broker, "h")
    broker.subscribe(publisher, _A)
    broker.subscribe(hearer, _A)
    published = event(1.5)
    assert broker.publish(published, _NOW, without=publisher, source=publisher) is None
    assert payloads(hearer.outbox.take()) == [b"1.5"]
    assert not publisher.outbox.take()
    assert published.nt4_type == "double"
    assert published.publication
    assert published.time_us == int(_NOW * 1_000_000)
    assert values.sources == [publisher]
    assert broker.published == 1
    assert not log.inbox


def test_other_topics_go_their_ordinary_way(broker: Broker) -> None:
    """An event on a topic without a type is delivered as an ordinary event."""
    values = FakeValues(broker, b="double")
    hearer = join(broker, "h")
    broker.subscribe(hearer, _A)
    broker.publish(event("x"), _NOW)
    assert payloads(hearer.outbox.take()) == [b"x"]
    assert values.sources == []


@pytest.mark.parametrize("narrowing", [{"audience": Audience(("me",))}, {"chosen": SessionFilter(frozenset({"h"}))}])
def test_a_value_is_for_all_or_it_is_none(broker: Broker, narrowing: dict[str, object]) -> None:
    """A later subscriber gets the last value, so a value cannot be meant for some sessions only."""
    values = FakeValues(broker, a="double")
    hearer = join(broker, "h")
    broker.subscribe(hearer, _A)
    narrowed = event(1)
    for name, what in narrowing.items():
        setattr(narrowed, name, what)
    with pytest.raises(NotForAll):
        broker.publish(narrowed, _NOW)
    assert (values.sources, hearer.outbox.take(), broker.published) == ([], [], 0)


def test_what_is_refused_is_not_published(broker: Broker) -> None:
    """G5: a wrong type is reported to the publisher, an exceeded limit is counted, and a repeat is a new attempt."""
    FakeValues(broker, a="double", b="")
    wrong = Event("a", b'"text"', idempotency_key="k")
    with pytest.raises(WrongType) as refused:
        broker.publish(wrong, _NOW)
    assert refused.value.type_name == "double"
    assert broker.commits.repeated(wrong, _NOW) is None
    with pytest.raises(TooManyTopics):
        broker.publish(event(1, "b"), _NOW)
    assert broker.hits["topics"] == 1
    assert broker.published == 0


def test_a_repeated_value_is_known(broker: Broker) -> None:
    """A repeat finds the first publication, whether the value is recorded or not."""
    FakeValues(broker, a="double", b="double")
    MemoryLog(broker)
    first = Event("a", b"1", idempotency_key="k")
    broker.publish(first, _NOW)
    again = Event("a", b"2", idempotency_key="k")
    assert broker.commits.repeated(again, _NOW) == PublishResult("a", 0, first.publication)
    with pytest.raises(KeyReused):
        broker.commits.repeated(Event("b", b"2", idempotency_key="k"), _NOW)


def test_values_are_told_of_sessions_that_end(broker: Broker) -> None:
    """G1: the store is notified, once, since topics that a session published end with the session."""
    values = FakeValues(broker)
    session = join(broker, "s")
    broker.close(session, "left")
    broker.close(session, "left")
    assert values.ended == [session]


def test_live_sessions_are_shown_values_and_replaying_ones_get_what_is_kept(broker: Broker) -> None:
    """A replaying subscriber of a typed topic gets the recorded values only; no session gets a value twice."""
    log, values = MemoryLog(broker), FakeValues(broker, a="double")
    live = join(broker, "live")
    broker.subscribe(live, _A)
    replaying = _replaying(broker, "replaying")
    shown = values.put_and_keep_later("a", b"1", _NOW)
    broker.values.deliver(value("a", b"2"), _NOW)  # this one is not recorded
    assert payloads(live.outbox.take()) == [b"1", b"2"]
    assert not list(replaying)
    assert [(each.is_durable, each.is_delivered) for each in broker.commits.pending] == [(False, True)]
    log.commit()
    assert payloads(list(replaying)) == [b"1"]
    assert not live.outbox.take()
    (kept,) = log.events
    assert kept.position == 1
    assert broker.publications.number_of(kept.publication) > broker.publications.number_of(shown.publication)


def test_what_is_shown_may_be_what_is_kept(broker: Broker) -> None:
    """If one event is both delivered and stored, replaying sessions get it at the commit, others immediately."""
    log, values = MemoryLog(broker), FakeValues(broker, a="double")
    live = join(broker, "live")
    broker.subscribe(live, _A)
    replaying = _replaying(broker, "replaying")
    event = values.put("a", b"1", _NOW)
    assert list(live.outbox) == [event]
    assert not list(replaying)
    log.commit()
    assert list(live.outbox) == list(replaying) == log.events == [event]


def test_a_value_yields_whether_it_is_on_disk_or_not(broker: Broker) -> None:
    """For a session that does not replay, a stored value is treated as any other."""
    broker = Broker(Limits(queue_events=3))
    log, values = MemoryLog(broker), FakeValues(broker, a="double")
    live = join(broker, "live")
    for topic in ("a", "b"):
        broker.subscribe(live, Pattern(Match.EXACT, topic))
    log.keepings["b"] = Durability.NONE
    for number in range(3):
        values.put("a", b"%d" % number, _NOW)
    log.commit()
    broker.publish(event("x", "b"), _NOW)
    values.put("a", b"3", _NOW)
    assert payloads(live.outbox.take()) == [b"x", b"3"]
    assert broker.overflows == 0


def test_publications_of_the_log_ascend(broker: Broker) -> None:
    """Later events in the log have later publications, because events are found in it by their publication."""
    log, values = MemoryLog(broker), FakeValues(broker, a="double")
    log.keepings["a"] = Durability.ASYNC
    shown = value("a", b"1")
    broker.values.deliver(shown, _NOW)
    broker.publish(event("x", "other"), _NOW)
    assert shown.publication
    broker.values.record(value("a", b"1"), _NOW)
    values.put_and_keep_later("a", b"2", _NOW)
    log.commit()
    numbers = [broker.publications.number_of(stored.publication) for stored in log.events]
    assert [stored.topic for stored in log.events] == ["other", "a", "a"]
    assert numbers == sorted(set(numbers))


def test_what_the_log_does_not_take_is_no_error(broker: Broker) -> None:
    """Values that the log refuses, as for lack of disk space, are delivered anyway and counted separately."""
    log = MemoryLog(broker)
    replaying = _replaying(broker, "replaying")
    log.is_full = True
    assert not broker.values.record(value("a", b"1"), _NOW)
    log.is_full = False
    assert broker.values.record(value("a", b"2"), _NOW)
    log.refuse()
    log.keepings["a"] = Durability.NONE
    assert not broker.values.record(value("a", b"3"), _NOW)
    assert payloads(list(replaying)) == [b"1", b"2", b"3"]
    assert all(not kept.position for kept in replaying)
    recording = broker.commits
    assert (recording.lost_values, recording.lost, recording.refusals, recording.recorded) == (2, 0, 0, 0)


def test_without_a_history_nothing_is_kept(broker: Broker) -> None:
    """Without a history, values are delivered all the same."""
    hearer = join(broker, "h")
    broker.subscribe(hearer, _A)
    assert not broker.values.record(value("a", b"1"), _NOW)
    broker.values.deliver(value("a", b"1"), _NOW)
    assert payloads(hearer.outbox.take()) == [b"1"]
    assert broker.commits.lost_values == 0
