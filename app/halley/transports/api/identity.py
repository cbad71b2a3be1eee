"""Who calls an HTTP API, and the check of its rights.

An invalid token is refused, never ignored. Where the server accepts no tokens, none is read: it may be meant for a
proxy.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from halley.broker.errors import TokenRefused
from halley.broker.names import Match, Pattern
from halley.broker.policy import ANONYMOUS, Identities, Proof, Rights
from halley.settings import Verb
from halley.transports.guard import Rejection
from halley.transports.head import BAD_TOKEN, bearer_token
from halley.transports.middleware import head_in

NOT_ALLOWED = {
    "subscribe": "not allowed to subscribe to that, so not to read its history",
    "export": "not allowed: a rule must grant export on /**",
    "erase": "not allowed: a rule must grant erase on all events to be erased",
}
"""The response to a caller that lacks a right, by its verb."""

EVERYTHING = Pattern(Match.DESCENDANTS, "")


class Caller:
    """The caller of a request: what its token proves, and its rights."""

    def __init__(self, proof: Proof, rights: Rights, *, accepts_tokens: bool) -> None:
        self.proof = proof
        self._rights = rights
        self._accepts_tokens = accepts_tokens

    def may_any(self, verb: Verb) -> bool:
        """Whether the caller has the right `verb` on anything at all."""
        return self._rights.grants_any(verb, self.proof)

    def require(self, verb: Verb, pattern: Pattern = EVERYTHING) -> None:
        """Check the right `verb` on a whole pattern. Raises `Rejection`: 401 if a token could help, else 403."""
        if self._rights.may(None, verb, pattern, self.proof):
            return
        if self.proof is ANONYMOUS and self._accepts_tokens:
            raise Rejection(401, NOT_ALLOWED[verb], headers=((b"www-authenticate", b"Bearer"),))
        raise Rejection(403, NOT_ALLOWED[verb])


class IdentityMiddleware:
    """ASGI middleware that makes the owner of a request's bearer token its `user`; without one, an anonymous caller."""

    def __init__(self, app: ASGIApp, rights: Rights, identities: Identities) -> None:
        self._app = app
        self._rights = rights
        self._identities = identities

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raises `Rejection` (401) for an invalid token."""
        token = bearer_token(head_in(scope).fields.get(b"authorization"))
        await self._app({**scope, "user": caller_by(token, self._rights, self._identities)}, receive, send)


def caller_by(token: str | None, rights: Rights, identities: Identities) -> Caller:
    """The caller that a token proves; an anonymous one without. Raises `Rejection` (401) for an invalid token."""
    proof = ANONYMOUS
    if token is not None and identities.accept_tokens:
        try:
            proof = identities.prove(token, time.time())
        except TokenRefused as refused:
            raise Rejection(401, refused.reason, headers=(BAD_TOKEN,)) from None
    return Caller(proof, rights, accepts_tokens=identities.accept_tokens)


def caller_of(request: Request) -> Caller:
    """The caller of a request, with its rights."""
    caller: Caller = request.user
    return caller
