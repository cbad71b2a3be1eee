"""Tokens in Bayeux: a session's identity, the refusals, and the end of a session whose token expires."""

from __future__ import annotations

import pytest
from support.bayeux import WALL_S, House
from support.bayeux_peers import Peer, handshake
from support.messages import connect, publish, subscribe

from halley.access.rules import AccessRules, Rule
from halley.broker.errors import TokenExpired, TokenRefused
from halley.broker.policy import Proof
from halley.protocols.bayeux.hooks import Refused
from halley.protocols.bayeux.names import NameLimits, to_pattern
from halley.protocols.bayeux.outcomes import Transport

GOOD, OLD = "good-token", "old-token"
ENDS_S = 100.0
DENIED = "denied_by_security_policy"
JSONP = Transport.CALLBACK_POLLING


def authenticate(token, now_s):
    """Accept GOOD until it expires, `ENDS_S` after `WALL_S` by the wall clock `now_s`; refuse OLD as expired."""
    if token == OLD or (token == GOOD and now_s >= WALL_S + ENDS_S):
        raise TokenExpired
    if token != GOOD:
        raise TokenRefused("not listed")
    return Proof("ada", "user", WALL_S + ENDS_S)


def rule(role, verb, pattern, *, allow=True):
    return Rule(role, verb, to_pattern(pattern, NameLimits(255, 16)), allow)


RULES = (
    rule("*", "subscribe", "/open/**"),
    rule("anonymous", "publish", "/open/*"),
    rule("user", "*", "/**"),
)


@pytest.fixture
def guarded():
    return House(rights=AccessRules(RULES), authenticate=authenticate)


def join(house, token=GOOD, **more):
    """Return a peer that has handshaken with a token and has made its first connect."""
    peer = Peer(house, **more)
    peer.id = house.send(handshake(), token=token, peer=peer, transport=peer.transport).only["clientId"]
    peer.connect()
    return peer


# The handshake


@pytest.mark.parametrize(
    ("ext", "token"),
    [
        ({"authentication": GOOD}, None),
        ({"authentication": {"token": GOOD}}, None),
        (None, GOOD),
        ({}, GOOD),
        ({"authentication": {"user": "ada"}}, GOOD),
        ({"authentication": GOOD}, "bad"),
    ],
)
def test_a_token_gives_a_session_its_identity(guarded, ext, token):
    """The token is in `ext.authentication`, a string or an object with `token`, or else in the request."""
    reply = guarded.send(handshake(ext=ext), token=token).only
    assert reply["successful"] is True
    session = guarded.session(reply["clientId"])
    assert (session.authid, session.role) == ("ada", "user")


def test_without_a_token_a_session_is_anonymous(guarded):
    """A session without a token has the rights that rules grant to `anonymous` and `*`."""
    session = guarded.join().session
    assert (session.authid, session.role) == (None, "anonymous")


@pytest.mark.parametrize(
    ("ext", "token", "reason"),
    [
        ({"authentication": "bad"}, None, "token_invalid"),
        ({"authentication": ""}, None, "token_invalid"),
        ({"authentication": {"token": "bad"}}, None, "token_invalid"),
        ({"authentication": {"token": None}}, "", "token_invalid"),
        ({"authentication": {"token": 1}}, None, "token_invalid"),
        ({"authentication": 1}, None, "token_invalid"),
        ({"authentication": [GOOD]}, None, "token_invalid"),
        ({"authentication": {"token": {"token": GOOD}}}, None, "token_invalid"),
        ({"authentication": "bad"}, GOOD, "token_invalid"),
        ({"authentication": OLD}, None, "token_expired"),
        (None, "bad", "token_invalid"),
        (None, "", "token_invalid"),
        (None, OLD, "token_expired"),
    ],
)
def test_a_bad_token_is_refused_and_not_taken_for_none(guarded, ext, token, reason):
    """A26, A27: the reply is unsuccessful, with `reconnect: none` and without the token, and no session is made."""
    exchange = guarded.send(handshake(ext=ext), token=token)
    reply = exchange.only
    assert reply["successful"] is False
    assert reply["error"] == f"403:{reason}:handshake_denied"
    assert reply["advice"]["reconnect"] == "none"
    assert "clientId" not in reply
    assert not guarded.broker.sessions
    assert b"bad" not in exchange.reply.body()


def test_a_programs_policy_is_asked_after_the_token(guarded):
    """B23: the policy sees the identity, and can still refuse; it is not called for a bad token."""
    seen = []

    def can_handshake(session, message):
        seen.append((session.authid, session.role))
        raise Refused("not_today")

    guarded.policy(can_handshake=can_handshake)
    assert guarded.send(handshake(), token="bad").only["error"] == "403:token_invalid:handshake_denied"
    assert guarded.send(handshake(), token=GOOD).only["error"] == "403:not_today:handshake_denied"
    assert seen == [("ada", "user")]


