"""Authentication before WELCOME: the methods that HELLO offers, the CHALLENGE, and the check of its answer.

A client offers methods in its order of preference; the first that the realm also has is used. Nothing here waits.
A client that fails gets the same answer after the same work, whether or not the user exists, so that nobody can find
out which users there are.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import orjson

from halley.broker.errors import TokenRefused
from halley.broker.events import to_text
from halley.broker.policy import ANONYMOUS, Identities, NoIdentities, Proof
from halley.protocols.wamp.errors import (
    AUTHENTICATION_REQUIRED,
    NO_MATCHING_AUTH_METHOD,
    AuthenticationDenied,
    InvalidOption,
    Violation,
    WampError,
)
from halley.protocols.wamp.messages import text_option, texts_option
from halley.settings.protocols import KEY_BYTES, User

NO_CREDENTIALS, TICKET, WAMPCRA = "anonymous", "ticket", "wampcra"
"""The authentication methods, as WAMP names them."""

_NO_IDENTITIES = NoIdentities()
_PROVIDER = "static"
_RANDOM_BYTES = 16


class AuthDetails(NamedTuple):
    """The authentication details of a session in WELCOME and the meta API; an anonymous `authid` is random."""

    authid: str
    authrole: str
    authmethod: str
    authprovider: str


class Authenticated(NamedTuple):
    """An authenticated client: what it has proved, and what WELCOME says about it."""

    proof: Proof
    details: AuthDetails


class Pending(Protocol):
    """A challenge that awaits its answer; `challenge` is the method and the extra of the CHALLENGE message."""

    challenge: tuple[str, dict[str, Any]]

    def check(self, signature: str, extra: Mapping[str, Any], wall_s: float) -> Authenticated:
        """Check an AUTHENTICATE's signature at `wall_s`, in seconds since 1970. Raises `AuthenticationDenied`."""


class Authentication:
    """The authentication of one server's clients.

    `identities` has the users of WAMP-CRA, and checks tokens, which are shown as tickets. Without `anonymous` every
    client must authenticate.
    """

    def __init__(self, identities: Identities = _NO_IDENTITIES, *, anonymous: bool = True) -> None:
        self._identities = identities
        self._allows_anonymous = anonymous
        self._secret = secrets.token_bytes(KEY_BYTES)

    def _methods(self) -> set[str]:
        """The methods that are possible now."""
        return {
            *([NO_CREDENTIALS] if self._allows_anonymous else ()),
            *([TICKET] if self._identities.accept_tokens else ()),
            *([WAMPCRA] if self._identities.users else ()),
        }

    def begin(self, details: Mapping[str, Any], session: int, wall_s: float) -> Authenticated | Pending:
        """Begin the authentication of a client by its HELLO's details, at `wall_s` seconds since 1970.

        Returns the authenticated client, or the challenge to send. `session` is the id that WELCOME will carry.
        Raises `WampError`, and `Violation` for details of the wrong type.
        """
        try:
            offered, authid = texts_option(details, "authmethods"), text_option(details, "authid")
        except InvalidOption as error:
            raise Violation(f"HELLO: details.{error.name} has the wrong type.") from None
        ours = self._methods()
        method = next((each for each in offered or (NO_CREDENTIALS,) if each in ours), None)
        if method is None and not offered:
            raise WampError(AUTHENTICATION_REQUIRED, "This realm requires authentication.")
        if method == TICKET:
            return _Ticket(self._identities)
        if method == WAMPCRA:
            return self._ask(authid or "", session, wall_s)
        if method == NO_CREDENTIALS:
            return _authenticated(ANONYMOUS, NO_CREDENTIALS, secrets.token_urlsafe(_RANDOM_BYTES))
        raise WampError(NO_MATCHING_AUTH_METHOD, "This realm has none of the offered authentication methods.")

    def _ask(self, authid: str, session: int, wall_s: float) -> Pending:
        """Return the WAMP-CRA challenge for an authid.

        An unknown authid gets a challenge like a user's, always with the same salt; no answer to it is accepted.
        """
        user, unknown = self._identities.users.get(authid), self._unknown_user(authid)
        known = user or unknown
        question = {
            "authid": authid,
            "authrole": known.role,
            "authmethod": WAMPCRA,
            "authprovider": _PROVIDER,
            "nonce": secrets.token_urlsafe(_RANDOM_BYTES),
            "timestamp": to_text(int(wall_s * 1_000_000)),
            "session": session,
        }
        return _Wampcra(self._identities, known, orjson.dumps(question).decode())

    def _unknown_user(self, authid: str) -> User:
        digest = hmac.digest(self._secret, authid.encode(), "sha256")
        users = [*self._identities.users.values()]
        like = users[int.from_bytes(digest[-4:]) % len(users)]
        salt = b64encode(digest).decode()[: len(like.salt)]
        key = b64encode(hmac.digest(self._secret, digest, "sha256")).decode()
        return User(authid, like.role, key, salt, like.iterations)


class _Ticket:
    """A challenge for a ticket: a token of the server, as in every other protocol; the authid is the token's."""

    def __init__(self, identities: Identities) -> None:
        self.challenge: tuple[str, dict[str, Any]] = (TICKET, {})
        self._identities = identities

    def check(self, signature: str, _: Mapping[str, Any], wall_s: float) -> Authenticated:
        """Check a ticket (`Pending.check`). Raises `AuthenticationDenied`."""
        try:
            return _authenticated(self._identities.prove(signature, wall_s), TICKET)
        except TokenRefused:
            raise AuthenticationDenied from None


class _Wampcra:
    """A WAMP-CRA challenge: only a client with the user's secret can sign it, and it is used once."""

    def __init__(self, identities: Identities, user: User, question: str) -> None:
        extra = {"challenge": question, "salt": user.salt, "keylen": KEY_BYTES, "iterations": user.iterations}
        self.challenge: tuple[str, dict[str, Any]] = (WAMPCRA, extra)
        self._user = user
        self._question = question
        self._identities = identities

    def check(self, signature: str, _: Mapping[str, Any], wall_s: float) -> Authenticated:  # noqa: ARG002 - as above
        """Check a signature (`Pending.check`). Raises `AuthenticationDenied`."""
        # The key is used as text: clients encode what they derive from their secret as base64 and sign with that.
        right = b64encode(hmac.digest(self._user.key.encode(), self._question.encode(), "sha256"))
        is_right = hmac.compare_digest(signature.encode(errors="surrogatepass"), right)
        is_user = self._identities.is_current(self._user)  # a stranger's key is in no settings
        if not (is_right and is_user):
            raise AuthenticationDenied
        return _authenticated(Proof(self._user.id, self._user.role, credential=self._user), WAMPCRA)


def _authenticated(proof: Proof, method: str, random_authid: str | None = None) -> Authenticated:
    """Return the result for a proof; `random_authid` is the authid in WELCOME where the proof has none."""
    authid = proof.authid or random_authid or ""
    return Authenticated(proof, AuthDetails(authid, proof.role, method, _PROVIDER))
