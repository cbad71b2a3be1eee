"""Revoking a client's subscription (W49)."""

from __future__ import annotations

from typing import Any

import pytest
from support.wamp_peers import CAPABLE, World

REMOVE = "wamp.subscription.remove_subscriber"


@pytest.mark.parametrize(("kwargs", "reason"), [({}, "wamp.close.revoked"), ({"reason": "com.why"}, "com.why")])
@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.msgpack", "wamp.2.cbor.batched"])
def test_who_understands_it_is_told(subprotocol: str, kwargs: dict[str, str], reason: str) -> None:
    """W49: the client gets UNSUBSCRIBED with request 0, subscription and reason, and no EVENT after it."""
    world = World()
    operator, peer = world.joined(), world.joined(subprotocol=subprotocol, roles=CAPABLE)
    number, kept = peer.subscribe("a"), peer.subscribe("b")
    operator.say([16, 1, {}, "a", ["before"]], turn=False)
    assert operator.call(REMOVE, number, peer.number, **kwargs) == []
    operator.publish("a", ["behind"])
    operator.publish("b")
    assert [message[0] for message in peer.heard] == [36, 35, 36]
    assert peer.heard[1] == [35, 0, {"subscription": number, "reason": reason}]
    assert peer.heard[2][1] == kept
    peer.heard.clear()
    assert peer.is_refused([34, 9, number]) == "wamp.error.no_such_subscription"
    assert peer.subscribe("a") == number


def test_who_does_not_is_not() -> None:
    """W49: a client that has not announced the feature gets no message; its events just end."""
    world = World()
    operator, peer, other = world.joined(), world.joined(), world.joined()
    number = peer.subscribe("a")
    other.subscribe("a")
    operator.call(REMOVE, number, peer.number)
    operator.publish("a")
    assert peer.hears_nothing()
    assert len(other.events()) == 1


def test_it_is_told_like_unsubscribing() -> None:
    """W48: a revocation causes on_unsubscribe with the client's session, and on_delete after the last subscriber."""
    world = World()
    operator, peer, witness = world.joined(), world.joined(), world.joined()
    for name in ("on_unsubscribe", "on_delete"):
        witness.subscribe(f"wamp.subscription.{name}")
    number = peer.subscribe("a")
    operator.call(REMOVE, number, peer.number)
    assert [event[4] for event in witness.events()] == [[peer.number, number]] * 2


def test_one_s_own() -> None:
    """A session may revoke its own subscription."""
    peer = World().joined(roles=CAPABLE)
    number = peer.subscribe("a")
    peer.say([48, 90, {}, REMOVE, [number, peer.number]])
    assert sorted(message[0] for message in peer.heard) == [35, 50]


def test_refusals() -> None:
    """W47: wrong arguments are refused and revoke nothing."""
    world = World()
    operator, peer = world.joined(), world.joined(roles=CAPABLE)
    number = peer.subscribe("a")
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        (77, peer.number, {}, "no_such_subscription"),
        (number, 77, {}, "no_such_session"),
        (number, operator.number, {}, "no_such_session"),
        (number, peer.number, {"reason": "a b"}, "invalid_uri"),
        (number, peer.number, {"reason": 1}, "invalid_argument"),
        (0, peer.number, {}, "invalid_argument"),
    ]
    for subscription, session, kwargs, error in wrong:
        assert operator.is_refused_call(REMOVE, subscription, session, **kwargs) == f"wamp.error.{error}"
    assert peer.hears_nothing()
    operator.publish("a")
    assert len(peer.events()) == 1
