"""Violations: an ABORT with the reason, a close, and nothing is left of the session (W50, S28, S30)."""

from __future__ import annotations

from typing import Any

import pytest
from support.wamp_peers import ROLES, Peer, World

from halley.protocols.contract import POLICY_VIOLATION
from halley.settings import Wamp

SERIALIZERS = ("json", "msgpack", "cbor")
HELLO = [1, "realm1", {"roles": ROLES}]

BEFORE_HELLO: dict[str, Any] = {
    "SUBSCRIBE": [32, 1, {}, "a"],
    "GOODBYE": [6, {}, "wamp.close.normal"],
    "PUBLISH": [16, 1, {}, "a"],
    "CALL": [48, 1, {}, "a"],
    "AUTHENTICATE": [5, "secret", {}],
    "HELLO without roles": [1, "realm1", {}],
    "HELLO with roles that are none": [1, "realm1", {"roles": {"dealer": {}}}],
    "HELLO with roles of a wrong type": [1, "realm1", {"roles": ["subscriber"]}],
    "HELLO with a realm of a wrong type": [1, 7, {"roles": ROLES}],
    "HELLO without details": [1, "realm1"],
}
WITHIN_A_SESSION: dict[str, Any] = {
    "a second HELLO": HELLO,
    "AUTHENTICATE unasked": [5, "secret", {}],
    "WELCOME": [2, 1, {}],
    "CHALLENGE": [4, "ticket", {}],
    "PUBLISHED": [17, 1, 1],
    "SUBSCRIBED": [33, 1, 1],
    "UNSUBSCRIBED": [35, 1],
    "EVENT": [36, 1, 1, {}],
    "RESULT": [50, 1, {}],
    "REGISTERED": [65, 1, 1],
    "UNREGISTERED": [67, 1],
    "INVOCATION": [68, 1, 1, {}],
    "INTERRUPT": [69, 1, {}],
    "ERROR that answers no INVOCATION": [8, 48, 1, {}, "a.b"],
    "ERROR to an INVOCATION that never was": [8, 68, 1, {}, "a.b"],
    "YIELD without INVOCATION": [70, 1, {}],
    "an empty list": [],
    "no list": {},
    "a number": 1,
    "a code that is no integer": ["32", 1, {}, "a"],
    "a code that is a bool": [True, "realm1", {"roles": ROLES}],
    "an unknown code": [99, 1, {}, "a"],
    "a code of nobody's": [-1, 1, {}],
    "too short": [32, 1, {}],
    "too long": [32, 1, {}, "a", []],
    "options that are none": [32, 1, [], "a"],
    "a topic of a wrong type": [32, 1, {}, 7],
    "arguments that are no list": [16, 1, {}, "a", {}],
    "keyword arguments that are none": [16, 1, {}, "a", [], []],
    "a request of 0": [32, 0, {}, "a"],
    "a negative request": [32, -1, {}, "a"],
    "a request above 2^53": [32, 2**53 + 1, {}, "a"],
    "a request that is a text": [32, "1", {}, "a"],
    "a request that is a bool": [32, True, {}, "a"],
    "a request that is no whole number": [32, 1.5, {}, "a"],
    "a subscription of 0": [34, 1, 0],
    "a subscription above 2^53": [34, 1, 2**53 + 1],
    "a registration that is none": [66, 1, None],
    "passthru that was not announced": [16, 1, {"ppt_scheme": "x_custom"}, "a", ["x"]],
}
UNDECODABLE = {"json": b"[32,", "msgpack": b"\x94\x20", "cbor": b"\x84\x18"}


def witnessed(subprotocol: str, **options: Any) -> tuple[World, Peer, Peer]:
    """A world, a subscribed culprit, and a witness that gets the meta events of its end."""
    world = World(**options)
    culprit = world.joined(subprotocol=subprotocol)
    culprit.subscribe("com.x")
    witness = world.joined()
    for topic in ("wamp.session.on_leave", "wamp.subscription.on_unsubscribe", "com.x"):
        witness.subscribe(topic)
    return world, culprit, witness


def is_aborted(peer: Peer) -> bool:
    """Whether a peer's last message is an ABORT with a text, and it was closed with 1002."""
    *_, last = peer.heard
    code, details, reason = last
    assert (code, reason) == (3, "wamp.error.protocol_violation")
    assert isinstance(details["message"], str)
    assert details["message"]
    assert peer.closed is not None
    return peer.closed[0] == 1002


