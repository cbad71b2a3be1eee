"""Publishes that wait until they are stored (W24, W31)."""

from __future__ import annotations

from typing import Any

import pytest
from support.memory_log import MemoryLog
from support.wamp_peers import World

from halley.broker.ports import Durability


def recorded() -> tuple[World, MemoryLog]:
    """A world, and its history's log, which commits when the test calls it."""
    world = World()
    return world, MemoryLog(world.broker)


def test_published_when_it_is_on_disk() -> None:
    """An event is stored, then delivered, then acknowledged."""
    world, log = recorded()
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("a")
    publisher.say([16, 1, {"acknowledge": True}, "a", [1]])
    publisher.say([16, 2, {}, "a", [2]])
    assert publisher.hears_nothing()
    assert hearer.hears_nothing()
    log.commit()
    world.turn()
    events = hearer.events()
    assert [event[4] for event in events] == [[1], [2]]
    assert list(publisher.heard) == [[17, 1, events[0][2]]]
    assert [event.publication for event in log.events] == [event[2] for event in events]


@pytest.mark.parametrize("is_full", [False, True], ids=["not written", "no room"])
def test_refused_by_the_history(is_full: bool) -> None:
    """An event that the history refuses is `unavailable` and not delivered; without acknowledgement it is counted."""
    world, log = recorded()
    log.is_full = is_full
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("a")
    publisher.say([16, 1, {"acknowledge": True}, "a"])
    publisher.say([16, 2, {}, "a"])
    log.refuse()
    world.turn()
    assert [each[:5] for each in publisher.heard] == [[8, 16, 1, {}, "wamp.error.unavailable"]]
    assert world.router.unacknowledged["wamp.error.unavailable"] == 1
    assert hearer.hears_nothing()


def test_nobody_knows_in_time() -> None:
    """A commit after its deadline is `timeout`; the event can be delivered later, without a second reply."""
    world, log = recorded()
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("a")
    publisher.say([16, 1, {"acknowledge": True}, "a"])
    world.broker.commits.expire(world.broker.commits.options.commit_s + 0.1)
    world.turn()
    assert publisher.hear()[:5] == [8, 16, 1, {}, "wamp.error.timeout"]
    log.commit()
    world.turn()
    assert publisher.hears_nothing()
    assert len(hearer.events()) == 1


def test_order_behind_a_pending_one() -> None:
    """W31: a publisher's later events wait for its pending one, recorded or not; other publishers' do not."""
    world, log = recorded()
    log.keepings = {"b": Durability.NONE, "c": Durability.ASYNC}
    publisher, other, hearer = world.joined(), world.joined(), world.joined()
    for topic in ("a", "b", "c"):
        hearer.subscribe(topic)
    for number, topic in enumerate(("a", "b", "c"), 1):
        publisher.say([16, number, {"acknowledge": True}, topic, [number]])
    other.publish("b", ["other"])
    assert [event[4] for event in hearer.events()] == [["other"]]
    log.commit()
    world.turn()
    assert [event[4] for event in hearer.events()] == [[1], [2], [3]]
    assert [each[:2] for each in publisher.heard] == [[17, 1], [17, 2], [17, 3]]


@pytest.mark.parametrize("options", [{"eligible": [1]}, {"exclude": [1]}, {"eligible": []}, {"exclude": []}])
def test_session_lists_are_not_stored(options: dict[str, Any]) -> None:
    """W37: events with lists of session ids are not stored, and wait for nothing."""
    world, log = recorded()
    world.joined().publish("a", **options)
    assert not log.inbox


def test_what_is_stored() -> None:
    """W37: lists of authids and roles are stored with an event, and its publisher only if it is disclosed."""
    world, log = recorded()
    publisher = world.joined()
    publisher.say([16, 1, {"exclude_authid": "ann", "eligible_authrole": ["red"]}, "a", [1], {}])
    publisher.say([16, 2, {"disclose_me": True}, "a"])
    hidden, disclosed = log.inbox
    assert hidden.audience is not None
    assert (hidden.audience.excluded_authids, hidden.audience.eligible_roles) == (("ann",), ("red",))
    assert hidden.details is None
    assert disclosed.details is not None
    assert str(publisher.number) in disclosed.details


@pytest.mark.parametrize("is_stored", [True, False])
def test_the_publisher_leaves_meanwhile(is_stored: bool) -> None:
    """A pending event is delivered after its publisher has left; the link's next session does not get the reply."""
    world, log = recorded()
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("a")
    publisher.say([16, 1, {"acknowledge": True}, "a"])
    publisher.say([6, {}, "a"])
    publisher.say([1, "realm1", {"roles": {"publisher": {}}}])
    publisher.heard.clear()
    if is_stored:
        log.commit()
    else:
        log.refuse()
    world.turn()
    assert publisher.hears_nothing()
    assert len(hearer.events()) == is_stored


def test_a_repeat_while_the_first_is_pending() -> None:
    """A repeat by idempotency key waits for the first publish and gets the same publication id."""
    world, log = recorded()
    publisher = world.joined()
    for number in (1, 2):
        publisher.say([16, number, {"acknowledge": True, "_idempotency_key": "k"}, "a"])
    assert len(log.inbox) == 1
    log.commit()
    world.turn()
    first, second = publisher.heard
    assert (first[1], second[1]) == (1, 2)
    assert first[2] == second[2]


def test_a_repeat_of_what_was_refused() -> None:
    """A repeat of a publish that was refused is stored as a new attempt."""
    world, log = recorded()
    publisher = world.joined()
    publisher.say([16, 1, {"acknowledge": True, "_idempotency_key": "k"}, "a"])
    log.refuse()
    world.turn()
    assert publisher.hear()[4] == "wamp.error.unavailable"
    publisher.say([16, 2, {"acknowledge": True, "_idempotency_key": "k"}, "a"])
    log.commit()
    world.turn()
    assert publisher.hear()[:2] == [17, 2]
