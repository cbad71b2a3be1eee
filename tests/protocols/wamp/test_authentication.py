"""Authentication: the methods, and what strangers can find out (W6, W55-W57)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from support.identities import Known

from halley.broker.errors import TokenExpired, TokenRefused, TokenTooLong
from halley.broker.policy import Proof
from halley.protocols.wamp.authentication import AuthDetails, Authenticated, Authentication
from halley.protocols.wamp.errors import AuthenticationDenied, Violation, WampError
from halley.settings import User

WALL_S = 1_700_000_000.25
SESSION = 3_251_278_072_152_162
SECRET, SALT = "secret", "salt123"


def derived(secret, salt=SALT, iterations=1_000):
    """The key that a client derives from its secret: PBKDF2 (RFC 8018, 5.2), as base64."""
    key = hashlib.pbkdf2_hmac("sha256", secret.encode(), salt.encode(), iterations, 32)
    return base64.b64encode(key).decode()


def sign(challenge, secret=SECRET):
    """The signature with which a client answers a CHALLENGE of WAMP-CRA."""
    _, extra = challenge
    key = derived(secret, extra["salt"], extra["iterations"])
    return base64.b64encode(hmac.new(key.encode(), extra["challenge"].encode(), hashlib.sha256).digest()).decode()


ADA = User("ada", "member", derived(SECRET), SALT, 1_000)
BOB = User("bob", "guest", derived("other", "bobs salt", 2_000), "bobs salt", 2_000)


def tokens(token, wall_s):
    """An `authenticate` that accepts the token "good" and raises the right error for others."""
    if token == "good":
        return Proof("ann", "staff", wall_s + 60)
    raise {"old": TokenExpired, "long": TokenTooLong}.get(token, TokenRefused)("no")


def everything(**changes):
    """An `Authentication` with all three methods, changed by `changes`."""
    wanted = {"anonymous": True, "users": [ADA, BOB], "authenticate": tokens} | changes
    return Authentication(Known(wanted["authenticate"], wanted["users"]), anonymous=wanted["anonymous"])


def begun(details, authentication=None):
    """The outcome of a HELLO with these details."""
    return (authentication or everything()).begin(details, SESSION, WALL_S)


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"authmethods": None},
        {"authmethods": []},
        {"authmethods": ["anonymous"]},
        {"authmethods": "anonymous"},
        {"authmethods": ["cryptosign", "anonymous", "ticket"], "authid": "ada"},
        {"authid": "ada"},
    ],
)
def test_the_anonymous(details):
    """A client without a list of methods, or with `anonymous` in it, is anonymous and has a random authid (W6, W55)."""
    first, second = begun(details), begun(details)
    assert isinstance(first, Authenticated)
    assert first.proof == Proof(None, "anonymous", None)
    authid = first.details.authid
    assert first.details == AuthDetails(authid, authrole="anonymous", authmethod="anonymous", authprovider="static")
    assert len(authid) > 16
    assert authid not in ("ada", second.details.authid)


@pytest.mark.parametrize(
    ("details", "changes", "reason"),
    [
        ({}, {"anonymous": False}, "wamp.error.authentication_required"),
        ({"authmethods": []}, {"anonymous": False}, "wamp.error.authentication_required"),
        ({"authmethods": ["anonymous"]}, {"anonymous": False}, "wamp.error.no_matching_auth_method"),
        ({"authmethods": ["cryptosign", "scram"]}, {}, "wamp.error.no_matching_auth_method"),
        ({"authmethods": ["ticket"]}, {"authenticate": None}, "wamp.error.no_matching_auth_method"),
        ({"authmethods": ["wampcra"], "authid": "ada"}, {"users": []}, "wamp.error.no_matching_auth_method"),
    ],
)
def test_who_is_not_asked(details, changes, reason):
    """HELLO is refused if no method is in common, or if none is offered and anonymous is not allowed (W55)."""
    with pytest.raises(WampError) as refused:
        begun(details, everything(**changes))
    assert refused.value.uri == reason
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("details", [{"authmethods": [1]}, {"authmethods": {"a": 1}}, {"authid": 7}, {"authid": ["a"]}])
def test_details_of_the_wrong_type(details):
    """Details of the wrong type are a violation, as with any element (W50)."""
    with pytest.raises(Violation, match=r"^HELLO: details\.auth(methods|id) has the wrong type\.$"):
        begun(details)


def test_the_clients_order_decides():
    """The first method in the client's list that the server supports is used (W55)."""
    assert begun({"authmethods": ["scram", "wampcra", "ticket"], "authid": "ada"}).challenge[0] == "wampcra"
    assert begun({"authmethods": ["ticket", "wampcra", "anonymous"], "authid": "ada"}).challenge == ("ticket", {})


def test_a_ticket_is_a_token():
    """The token decides authid, role and expiry, regardless of the authid in HELLO (W57)."""
    asked = begun({"authmethods": ["ticket"], "authid": "root"})
    identity, details = asked.check("good", {}, WALL_S + 1)
    assert identity == Proof("ann", "staff", WALL_S + 61)
    assert details == AuthDetails(authid="ann", authrole="staff", authmethod="ticket", authprovider="static")