def goes_for_good(world: World, culprit: Peer, witness: Peer) -> None:
    """Assert that a session has ended for other sessions and in the broker."""
    told = [message[4] for message in witness.heard]
    assert [told[0][0], told[1][0]] == [culprit.number] * 2
    assert told[1][1:] == [culprit.welcome["authid"], "anonymous"]
    assert witness.call("wamp.session.list") == [[witness.number]]
    assert list(world.broker.sessions) == [str(witness.number)]
    assert culprit.engine.session is None


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("message", BEFORE_HELLO.values(), ids=BEFORE_HELLO)
def test_before_there_is_a_session(serializer: str, message: Any) -> None:
    """W50, W4, W5: a first message other than a HELLO with a client's role is a violation."""
    world = World()
    peer = world.peer(f"wamp.2.{serializer}")
    peer.say(message)
    assert is_aborted(peer)
    assert len(peer.heard) == 1
    assert not world.broker.sessions


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("message", WITHIN_A_SESSION.values(), ids=WITHIN_A_SESSION)
def test_within_a_session(serializer: str, message: Any) -> None:
    """W50: a violation ends the session with ABORT and 1002; later messages on the link are ignored."""
    world, culprit, witness = witnessed(f"wamp.2.{serializer}")
    culprit.say(message)
    assert is_aborted(culprit)
    said = len(culprit.heard)
    culprit.say([16, 2, {"acknowledge": True}, "com.x", ["too late"]])
    culprit.say(HELLO)
    assert len(culprit.heard) == said
    goes_for_good(world, culprit, witness)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_what_cannot_be_decoded(serializer: str) -> None:
    """W50: a message that cannot be decoded is a violation."""
    world, culprit, witness = witnessed(f"wamp.2.{serializer}")
    culprit.send(UNDECODABLE[serializer])
    assert is_aborted(culprit)
    goes_for_good(world, culprit, witness)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_the_wrong_kind_of_frame(serializer: str) -> None:
    """W50: a text frame for a binary serializer, or the reverse, is a violation, and named in the ABORT."""
    world, culprit, witness = witnessed(f"wamp.2.{serializer}")
    is_binary = serializer != "json"
    assert list(culprit.engine.split(b"[1]", world.now, is_binary=not is_binary)) == []
    world.turn()
    assert (
        culprit.heard[0][1]["message"]
        == f"A {'text' if is_binary else 'binary'} message is not allowed with wamp.2.{serializer}."
    )
    assert is_aborted(culprit)
    goes_for_good(world, culprit, witness)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_batch_ends_where_the_violation_is(serializer: str) -> None:
    """W50: messages before a violation in a batch are processed, those after it are not."""
    world, culprit, witness = witnessed(f"wamp.2.{serializer}.batched")
    batch = [
        [16, 2, {"acknowledge": True}, "com.x", ["before"]],
        [32, 0, {}, "com.y"],
        [16, 3, {"acknowledge": True}, "com.x", ["behind"]],
    ]
    culprit.send(b"".join(culprit.format.write(message) for message in batch))
    assert [message[0] for message in culprit.heard] == [17, 3]
    assert is_aborted(culprit)
    assert [message[4] for message in witness.heard if message[4] in (["before"], ["behind"])] == [["before"]]
    witness.heard.popleft()
    goes_for_good(world, culprit, witness)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_more_in_a_batch_than_may_be(serializer: str) -> None:
    """W60: a batch of too many messages is a violation, and none of them is processed."""
    world = World(options=Wamp(batch_messages=2))
    culprit, witness = world.joined(subprotocol=f"wamp.2.{serializer}.batched"), world.joined()
    witness.subscribe("com.x")
    culprit.send(culprit.format.write([16, 2, {}, "com.x"]) * 3)
    assert is_aborted(culprit)
    assert witness.hears_nothing()


@pytest.mark.parametrize(
    "requests", [[2], [1, 3], [1, 1], [1, 2, 1]], ids=["not from 1", "a gap", "a repeat", "a step back"]
)
def test_strict_requests(requests: list[int]) -> None:
    """W14: request ids other than 1, 2, 3 ... are violations only with `strict_request_ids`."""
    for is_strict in (False, True):
        world = World(options=Wamp(strict_request_ids=is_strict))
        peer = world.joined()
        for request in requests:
            peer.say([48, request, {}, "wamp.session.count"])
        assert (peer.closed is not None) is is_strict
    assert is_aborted(peer)


