"""HELLO, WELCOME, GOODBYE, ABORT: how sessions begin and end (W4-W10, W15-W16)."""

from __future__ import annotations

from typing import Any

import pytest
from support.identities import Known
from support.wamp_peers import CAPABLE, ROLES, Peer, World

from halley import __version__
from halley.broker.errors import TokenRefused
from halley.broker.policy import Proof
from halley.protocols.wamp.authentication import Authentication
from halley.protocols.wamp.handshake import roles
from halley.settings import Limits, Realm, Wamp

SUBPROTOCOLS = [f"wamp.2.{name}{batched}" for name in ("json", "msgpack", "cbor") for batched in ("", ".batched")]
GOODBYE = [6, {}, "wamp.close.normal"]


def hello(realm: str = "realm1", **details: Any) -> list[Any]:
    """A HELLO for a realm, with more details."""
    return [1, realm, {"roles": ROLES, **details}]


def refusal(peer: Peer) -> tuple[str, int]:
    """The reason of the ABORT that a peer has received, and the code of the close."""
    code, details, reason = peer.hear()
    assert code == 3
    assert isinstance(details["message"], str)
    assert peer.closed is not None
    return reason, peer.closed[0]


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_welcome(subprotocol: str) -> None:
    """W4, W6: WELCOME has an id from 1 to 2^53, the realm and the identity; an anonymous authid is random."""
    world = World()
    one, other = world.joined(subprotocol=subprotocol), world.joined(subprotocol=subprotocol)
    welcome = one.welcome
    assert 1 <= one.number <= 2**53
    assert one.number != other.number
    assert welcome["realm"] == "realm1"
    assert welcome["authrole"] == welcome["authmethod"] == "anonymous"
    assert welcome["authprovider"] == "static"
    assert welcome["authextra"] == {}
    assert welcome["agent"] == f"Halley-{__version__}"
    assert isinstance(welcome["authid"], str)
    assert welcome["authid"] != other.welcome["authid"]


@pytest.mark.parametrize("role", ["publisher", "subscriber", "caller", "callee"])
def test_one_role_is_enough(role: str) -> None:
    """W4: a HELLO with any one of the four roles, without features, is accepted."""
    peer = World().peer()
    peer.say([1, "realm1", {"roles": {role: {}}}])
    assert peer.hear()[0] == 2


def test_announced_roles() -> None:
    """W7, W15: WELCOME has broker and dealer, never callee; features are booleans, as strict clients require."""
    announced = World().joined().welcome["roles"]
    assert set(announced) == {"broker", "dealer"}
    for role in announced.values():
        assert role["features"]
        assert all(value is True for value in role["features"].values())
    assert announced["dealer"]["features"] == {"session_meta_api": True, "testament_meta_api": True}
    assert set(announced["broker"]["features"]) == {
        "publisher_identification",
        "publisher_exclusion",
        "subscriber_blackwhite_listing",
        "pattern_based_subscription",
        "subscription_meta_api",
        "session_meta_api",
        "event_retention",
        "subscription_revocation",
        "payload_passthru_mode",
    }


def test_history_is_announced_where_there_is_one() -> None:
    """`event_history` is announced only if the server has a history."""

    class Archive:
        async def page(self, query_of: Any, _reader: Any) -> None:
            return None

    world = World()
    assert "event_history" not in world.joined().welcome["roles"]["broker"]["features"]
    world.router.archive = Archive()
    assert world.joined().welcome["roles"]["broker"]["features"]["event_history"] is True
    assert roles(has_history=True)["dealer"] == roles(has_history=False)["dealer"]


@pytest.mark.parametrize("name", ["realm2", "realm1.x", "REALM1", "a-b"])
def test_no_such_realm(name: str) -> None:
    """W5: a realm that is not configured is refused and not created."""
    peer = World().peer()
    peer.say(hello(name))
    assert refusal(peer) == ("wamp.error.no_such_realm", 1008)


@pytest.mark.parametrize("name", ["", "a..b", "a b", "a#b", ".a", "x" * 256])
def test_a_realm_that_is_no_uri(name: str) -> None:
    """W5: a realm name that is not a URI is refused with `invalid_uri`."""
    peer = World().peer()
    peer.say(hello(name))
    assert refusal(peer) == ("wamp.error.invalid_uri", 1008)


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
@pytest.mark.parametrize("reason", ["wamp.close.normal", "wamp.close.goodbye_and_out", "any thing"])
def test_goodbye_and_a_new_hello(subprotocol: str, reason: str) -> None:
    """W8: GOODBYE is answered for any reason, nothing of the session is left, and the link can begin another one."""
    world = World()
    peer, witness = world.joined(subprotocol=subprotocol), world.joined()
    witness.subscribe("wamp.session.on_leave")
    peer.subscribe("com.x")
    peer.say([6, {"message": "bye"}, reason])
    assert peer.hear() == [6, {}, "wamp.close.goodbye_and_out"]
    assert peer.closed is None
    assert witness.hear()[4] == [peer.number, peer.welcome["authid"], "anonymous"]
    peer.say(hello())
    again = peer.hear()
    assert again[0] == 2
    assert again[1] != peer.number
    witness.publish("com.x")
    assert peer.hears_nothing(), "what the first session was subscribed to is not the second's"
    assert witness.call("wamp.session.count") == [2]


