"""PUBLISH and EVENT: all options, replies and payload shapes (W24-W34, WD4-WD8)."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.values import FakeValues
from support.wamp_peers import CAPABLE, Peer, World

from halley.broker.policy import DefaultRules
from halley.settings import Limits, Realm, Wamp


def known(world: World, authid: str, role: str, **hello: Any) -> Peer:
    """A peer that is subscribed to com.x and authenticated with this authid and role."""
    peer = world.joined(**hello)
    session = peer.engine.session
    assert session is not None
    session.authid, session.role = authid, role
    peer.subscribe("com.x")
    return peer


def silent(world: World, peer: Peer, options: dict[str, Any], topic: str = "com.x") -> bool:
    """Whether a publish without acknowledgement is refused without a reply, and counted."""
    before = sum(world.router.unacknowledged.values())
    peer.say([16, peer.request(), options, topic, ["silent"]])
    return peer.hears_nothing() and sum(world.router.unacknowledged.values()) == before + 1


# Replies


@pytest.mark.parametrize("acknowledge", [{}, {"acknowledge": False}, {"acknowledge": None}, {"acknowledge": True}])
def test_acknowledgement(acknowledge: dict[str, Any]) -> None:
    """W24, WD4: PUBLISHED, with EVENT's publication id, is sent for `acknowledge: true` only."""
    world = World()
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("com.x")
    publisher.say([16, 7, acknowledge, "com.x", [1]])
    (event,) = hearer.events()
    answers = [[17, 7, event[2]]] if acknowledge.get("acknowledge") else []
    assert list(publisher.heard) == answers


REFUSED: dict[str, tuple[str, dict[str, Any], list[Any], str]] = {
    "a bad URI": ("com..x", {}, [], "invalid_uri"),
    "no URI": ("", {}, [], "invalid_uri"),
    "the router's own": ("wamp.session.on_join", {}, [], "invalid_uri"),
    "anything below wamp": ("wamp.x", {}, [], "invalid_uri"),
    "too long": ("x" * 256, {}, [], "invalid_uri"),
    "too large": ("com.x", {}, [["x" * 70_000]], "payload_size_exceeded"),
    "the older transparent payload": ("com.x", {"enc_algo": "cryptobox"}, ["text"], "invalid_argument"),
    "a key too long": ("com.x", {"_idempotency_key": "k" * 129}, [], "invalid_argument"),
    "a key of odd characters": ("com.x", {"_idempotency_key": "k\n"}, [], "invalid_argument"),
    "an empty key": ("com.x", {"_idempotency_key": ""}, [], "invalid_argument"),
    "an audience too long": ("com.x", {"eligible_authid": ["x" * 5_000]}, [], "invalid_argument"),
    **{
        f"{name}: {value!r}": ("com.x", {name: value}, [], "invalid_argument")
        for name, value in [
            *product(("exclude_me", "disclose_me", "retain"), (1, "true", [])),
            *product(("eligible", "exclude"), ("1", [0], [2**53 + 1], [True], {}, [[1]], 1.5)),
            *product(("eligible_authid", "exclude_authid", "eligible_authrole", "exclude_authrole"), (1, [1], {})),
            *product(("_idempotency_key", "ppt_scheme"), (1, [])),
        ]
    },
}


@pytest.mark.parametrize(("topic", "options", "payload", "error"), REFUSED.values(), ids=REFUSED)
def test_refusals(topic: str, options: dict[str, Any], payload: list[Any], error: str) -> None:
    """W12, W23, W24, W27, W32, W33: a refused publish is not delivered; ERROR is sent for `acknowledge: true` only."""
    world = World()
    publisher, hearer = world.joined(roles=CAPABLE), world.joined()
    hearer.subscribe("", match="prefix")
    hearer.subscribe("wamp", match="prefix")
    message = [16, 1, {**options, "acknowledge": True}, topic, *payload]
    assert publisher.is_refused(message) == f"wamp.error.{error}"
    publisher.say([16, 2, options, topic, *payload])
    assert publisher.hears_nothing()
    assert world.router.unacknowledged[f"wamp.error.{error}"] == 1
    assert hearer.hears_nothing()
    assert publisher.closed is None


