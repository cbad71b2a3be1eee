"""Retained events (W43 to W45)."""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_log import MemoryLog
from support.values import FakeValues, value
from support.wamp_peers import Peer, World

from halley.broker.events import Event
from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.protocols.wamp.session import RetainedEvents
from halley.settings import Limits, Realm, Wamp

if TYPE_CHECKING:
    from collections.abc import Iterable


def known(world: World, authid: str, role: str) -> Peer:
    """A peer that is authenticated with this authid and role."""
    peer = world.joined()
    session = peer.engine.session
    assert session is not None
    session.authid, session.role = authid, role
    return peer


def retained(peer: Peer, topic: str, **options: Any) -> list[Any]:
    """The payloads of the retained events that a peer gets, behind SUBSCRIBED, for a new subscription."""
    number = peer.subscribe(topic, get_retained=True, **options)
    events = peer.events()
    assert all(event[1] == number and event[3]["retained"] is True for event in events)
    peer.say([34, peer.request(), number])
    assert peer.hear()[0] == 35
    return [event[4][0] for event in events]


@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.msgpack.batched", "wamp.2.cbor"])
def test_retained(subprotocol: str) -> None:
    """W43, W44: `get_retained` brings the latest retained event with its id and details; live events are not marked."""
    world = World()
    publisher, hearer = world.joined(subprotocol=subprotocol), world.joined(subprotocol=subprotocol)
    publisher.publish("a", [1], retain=True)
    publication = publisher.publish("a", [2], {"k": 3}, retain=True, disclose_me=True)
    publisher.publish("a", [4])
    publisher.publish("a", [5], retain=False)
    number = hearer.subscribe("a", get_retained=True)
    details = {
        "publisher": publisher.number,
        "publisher_authid": publisher.welcome["authid"],
        "publisher_authrole": "anonymous",
        "retained": True,
    }
    assert hearer.events() == [[36, number, publication, details, [2], {"k": 3}]]
    publisher.publish("a", [6], retain=True)
    assert hearer.hear()[3] == {}


@pytest.mark.parametrize("options", [{}, {"get_retained": False}, {"get_retained": None}])
def test_who_does_not_ask_gets_none(options: dict[str, Any]) -> None:
    """W44: without `get_retained: true` no retained event is sent."""
    world = World()
    peer = world.joined()
    peer.publish("a", [1], retain=True)
    peer.subscribe("a", **options)
    assert peer.hears_nothing()


def test_asking_again() -> None:
    """W17, W44: a second SUBSCRIBE of a session gets the retained event again, and no second subscription."""
    world = World()
    peer = world.joined()
    peer.subscribe("a")
    peer.publish("a", [1], retain=True)
    peer.subscribe("a", get_retained=True)
    assert len(peer.events()) == 1


def test_patterns() -> None:
    """W44: a pattern brings each matching topic's latest retained event, oldest first, with its topic."""
    world = World()
    peer = world.joined()
    for topic in ("a.b", "a.c", "b.c", "a.b", "a"):
        world.now += 1
        peer.publish(topic, [topic], retain=True)
    assert retained(peer, "a.", match="prefix") == ["a.c", "a.b"]
    assert retained(peer, "", match="prefix") == ["a.c", "b.c", "a.b", "a"]
    assert retained(peer, ".c", match="wildcard") == ["a.c", "b.c"]
    peer.subscribe("a.", match="prefix", get_retained=True)
    assert [event[3] for event in peer.events()] == [{"topic": f"a.{each}", "retained": True} for each in "cb"]


def test_only_who_is_meant() -> None:
    """W43, W44: a session gets the latest event that it may have; an event for all replaces earlier ones."""
    world = World()
    ann, bob = known(world, "ann", "red"), known(world, "bob", "blue")
    ann.publish("a", ["all"], retain=True)
    ann.publish("a", ["red"], retain=True, eligible_authrole=["red"])
    ann.publish("a", ["not ann"], retain=True, exclude_authid="ann")
    ann.publish("a", ["bob's session"], retain=True, eligible=[bob.number])
    assert retained(ann, "a") == ["red"]
    assert retained(bob, "a") == ["bob's session"]
    assert retained(known(world, "bob", "blue"), "a") == ["not ann"]
    assert retained(world.joined(), "a", match="prefix") == ["not ann"]
    ann.publish("a", ["nobody"], retain=True, eligible=[])
    assert retained(ann, "a") == ["red"]
    ann.publish("a", ["all again"], retain=True)
    assert [retained(each, "a") for each in (ann, bob)] == [["all again"]] * 2


