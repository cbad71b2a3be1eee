"""New access rules: subscriptions that they no longer grant are taken away, with the events that wait for them."""

from __future__ import annotations

import pytest
from support.bayeux import House, Later
from support.bayeux_peers import handshake

from halley.access.rules import AccessRules, Rule
from halley.broker.events import Event
from halley.broker.policy import Proof
from halley.protocols.bayeux.names import Bounds, to_pattern
from halley.settings import Token

ADA = Token("ada", "member", "sha256:" + "0" * 64)
CHAT, NEWS = "/chat/**", "/news"
DENIED = "403:denied_by_security_policy:subscribe_denied"


def rules(*patterns):
    """Rules that let everyone publish everything, and subscribe to these patterns."""
    allowed = [("publish", "/**"), *(("subscribe", pattern) for pattern in patterns)]
    return AccessRules([Rule("*", verb, to_pattern(pattern, Bounds(255, 16)), True) for verb, pattern in allowed])


def change(house, *patterns):
    """Have these rules count instead; return the numbers of ended sessions and subscriptions."""
    house.rights.rules = rules(*patterns)
    ended = house.broker.rights_changed(house.identities.is_current, house.now)
    house.turn()
    return ended


def notice(channel):
    return {"channel": "/meta/unsubscribe", "subscription": channel, "successful": True, "ext": {"revoked": True}}


@pytest.fixture
def house():
    return House(rights=rules(CHAT, NEWS), authenticate=lambda *_: Proof("ada", "member", None, ADA))


def test_a_held_connect_is_answered_with_the_notice(house):
    """The client gets an answer to its unsubscribe that it has not sent; each subscription has one."""
    peer = house.join()
    peer.subscribe(CHAT, "/chat/x", NEWS)
    held = peer.connect()
    assert change(house, NEWS) == (0, 2)
    reply, *notices = held.messages
    assert reply["successful"] is True
    assert notices == [notice(CHAT), notice("/chat/x")]
    assert peer.subscribe("/chat/x").only["error"] == DENIED
    held = peer.connect()
    house.publish("/chat/x", 1)
    assert held.is_held
    house.publish(NEWS, 2)
    assert held.events == [(NEWS, 2)]


def test_a_deny_rule_takes_away_what_it_overlaps(house):
    """A subscription that is no longer granted as a whole ends as a whole."""
    peer = house.join()
    peer.subscribe(CHAT, "/chat/x")
    bounds = Bounds(255, 16)
    denied = Rule("*", "subscribe", to_pattern("/chat/staff", bounds), False)
    house.rights.rules = AccessRules([denied, Rule("*", "*", to_pattern("/**", bounds), True)])
    assert house.broker.rights_changed(house.identities.is_current, house.now) == (0, 1)
    assert peer.connect().messages[1:] == [notice(CHAT)]
    house.publish("/chat/x", 1)
    assert peer.connect().events == [("/chat/x", 1)]


def test_waiting_events_are_dropped(house):
    """Only those of such subscriptions: others, and what a program sends to the session itself, are delivered."""
    peer = house.join()
    peer.subscribe("/chat/**", "/chat/y", NEWS)
    house.publish("/chat/x", 1)
    house.publish(NEWS, 2)
    house.publish("/chat/y", 3)
    house.deliver(peer, "/chat/x", "for you alone")
    change(house, NEWS, "/chat/y")
    sent = peer.connect()
    assert sent.events == [(NEWS, 2), ("/chat/y", 3), ("/chat/x", "for you alone")]
    assert sent.messages[-1] == notice(CHAT)


def test_events_of_a_dead_socket_are_dropped(house):
    """Events whose reply was not written return to the queue, but not these."""
    peer = house.join()
    peer.subscribe(CHAT, NEWS)
    house.publish("/chat/x", 1)
    house.publish(NEWS, 2)
    lost = peer.connect(stalled=True)
    change(house, NEWS)
    lost.unwritten()
    assert peer.connect().events == [(NEWS, 2)]


def test_unacknowledged_events_are_dropped(house):
    """With the acknowledge extension an event is sent again until it is acknowledged, but not these."""
    peer = house.join(ext={"ack": True})
    peer.subscribe(CHAT, NEWS)
    house.publish("/chat/x", 1)
    house.publish(NEWS, 2)
    assert peer.connect(ext={"ack": 1}).events == [("/chat/x", 1), (NEWS, 2)]
    change(house, NEWS)
    again = peer.connect(ext={"ack": 1})
    assert again.events == [(NEWS, 2)]
    assert again.messages[-1] == notice(CHAT)


@pytest.mark.parametrize("history", [{}, {"tail_bytes": 0}], ids=["from memory", "from the log"])
def test_a_replay_ends_too(history):
    """Neither the history nor what is new of such a channel is delivered to a session that replays."""
    house = House(rights=rules(CHAT, NEWS), history=history)
    peer = house.join(ext={"replay": True})
    for channel in ("/chat/x", NEWS):
        house.broker.publish(Event(channel[1:], b"1"), house.now)
    house.log.commit()
    peer.subscribe(CHAT, NEWS, ext={"replay": {CHAT: -2, NEWS: -2}})
    sent = peer.connect()
    change(house, NEWS)
    while sent.is_waiting:
        sent.resume(house.log.page(sent.wait.awaitable.query))
    if history:  # it was on its way to the log: what it has read does not count any more
        assert [channel for channel, _ in sent.events] == [NEWS]
        assert [*sent.replies[0]["ext"]["replay"]] == [NEWS]
    house.broker.publish(Event("chat/x", b"2"), house.now)
    house.broker.publish(Event("news", b"2"), house.now)
    house.log.commit()
    later = peer.connect()
    while later.is_waiting:
        later.resume(house.log.page(later.wait.awaitable.query))
    assert later.events == [(NEWS, 2)]
    assert [*later.replies[0]["ext"]["replay"]] == [NEWS]


def test_a_subscription_that_awaits_a_policy_is_checked_again(house):
    """Rules that have changed while the policy was awaited count."""
    house.policy(can_subscribe=lambda *_: Later())
    peer = house.join()
    asked = peer.subscribe(CHAT)
    assert asked.is_waiting
    change(house, NEWS)
    assert asked.resume(True).only["error"] == DENIED
    assert not peer.session.subscriptions


def test_a_session_whose_token_is_gone_ends_as_with_an_expired_one(house):
    """A held connect is answered 403 and handshake; sessions without a token go on."""
    other = house.join()
    peer = house.join(ext={"authentication": "ada's"})
    held = peer.connect()
    house.identities.withdrawn.add(ADA)
    assert change(house, CHAT, NEWS) == (1, 0)
    assert held.only["error"] == "403::token_expired"
    assert held.only["advice"]["reconnect"] == "handshake"
    assert house.broker.closed == {"token_expired": 1}
    assert other.is_known


def test_a_handshake_that_awaits_a_policy_is_checked_again(house):
    """A token that is withdrawn while the policy was awaited gives no session."""
    house.policy(can_handshake=lambda *_: Later())
    asked = house.send(handshake(ext={"authentication": "ada's"}))
    house.identities.withdrawn.add(ADA)
    change(house, CHAT, NEWS)
    assert asked.resume(True).only["error"] == "403:token_invalid:handshake_denied"
    assert not house.broker.sessions


def test_hooks_are_told(house):
    """A program's `unsubscribed` hook is called, as for an unsubscribe by the client."""
    told = []
    house.hooks.unsubscribed.append(lambda session, name: told.append((session.id, name)))
    peer = house.join()
    peer.subscribe(CHAT, NEWS)
    change(house, NEWS)
    assert told == [(peer.id, CHAT)]