def test_a_new_hello_in_another_realm() -> None:
    """W8: a second session has nothing of the first, not even its announced features."""
    world = World(Realm("one"), Realm("two"))
    peer = world.joined("one", roles=CAPABLE)
    peer.say(GOODBYE)
    peer.hear()
    peer.say(hello("two"))
    assert peer.hear()[2]["realm"] == "two"
    peer.say([16, 1, {"ppt_scheme": "x_y"}, "a", ["x"]])
    assert peer.hear()[0] == 3


def test_events_that_wait_come_before_the_goodbye() -> None:
    """W31: events published before a client's GOODBYE are sent before the reply to it."""
    world = World()
    peer, other = world.joined(), world.joined()
    peer.subscribe("com.x")
    other.say([16, 1, {}, "com.x", [1]], turn=False)
    peer.say(GOODBYE, turn=False)
    world.turn()
    assert [message[0] for message in peer.heard] == [36, 6]


def test_who_says_no_hello_again_is_closed() -> None:
    """W8: a link without a session is closed after `hello_s`."""
    world = World(options=Wamp(hello_s=5))
    peer = world.joined()
    world.pass_time(100)
    peer.say(GOODBYE)
    world.pass_time(4.9)
    assert peer.closed is None
    world.pass_time(0.2)
    assert peer.closed is not None


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
def test_hello_has_a_deadline(subprotocol: str) -> None:
    """S26, W52: a connection that sends no HELLO gets ABORT and 1002; a session that has joined stays."""
    world = World(options=Wamp(hello_s=10))
    silent, joined = world.peer(subprotocol), world.joined()
    world.pass_time(9.9)
    assert silent.closed is None
    world.pass_time(0.2)
    assert refusal(silent) == ("wamp.error.protocol_violation", 1002)
    assert joined.closed is None
    assert world.broker.hits["hello_s"] == 1


def test_abort_by_a_client() -> None:
    """W9: ABORT, with arguments or without, is not answered; the session ends and the link is closed."""
    for message in ([3, {"message": "x"}, "a.b"], [3, {}, "a.b", [1]], [3, {}, "a.b", [1], {"x": 1}]):
        world = World()
        peer, witness = world.joined(), world.joined()
        witness.subscribe("wamp.session.on_leave")
        peer.say(message)
        assert peer.hears_nothing()
        assert peer.closed == (1000, "")
        assert witness.hear()[4][0] == peer.number


def test_abort_instead_of_hello() -> None:
    """W9: ABORT instead of HELLO is not answered; the link is closed."""
    peer = World().peer()
    peer.say([3, {}, "a.b"])
    assert peer.hears_nothing()
    assert peer.closed == (1000, "")


def test_a_lost_connection() -> None:
    """W10: a lost connection ends the session and is reported to other sessions, once."""
    world = World()
    peer, witness = world.joined(), world.joined()
    witness.subscribe("wamp.session.on_leave")
    peer.engine.lost(world.now)
    peer.engine.lost(world.now)
    world.turn()
    assert witness.hear()[4][0] == peer.number
    assert witness.hears_nothing()
    assert world.broker.closed["connection_lost"] == 1
    peer.say(hello())
    assert peer.hears_nothing()


@pytest.mark.parametrize("path", ["goodbye", "abort", "lost", "killed", "violation", "refused"])
def test_nothing_is_left_of_a_session(path: str) -> None:
    """W10: however a session ends, neither its id nor anything else of it stays in memory."""
    world = World()
    killer = world.joined()
    kept = len(world.router._session_ids)
    if path == "refused":
        world = World(limits=Limits(sessions=1))
        killer, kept = world.joined(), 1
        peer = world.peer()
        peer.say(hello())
        assert peer.heard[-1][1] == {"message": "The server accepts no further sessions now."}
        assert refusal(peer) == ("wamp.error.unavailable", 1008)
    else:
        peer = world.joined()
        peer.subscribe("com.x")
    if path == "goodbye":
        peer.say(GOODBYE)
    elif path == "abort":
        peer.say([3, {}, "a.b"])
    elif path == "violation":
        peer.say([])
    elif path == "killed":
        killer.call("wamp.session.kill", peer.number)
        world.pass_time(2)
    peer.engine.lost(world.now)
    world.turn()
    assert len(world.router._session_ids) == kept
    assert list(world.broker.sessions) == [str(killer.number)]
    assert not [*world.router.hellos, *world.router.goodbyes]
    assert not world.broker.index.subscriptions
    assert not world.router.realms["realm1"].subscriptions


