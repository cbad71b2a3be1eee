"""Who calls an HTTP API, and the check of its rights.

An invalid token is refused, never ignored. Where the server accepts no tokens, none is read: it may be meant for a
proxy.

Nearly every answer has to be waited for: the log is on a disk, and a program's policy may take seconds. Meanwhile rules
may change. So what a caller has been allowed is asked again at the last moment: when a response begins, or before that
when the request has its effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from halley.broker.errors import TokenRefused
from halley.broker.limits import sharer_of
from halley.broker.names import Match, Pattern
from halley.broker.policy import ANONYMOUS, Identities, Proof, Rights, proved_by
from halley.broker.ports import Reader
from halley.broker.rates import Rates
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.contract import Context
from halley.settings import Verb
from halley.transports.exchange import Exchange
from halley.transports.guard import Rejection
from halley.transports.head import BAD_TOKEN, RETRY_AFTER
from halley.transports.waits import outcome_of

NOT_ALLOWED = {
    "subscribe": "not allowed to subscribe to that, so not to read its history",
    "export": "not allowed: a rule must grant export on /**",
    "erase": "not allowed: a rule must grant erase on all events to be erased",
}
"""The response to a caller that lacks a right, by its verb."""

EVERYTHING = Pattern(Match.DESCENDANTS, "")


_FOR_NAMES_AND_RIGHTS = (400, 401, 403)
TOO_MANY_REFUSED = "too many requests that are refused; try again later"


class Caller:
    """The caller of a request: what its token proves, its `address` and rights; whether its response `has_begun`."""

    def __init__(self, proof: Proof, address: str, rights: Rights, identities: Identities, rates: Rates) -> None:
        self.proof = proof
        self._address = address
        self._rights = rights
        self._identities = identities
        self._required: list[tuple[Verb, Pattern]] = []
        self._has_acted = self.has_begun = False
        self._rates = rates

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Do what may refuse a request for a name or a right. Raises `Rejection`: 429 where too many are refused."""
        try:
            yield
        except Rejection as rejection:
            if rejection.status in _FOR_NAMES_AND_RIGHTS and not self._rates.admit_refusal(
                None, self._address, monotonic()
            ):
                raise Rejection(429, TOO_MANY_REFUSED, headers=(RETRY_AFTER,)) from None
            raise

    def may_any(self, verb: Verb) -> bool:
        """Whether the caller has the right `verb` on anything at all."""
        return self._rights.grants_any(verb, self.proof)

    def require(self, verb: Verb, pattern: Pattern = EVERYTHING) -> None:
        """Check the right `verb` on a whole pattern. Raises `Rejection`: 401 if a token could help, else 403."""
        if self._rights.may(None, verb, pattern, self.proof):
            self._required.append((verb, pattern))
            return
        if self.proof is ANONYMOUS and self._identities.accept_tokens:
            raise Rejection(401, NOT_ALLOWED[verb], headers=((b"www-authenticate", b"Bearer"),))
        raise Rejection(403, NOT_ALLOWED[verb])

    async def authorize(
        self, patterns: Sequence[Pattern], hooks: Hooks, context: Context, policy_s: float, denied: str
    ) -> None:
        """Check that the rules, and then the program's hooks, let the caller subscribe to all these patterns.

        The program has `policy_s` seconds to decide about all. Raises `Rejection`: 403 with `denied` if it refuses.
        """
        for pattern in patterns:
            self.require("subscribe", pattern)
        answers = hooks.permit_each("subscribe", patterns, self.proof, context)
        if not isinstance(answers, list):
            answers, error = await outcome_of(answers, policy_s)
            if error is not None:
                hooks.report("policy.can_subscribe", error)
        if not answers or not all(answers):
            raise Rejection(403, denied)

    def require_still(self) -> None:
        """Check all that was required once more, since it may be gone: the token too. Raises `Rejection`."""
        if not self._identities.is_current(self.proof.credential):
            raise Rejection(401, TokenRefused.reason, headers=(BAD_TOKEN,))
        required, self._required = self._required, []
        for verb, pattern in required:
            self.require(verb, pattern)

    def act(self) -> None:
        """Check all once more, and for the last time: what is done now is acknowledged. Raises `Rejection`."""
        self.require_still()
        self._has_acted = True

    def begin_response(self) -> None:
        """Check all once more, unless the request has had its effect already. Raises `Rejection`."""
        if not self._has_acted:
            self.require_still()
        self.has_begun = True


def caller_by(token: str | None, address: str, rights: Rights, identities: Identities, rates: Rates) -> Caller:
    """The caller that a token proves; an anonymous one without. Raises `Rejection` (401) for an invalid token."""
    try:
        proof = proved_by(token, identities, time.time())
    except TokenRefused as refused:
        raise Rejection(401, refused.reason, headers=(BAD_TOKEN,)) from None
    return Caller(proof, address, rights, identities, rates)


def reader_of(exchange: Exchange, authid: str | None, account_of: Callable[[str], str | None]) -> Reader:
    """Who reads the history by a request: a proved `authid`, else the client's address, else the connection."""
    return Reader(sharer_of(authid, account_of(exchange.source[0]), exchange.peer))
