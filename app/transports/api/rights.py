"""`GET /rights`: the identity that the caller's token proves, and for each verb whether its role has any such right.

It is for pages that hide what their reader may not do. Whether a verb is allowed on one channel is decided at the
request itself, together with a program's own policies, which this response does not consider.

`Visitors` proves that identity for every API. An invalid token is refused, never ignored. Where the server accepts no
tokens, none is read: it may be meant for a proxy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, get_args

import orjson

from app.broker.errors import TokenRefused
from app.broker.policy import ANONYMOUS, Identities, Identity, Rights
from app.broker.topics import Pattern
from app.settings import Verb
from app.transports.api.history_query import NONE_KNOWN, parameters
from app.transports.authorization import bearer_token
from app.transports.door import Door, Visit
from app.transports.guard import Rejection
from app.transports.head import Head

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PATH = "/rights"

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


class RightsApi:
    """Answers `{"authid", "role", "may": {VERB: true or false, ...}}`; 401 where the token is invalid."""

    def __init__(self, door: Door, visitors: Visitors) -> None:
        self._door = door
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._door.let_in(("GET", "HEAD"), self._serve, scope, receive, send)

    async def _serve(self, visit: Visit) -> None:
        visitor = self._visitors.identify(visit.head)
        parameters(visit.head.query_string, {}, NONE_KNOWN)
        may = {verb: self._visitors.may_any(verb, visitor) for verb in get_args(Verb)}
        await visit.answer(
            b"application/json", orjson.dumps({"authid": visitor.authid, "role": visitor.role, "may": may})
        )
