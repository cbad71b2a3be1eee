"""SUBSCRIBE and UNSUBSCRIBE: ids, names and events (W11-W14, W17-W23, WD1, WD2, WD5, WD12)."""

from __future__ import annotations

from itertools import chain
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wamp_peers import Peer, World

from halley.broker.policy import DefaultRules
from halley.settings import Limits, Realm, Wamp

BURST = 10


def test_one_id_for_a_topic_and_match() -> None:
    """W17, WD1: each topic and match has one small id, the same for every session."""
    world = World()
    one, other = world.joined(), world.joined()
    ids = [one.subscribe("a.b"), one.subscribe("a.b", match="prefix"), one.subscribe("a.b", match="wildcard")]
    ids.append(one.subscribe("a.c"))
    assert ids == [1, 2, 3, 4]
    assert other.subscribe("a.b", match="exact") == 1
    assert other.subscribe("a.b", match="prefix") == 2


def test_subscribing_twice() -> None:
    """W17, WD1: subscribing twice returns the same id and adds no delivery; one UNSUBSCRIBE ends it."""
    world = World()
    peer, publisher = world.joined(), world.joined()
    number = peer.subscribe("a")
    assert peer.subscribe("a") == number
    publisher.publish("a")
    assert len(peer.events()) == 1
    peer.say([34, 9, number])
    assert peer.hear() == [35, 9]
    publisher.publish("a")
    assert peer.hears_nothing()


def test_unsubscribing() -> None:
    """W22, WD2: one subscriber's UNSUBSCRIBE does not affect the other; a second one is an error."""
    world = World()
    one, other, publisher = world.joined(), world.joined(), world.joined()
    number = one.subscribe("a")
    other.subscribe("a")
    one.say([34, 1, number])
    assert one.hear() == [35, 1]
    publisher.publish("a")
    assert one.hears_nothing()
    assert len(other.events()) == 1
    assert one.is_refused([34, 2, number]) == "wamp.error.no_such_subscription"


def test_unsubscribing_what_is_anothers() -> None:
    """W22, WD2: unsubscribing another session's id is an error, and has no effect on it."""
    world = World()
    owner, stranger, witness = world.joined(), world.joined(), world.joined()
    number = owner.subscribe("a")
    witness.subscribe("wamp.subscription.on_unsubscribe")
    for wrong in (number, 77, 2**53):
        assert stranger.is_refused([34, 1, wrong]) == "wamp.error.no_such_subscription"
    stranger.publish("a")
    assert len(owner.events()) == 1
    assert witness.hears_nothing()


@pytest.mark.parametrize("match", [1, True, [], {}, "regex", "Exact", ""])
def test_a_wrong_match(match: Any) -> None:
    """W18: an unknown `match` is `invalid_argument`, and the session continues."""
    peer = World().joined()
    assert peer.is_refused([32, 1, {"match": match}, "a"]) == "wamp.error.invalid_argument"
    peer.subscribe("a")


@pytest.mark.parametrize("wanted", [1, "true", []])
def test_a_wrong_get_retained(wanted: Any) -> None:
    """W18: a wrong `get_retained` is `invalid_argument`, and makes no subscription."""
    peer = World().joined()
    assert peer.is_refused([32, 1, {"get_retained": wanted}, "a"]) == "wamp.error.invalid_argument"
    assert peer.call("wamp.subscription.list") == [{"exact": [], "prefix": [], "wildcard": []}]


@pytest.mark.parametrize(
    ("subprotocol", "undefined"),
    [
        ("wamp.2.json", None),
        ("wamp.2.msgpack", None),
        ("wamp.2.msgpack", msgspec.msgpack.Ext(0, b"\0")),
        ("wamp.2.cbor", None),
        ("wamp.2.cbor", cbor2.undefined),
    ],
)
def test_undefined_options(subprotocol: str, undefined: Any) -> None:
    """W18: undefined options, which wampy sends, count as absent."""
    peer = World().joined(subprotocol=subprotocol)
    assert peer.subscribe("a", match=undefined, get_retained=undefined, whatever=undefined) == 1
    assert peer.subscribe("a", match="exact") == 1


def test_not_authorized() -> None:
    """W23: subscribing without the right is `not_authorized`."""
    peer = World(rights=DefaultRules(loopback=False, anonymous_publish=True)).joined()
    for topic, match in (("halley.sessions", "exact"), ("halley.", "prefix"), ("halley.", "wildcard")):
        assert peer.is_refused([32, 1, {"match": match}, topic]) == "wamp.error.not_authorized"


# Names