@pytest.mark.parametrize("acknowledge", [1, "yes", [], {}])
def test_a_wrong_acknowledge(acknowledge: Any) -> None:
    """W24, W27: a publish with a wrong `acknowledge` is refused without a reply."""
    world = World()
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("com.x")
    assert silent(world, publisher, {"acknowledge": acknowledge})
    assert hearer.hears_nothing()


def test_a_number_that_not_everyone_can_carry() -> None:
    """An integer beyond 64 bits is refused."""
    peer = World().joined()
    peer.send(b'[16,1,{"acknowledge":true},"com.x",[%d]]' % 2**64)
    assert peer.hear()[:5] == [8, 16, 1, {}, "wamp.error.invalid_argument"]


def test_not_authorized() -> None:
    """W24: a publish without the right is refused; without access rules the server's topics are its own."""
    world = World(rights=DefaultRules(loopback=False, anonymous_publish=True))
    publisher = world.joined()
    answer = publisher.is_refused([16, 1, {"acknowledge": True}, "halley.sessions"])
    assert answer == "wamp.error.not_authorized"
    assert silent(world, publisher, {}, "halley.sessions")


def test_rate() -> None:
    """Publishes beyond the rate limit are `unavailable` until time has passed; other publishers are not affected."""
    world = World(options=Wamp(publishes_per_s=1, publish_burst=2))
    world.broker.account_of = lambda address: address
    publisher, other = world.joined(), world.joined()
    publisher.publish("com.x")
    publisher.publish("com.x")
    assert publisher.is_refused([16, 9, {"acknowledge": True}, "com.x"]) == "wamp.error.unavailable"
    assert silent(world, publisher, {})
    other.publish("com.x")
    world.pass_time(1)
    publisher.publish("com.x")
    assert world.broker.hits["publishes_per_s"] == 2


def test_no_rate_on_loopback() -> None:
    """Clients on loopback have no rate limit."""
    world = World(options=Wamp(publishes_per_s=1, publish_burst=1))
    publisher = world.joined()
    for _ in range(5):
        publisher.publish("com.x")


# Payloads

SHAPES: list[list[Any]] = [
    [],
    [[]],
    [[], {}],
    [[1]],
    [[None]],
    [[1, "two"]],
    [[1], {}],
    [[], {"a": 1}],
    [[{"args": [1], "kwargs": {}}]],
    [[{"args": [1], "kwargs": {}}], {"args": 1}],
    [["ünï\u2028"], {"ключ": [1.5, True]}],
]
SERIALIZERS = ("wamp.2.json", "wamp.2.msgpack", "wamp.2.cbor", "wamp.2.json.batched", "wamp.2.cbor.batched")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_payloads_are_sent_on_as_they_are(shape: list[Any]) -> None:
    """W25: payloads are delivered with the same elements between all serializers, but for an empty dictionary."""
    world = World()
    hearers = [world.joined(subprotocol=each) for each in SERIALIZERS]
    for hearer in hearers:
        hearer.subscribe("com.x")
    for each in SERIALIZERS:
        world.joined(subprotocol=each).publish("com.x", *shape)
    for hearer in hearers:
        seen = {"[[], {}]": [], "[[1], {}]": [[1]]}.get(str(shape), shape)
        assert [event[4:] for event in hearer.events()] == [seen] * len(SERIALIZERS)


def test_bytes() -> None:
    """Binary peers receive bytes as bytes, and JSON peers as the string that WAMP prescribes."""
    world = World()
    hearers = [world.joined(subprotocol=each) for each in SERIALIZERS[:3]]
    for hearer in hearers:
        hearer.subscribe("com.x")
    world.joined(subprotocol="wamp.2.cbor").publish("com.x", [b"\x00\xff"])
    assert [hearer.hear()[4] for hearer in hearers] == [["\0AP8="], [b"\x00\xff"], [b"\x00\xff"]]


# Audience


def test_the_publisher_gets_its_own_only_if_it_wants_to() -> None:
    """W26, WD7: a publisher gets its own event only if it sends `exclude_me: false`."""
    world = World()
    peer = world.joined()
    peer.subscribe("com.x")
    for options, count in (({}, 0), ({"exclude_me": True}, 0), ({"exclude_me": None}, 0), ({"exclude_me": False}, 1)):
        peer.publish("com.x", **options)
        assert len(peer.events()) == count