@pytest.mark.parametrize("ticket", ["", "bad", "old", "long", "é\0"])
def test_tickets_that_prove_nothing(ticket):
    """Unknown, expired and too long tickets are refused with the same words (W56)."""
    with pytest.raises(AuthenticationDenied) as refused:
        begun({"authmethods": ["ticket"]}).check(ticket, {}, WALL_S)
    assert (refused.value.uri, refused.value.text) == (
        "wamp.error.authentication_denied",
        "The ticket or signature is not valid.",
    )


def test_a_challenge_of_wampcra():
    """A WAMP-CRA challenge has the right content, and the right signature is accepted (W56)."""
    asked = begun({"authmethods": ["wampcra"], "authid": "ada"})
    method, extra = asked.challenge
    assert method == "wampcra"
    question = json.loads(extra.pop("challenge"))
    assert extra == {"salt": SALT, "keylen": 32, "iterations": 1_000}
    assert len(question.pop("nonce")) > 16
    assert question == {
        "authid": "ada",
        "authrole": "member",
        "authmethod": "wampcra",
        "authprovider": "static",
        "timestamp": "2023-11-14T22:13:20.250000Z",
        "session": SESSION,
    }
    asked = begun({"authmethods": ["wampcra"], "authid": "ada"})
    assert asked.check(sign(asked.challenge), {}, WALL_S) == Authenticated(
        Proof("ada", "member", None, ADA),
        AuthDetails(authid="ada", authrole="member", authmethod="wampcra", authprovider="static"),
    )


def test_a_known_signature(monkeypatch):
    """The signature that autobahn 26.10 makes of a known secret, salt and challenge is accepted (W56)."""
    monkeypatch.setattr("halley.protocols.wamp.authentication.secrets.token_urlsafe", lambda _: "LHRTC9zeOIrt_9U3")
    assert ADA.key == "MDS8Yxpu4J/vkHJ8dNEgqECYsI0uRDh2oZ5eN0vYPvo="
    asked = begun({"authmethods": ["wampcra"], "authid": "ada"})
    assert asked.challenge[1]["challenge"] == (
        '{"authid":"ada","authrole":"member","authmethod":"wampcra","authprovider":"static",'
        '"nonce":"LHRTC9zeOIrt_9U3","timestamp":"2023-11-14T22:13:20.250000Z","session":3251278072152162}'
    )
    assert asked.check("oSd4KoYhdxu6GyptTOwVzspVS6ZUWdvNxAJUp5Juqso=", {}, WALL_S).proof.authid == "ada"


@pytest.mark.parametrize("answer", ["", "é", "\ud800", "AAAA"])
def test_answers_that_prove_nothing(answer):
    """Wrong signatures are refused, and so is the right signature of another challenge."""
    earlier = sign(begun({"authmethods": ["wampcra"], "authid": "ada"}).challenge)
    for wrong in (answer, earlier):
        asked = begun({"authmethods": ["wampcra"], "authid": "ada"})
        with pytest.raises(AuthenticationDenied):
            asked.check(wrong, {}, WALL_S)
    asked = begun({"authmethods": ["wampcra"], "authid": "ada"})
    with pytest.raises(AuthenticationDenied):
        asked.check(sign(asked.challenge, "wrong secret"), {}, WALL_S)


@pytest.mark.parametrize("authid", ["eve", "", "é", "a" * 5_000])
def test_strangers_are_asked_like_users(authid):
    """An unknown user gets the same kind of challenge as a user, a stable salt, and the same refusal (W56)."""
    realm = everything()
    details = {"authmethods": ["wampcra"], "authid": authid}
    first, second = begun(details, realm), begun(details, realm)
    (_, one), (_, other) = first.challenge, second.challenge
    assert one["salt"] == other["salt"] != begun({**details, "authid": "mallory"}, realm).challenge[1]["salt"]
    assert one["keylen"] == 32
    role, rounds = json.loads(one["challenge"])["authrole"], one["iterations"]
    assert (role, rounds) in [("member", 1_000), ("guest", 2_000)]
    assert one["challenge"] != other["challenge"]
    refusals = []
    for asked in (first, begun({"authmethods": ["wampcra"], "authid": "ada"}, realm)):
        with pytest.raises(AuthenticationDenied) as refused:
            asked.check(sign(asked.challenge, "guess"), {}, WALL_S)
        refusals.append((refused.value.uri, refused.value.text))
    assert refusals[0] == refusals[1]


def test_a_stranger_has_no_right_answer():
    """No signature is accepted for an unknown user, not even one with the key used in place of theirs."""
    asked = begun({"authmethods": ["wampcra"], "authid": "eve"})
    key, question = asked._user.key, asked.challenge[1]["challenge"]
    signature = base64.b64encode(hmac.new(key.encode(), question.encode(), hashlib.sha256).digest()).decode()
    with pytest.raises(AuthenticationDenied):
        asked.check(signature, {}, WALL_S)


def test_the_salts_of_strangers_are_this_processs_own():
    """The salts of unknown users differ between processes, so they cannot be predicted."""
    details = {"authmethods": ["wampcra"], "authid": "eve"}
    assert begun(details).challenge[1]["salt"] != begun(details).challenge[1]["salt"]
