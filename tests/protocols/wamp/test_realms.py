"""Realms are separate from each other; the first shares its topics with the other protocols."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.broker import join
from support.memory_log import MemoryLog
from support.wamp_peers import World

from halley.access.rules import AccessRules, Rule
from halley.broker.events import Event
from halley.broker.names import Match, Pattern
from halley.protocols.bayeux.names import NameLimits, to_channel, to_pattern
from halley.protocols.bayeux.names import to_topic as from_bayeux
from halley.protocols.wamp.names import MATCHES
from halley.protocols.wamp.session import Realm as RealmOfThem
from halley.settings import Limits, Realm, Settings, Wamp

if TYPE_CHECKING:
    from halley.broker.broker import Broker
    from halley.broker.sessions import Session

LIMITS = Settings().limits
BOUNDS = NameLimits(LIMITS.topic_chars, LIMITS.topic_segments)


def bayeux_hearer(broker: Broker, session_id: str, subscription: str) -> Session:
    """A session of another protocol with a Bayeux subscription."""
    session = join(broker, session_id)
    broker.subscribe(session, to_pattern(subscription, BOUNDS))
    return session


def test_the_usual_realm() -> None:
    """Without realms in the settings there is one, realm1."""
    world = World()
    assert list(world.router.realms) == ["realm1"]
    assert world.joined().welcome["realm"] == "realm1"


def test_realms_share_nothing() -> None:
    """An event reaches only sessions of its realm, by exact names and patterns; subscription ids differ."""
    world = World(Realm("one"), Realm("two"), Realm("three"))
    peers = [world.joined(realm) for realm in ("one", "two", "three")]
    for peer in peers:
        for topic, match in (("a.b", "exact"), ("", "prefix"), ("a.", "wildcard"), (".", "wildcard")):
            peer.subscribe(topic, match=match)
    ids = [peer.call("wamp.subscription.list")[0]["exact"] for peer in peers]
    assert len({each for (each,) in ids}) == 3
    for publisher in peers:
        publisher.publish("a.b", exclude_me=False)
        assert [len(peer.events()) for peer in peers] == [4 * (peer is publisher) for peer in peers]


@pytest.mark.parametrize("match", ["exact", "prefix", "wildcard"])
def test_ids_of_another_realm_mean_nothing(match: str) -> None:
    """A session cannot use a subscription id of another realm, neither in UNSUBSCRIBE nor in procedures."""
    world = World(Realm("one"), Realm("two"))
    one, two = world.joined("one"), world.joined("two")
    for owner, stranger in ((one, two), (two, one)):
        number = owner.subscribe("a.b", match=match)
        assert stranger.is_refused([34, 90, number]) == "wamp.error.no_such_subscription"
        for procedure in ("get", "count_subscribers", "get_events"):
            error = stranger.is_refused_call(f"wamp.subscription.{procedure}", number)
            assert error == "wamp.error.no_such_subscription"


@pytest.mark.parametrize(
    ("uri", "channel"),
    [("a.b", "/a/b"), ("com.myapp.x", "/com/myapp/x"), ("a", "/a"), ("a!2eb.ü", "/a!2eb/!c3!bc"), ("a*.b", "/a!2a/b")],
)
def test_names_cross(uri: str, channel: str) -> None:
    """`com.myapp.x` in the first realm and Bayeux' `/com/myapp/x` are one topic, in both directions."""
    world = World(Realm("one"), Realm("two"))
    first, second = world.joined("one"), world.joined("two")
    exact, everything = bayeux_hearer(world.broker, "x", channel), bayeux_hearer(world.broker, "y", "/**")
    first.subscribe(uri)
    second.subscribe(uri)
    first.publish(uri, [1])
    second.publish(uri, [2])
    for session in (exact, everything):
        assert [(to_channel(event.topic), event.payload) for event in session.outbox] == [(channel, b"1")]
    world.broker.publish(Event(from_bayeux(channel, BOUNDS), b'{"k":1}'), world.now)
    world.turn()
    assert [event[4] for event in first.events()] == [[{"k": 1}]]
    assert second.hears_nothing()


def test_what_bayeux_published_has_no_publisher_s_name() -> None:
    """W28: the publisher and details of another protocol's event are not disclosed."""
    world = World()
    peer = world.joined()
    peer.subscribe("a", match="prefix")
    event = Event("a", b"1", publisher="secret", protocol="bayeux", authid="ann", role="red")
    event.details = '{"secret":1}'
    world.broker.publish(event, world.now)
    world.turn()
    assert peer.hear()[3:] == [{"topic": "a"}, [1]]


def test_bayeux_hears_no_meta_topics() -> None:
    """Bayeux gets no `wamp.*` topics, and its own `/wamp/session/on_join` does not reach WAMP."""
    world = World()
    everything, forged = bayeux_hearer(world.broker, "x", "/**"), bayeux_hearer(world.broker, "y", "/wamp/**")
    peer = world.joined()
    peer.subscribe("wamp.session.on_join")
    world.joined()
    assert len(peer.events()) == 1
    assert not len(everything.outbox)
    assert not len(forged.outbox)
    world.broker.publish(Event("wamp/session/on_join", b"1"), world.now)
    world.turn()
    assert peer.hears_nothing()


