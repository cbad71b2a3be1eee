"""New access rules in WAMP: revocation of what they no longer grant, and the end of sessions whose proof is gone."""

from __future__ import annotations

from typing import Any

import pytest
from support.identities import Known
from support.wamp_peers import CAPABLE, World

from halley.access.rules import AccessRules, Rule
from halley.broker.names import Match, Pattern
from halley.broker.policy import Proof
from halley.protocols.wamp.authentication import Authentication, Pending
from halley.protocols.wamp.errors import AuthenticationDenied
from halley.settings import Token, User

ADA = Token("ada", "member", "sha256:" + "0" * 64)


def rules(*topics: str) -> AccessRules:
    """Rules that let everyone publish everything, and subscribe to these topics and all below them."""
    everything = Rule("*", "publish", Pattern(Match.DESCENDANTS, ""), True)
    below = [Rule("*", "subscribe", Pattern(Match.DESCENDANTS, topic), True) for topic in topics]
    return AccessRules(
        [everything, *(Rule("*", "subscribe", Pattern(Match.EXACT, each), True) for each in topics), *below]
    )


def change(world: World, rights: AccessRules, known: Known | None = None) -> tuple[int, int]:
    """Have these rules count instead; return the numbers of ended sessions and subscriptions."""
    world.router.rights = rights
    return world.broker.rights_changed((known or Known()).is_current, world.now)


def test_who_understands_it_is_told() -> None:
    """W49: UNSUBSCRIBED with request 0, subscription and reason; other subscriptions go on."""
    world = World(rights=rules("chat", "news"))
    speaker, peer = world.joined(), world.joined(roles=CAPABLE)
    chat, news = peer.subscribe("chat.", match="prefix"), peer.subscribe("news")
    assert change(world, rules("news")) == (0, 1)
    world.turn()
    assert peer.hear() == [35, 0, {"subscription": chat, "reason": "wamp.error.not_authorized"}]
    speaker.publish("chat.a", ["secret"])
    speaker.publish("news", ["told"])
    assert [message[:2] for message in peer.heard] == [[36, news]]
    peer.heard.clear()
    assert peer.is_refused([32, 9, {}, "chat.a"]) == "wamp.error.not_authorized"


def test_who_does_not_is_not() -> None:
    """W49: a client that has not announced revocation gets no message; its events just end."""
    world = World(rights=rules("chat"))
    speaker, peer = world.joined(), world.joined()
    number = peer.subscribe("chat")
    assert change(world, rules("news")) == (0, 1)
    speaker.publish("chat", ["secret"])
    assert peer.hears_nothing()
    assert peer.is_refused([34, 9, number]) == "wamp.error.no_such_subscription"


@pytest.mark.parametrize("is_slow", [False, True])
def test_waiting_events_are_not_sent(is_slow: bool) -> None:
    """What was published before and has not been written is dropped, also for a client that does not read now."""
    world = World(rights=rules("chat", "news"))
    speaker, peer = world.joined(), world.joined(roles=CAPABLE)
    _, news = peer.subscribe("chat"), peer.subscribe("news")
    if is_slow:
        peer.engine.paused()
    for topic in ("chat", "news"):
        speaker.say([16, speaker.request(), {}, topic, ["before"]], turn=False)
    change(world, rules("news"))
    peer.engine.resumed(world.now)
    world.turn()
    assert sorted(message[0] for message in peer.heard) == [35, 36]
    assert [message[1] for message in peer.heard if message[0] == 36] == [news]


def test_a_subscription_that_awaits_a_policy_is_checked_again() -> None:
    """Rules that have changed while the program's policy was awaited count."""
    world = World(rights=rules("chat"))
    peer = world.joined()
    answers: list[Any] = []
    world.policy.permit = lambda *_: answers
    peer.say([32, 7, {}, "chat"])
    assert peer.hears_nothing()
    change(world, rules("news"))
    world.waiting.end(True)
    world.turn()
    assert peer.hear() == [8, 32, 7, {}, "wamp.error.not_authorized"]


def test_a_session_whose_token_is_gone_ends_as_with_an_expired_one() -> None:
    """GOODBYE has the reason of an expired token; others go on. A testament follows the new rules."""
    known = Known(lambda *_: Proof("ada", "member", None, ADA))
    world = World(rights=rules("chat"), authentication=Authentication(known))
    hearer = world.joined()
    hearer.subscribe("chat")
    peer = world.peer()
    peer.say([1, "realm1", {"roles": {"publisher": {}}, "authmethods": ["ticket"], "authid": "ada"}])
    peer.hear()
    peer.say([5, "her ticket", {}])
    assert peer.hear()[0] == 2
    known.withdrawn.add(ADA)
    assert change(world, rules("chat"), known) == (1, 0)
    world.turn()
    assert peer.hear() == [6, {"message": "the token has expired"}, "wamp.close.token_expired"]
    assert hearer.hears_nothing()
    assert len(world.broker.sessions) == 1


def test_a_user_who_is_gone_cannot_answer_an_earlier_challenge() -> None:
    """The check is of the users at the time of the answer, not at that of the question."""
    ann = User("ann", "staff", "a2V5", "salt", 1_000)
    known = Known(users=[ann])
    pending = Authentication(known).begin({"authmethods": ["wampcra"], "authid": "ann"}, 1, 0.0)
    assert not isinstance(pending, tuple)
    signature = _signed(pending)
    assert pending.check(signature, {}, 0.0).proof == Proof("ann", "staff", None, ann)
    known.withdrawn.add(ann)
    with pytest.raises(AuthenticationDenied):
        pending.check(signature, {}, 0.0)


def _signed(pending: Pending) -> str:
    import hashlib
    import hmac
    from base64 import b64encode

    return b64encode(hmac.new(b"a2V5", pending.challenge[1]["challenge"].encode(), hashlib.sha256).digest()).decode()