STRICT_GOOD = {
    "exact": ["this.is.test42", "a", "_", "a_b.c1"],
    "prefix": ["this.is.test42", "this.is.", "", "a"],
    "wildcard": ["this.is.a", "...", "this..a.", ".is.a.", ".", "a"],
}
LOOSE_GOOD = {
    "exact": ["Mixed.cAsE", "a-b", "ünï.ключ", "a/b", "a!", "!x", "'\"", "*", "a.**"],
    "prefix": ["Mixed.cA", "a-", "Ünï.", "a!"],
    "wildcard": ["Mixed..cAsE", "a-b."],
}
BAD = {
    "exact": ["", ".is.not.good", "a..b", "a.", ".", "this#is", "with space", "a\tb", "a\u2003b", "a.b.\n"],
    "prefix": ["this.is.a..", "..", ".a", "a..b", "a b", "a#", "."],
    "wildcard": ["a b", "a#b", "..#"],
}
TABLE = [
    (is_strict, match, uri, is_good)
    for is_strict in (False, True)
    for match in ("exact", "prefix", "wildcard")
    for uris, is_good in ((STRICT_GOOD, True), (LOOSE_GOOD, not is_strict), (BAD, False))
    for uri in uris[match]
]


@pytest.mark.parametrize(("is_strict", "match", "uri", "is_good"), TABLE)
def test_uris(is_strict: bool, match: str, uri: str, is_good: bool) -> None:
    """W11, W23, WD12: URIs are accepted by the realm's loose or strict rule, or else `invalid_uri`."""
    peer = World(Realm("realm1", strict_uris=is_strict)).joined()
    if is_good:
        number = peer.subscribe(uri, match=match)
        assert peer.call("wamp.subscription.get", number)[0]["uri"] == uri
    else:
        assert peer.is_refused([32, 1, {"match": match}, uri]) == "wamp.error.invalid_uri"


def test_long_uris() -> None:
    """W11: URIs with too many characters or components are refused, and counted by limit."""
    world = World(limits=Limits(topic_chars=20, topic_segments=4))
    peer = world.joined()
    for match in ("exact", "prefix", "wildcard"):
        peer.subscribe("a.b.c.d", match=match)
        assert peer.is_refused([32, 90, {"match": match}, "a.b.c.d.e"]) == "wamp.error.invalid_uri"
        assert peer.is_refused([32, 91, {"match": match}, "a" * 21]) == "wamp.error.invalid_uri"
    assert world.broker.hits["topic_chars"] == world.broker.hits["topic_segments"] == 3


# Patterns

TOPICS = ["abc", "a.b", "a.b.c", "a.x.c", "a.b.x", "a.x.x", "x.y.z", "a.b.c.d"]
WILDCARDS = {
    ".": ["a.b"],
    "a..c": ["a.b.c", "a.x.c"],
    "a.b.": ["a.b.c", "a.b.x"],
    "a..": ["a.b.c", "a.x.c", "a.b.x", "a.x.x"],
    ".b.": ["a.b.c", "a.b.x"],
    "..": ["a.b.c", "a.x.c", "a.b.x", "a.x.x", "x.y.z"],
    "x..": ["x.y.z"],
    ".x.": ["a.x.c", "a.x.x"],
    "..x": ["a.b.x", "a.x.x"],
    "x..x": [],
    "x.x.": [],
    ".x.x": ["a.x.x"],
    "x.x.x": [],
    "": ["abc"],
    "...": ["a.b.c.d"],
}
PREFIXES = {
    "": TOPICS,
    "a": [*TOPICS[:-2], "a.b.c.d"],
    "a.": ["a.b", "a.b.c", "a.x.c", "a.b.x", "a.x.x", "a.b.c.d"],
    "a.b": ["a.b", "a.b.c", "a.b.x", "a.b.c.d"],
    "a.b.": ["a.b.c", "a.b.x", "a.b.c.d"],
    "ab": ["abc"],
    "abcd": [],
}


@pytest.mark.parametrize(
    ("match", "pattern", "topics"),
    [*(("wildcard", *each) for each in WILDCARDS.items()), *(("prefix", *each) for each in PREFIXES.items())],
)
def test_patterns(match: str, pattern: str, topics: list[str]) -> None:
    """W19, WD12: prefixes match as strings, wildcards by component; the cases are crossbar's."""
    world = World()
    peer, publisher = world.joined(), world.joined()
    peer.subscribe(pattern, match=match)
    for topic in TOPICS:
        publisher.publish(topic)
    assert [event[3]["topic"] for event in peer.events()] == topics