def test_a_subscription_of_both_protocols() -> None:
    """W36: a Bayeux subscriber is not shown in the meta API and does not keep a subscription alive."""
    world = World()
    bayeux_hearer(world.broker, "x", "/a/b")
    peer, witness = world.joined(), world.joined()
    witness.subscribe("wamp.subscription.on_delete")
    assert peer.call("wamp.subscription.lookup", "a.b") == [None]
    assert peer.call("wamp.subscription.match", "a.b") == [None]
    number = peer.subscribe("a.b")
    assert peer.call("wamp.subscription.count_subscribers", number) == [1]
    peer.say([34, 90, number])
    assert len(witness.events()) == 1
    peer.heard.clear()
    assert number not in peer.call("wamp.subscription.list")[0]["exact"]
    witness.publish("a.b")
    assert peer.hears_nothing()
    assert peer.subscribe("a.b") == number


def test_strictness_is_a_realm_s_own() -> None:
    """W11: `strict_uris` applies to its own realm only."""
    world = World(Realm("loose"), Realm("strict", strict_uris=True))
    world.joined("loose").subscribe("Mixed")
    assert world.joined("strict").is_refused([32, 1, {}, "Mixed"]) == "wamp.error.invalid_uri"


def test_sessions_may_not_be_chosen_across() -> None:
    """An event that is eligible for a session of another realm is not delivered to it."""
    world = World(Realm("one"), Realm("two"))
    one, two = world.joined("one"), world.joined("two")
    two.subscribe("a")
    one.publish("a", eligible=[two.number])
    assert two.hears_nothing()


def test_access_rules_of_each_realm() -> None:
    """A rule grants rights in its own realm and not in others."""
    everything = [Pattern(Match.DESCENDANTS, space) for space in ("", ":two")]
    for number, allowed in enumerate(everything):
        world = World(Realm("one"), Realm("two"), rights=AccessRules([Rule("*", "*", allowed, allow=True)]))
        for at, realm in enumerate(("one", "two")):
            peer = world.joined(realm)
            peer.say([16, 1, {"acknowledge": True}, "a.b"])
            peer.say([32, 2, {}, "a.b"])
            peer.say([32, 3, {"match": "prefix"}, ""])
            assert [answer[0] for answer in peer.heard] == ([17, 33, 33] if at == number else [8, 8, 8])


def test_short_topics_do_not_silence_the_router() -> None:
    """Limits for clients' topics do not affect the router's own topics."""
    world = World(limits=Limits(topic_chars=8, topic_segments=1))
    peer = world.joined()
    peer.subscribe("a")
    peer.subscribe("w", match="prefix")
    peer.say([6, {}, "a"])
    assert peer.hear()[0] == 6


def test_its_own_topics_in_the_history() -> None:
    """Events of other realms than the first are stored under topics that no client can publish to."""
    world = World(Realm("one"), Realm("two"))
    log = MemoryLog(world.broker)
    for realm in ("one", "two"):
        world.joined(realm).say([16, 1, {}, "a.b"])
    assert log.inbox[0].topic == "a/b"
    assert log.inbox[1].topic == ":two/a/b"


realm_names = st.text(
    st.characters(exclude_categories=["Cs", "Z", "Cc"], exclude_characters=".#"), min_size=1, max_size=9
)


@given(st.lists(realm_names, min_size=2, max_size=2, unique=True), st.sampled_from(["exact", "prefix", "wildcard"]))
def test_whatever_realms_are_called(names: list[str], match: str) -> None:
    """No topic or pattern belongs to two realms, for any names of realms."""
    options: Any = [Realm(name) for name in ("first", *names)]
    realms = [RealmOfThem(each, LIMITS, Wamp(), Counter(), is_first=not at) for at, each in enumerate(options)]
    for uri in ("a.b", "wamp.session.on_join", "wamp"):
        patterns = [realm.pattern(uri, MATCHES[match]) for realm in realms]
        assert len(set(patterns)) == 3
        for realm, pattern in zip(realms, patterns, strict=True):
            assert [each.has(pattern) for each in realms] == [each is realm for each in realms]


@pytest.mark.parametrize("uri", ["halley.sessions", "halley"])
def test_the_server_s_own_must_be_named(uri: str) -> None:
    """Only patterns that begin with `halley` match the server's own topics."""
    world = World()
    peer = world.joined()
    for topic, match in (("", "prefix"), ("h", "prefix"), (".sessions", "wildcard")):
        peer.subscribe(topic, match=match)
    world.joined().publish(uri)
    assert peer.hears_nothing()
    peer.subscribe("halley", match="prefix")
    world.joined().publish(uri)
    assert len(peer.events()) == 1
