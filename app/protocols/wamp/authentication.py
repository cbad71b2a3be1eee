"""Who somebody is, before WELCOME: what HELLO offers, what is asked, and whether the answer proves it (wamp.md 55-57).

A client says which methods it can do, in its order; the first that the realm can do too is used. Nothing here waits.
Whoever fails gets the same answer after the same work, whether or not there is such a user.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from app.broker.errors import TokenRefused
from app.broker.policy import ANONYMOUS, Identity
from app.broker.timestamps import to_text
from app.protocols.wamp.messages import Violation
from app.protocols.wamp.options import BadOption, text, texts
from app.settings.wamp import KEY_BYTES, User

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NO_CREDENTIALS, TICKET, WAMPCRA = "anonymous", "ticket", "wampcra"
"""The methods."""

REQUIRED = "wamp.error.authentication_required"
NO_METHOD = "wamp.error.no_matching_auth_method"
DENIED = "wamp.error.authentication_denied"

_PROVIDER = "static"
_RANDOM_BYTES = 16


class NotWelcome(Exception):
    """Whoever said HELLO is sent away: with an ABORT of this `reason`, and the text as its message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class AuthenticationDenied(NotWelcome):
    """What was shown proves nothing; why not, nobody is told."""

    def __init__(self) -> None:
        super().__init__(DENIED, "What was shown proves nothing.")


class Authenticated(NamedTuple):
    """Who somebody is, and what WELCOME's details say of that."""

    identity: Identity
    details: dict[str, Any]


class Pending(Protocol):
    """A question that has been asked: `challenge` is what CHALLENGE says, its method and its extra."""

    challenge: tuple[str, dict[str, Any]]

    def check(self, signature: str, extra: Mapping[str, Any], wall_s: float) -> Authenticated:
        """Whether what AUTHENTICATE says is the answer. Raises `AuthenticationDenied`."""


class Authentication:
    """What one server believes. `authenticate` says whom a token names, at a time of the wall clock; None: no tokens.

    Without users there is no WAMP-CRA, without `anonymous` nobody comes in who proves nothing.
    """

    def __init__(
        self,
        *,
        anonymous: bool = True,
        users: Iterable[User] = (),
        authenticate: Callable[[str, float], Identity] | None = None,
    ) -> None:
        self._users = {user.id: user for user in users}
        self._authenticate = authenticate
        self._secret = secrets.token_bytes(KEY_BYTES)
        self._methods = {
            *([NO_CREDENTIALS] if anonymous else ()),
            *([TICKET] if authenticate is not None else ()),
            *([WAMPCRA] if self._users else ()),
        }

    def begin(self, details: Mapping[str, Any], session: int, wall_s: float) -> Authenticated | Pending:
        """What HELLO's details lead to; `session` is the id that WELCOME will carry.

        Raises `NotWelcome`, and `Violation` for details of the wrong type.
        """
        try:
            offered, authid = texts(details, "authmethods"), text(details, "authid")
        except BadOption as error:
            raise Violation(f"HELLO: {error.name} is of the wrong type.") from None
        method = next((each for each in offered or (NO_CREDENTIALS,) if each in self._methods), None)
        if method is None and not offered:
            raise NotWelcome(REQUIRED, "This realm wants to know who you are.")
        if method == TICKET and self._authenticate is not None:
            return _Ticket(self._authenticate)
        if method == WAMPCRA:
            return self._ask(authid or "", session, wall_s)
        if method == NO_CREDENTIALS:
            return _authenticated(ANONYMOUS, NO_CREDENTIALS, secrets.token_urlsafe(_RANDOM_BYTES))
        raise NotWelcome(NO_METHOD, "None of the methods offered is one of this realm.")

    def _ask(self, authid: str, session: int, wall_s: float) -> Pending:
        """A stranger is asked as a user would be, and always the same; no answer is the right one."""
        user, stranger = self._users.get(authid), self._stranger(authid)
        known = user or stranger
        question = {
            "authid": authid,
            "authrole": known.role,
            "authmethod": WAMPCRA,
            "authprovider": _PROVIDER,
            "nonce": secrets.token_urlsafe(_RANDOM_BYTES),
            "timestamp": to_text(int(wall_s * 1_000_000)),
            "session": session,
        }
        return _Wampcra(known, orjson.dumps(question).decode(), is_user=user is not None)

    def _stranger(self, authid: str) -> User:
        digest = hmac.digest(self._secret, authid.encode(), "sha256")
        like = [*self._users.values()][int.from_bytes(digest[-4:]) % len(self._users)]
        salt = b64encode(digest).decode()[: len(like.salt)]
        key = b64encode(hmac.digest(self._secret, digest, "sha256")).decode()
        return User(authid, like.role, key, salt, like.iterations)


class _Ticket:
    """A ticket is a token of the server's, as every other protocol takes them; the authid is the token's."""

    def __init__(self, authenticate: Callable[[str, float], Identity]) -> None:
        self.challenge: tuple[str, dict[str, Any]] = (TICKET, {})
        self._authenticate = authenticate

    def check(self, signature: str, _: Mapping[str, Any], wall_s: float) -> Authenticated:
        """See `Pending`."""
        try:
            return _authenticated(self._authenticate(signature, wall_s), TICKET)
        except TokenRefused:
            raise AuthenticationDenied from None


class _Wampcra:
    """A question of which only who knows the user's secret can make the signature, once."""

    def __init__(self, user: User, question: str, *, is_user: bool) -> None:
        extra = {"challenge": question, "salt": user.salt, "keylen": KEY_BYTES, "iterations": user.iterations}
        self.challenge: tuple[str, dict[str, Any]] = (WAMPCRA, extra)
        self._user = user
        self._question = question
        self._is_user = is_user

    def check(self, signature: str, _: Mapping[str, Any], wall_s: float) -> Authenticated:  # noqa: ARG002 - as above
        """See `Pending`."""
        # the key as text: what clients derive from their secret is base64 before it is a key
        right = b64encode(hmac.digest(self._user.key.encode(), self._question.encode(), "sha256"))
        is_right = hmac.compare_digest(signature.encode(errors="surrogatepass"), right)
        if not (is_right and self._is_user):
            raise AuthenticationDenied
        return _authenticated(Identity(self._user.id, self._user.role), WAMPCRA)


def _authenticated(identity: Identity, method: str, shown: str | None = None) -> Authenticated:
    """`shown` is the authid of whoever has none."""
    details = {
        "authid": identity.authid or shown,
        "authrole": identity.role,
        "authmethod": method,
        "authprovider": _PROVIDER,
    }
    return Authenticated(identity, details)