def test_of_one_topic() -> None:
    """At most 32 events are kept of a topic, regardless of their audiences; the oldest is dropped."""
    world = World()
    peer = known(world, "ann", "red")
    peer.publish("a", ["all"], retain=True)
    for number in range(31):
        peer.publish("a", [number], retain=True, eligible_authid=f"other{number}")
    assert retained(peer, "a") == ["all"]
    peer.publish("a", ["one more"], retain=True, eligible_authid="yet another")
    assert retained(peer, "a") == []


def test_refused_publications_are_not_retained() -> None:
    """W43: an event is retained only after its publish was accepted and stored."""
    world = World()
    peer = world.joined()
    peer.is_refused([16, 90, {"acknowledge": True, "retain": True, "exclude": ["x"]}, "a", [1]])
    assert retained(peer, "a") == []
    log = MemoryLog(world.broker)
    peer.say([16, 91, {"retain": True}, "a", [1]])
    peer.say([16, 92, {"retain": True}, "a", [2]])
    assert retained(peer, "a") == [], "it is not through yet"
    log.commit(1)
    log.refuse()
    assert retained(peer, "a") == [1]


def test_a_repeat_is_not_retained_again() -> None:
    """A repeat with an idempotency key does not replace an event that was retained later."""
    peer = World().joined()
    peer.publish("a", [1], retain=True, _idempotency_key="k")
    peer.publish("a", [2], retain=True)
    peer.publish("a", [1], retain=True, _idempotency_key="k")
    assert retained(peer, "a") == [2]


def test_a_repeat_of_what_is_pending() -> None:
    """A repeat with `retain` of a pending publish without it retains nothing."""
    world = World()
    log = MemoryLog(world.broker)
    peer = world.joined()
    peer.say([16, 90, {"_idempotency_key": "k"}, "a", [1]])
    peer.say([16, 91, {"_idempotency_key": "k", "retain": True}, "a", [1]])
    log.commit()
    assert retained(peer, "a") == []


def test_none_from_another_realm() -> None:
    """A session does not get retained events of another realm."""
    world = World(Realm("one"), Realm("two"))
    world.joined("one").publish("a", [1], retain=True)
    assert retained(world.joined("two"), "", match="prefix") == []
    assert retained(world.joined("two"), "a") == []


def test_a_retained_event_keeps_no_session() -> None:
    """W10: a retained event has no reference to its publisher's session or connection."""
    world = World()
    peer = world.joined()
    peer.publish("a", [1], retain=True)
    ((_, (_, events)),) = world.router.realms["realm1"].retained._retained.items()
    assert peer.engine.session not in gc.get_referents(events[0])


# Limits


def test_topics_are_bounded() -> None:
    """W45: the topic that was retained longest ago is dropped."""
    world = World(options=Wamp(retained_topics=2))
    peer = world.joined()
    for topic in ("a", "b", "a", "c"):
        peer.publish(topic, [topic], retain=True)
    assert retained(peer, "", match="prefix") == ["a", "c"]
    assert world.broker.hits == {"retained_topics": 1}


def strangers_retain(world: World, payload: str, count: int) -> None:
    """Have two anonymous clients retain a payload on so many topics of their own, in turns."""
    peers = [world.joined(), world.joined()]
    for number in range(count):
        peers[number % 2].publish(f"pub.{number:03}", [payload], retain=True)


def test_strangers_have_only_their_own_topics_dropped() -> None:
    """Whatever they retain, a member's state stays; what they have retained last keeps a tenth of the topics."""
    world = World(options=Wamp(retained_topics=50))
    ada, hearer = known(world, "ada", "user"), world.joined()
    for number in range(45):
        ada.publish(f"state.{number:03}", [number], retain=True)
    strangers_retain(world, "x", 200)
    assert retained(hearer, "state.", match="prefix") == [*range(45)]
    assert len(retained(hearer, "pub.", match="prefix")) == 5
    assert world.broker.hits == {"retained_topics": 195}
    for number in range(45, 90):
        ada.publish(f"state.{number:03}", [number], retain=True)
    assert retained(hearer, "state.", match="prefix") == [*range(45, 90)]
    assert len(retained(hearer, "pub.", match="prefix")) == 5, "that is their part, which members leave them"


