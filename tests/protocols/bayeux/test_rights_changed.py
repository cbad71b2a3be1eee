"""New access rules: subscriptions that they no longer grant are taken away, with the events that wait for them."""

from __future__ import annotations

import pytest
from support.bayeux import House, Later
from support.bayeux_peers import handshake
from support.messages import publish

from halley.access.rules import AccessRules, Rule
from halley.broker.events import Event
from halley.broker.policy import Proof
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.settings import Token

ADA = Token("ada", "member", "sha256:" + "0" * 64)
CHAT, NEWS = "/chat/**", "/news"
DENIED = "403:denied_by_security_policy:subscribe_denied"


def rules(*patterns):
    """Rules that let everyone publish everything, and subscribe to these patterns."""
    allowed = [("publish", "/**"), *(("subscribe", pattern) for pattern in patterns)]
    return AccessRules([Rule("*", verb, to_pattern(pattern, NameLimits(255, 16)), True) for verb, pattern in allowed])


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
    bounds = NameLimits(255, 16)
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


def test_what_is_stored_is_acknowledged():
    """A right that goes after the append changes nothing: the publisher would publish again what others have got."""
    house = House(rights=rules(CHAT), history={})
    hearer, peer = house.join(), house.join()
    hearer.subscribe(CHAT)
    sent = house.send(publish("/chat/x", 1, clientId=peer.id, ext={"audience": None}))
    assert sent.is_pending
    house.rights.rules = AccessRules([])
    house.log.commit(now=house.now)
    house.turn()
    assert (sent.only["successful"], sent.only["ext"]) == (True, {"position": 1})


def test_a_publish_that_has_waited_for_its_turn_only_is_checked_once():
    """The rules are asked once for each message, where nothing was awaited in between."""
    house = House(rights=rules(CHAT))
    peer, asked = house.join(), []
    house.rights.may = lambda *question: asked.append(question) or True
    house.send(publish("/chat/x", 1, clientId=peer.id, ext={"audience": None}))
    peer.subscribe(CHAT)
    assert [verb for _, verb, *_ in asked] == ["publish", "subscribe"]


# What the program has subscribed


def give(house, peer, channel):
    """Subscribe a session as the program does."""
    house.engine.subscribe(peer.session, channel, to_pattern(channel, NameLimits(255, 16)), house.now)


@pytest.mark.parametrize("had_it", [False, True])
def test_what_the_program_has_subscribed_stays(house, had_it):
    """No rule has granted it, so none takes it away, also where the client has subscribed to it before or after."""
    peer = house.join()
    channel = "/chat/x" if had_it else "/private/ada"
    if had_it:
        peer.subscribe(channel, "/chat/y")
    give(house, peer, channel)
    assert change(house, NEWS) == (0, int(had_it))
    assert peer.connect(advice={"timeout": 0}).messages[1:] == [notice("/chat/y")] * had_it
    assert peer.subscribe(channel).only["error"] == DENIED
    house.publish(channel, 1)
    assert peer.connect().events == [(channel, 1)]
    assert change(house, NEWS) == (0, 0)


def test_what_the_program_takes_back_is_gone(house):
    """And if the client subscribes to it then, it is the rules' again."""
    peer = house.join()
    give(house, peer, "/chat/x")
    house.engine.unsubscribe(peer.session, "/chat/x", to_pattern("/chat/x", NameLimits(255, 16)))
    assert not peer.session.subscriptions
    peer.subscribe("/chat/x")
    assert change(house, NEWS) == (0, 1)
    assert not peer.session.subscriptions


def test_what_the_client_ends_itself_is_gone(house):
    """Its unsubscribe counts, whoever has subscribed it."""
    peer = house.join()
    give(house, peer, "/private/ada")
    assert peer.unsubscribe("/private/ada").only["successful"] is True
    assert not peer.session.subscriptions
    assert peer.subscribe("/private/ada").only["error"] == DENIED


def test_with_its_token_a_session_loses_what_the_program_has_subscribed_too(house):
    """The program has subscribed somebody who proved who it is."""
    peer = house.join(ext={"authentication": "ada's"})
    give(house, peer, "/private/ada")
    house.identities.withdrawn.add(ADA)
    assert change(house, CHAT, NEWS) == (1, 0)
    assert house.hearers("/private/ada") == []
    assert not peer.is_known


def test_a_session_takes_no_memory_for_what_its_program_has_not_subscribed(house):
    """What the program has subscribed is noted where the index has the subscription anyway."""
    peer = house.join()
    peer.subscribe(CHAT)
    (shared,) = peer.session.subscriptions.values()
    assert shared.sessions == {peer.session: False}


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
