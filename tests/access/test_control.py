"""The object that all protocols ask: what old and new grants say, and that they are replaced in one step."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from access.signing import AUDIENCE, ISSUER, NOW_S, SECRET, sign
from support.broker import Owner, join

from halley.access.control import AccessControl, Authenticator
from halley.access.tokens import hash_of, new_token
from halley.broker.broker import Broker
from halley.broker.errors import TokenRefused
from halley.broker.policy import ANONYMOUS, Proof
from halley.configuration.protection import rights_of
from halley.settings import Access, Jwt, Limits, Settings, Token, User

ADAS, BOBS = new_token(), new_token()
ADA, BOB = Token("ada", "member", hash_of(ADAS)), Token("bob", "member", hash_of(BOBS))
ANN = User("ann", "staff", "key", "salt")
CHAT, NEWS = Access("*", "subscribe", "/chat/**"), Access("*", "subscribe", "/news")


def control(**settings):
    """The access control of a server with these settings."""
    wanted = Settings(**settings)
    return AccessControl(wanted, rights_of(wanted), Authenticator.of(wanted))


def change(now, **settings):
    """Have these settings count instead."""
    wanted = Settings(**settings)
    now.change(wanted, rights_of(wanted))


def test_new_rules_count_at_once():
    """What was decided by the old rules is not remembered."""
    now = control(access=(CHAT,))
    assert now.may(None, "subscribe", "chat/a") is True
    assert now.may(None, "subscribe", "news") is False
    assert now.grants_any("publish", ANONYMOUS) is False
    change(now, access=(NEWS, Access("*", "publish", "/news")))
    assert now.may(None, "subscribe", "chat/a") is False
    assert now.may(None, "subscribe", "news") is True
    assert now.grants_any("publish", ANONYMOUS) is True


def test_the_claims_that_new_rules_name_are_kept_of_new_tokens(tmp_path):
    """So new rules with placeholders count at once, for those who come then."""
    (tmp_path / "secret").write_bytes(SECRET)
    issuer = Jwt(issuer=ISSUER, audience=AUDIENCE, secret=str(tmp_path / "secret"), claims=("plan",))
    now = control(access=(CHAT,), jwt=issuer)
    token = sign(org="acme", plan="paid", more=1)
    assert now.prove(token, NOW_S).claims == {"plan": "paid"}
    change(now, access=(Access("*", "publish", "/org/{claim.org}/**"),), jwt=issuer)
    proof = now.prove(token, NOW_S)
    assert proof.claims == {"org": "acme", "plan": "paid"}
    assert now.may(None, "publish", "org/acme/x", proof)
    assert not now.may(None, "publish", "org/other/x", proof)


def test_the_first_and_the_last_rule():
    """Without rules everything is allowed on loopback; `is_configured` follows."""
    now = control()
    assert now.is_configured is False
    assert now.may(None, "publish", "a") is True
    change(now, access=(CHAT,))
    assert now.is_configured is True
    assert now.may(None, "publish", "a") is False
    change(now)
    assert now.may(None, "publish", "a") is True


def test_tokens_and_users_are_replaced():
    """New ones are accepted, others are refused; whether any is accepted follows."""
    refused = []
    now = control()
    now._refused = refused.append
    assert now.accept_tokens is False
    change(now, tokens=(ADA,), user=(ANN,))
    assert now.accept_tokens is True
    assert now.prove(ADAS, 0.0) == Proof("ada", "member", None, ADA)
    assert now.users == {"ann": ANN}
    change(now, tokens=(BOB,))
    with pytest.raises(TokenRefused):
        now.prove(ADAS, 0.0)
    assert len(refused) == 1
    assert now.prove(BOBS, 0.0).authid == "bob"
    assert now.users == {}


@pytest.mark.parametrize(
    ("after", "stands"),
    [
        ([ADA], True),
        ([BOB, ADA], True),
        ([], False),
        ([BOB], False),
        ([Token("ada", "member", hash_of(BOBS))], False),  # another token of the same person
        ([Token("ada", "guest", ADA.hash)], False),
        ([Token("eve", "member", ADA.hash)], False),
        ([Token("ada", "member", ADA.hash, datetime(2030, 1, 1, tzinfo=UTC))], False),
    ],
)
def test_a_credential_stands_while_its_entry_is_the_same(after, stands):
    """A session counts with the role, name and end that its token had, so any change of these withdraws it."""
    now = control(tokens=(ADA,), user=(ANN,))
    credential = now.prove(ADAS, 0.0).credential
    change(now, tokens=tuple(after), user=(ANN,))
    assert now.is_current(credential) is stands
    assert now.is_current(ANN) is True
    assert now.is_current(None) is True  # anonymous clients, and those with a JWT


def test_each_session_is_asked_once():
    """Sessions whose credential is withdrawn are due; the rights of all others are checked, before these end."""
    broker, owner = Broker(Limits()), Owner()
    for name, credential in (("a", ADA), ("b", BOB), ("c", None)):
        join(broker, name, owner).proof = Proof(name, "member", None, credential)
    assert broker.rights_changed(lambda each: each != ADA, 5.0) == (1, 0)
    assert owner.heard == [("rights", "b", 5.0), ("rights", "c", 5.0), ("due", "a", 5.0)]
    assert broker.sessions["a"].expiry == 5.0


def test_a_fault_ends_one_session_only():
    """An exception for one session does not keep others their rights; that session ends."""

    class Faulty(Owner):
        def rights_changed(self, session, now):
            raise ValueError("c4n4ry")

    reported = []
    broker, owner = Broker(Limits(), report=lambda *fault: reported.append(fault)), Owner()
    join(broker, "a", Faulty())
    join(broker, "b", owner)
    join(broker, "c", owner).proof = Proof("ada", "member", None, ADA)
    broker.rights_changed(lambda each: each != ADA, 5.0)
    assert [(what, str(fault)) for what, fault in reported] == [("rights", "c4n4ry")]
    assert owner.heard == [("rights", "b", 5.0), ("due", "c", 5.0)]
    assert [*broker.sessions] == ["b", "c"]