@pytest.mark.parametrize("shown", ["any", {"token": "any"}, {"user": "x", "credentials": "y"}, 1])
def test_while_no_token_could_be_good_none_is_looked_at(shown):
    """Without an authenticator, `ext.authentication` is for a program's policy; a proxy can pass Authorization on."""
    house = House()
    for transport in (Transport.LONG_POLLING, JSONP):
        reply = house.send(handshake(ext={"authentication": shown}), token="any", transport=transport).only
        assert house.session(reply["clientId"]).role == "anonymous"
    assert house.send(publish("/a", 1), token="any").only["successful"] is True


# Rights


def test_rules_decide_about_sessions_by_role(guarded):
    """S15: a refused event is not delivered, and the session lives on."""
    stranger, user = guarded.join(), join(guarded)
    refused = stranger.send(
        stranger.message("/meta/subscribe", subscription="/**"),
        stranger.message("/meta/subscribe", subscription="/closed/a"),
        stranger.message("/meta/subscribe", subscription=["/open/a", "/closed/a"]),
        stranger.message("/meta/subscribe", subscription="/open/**"),
        stranger.message("/closed/a", data=1),
        stranger.message("/open/a", data=2),
    )
    assert [reply.get("error") for reply in refused.replies] == [
        f"403:{DENIED}:subscribe_denied",
        f"403:{DENIED}:subscribe_denied",
        f"403:{DENIED}:subscribe_denied",
        None,
        f"403:{DENIED}:publish_denied",
        None,
    ]
    assert stranger.heard == [("/open/a", 2)]
    assert guarded.hearers("/open/a") == []
    allowed = user.send(
        user.message("/meta/subscribe", subscription="/**"),
        user.message("/closed/a", data=3),
        user.message("/meta/subscribe", subscription="/halley/**"),
        user.message("/stats/1m/a", data=4),
    )
    assert [reply["successful"] for reply in allowed.replies] == [True, True, False, False]
    assert user.heard == [("/closed/a", 3)]


def test_once_rules_exist_the_house_rules_grant_nothing():
    """Rules replace the house rules on a loopback listener too, where any client could publish to /halley."""
    house = House(rights=AccessRules([rule("*", "*", "/a")]), loopback=True)
    assert house.send(publish("/halley/x", 1)).only["error"] == f"403:{DENIED}:publish_denied"
    assert house.send(publish("/a", 1)).only["successful"] is True


def test_a_programs_policy_is_asked_after_the_rules(guarded):
    """B23: the policy is not called for what a rule denies, and can deny what a rule allows."""
    asked = []
    guarded.policy(can_publish=lambda session, channel, message: asked.append(channel) or False)
    peer = guarded.join()
    replies = peer.send(peer.message("/closed/a", data=1), peer.message("/open/a", data=1)).replies
    assert [reply["successful"] for reply in replies] == [False, False]
    assert asked == ["/open/a"]


def test_a_session_keeps_the_identity_of_its_handshake(guarded):
    """A different Authorization in a later request is ignored, whether it is better or worse."""
    stranger, user = guarded.join(), join(guarded)
    assert stranger.send(stranger.message("/closed/a", data=1), token=GOOD).only["successful"] is False
    assert user.send(user.message("/closed/a", data=1), token="bad").only["successful"] is True


# Publishing without a session


@pytest.mark.parametrize(
    ("channel", "token", "error"),
    [
        ("/open/a", None, None),
        ("/closed/a", None, f"403:{DENIED}:publish_denied"),
        ("/closed/a", GOOD, None),
        ("/halley/a", GOOD, f"403:{DENIED}:publish_denied"),
        ("/open/a", "bad", "403:token_invalid:publish_denied"),
        ("/open/a", OLD, "403:token_expired:publish_denied"),
    ],
)
def test_without_a_session_the_requests_token_counts(guarded, channel, token, error):
    """A48: a rule must grant the publish, to anonymous clients or to the token's role; a bad token is refused."""
    assert guarded.send(publish(channel, 1), token=token).only.get("error") == error
    assert guarded.broker.published == (error is None)


@pytest.mark.parametrize(("token", "expected"), [(GOOD, True), ("bad", False)])
def test_a_token_is_proved_once_for_all_publishes_of_a_request(token, expected):
    """Checking a signature takes time, and a batch can have a thousand messages."""
    proved = []
    house = House(
        rights=AccessRules(RULES), authenticate=lambda token, now_s: proved.append(1) or authenticate(token, now_s)
    )
    replies = house.send(*(publish("/closed/a", number) for number in range(50)), token=token).replies
    assert [reply["successful"] for reply in replies] == [expected] * 50
    assert len(proved) == 1