def is_meant(peer: Peer, options: dict[str, Any]) -> bool:
    """Whether the options admit a peer, computed as W27 says."""
    session = peer.engine.session
    assert session is not None
    for suffix, value in (("", peer.number), ("_authid", session.authid), ("_authrole", session.role)):
        eligible, excluded = options.get(f"eligible{suffix}"), options.get(f"exclude{suffix}") or []
        if eligible is not None and value not in (eligible if isinstance(eligible, list) else [eligible]):
            return False
        if value in (excluded if isinstance(excluded, list) else [excluded]):
            return False
    return True


numbers = st.lists(st.integers(0, 3), max_size=3) | st.integers(0, 3)
audiences = st.fixed_dictionaries(
    {},
    optional={
        **{f"{verb}{suffix}": numbers for verb in ("eligible", "exclude") for suffix in ("", "_authid", "_authrole")},
        "exclude_me": st.booleans(),
    },
)


@settings(max_examples=150)
@given(st.lists(audiences, min_size=1, max_size=4))
def test_audiences(published: list[dict[str, Any]]) -> None:
    """W27, WD6: all lists must hold; exclusion wins; an empty list admits no session; a single value is a list."""
    world = World()
    peers = [known(world, authid, role) for authid, role in (("ann", "red"), ("bob", "red"), ("cat", "green"))]
    names = {
        "": [*(peer.number for peer in peers), 1],
        "authid": ["ann", "bob", "cat", "nobody"],
        "authrole": ["red", "green", "blue", "nobody"],
    }
    for drawn in published:
        options = dict(drawn)
        for name, value in drawn.items():
            if name != "exclude_me":
                those = names[name.partition("_")[2]]
                options[name] = [those[at] for at in value] if isinstance(value, list) else those[value]
        peers[0].publish("com.x", **options)
        for peer in peers:
            is_own = peer is peers[0] and options.get("exclude_me") is not False
            assert len(peer.events()) == (is_meant(peer, options) and not is_own), options


def test_an_anonymous_authid_counts() -> None:
    """W27: the random authid that an anonymous client learns from WELCOME is its session's, and is no role."""
    world = World()
    publisher, one, other = (world.joined() for _ in range(3))
    for each in (one, other):
        each.subscribe("com.x")
    authid = one.welcome["authid"]
    publisher.publish("com.x", ["for one"], eligible_authid=authid)
    publisher.publish("com.x", ["not for one"], exclude_authid=[authid])
    publisher.publish("com.x", ["nobody"], eligible_authrole=[authid, ""])
    assert [event[4] for event in one.events()] == [["for one"]]
    assert [event[4] for event in other.events()] == [["not for one"]]


def test_an_anonymous_publisher_has_no_lasting_authid() -> None:
    """An idempotency key that an anonymous client repeats in its next session is known, though its authid is new."""
    world = World()
    hearer = world.joined()
    hearer.subscribe("com.x")
    first, second = (world.joined().publish("com.x", [1], _idempotency_key="k") for _ in range(2))
    assert first == second
    assert len(hearer.events()) == 1


def test_ids_as_doubles() -> None:
    """W13: session ids are accepted as floats, as JavaScript's binary encoders write them."""
    world = World()
    publisher, one, other = (world.joined(subprotocol="wamp.2.cbor") for _ in range(3))
    for peer in (one, other):
        peer.subscribe("com.x")
    publisher.publish("com.x", exclude=[float(one.number)])
    publisher.publish("com.x", eligible=[float(other.number)])
    assert (len(one.events()), len(other.events())) == (0, 2)


# Details


@pytest.mark.parametrize(
    ("disclose", "asked", "is_disclosed"),
    [
        ("allow", None, False),
        ("allow", False, False),
        ("allow", True, True),
        ("always", None, True),
        ("always", False, True),
        ("always", True, True),
        ("never", None, False),
        ("never", False, False),
    ],
)
def test_disclosure(disclose: Any, asked: bool | None, is_disclosed: bool) -> None:
    """W28, WD7: the publisher is disclosed if it asks for that, always or never, as the realm is configured."""
    world = World(Realm("realm1", disclose=disclose))
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("com.x")
    publisher.publish("com.x", disclose_me=asked)
    told = {
        "publisher": publisher.number,
        "publisher_authid": publisher.welcome["authid"],
        "publisher_authrole": "anonymous",
    }
    assert hearer.hear()[3] == (told if is_disclosed else {})