def test_strangers_have_only_their_own_bytes_dropped() -> None:
    """The same by bytes: a few large events of a stranger do not push out what a member has retained."""
    world = World(options=Wamp(retained_bytes=200_000))
    ada, hearer = known(world, "ada", "user"), world.joined()
    for number in range(40):
        ada.publish(f"state.{number:03}", [number], retain=True)
    strangers_retain(world, "x" * 5_000, 100)
    assert retained(hearer, "state.", match="prefix") == [*range(40)]
    assert retained(hearer, "pub.", match="prefix")
    assert world.broker.hits["retained_bytes"] > 50


def test_strangers_who_are_alone_have_all_the_room() -> None:
    """Their part is no bound while nobody else needs the rest."""
    world = World(options=Wamp(retained_topics=50))
    strangers_retain(world, "x", 60)
    assert len(retained(world.joined(), "pub.", match="prefix")) == 50


def test_a_topic_with_an_event_of_a_stranger_is_one_of_theirs() -> None:
    """Strangers that may publish there can replace what is retained: with an event of one it is one of theirs."""
    world = World(options=Wamp(retained_topics=10))
    ada = known(world, "ada", "user")
    ada.publish("both", ["of ada"], retain=True)
    world.joined().publish("both", ["of a stranger"], retain=True, exclude_authid=["nobody"])
    ada.publish("own", ["of ada"], retain=True)
    strangers_retain(world, "x", 20)
    assert retained(world.joined(), "own") == ["of ada"]
    assert retained(world.joined(), "both") == []
    world.joined().publish("own", ["of a stranger"], retain=True)
    ada.publish("own", ["of ada"], retain=True)
    strangers_retain(world, "x", 20)
    assert retained(world.joined(), "own") == ["of ada"]


def test_nothing_is_retained_where_the_setting_says_so() -> None:
    """With `retained_topics` of 0 nothing is retained."""
    peer = World(options=Wamp(retained_topics=0)).joined()
    peer.publish("a", [1], retain=True)
    assert retained(peer, "a") == []


def test_bytes_are_bounded() -> None:
    """W45: beyond `retained_bytes` the oldest events are dropped; the latest always stays."""
    world = World(options=Wamp(retained_bytes=5_000))
    peer = world.joined()
    for topic in ("a", "b", "c"):
        peer.publish(topic, ["x" * 1_000], retain=True)
    assert len(retained(peer, "", match="prefix")) == 1
    peer.publish("d", ["x" * 50_000], retain=True)
    assert len(retained(peer, "", match="prefix")) == 1
    assert len(world.router.realms["realm1"].retained) == 1


def test_one_subscription_gets_so_many() -> None:
    """W44: a subscription gets at most `retained_events`, the youngest."""
    world = World(options=Wamp(retained_events=2))
    peer = world.joined()
    for number in range(4):
        world.now += 1
        peer.publish(f"a.b{number}", [number], retain=True)
    assert retained(peer, "a", match="prefix") == [2, 3]


def test_one_turn_gets_so_many_bytes() -> None:
    """S27: a client that asks many times in a turn is sent no more than a queue's bytes, and its session continues."""
    world = World(limits=Limits(queue_bytes=20_000))
    publisher, peer = world.joined(), world.joined(subprotocol="wamp.2.json.batched")
    for number in range(10):
        world.now += 1
        publisher.publish(f"a.b{number}", ["x" * 1_000], retain=True)
    ask = [peer.format.write([32, number, {"match": "prefix", "get_retained": True}, "a"]) for number in range(1, 101)]
    peer.send(b"".join(ask))
    said = [message[0] for message in peer.heard]
    assert said.count(33) == 100
    assert 10 <= said.count(36) < 20
    assert peer.closed is None
    peer.heard.clear()
    assert len(retained(peer, "a", match="prefix")) == 10


def nbytes_of(events: Iterable[Event]) -> int:
    """Bytes of all these events."""
    return sum(each.nbytes for each in events)


topics = st.sampled_from(["a", "a/b", "a/c", "b", "b/c"])


publications = st.tuples(topics, st.integers(0, 2_000), st.sampled_from([None, "ada"]))