def test_prefixes_do_not_end_with_components() -> None:
    """W19: `…emergency` matches `…emergency-low` and itself."""
    world = World()
    peer, publisher = world.joined(), world.joined()
    peer.subscribe("com.myapp.topic.emergency", match="prefix")
    for topic in ("com.myapp.topic.emergency-low", "com.myapp.topic.emergency", "com.myapp.topic.emerge"):
        publisher.publish(topic)
    assert len(peer.events()) == 2


@pytest.mark.parametrize(
    ("match", "pattern"), [("prefix", ""), ("prefix", "w"), ("wildcard", ".."), ("wildcard", ".session.")]
)
def test_meta_topics_must_be_named(match: str, pattern: str) -> None:
    """W19: a pattern that does not begin with `wamp` does not match the router's own topics."""
    world = World()
    peer = world.joined()
    peer.subscribe(pattern, match=match)
    world.joined().engine.lost(0.0)
    world.turn()
    assert peer.hears_nothing()


@pytest.mark.parametrize(
    ("match", "pattern"),
    [("prefix", "wamp"), ("prefix", "wamp."), ("prefix", "wamp.session.on_j"), ("wildcard", "wamp..on_join")],
)
def test_meta_topics_by_patterns(match: str, pattern: str) -> None:
    """W12, W19: a pattern that begins with `wamp` matches the router's own topics, and EVENT has the topic."""
    world = World()
    peer = world.joined()
    peer.subscribe(pattern, match=match)
    world.joined()
    (event,) = peer.events()
    assert event[3] == {"topic": "wamp.session.on_join"}


# Order


def test_no_event_before_subscribed() -> None:
    """W21: no EVENT precedes SUBSCRIBED or follows UNSUBSCRIBED, even within one turn."""
    world = World()
    peer, publisher = world.joined(), world.joined()
    number = peer.subscribe("a.b")
    publisher.say([16, 1, {}, "a.b", [1]], turn=False)
    peer.say([32, 70, {"match": "prefix"}, "a."], turn=False)
    publisher.say([16, 2, {}, "a.b", [2]], turn=False)
    peer.say([34, 71, number], turn=False)
    publisher.say([16, 3, {}, "a.b", [3]], turn=False)
    world.turn()
    assert [(each[0], each[1], each[4][0] if each[0] == 36 else None) for each in peer.heard] == [
        (36, 1, 1),
        (33, 70, None),
        (36, 1, 2),
        (36, 2, 2),
        (35, 71, None),
        (36, 2, 3),
    ]


def test_no_event_behind_unsubscribed_while_paused() -> None:
    """W21: events that wait for a paused peer are dropped when it unsubscribes."""
    world = World()
    peer, publisher = world.joined(), world.joined()
    number = peer.subscribe("a")
    peer.engine.paused()
    publisher.publish("a", ["never"])
    peer.say([34, 9, number])
    peer.engine.resumed(world.now)
    world.turn()
    assert list(peer.heard) == [[35, 9]]


def test_paused_peers_get_everything_later_and_in_order() -> None:
    """W31: a peer that was paused gets all events, in order."""
    world = World()
    peer, publisher = world.joined(), world.joined()
    peer.subscribe("a")
    for number in range(9):
        if number == 3:
            peer.engine.paused()
        publisher.publish("a", [number])
    assert len(peer.heard) == 3
    peer.engine.resumed(world.now)
    world.turn()
    assert [event[4][0] for event in peer.events()] == list(range(9))


def test_a_burst() -> None:
    """WD14: many requests of one turn each get one reply, in order."""
    world = World()
    peer = world.joined()
    for number in range(1, BURST + 1):
        peer.say([32, number, {}, f"a.b{number}"], turn=False)
    for number in range(1, BURST + 1):
        peer.say([34, BURST + number, number], turn=False)
    world.turn()
    subscribed = [[33, number, number] for number in range(1, BURST + 1)]
    assert list(peer.heard) == subscribed + [[35, BURST + number] for number in range(1, BURST + 1)]


# Limits


def test_limits() -> None:
    """W52: subscriptions and patterns beyond their limits are `unavailable`; an UNSUBSCRIBE makes room."""
    world = World(options=Wamp(subscriptions=3, patterns=1))
    peer, other = world.joined(), world.joined()
    number = peer.subscribe("a", match="prefix")
    assert peer.is_refused([32, 90, {"match": "wildcard"}, "a."]) == "wamp.error.unavailable"
    assert peer.subscribe("a", match="prefix") == number
    peer.subscribe("a")
    peer.subscribe("b")
    assert peer.is_refused([32, 91, {}, "c"]) == "wamp.error.unavailable"
    assert peer.subscribe("b"), "what it has it may ask for again"
    other.subscribe("c")
    peer.say([34, 92, number])
    peer.hear()
    peer.subscribe("c")
    assert world.broker.hits["patterns"] == world.broker.hits["subscriptions"] == 1


