"""Who sends a request that has no session, and whether that one may: the paths beside Bayeux.

A token that is wrong is refused, never taken for none. While the server knows no token at all none is looked at: it may
be meant for a proxy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from app.broker.errors import TokenRefused
from app.broker.policy import ANONYMOUS
from app.transports.authorization import bearer_token
from app.transports.guard import Rejection

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.broker.policy import Identity, Rights
    from app.broker.topics import Pattern
    from app.settings import Verb
    from app.transports.head import Head

NOT_ALLOWED = {
    "subscribe": "not allowed to subscribe to that, so not to read its history",
    "export": "not allowed: a rule must grant export on /**",
    "erase": "not allowed: a rule must grant erase on all of that",
}
"""What is said to those who lack a right, by its verb."""


class Visitors:
    """`authenticate` tells whom a token names at a moment of the wall clock; None where no token is known."""

    def __init__(self, rights: Rights, authenticate: Callable[[str, float], Identity] | None) -> None:
        self._rights = rights
        self._authenticate = authenticate

    def identify(self, head: Head) -> Identity:
        """Whom the request's token names. Raises `Rejection`."""
        token = bearer_token(head.fields.get(b"authorization"))
        if token is None or self._authenticate is None:
            return ANONYMOUS
        try:
            return self._authenticate(token, time.time())
        except TokenRefused as refused:
            challenge = (b"www-authenticate", b'Bearer error="invalid_token"')
            raise Rejection(401, refused.reason, headers=(challenge,)) from None

    def may_any(self, verb: Verb, visitor: Identity) -> bool:
        """Whether there is anything at all to which somebody may do that."""
        return self._rights.grants_any(verb, visitor.role)

    def demand(self, verb: Verb, what: Pattern, visitor: Identity) -> None:
        """That somebody may do that. Raises `Rejection`: 401 where a token could help, else 403."""
        if self._rights.may(None, verb, what, visitor):
            return
        if visitor is ANONYMOUS and self._authenticate is not None:
            raise Rejection(401, NOT_ALLOWED[verb], headers=((b"www-authenticate", b"Bearer"),))
        raise Rejection(403, NOT_ALLOWED[verb])