def test_refused_disclosure() -> None:
    """W28, WD7: a publish that asks for disclosure in a realm that never discloses is refused."""
    world = World(Realm("realm1", disclose="never"))
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("com.x")
    answer = publisher.is_refused([16, 1, {"acknowledge": True, "disclose_me": True}, "com.x"])
    assert answer == "wamp.error.option_disallowed.disclose_me"
    assert silent(world, publisher, {"disclose_me": True})
    assert hearer.hears_nothing()


def test_topic_is_told_where_the_subscription_does_not() -> None:
    """W20, W29, WD5: prefix and wildcard EVENTs have `topic`, exact ones do not; all have one publication id."""
    world = World()
    publisher, hearer = world.joined(), world.joined()
    ids = [
        hearer.subscribe("com.x"),
        hearer.subscribe("com.", match="prefix"),
        hearer.subscribe(".x", match="wildcard"),
    ]
    publication = publisher.publish("com.x", disclose_me=True)
    events = hearer.events()
    assert {event[1]: event[3].get("topic") for event in events} == dict(
        zip(ids, [None, "com.x", "com.x"], strict=True)
    )
    assert {event[2] for event in events} == {publication}
    assert all(event[3]["publisher"] == publisher.number for event in events)


def test_passthru() -> None:
    """W32, WD8: for a client that has announced passthru, the four options and the payload are forwarded unchanged."""
    world = World()
    publisher, hearer = world.joined(subprotocol="wamp.2.cbor", roles=CAPABLE), world.joined(subprotocol="wamp.2.cbor")
    hearer.subscribe("com.x")
    named = {"ppt_scheme": "x_own", "ppt_serializer": "cbor", "ppt_cipher": "aes256gcm", "ppt_keyid": "k1"}
    publisher.publish("com.x", [b"\x01\x02"], **named)
    assert hearer.hear()[3:] == [named, [b"\x01\x02"]]
    publisher.publish("com.x", [b"\x01"], ppt_scheme="x_own", other="lost")
    assert hearer.hear()[3] == {"ppt_scheme": "x_own"}
    publisher.publish("com.x", [b"\x01"], ppt_scheme="", ppt_cipher="lost")
    assert hearer.hear()[3] == {}


def test_passthru_is_bounded() -> None:
    """The passthru options have a limit, since they are forwarded."""
    publisher = World().joined(roles=CAPABLE)
    message = [16, 1, {"acknowledge": True, "ppt_scheme": "x_own", "ppt_keyid": "k" * 2_000}, "com.x", ["x"]]
    assert publisher.is_refused(message) == "wamp.error.invalid_argument"


def test_empty_scheme_needs_no_announcement() -> None:
    """W32: an empty `ppt_scheme` is not passthru and needs no announcement."""
    World().joined().publish("com.x", ["x"], ppt_scheme="")


# Idempotency


def test_a_repeat_is_answered_as_the_first_was() -> None:
    """A repeat gets the same publication id and is not delivered again; a key for another topic is refused."""
    world = World()
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("com.x")
    first = publisher.publish("com.x", [1], _idempotency_key="k")
    assert publisher.publish("com.x", [1], _idempotency_key="k") == first
    assert world.joined().publish("com.x", [1], _idempotency_key="k") == first, "the anonymous share their keys"
    assert known(world, "ann", "red").publish("com.x", [1], _idempotency_key="k") != first
    assert len(hearer.events()) == 2
    answer = publisher.is_refused([16, 50, {"acknowledge": True, "_idempotency_key": "k"}, "com.y"])
    assert answer == "wamp.error.invalid_argument"


# Cost and order