def test_a_session_that_the_broker_has_ended() -> None:
    """W10: if the broker ends a session after a fault, nothing of it stays in the realm once its connection ends."""
    world = World()
    peer, witness = world.joined(), world.joined()
    witness.subscribe("wamp.session.on_leave")
    peer.subscribe("a")
    assert peer.engine.session is not None
    world.broker.close(peer.engine.session, "fault")
    peer.engine.lost(world.now)
    world.turn()
    assert len(witness.events()) == 1
    assert witness.call("wamp.session.list") == [[witness.number]]
    assert witness.call("wamp.subscription.match", "a") == [None]


def ticketed(**options: Any) -> tuple[World, Peer]:
    """A world where the ticket "the word" belongs to ann, and a peer that has received a CHALLENGE for it."""

    def authenticate(token: str, wall_s: float) -> Proof:
        if token != "the word":
            raise TokenRefused
        return Proof("ann", "red", wall_s + 100)

    world = World(authentication=Authentication(Known(authenticate), anonymous=False), **options)
    peer = world.peer()
    peer.say(hello(authmethods=["ticket"], authid="ann"))
    assert peer.hear() == [4, "ticket", {}]
    return world, peer


def test_a_challenge_that_is_answered() -> None:
    """W4, W56: the session begins with the right ticket, and ends when the token expires."""
    world, peer = ticketed()
    assert not world.broker.sessions
    peer.say([5, "the word", {}])
    code, number, details = peer.hear()
    assert code == 2
    assert details["authrole"] == "red"
    assert list(world.broker.sessions) == [str(number)]
    world.pass_time(99)
    assert peer.hears_nothing()
    world.pass_time(2)
    assert peer.hear()[2] == "wamp.close.token_expired"


@pytest.mark.parametrize("way", ["wrong", "late", "lost", "gives up", "HELLO again", "something else"])
def test_a_challenge_that_is_not(way: str) -> None:
    """W50, W52, W56: a failed challenge leaves nothing; other messages than AUTHENTICATE and ABORT are violations."""
    world, peer = ticketed()
    if way == "late":
        world.pass_time(10.1)
    elif way == "lost":
        peer.engine.lost(world.now)
    else:
        says = {"wrong": [5, "a word", {}], "gives up": [3, {}, "a.b"], "HELLO again": hello()}
        peer.say(says.get(way, [32, 1, {}, "a"]))
    refused = {"wrong": "wamp.error.authentication_denied", "lost": None, "gives up": None}
    reason = refused.get(way, "wamp.error.protocol_violation")
    assert [message[2] for message in peer.heard] == ([reason] if reason else [])
    assert not world.router._session_ids
    assert not [*world.router.hellos, *world.router.goodbyes]
    assert not world.broker.sessions


def test_our_goodbye_waits_for_theirs() -> None:
    """W8: the session ends with the server's GOODBYE; the link is closed if no reply is received within `kill_s`."""
    world = World(options=Wamp(kill_s=1))
    killer, peer = world.joined(), world.joined()
    killer.call("wamp.session.kill", peer.number)
    assert peer.hear() == [6, {}, "wamp.close.killed"]
    assert killer.call("wamp.session.count") == [1]
    world.pass_time(0.9)
    assert peer.closed is None
    world.pass_time(0.2)
    assert peer.closed == (1000, "wamp.close.goodbye_and_out")


def test_draining() -> None:
    """W8: a drain sends GOODBYE to all sessions and refuses connections without a session, old and new."""
    world = World()
    joined, stranger = world.joined(), world.peer()
    releases = world.router.drain(0.0)
    late = world.peer()
    late.say(hello())
    assert refusal(late) == ("wamp.close.system_shutdown", 1008)
    for release in releases:
        release(world.now)
    world.turn()
    assert joined.hear() == [6, {}, "wamp.close.system_shutdown"]
    assert refusal(stranger)[0] == "wamp.close.system_shutdown"
    joined.say([6, {}, "wamp.close.goodbye_and_out"])
    assert joined.closed == (1000, "wamp.close.goodbye_and_out")
    assert not world.broker.sessions
    for release in releases:  # a second release does no harm
        release(world.now)
    world.turn()


def test_a_token_that_ends() -> None:
    """A session ends when its token expires, with a GOODBYE that has the reason."""
    world = World()
    peer = world.joined()
    session = peer.engine.session
    assert session is not None
    session.expiry = 5.0
    world.broker.touch(session, 1_000.0)
    world.pass_time(6)
    code, details, reason = peer.hear()
    assert (code, reason) == (6, "wamp.close.token_expired")
    assert details["message"]
    assert not world.broker.sessions