def test_strict_requests_in_order() -> None:
    """W14: strict ids count all requests of a session, except CANCEL, which has the id of another."""
    world = World(options=Wamp(strict_request_ids=True))
    peer = world.joined()
    peer.say([32, 1, {}, "a"])
    peer.say([48, 2, {}, "wamp.session.count"])
    peer.say([49, 2, {}])
    peer.say([16, 3, {}, "a"])
    peer.say([34, 4, 1])
    peer.say([6, {}, "wamp.close.normal"])
    peer.say(HELLO)
    peer.say([48, 1, {}, "wamp.session.count"])
    assert [message[0] for message in peer.heard] == [33, 50, 35, 6, 2, 50]


TOLERATED: dict[str, tuple[Any, list[Any] | None]] = {
    "unknown options": ([32, 9, {"whatever": [1], "_x": None}, "a"], [33, 9, 4]),
    "a bad URI": ([32, 9, {}, "a..b"], [8, 32, 9, {}, "wamp.error.invalid_uri"]),
    "an unknown subscription": ([34, 9, 77], [8, 34, 9, {}, "wamp.error.no_such_subscription"]),
    "a late CANCEL": ([49, 9, {}], None),
    "REGISTER": ([64, 9, {}, "a"], [8, 64, 9, {}, "wamp.error.not_authorized"]),
    "UNREGISTER": ([66, 9, 1], [8, 66, 9, {}, "wamp.error.no_such_registration"]),
    "an unknown procedure": ([48, 9, {}, "a.b"], [8, 48, 9, {}, "wamp.error.no_such_procedure"]),
    "a bad procedure": ([48, 9, {}, "a..b"], [8, 48, 9, {}, "wamp.error.invalid_uri"]),
    "any request id": ([48, 2**53, {}, "wamp.session.count"], [50, 2**53, {}, [2]]),
    "an id as a double": ([34, 9.0, 77.0], [8, 34, 9, {}, "wamp.error.no_such_subscription"]),
}


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize(("message", "answer"), TOLERATED.values(), ids=TOLERATED)
def test_what_is_none(serializer: str, message: Any, answer: list[Any] | None) -> None:
    """W50, W3, W13, W14: requests that fail without being violations get their reply, and the session continues."""
    _, peer, _ = witnessed(f"wamp.2.{serializer}")
    peer.say(message)
    if answer is not None:
        assert peer.hear()[: len(answer)] == answer
    assert peer.hears_nothing()
    assert peer.call("wamp.session.count") == [2]


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_anything_behind_our_goodbye(serializer: str) -> None:
    """W8, W50: after the server's GOODBYE all messages but the client's GOODBYE are ignored, even violations."""
    world, peer, witness = witnessed(f"wamp.2.{serializer}")
    witness.call("wamp.session.kill", peer.number)
    assert peer.hear() == [6, {}, "wamp.close.killed"]
    for message in (*WITHIN_A_SESSION.values(), [16, 2, {"acknowledge": True}, "com.x"]):
        peer.say(message)
    peer.send(UNDECODABLE[serializer])
    assert peer.hears_nothing()
    assert peer.closed is None
    peer.say([6, {}, "wamp.error.goodbye_and_out"])
    assert peer.hears_nothing()
    assert peer.closed == (1000, "wamp.close.goodbye_and_out")
    peer.engine.lost(world.now)
    world.turn()


def test_nothing_that_a_peer_wrote_is_in_the_message() -> None:
    """The text of an ABORT contains nothing that the peer has sent."""
    peer = World().joined()
    peer.say([32, 1, {}, {"secret": "\n"}])
    assert "secret" not in str(peer.hear())


def test_violations_are_counted() -> None:
    """Violations are counted by their error, and not closed with 1008, which is for overload."""
    world, culprit, _ = witnessed("wamp.2.json")
    culprit.say([])
    assert world.router.refused["wamp.error.protocol_violation"] == 1
    assert world.broker.closed["protocol_violation"] == 1
    assert culprit.closed is not None
    assert culprit.closed[0] != POLICY_VIOLATION