def test_an_event_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """W34: an event is encoded once for each subscription and serializer, for any number of subscribers."""
    written: dict[int, tuple[str, bytes]] = {}  # by the identity of the bytes, which are kept so that it stays unique
    plain = Peer.write

    def noting(peer: Peer, outcome: Any) -> None:
        if peer in hearers:
            written.update({id(frame): (peer.subprotocol, frame) for frame in outcome})
        plain(peer, outcome)

    world = World()
    hearers = [world.joined(subprotocol=each) for each in ("wamp.2.json", "wamp.2.cbor") for _ in range(5)]
    for hearer in hearers:
        hearer.subscribe("com.x")
    hearers[0].subscribe("com.", match="prefix")
    hearers[1].subscribe("com.", match="prefix")
    publisher = world.joined()
    monkeypatch.setattr(Peer, "write", noting)
    publisher.publish("com.x", [1])
    assert Counter(subprotocol for subprotocol, _ in written.values()) == {"wamp.2.json": 2, "wamp.2.cbor": 1}
    assert sum(len(hearer.events()) for hearer in hearers) == 12


def test_one_write_for_a_turn() -> None:
    """Events of one turn are sent in one write."""
    world = World()
    publisher, hearer = world.joined(), world.joined()
    hearer.subscribe("com.x")
    hearer.writes = 0
    for number in range(20):
        publisher.say([16, number + 1, {}, "com.x", [number]], turn=False)
    world.turn()
    assert [event[4][0] for event in hearer.events()] == list(range(20))
    assert hearer.writes == 1


@given(st.lists(st.sampled_from(["com.x", "com.y", "org.z"]), max_size=20), st.data())
def test_order(topics: list[str], data: st.DataObject) -> None:
    """W31: one publisher's events arrive in order, over all topics and subscriptions and any number of turns."""
    world = World()
    publisher, hearer = world.joined(), world.joined()
    for topic in ("com.x", "com.y", "org.z"):
        hearer.subscribe(topic)
    hearer.subscribe("com.", match="prefix")
    for number, topic in enumerate(topics):
        publisher.say([16, number + 1, {}, topic, [number]], turn=data.draw(st.booleans()))
    world.turn()
    heard = [event[4][0] for event in hearer.events()]
    assert heard == sorted(heard)
    assert list(dict.fromkeys(heard)) == list(range(len(topics)))


def test_limits_of_a_payload() -> None:
    """W33: a payload of the maximum size is published, one byte more is refused; the session continues."""
    world = World(limits=Limits(data_bytes=64))
    publisher = world.joined()
    publisher.publish("com.x", ["x" * 62])
    message = [16, 9, {"acknowledge": True}, "com.x", ["x" * 63]]
    assert publisher.is_refused(message) == "wamp.error.payload_size_exceeded"
    assert world.broker.hits["data_bytes"] == 1


@pytest.mark.parametrize(
    ("topic", "options", "error", "text"),
    [
        ("a", {}, "invalid_argument", "expected a value of type double"),
        ("struct", {}, "invalid_argument", "expected a value of type raw"),
        (
            "a",
            {"eligible_authrole": ["staff"]},
            "invalid_argument",
            "a NetworkTables value must be for all subscribers",
        ),
        ("a", {"exclude": [1]}, "invalid_argument", "a NetworkTables value must be for all subscribers"),
        ("full", {}, "unavailable", "too many NetworkTables topics"),
    ],
)
def test_what_is_no_value(topic: str, options: dict[str, Any], error: str, text: str) -> None:
    """G5: a publish that does not fit a NetworkTables topic is refused with the reason, and not delivered."""
    world = World()
    values = FakeValues(world.broker, a="double", struct="struct:<b>{}", full="")
    peer, hearer = world.joined(), world.joined()
    hearer.subscribe(topic)
    peer.say([16, 90, {"acknowledge": True, **options}, topic, ["text"]])
    assert peer.hear() == [8, 16, 90, {}, f"wamp.error.{error}", [text]]
    peer.say([16, 91, options, topic, ["text"]])
    assert peer.hears_nothing()
    assert world.router.unacknowledged == {f"wamp.error.{error}": 1}
    assert hearer.hears_nothing()
    assert values.last == {}


def test_a_value_excludes_its_publisher_as_any_event() -> None:
    """G6: a WAMP publisher of a NetworkTables value gets its own only with `exclude_me: false`."""
    world = World()
    FakeValues(world.broker, a="double")
    peer, hearer = world.joined(), world.joined()
    for each in (peer, hearer):
        each.subscribe("a")
    peer.publish("a", [1])
    peer.publish("a", [2], exclude_me=False)
    assert [event[4] for event in hearer.events()] == [[1], [2]]
    assert [event[4] for event in peer.events()] == [[2]]