def test_subscriptions_that_take_too_much_memory() -> None:
    """Long names are `unavailable` as too many names are; an UNSUBSCRIBE makes room."""
    world = World(limits=Limits(subscription_bytes=4_096))
    peer = world.joined()
    names = [f"n{number}{'x' * 250}" for number in range(4)]
    numbers = [peer.subscribe(name) for name in names[:3]]
    assert peer.is_refused([32, 90, {}, names[3]]) == "wamp.error.unavailable"
    assert peer.subscribe(names[0]) == numbers[0]
    peer.say([34, 91, numbers[0]])
    peer.hear()
    peer.subscribe(names[3])
    assert world.broker.hits == {"subscription_bytes": 1}


def test_forms_of_wildcards() -> None:
    """Each form of wildcard costs a look-up per event, so all sessions share a limit of forms, not of wildcards."""
    world = World(options=Wamp(wildcard_forms=2))
    one, other = world.joined(), world.joined()
    one.subscribe("a.", match="wildcard")
    number = one.subscribe(".a", match="wildcard")
    assert other.is_refused([32, 90, {"match": "wildcard"}, "a.."]) == "wamp.error.unavailable"
    other.subscribe(".b", match="wildcard")
    other.subscribe(".a", match="wildcard")
    other.say([34, 91, number])
    one.say([34, 92, number])
    assert world.broker.hits["wildcard_forms"] == 1


# A model

NAMES = st.sampled_from(["a", "a.b", "a.c", "b.c", "wamp.x"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["subscribe", "unsubscribe", "publish", "publish", "leave"]),
        st.integers(0, 2),
        NAMES,
        st.sampled_from([("exact", None), ("prefix", "a"), ("prefix", ""), ("wildcard", "a."), ("wildcard", ".c")]),
    ),
    max_size=30,
)


class Model:
    """The expected events, found by comparing a topic with every subscription."""

    def __init__(self) -> None:
        self.subscribed: dict[Peer, dict[tuple[str, str], int]] = {}

    def expected(self, peer: Peer, topic: str, publication: int) -> list[tuple[int, int, str | None]]:
        found = []
        for (match, uri), number in self.subscribed[peer].items():
            parts, asked = topic.split("."), uri.split(".")
            is_heard = {
                "exact": topic == uri,
                "prefix": topic.startswith(uri),
                "wildcard": len(parts) == len(asked)
                and all(one in ("", other) for one, other in zip(asked, parts, strict=True)),
            }[match]
            if is_heard:
                found.append((number, publication, None if match == "exact" else topic))
        return sorted(found)


@settings(max_examples=150)
@given(STEPS)
def test_against_a_naive_model(steps: list[tuple[str, int, str, tuple[str, str | None]]]) -> None:
    """W17, W19, W20, W26, W29: in random runs each session gets one EVENT for each matching subscription."""
    world, model = World(), Model()
    peers = [world.joined(subprotocol=f"wamp.2.{name}") for name in ("json", "msgpack", "cbor")]
    model.subscribed = {peer: {} for peer in peers}
    for what, who, topic, (match, uri) in steps:
        peer = peers[who]
        key = (match, topic if uri is None else uri)
        mine = model.subscribed[peer]
        if what == "subscribe":
            number = peer.subscribe(key[1], match=match)
            assert mine.setdefault(key, number) == number
        elif what == "unsubscribe" and key in mine:
            peer.say([34, peer.request(), mine.pop(key)])
            assert peer.hear()[0] == 35
        elif what == "leave":
            peer.engine.lost(world.now)
            world.turn()
            del model.subscribed[peer]
            peers[who] = world.joined()
            model.subscribed[peers[who]] = {}
        elif what == "publish" and not topic.startswith("wamp"):
            publication = peer.publish(topic)
            for other in peers:
                heard = sorted((event[1], event[2], event[3].get("topic")) for event in other.events())
                assert heard == ([] if other is peer else model.expected(other, topic, publication))
    held: dict[tuple[str, str], set[int]] = {}
    for peer in peers:
        for key, number in model.subscribed[peer].items():
            held.setdefault(key, set()).add(number)
    assert all(len(numbers) == 1 for numbers in held.values())
    listed = peers[0].call("wamp.subscription.list")[0]
    assert sorted(chain(*listed.values())) == sorted(number for numbers in held.values() for number in numbers)
