"""The identity and the rights of a caller without a session, for the HTTP APIs besides Bayeux.

An invalid token is refused, never ignored. Where the server accepts no tokens, none is read: it may be meant for a
proxy.
"""

from __future__ import annotations

import time

from app.broker.errors import TokenRefused
from app.broker.policy import ANONYMOUS, Identities, Identity, Rights
from app.broker.topics import Pattern
from app.settings import Verb
from app.transports.authorization import bearer_token
from app.transports.guard import Rejection
from app.transports.head import Head

NOT_ALLOWED = {
    "subscribe": "not allowed to subscribe to that, so not to read its history",
    "export": "not allowed: a rule must grant export on /**",
    "erase": "not allowed: a rule must grant erase on all events to be erased",
}
"""The response to a caller that lacks a right, by its verb."""


class Visitors:
    """Identifies callers by their tokens, and checks their rights."""

    def __init__(self, rights: Rights, identities: Identities) -> None:
        self._rights = rights
        self._identities = identities

    def identify(self, head: Head) -> Identity:
        """The identity of a request's bearer token, or `ANONYMOUS`. Raises `Rejection` (401) for an invalid token."""
        token = bearer_token(head.fields.get(b"authorization"))
        if token is None or not self._identities.accept_tokens:
            return ANONYMOUS
        try:
            return self._identities.prove(token, time.time())
        except TokenRefused as refused:
            challenge = (b"www-authenticate", b'Bearer error="invalid_token"')
            raise Rejection(401, refused.reason, headers=(challenge,)) from None

    def may_any(self, verb: Verb, visitor: Identity) -> bool:
        """Whether a caller has the right `verb` on anything at all."""
        return self._rights.grants_any(verb, visitor.role)

    def demand(self, verb: Verb, what: Pattern, visitor: Identity) -> None:
        """Check a caller's right `verb` on `what`. Raises `Rejection`: 401 if a token could help, else 403."""
        if self._rights.may(None, verb, what, visitor):
            return
        if visitor is ANONYMOUS and self._identities.accept_tokens:
            raise Rejection(401, NOT_ALLOWED[verb], headers=((b"www-authenticate", b"Bearer"),))
        raise Rejection(403, NOT_ALLOWED[verb])