@given(st.lists(publications, max_size=30), st.integers(1, 12), st.integers(1_024, 20_000))
def test_against_a_naive_model(kept: list[tuple[str, int, str | None]], most_topics: int, most_bytes: int) -> None:
    """W45: the youngest retained events are kept, within both limits; those of the anonymous beyond a tenth go."""
    anybody = World().joined().engine.session
    model: dict[str, Event] = {}
    found = RetainedEvents(most_topics, most_bytes, Counter())
    for at, (topic, size, authid) in enumerate(kept):
        event = Event(topic, b"x" * size, authid=authid)
        event.time_us = at
        found.keep(event)
        model.pop(topic, None)
        model[topic] = event
        while (excess := len(model) > most_topics) or (nbytes_of(model.values()) > most_bytes and len(model) > 1):
            anonymous = {each: of for each, of in model.items() if of.authid is None}
            is_theirs = (
                len(anonymous) > most_topics // 10 if excess else nbytes_of(anonymous.values()) > most_bytes // 10
            )
            del model[next(iter(anonymous if is_theirs else model))]
    assert found.of(Pattern(Match.PREFIX, ""), anybody, 100) == list(model.values())


def test_a_full_log_retains_nothing() -> None:
    """W43: an event that could not be stored is not retained."""
    world = World()
    log = MemoryLog(world.broker)
    log.is_full = True
    peer = world.joined()
    assert peer.is_refused([16, 90, {"acknowledge": True, "retain": True}, "a", [1]]) == "wamp.error.unavailable"
    assert retained(peer, "a") == []


def test_last_values_are_retained() -> None:
    """G7, W30: `get_retained` brings last values, also those that were read from disk when the server started."""
    world = World()
    values = FakeValues(world.broker, **{"a/b": "double", "a/c": "raw", "x": "double"})
    world.now += 1
    for topic, payload in (("a/b", b"1"), ("a/b", b"2"), ("x", b"3")):
        values.put(topic, payload, world.now)
    world.now += 1
    values.last["a/c"] = value("a/c", b'"\\u0000/w=="', "raw")
    peer = world.joined(subprotocol="wamp.2.msgpack")
    number = peer.subscribe("a", match="prefix", get_retained=True)
    events = peer.events()
    assert [(event[1], event[4]) for event in events] == [(number, [2]), (number, [b"\xff"])]
    assert events[1][3] == {"topic": "a.c", "_nt4_type": "raw", "_nt4_time": 7, "retained": True}
    assert all(event[2] for event in events)
    assert len({event[2] for event in events}) == 2


def test_of_a_topic_the_younger_comes_and_once() -> None:
    """Of a topic's retained event and last value the younger is sent; `retained_events` limits both together."""
    world = World(options=Wamp(retained_events=2))
    values = FakeValues(world.broker, b="double")
    peer = world.joined()
    for uri in ("a", "b", "c"):
        world.now += 1
        peer.publish(uri, [f"{uri}1"] if uri != "b" else [1], retain=True)
    assert retained(peer, "", match="prefix") == [1, "c1"]
    world.now += 1
    values.put("b", b"2", world.now)
    assert retained(peer, "", match="prefix") == ["c1", 2]
    del values.types["b"]
    world.now += 1
    peer.publish("b", ["younger"], retain=True)
    assert retained(peer, "b") == ["younger"]


def test_other_realms_have_no_values() -> None:
    """NetworkTables' values exist in the first realm only."""
    world = World(Realm("realm1"), Realm("other"))
    FakeValues(world.broker, a="double").put("a", b"1", world.now)
    assert retained(world.joined("other"), "a") == []
    assert retained(world.joined("other"), "", match="prefix") == []
    assert retained(world.joined("realm1"), "a") == [1]


def test_erasing_drops_retained_events_of_a_channel_or_a_publisher() -> None:
    """Each subscriber gets the latest event that is left; one topic's other events and other topics stay."""
    world = World()
    ada, bob, hearer = known(world, "ada", "user"), known(world, "bob", "user"), world.joined()
    ada.publish("a.x", ["of ada"], retain=True)
    bob.publish("a.y", ["of bob"], retain=True)
    bob.publish("a.y", ["of bob, for some"], retain=True, exclude_authid=["nobody"])
    ada.publish("a.y", ["of ada, for some"], retain=True, exclude_authid=["nobody"])
    ada.publish("b", ["of ada"], retain=True)
    world.broker.erase(Erasure(None, "ada"))
    assert retained(hearer, "a.", match="prefix") == ["of bob, for some"]
    assert retained(hearer, "b") == []
    world.broker.erase(Erasure(Pattern(Match.DESCENDANTS, "a"), None))
    assert retained(hearer, "a.", match="prefix") == []
    ada.publish("a.x", ["new"], retain=True)
    assert retained(hearer, "a.", match="prefix") == ["new"]
    assert sum(len(realm.retained) for realm in world.router.realms.values()) == 1
    assert world.broker.hits == {}