def test_anonymous_publishing_can_be_off_whatever_the_rules():
    """With `bayeux.anonymous_publish = "off"`, a publish needs a session or a token."""
    house = House(rights=AccessRules(RULES, sessionless=False), authenticate=authenticate)
    assert house.send(publish("/open/a", 1)).only["error"] == "403:bayeux.anonymous_publish:publish_denied"
    assert house.send(publish("/open/a", 1), token=GOOD).only["successful"] is True
    peer = house.join()
    assert peer.send(peer.message("/open/a", data=1)).only["successful"] is True


# Callback-polling


def test_s38_a_token_has_no_business_in_a_url(guarded):
    """A handshake over JSONP with a token is refused, even if the token is good."""
    for token in (GOOD, "bad"):
        reply = guarded.send(handshake(ext={"authentication": token}), transport=JSONP).only
        assert reply["error"] == "403:token_in_url:handshake_denied"
        assert reply["advice"]["reconnect"] == "none"
    assert not guarded.broker.sessions


def test_s38_a_session_with_an_identity_is_unknown_over_jsonp(guarded):
    """Any page could load a script with its visitor's cookies, so its messages get 402 and have no effect."""
    user = join(guarded, jar=[])
    held = user.connect()
    before = user.session.deadline
    for message in (
        user.poll(connectionType="callback-polling"),
        subscribe(user.id, "/a"),
        publish("/closed/a", 1, clientId=user.id),
    ):
        reply = user.send(message, transport=JSONP).only
        assert reply["error"] == "402::session_unknown"
    assert held.is_held
    assert user.session.deadline == before
    assert guarded.broker.published == 0


def test_s38_over_jsonp_everyone_is_anonymous(guarded):
    """Over JSONP only topics that are open to `anonymous` can be used."""
    peer = guarded.join(transport=JSONP)
    replies = peer.send(
        peer.message("/meta/subscribe", subscription="/open/**"),
        peer.message("/meta/subscribe", subscription="/closed/**"),
        peer.message("/open/a", data=1),
    ).replies
    assert [reply["successful"] for reply in replies] == [True, False, True]


# Expiry


def test_a_held_connect_is_told_when_the_token_expires(guarded):
    """A held connect whose token expires fails with `403::token_expired` and `reconnect: handshake`."""
    peer = join(guarded)
    for _ in range(4):
        held = peer.connect()
        guarded.pass_time(20)
        guarded.deliver(peer, "/open/a", 1)
        assert not held.is_held
    held = peer.connect()
    guarded.pass_time(19.9)
    assert held.is_held
    guarded.pass_time(0.1)
    assert held.only["successful"] is False
    assert held.only["error"] == "403::token_expired"
    assert held.only["advice"] == {"reconnect": "handshake", "interval": 0, "timeout": 25_000}
    assert guarded.broker.closed == {"token_expired": 1}
    later = peer.connect()
    assert later.only["error"] == "402::session_unknown"
    assert later.only["advice"]["reconnect"] == "handshake"


def test_nothing_keeps_a_session_longer_than_its_token(guarded):
    """Neither messages, nor a long interval, nor a pending call of a policy postpone the session's end."""
    peer = join(guarded)
    peer.session.max_interval_s = 1_000.0
    for pause_s in (0, 11, 11, 11, 11, 11, 11, 11, 11, 11):
        guarded.pass_time(pause_s)
        assert peer.send(peer.message("/open/a", data=1)).only["successful"] is True
        assert peer.session.deadline <= peer.session.expiry
    guarded.pass_time(1)
    assert not peer.is_known
    assert peer.send(peer.message("/open/a", data=1)).only["error"] == "402::session_unknown"
    assert guarded.broker.closed == {"token_expired": 1}


def test_a_late_sweeper_gives_an_expired_token_no_further_message(guarded):
    """A message that arrives after the deadline, but before the sweeper runs, ends the session itself."""
    peer = join(guarded)
    held = peer.connect()
    guarded.now += ENDS_S
    assert guarded.send(publish("/closed/a", 1, clientId=peer.id)).only["error"] == "402::session_unknown"
    assert held.only["error"] == "403::token_expired"
    assert guarded.broker.published == 0
    assert guarded.broker.closed == {"token_expired": 1}


def test_a_session_that_expires_anyway_is_not_said_to_have_expired_by_its_token(guarded):
    """A session that expires before its token does is counted as expired."""
    peer = join(guarded)
    guarded.pass_time(11)
    assert not peer.is_known
    assert guarded.broker.closed == {"expired": 1}
    assert guarded.send(connect(peer.id)).only["error"] == "402::session_unknown"
