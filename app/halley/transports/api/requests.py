"""What all HTTP APIs share: one request with its caller and the log, the checks of both, and the parameters of a query.

An invalid token is refused, never ignored. Where the server accepts no tokens, none is read: it may be meant for a
proxy. A wrong parameter is answered with one fixed sentence; nothing that was sent is repeated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar
from urllib.parse import parse_qsl

from halley.broker.errors import TokenRefused
from halley.broker.names import Match, Pattern
from halley.broker.policy import ANONYMOUS, Identities, Proof, Rights
from halley.broker.ports import Erasure, Page, Query
from halley.history.stored import Stored
from halley.settings import Verb
from halley.transports.guard import Rejection
from halley.transports.head import Head, bearer_token
from halley.transports.middleware import RequestContext

Result = TypeVar("Result")

OFF = "history is off on this server"
ELSEWHERE = "this server keeps no rows of the log; ask one of its cluster that is not a front"
NONE_KNOWN = "unknown parameter; this path takes none"
TWICE = "duplicate parameter"
UNREADABLE = "the query is not UTF-8"
NOT_ALLOWED = {
    "subscribe": "not allowed to subscribe to that, so not to read its history",
    "export": "not allowed: a rule must grant export on /**",
    "erase": "not allowed: a rule must grant erase on all events to be erased",
}
"""The response to a caller that lacks a right, by its verb."""

EVERYTHING = Pattern(Match.DESCENDANTS, "")
LAST_OFFSET = 2**63 - 1
_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
_MOST_PARAMETERS = 32


class NoHistory(Exception):
    """The history is off on this server, or not open."""


class Archive(Protocol):
    """A log of which pages can be read. Its coroutines do their blocking work on threads, or ask other servers."""

    @property
    def start(self) -> int:
        """The first offset that is still there, even if it is too old to be shown to clients."""

    @property
    def head(self) -> int:
        """The last committed offset."""

    @property
    def kept(self) -> KeptArchive | None:
        """The log with all its rows; None if they are on other servers only."""

    async def settle(self) -> None:
        """Return when every event published before is committed or refused, or its wait for the commit timed out."""

    async def read(self, query: Query) -> Page:
        """One page of the history. Raises `UnknownPublication`, and `TimeoutError` after `history.read_s`."""


class KeptArchive(Archive, Protocol):
    """A log of which every row can be read."""

    @property
    def log_id(self) -> str:
        """The unique id of this log."""

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of offsets, first and last, that were lost in an earlier accident and cannot be restored."""

    @property
    def damage(self) -> list[tuple[int, int]]:
        """Ranges of offsets, first and last, in which rows are missing, or may be, for another reason than `holes`."""

    @property
    def consumers(self) -> Mapping[str, int]:
        """The consumers of the log, by name, each with the offset that it reads next."""

    async def report(self, consumer: str, offset: int) -> None:
        """Note that `consumer` reads `offset` next. Raises `TooManyConsumers`, `TimeoutError`, `OSError`."""

    async def forget(self, consumer: str) -> bool:
        """Delete a consumer, so that retention no longer waits for it; False if there is none of that name.

        Raises `TimeoutError`, `OSError`.
        """

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Run blocking `work` on a reader thread and return the result. Raises `TimeoutError` after `read_s`."""

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The stored rows from offset `first` to `last`, in batches of bounded size. Blocks."""

    async def absent(self) -> Sequence[str]:
        """The names of servers with the same log that have not erased what was erased until now, and will later."""

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase events and return their number.

        A thread calls `tell` with the number of offsets that are done and the number of all. A purge runs to its end
        even if its caller is cancelled. Raises `CannotPurge`, `OSError`.
        """


class Callers:
    """Identifies callers by their tokens, and checks their rights."""

    def __init__(self, rights: Rights, identities: Identities) -> None:
        self._rights = rights
        self._identities = identities

    def identify(self, head: Head) -> Proof:
        """The identity of a request's bearer token, or `ANONYMOUS`. Raises `Rejection` (401) for an invalid token."""
        token = bearer_token(head.fields.get(b"authorization"))
        if token is None or not self._identities.accept_tokens:
            return ANONYMOUS
        try:
            return self._identities.prove(token, time.time())
        except TokenRefused as refused:
            challenge = (b"www-authenticate", b'Bearer error="invalid_token"')
            raise Rejection(401, refused.reason, headers=(challenge,)) from None

    def may_any(self, verb: Verb, caller: Proof) -> bool:
        """Whether a caller has the right `verb` on anything at all."""
        return self._rights.grants_any(verb, caller)

    def require(self, verb: Verb, what: Pattern, caller: Proof) -> None:
        """Check a caller's right `verb` on `what`. Raises `Rejection`: 401 if a token could help, else 403."""
        if self._rights.may(None, verb, what, caller):
            return
        if caller is ANONYMOUS and self._identities.accept_tokens:
            raise Rejection(401, NOT_ALLOWED[verb], headers=((b"www-authenticate", b"Bearer"),))
        raise Rejection(403, NOT_ALLOWED[verb])


class ApiRequest:
    """A request that has passed the guard, with the identity of its caller."""

    def __init__(self, context: RequestContext, callers: Callers) -> None:
        """Identify the caller. Raises `Rejection` (401) for an invalid token."""
        self.context = context
        self.head = context.head
        self.caller = callers.identify(context.head)
        self._callers = callers

    def require(self, verb: Verb, what: Pattern = EVERYTHING) -> None:
        """Check that the caller has the right `verb` on `what`. Raises `Rejection` (401, 403)."""
        self._callers.require(verb, what, self.caller)

    def may_any(self, verb: Verb) -> bool:
        """Whether the caller has the right `verb` on anything at all."""
        return self._callers.may_any(verb, self.caller)

    def check_no_parameters(self) -> None:
        """Check that the query is empty. Raises `Rejection`."""
        parameters(self.head.query_string, {}, NONE_KNOWN)


class ArchiveRequest(ApiRequest):
    """A request that is about the log."""

    def __init__(self, context: RequestContext, callers: Callers, archive: Callable[[], Archive]) -> None:
        """Find the log, and identify the caller. Raises `Rejection`: 404 where the history is off, or 401."""
        try:
            self.archive = archive()
        except NoHistory:
            raise Rejection(404, OFF) from None
        super().__init__(context, callers)

    @property
    def kept(self) -> KeptArchive:
        """The log with all its rows. Raises `Rejection` (409) where they are on other servers only."""
        kept = self.archive.kept
        if kept is None:
            raise Rejection(409, ELSEWHERE)
        return kept


def parameters(query_string: bytes, known: Mapping[str, str], unknown: str) -> dict[str, str]:
    """The parameters of a query by name. Raises `Rejection` with the text `unknown` for one that is not in `known`.

    Raises `Rejection` also for a duplicate and for a query that is not UTF-8.
    """
    try:
        pairs = parse_qsl(
            query_string.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
        )
    except UnicodeError:
        raise Rejection(400, UNREADABLE) from None
    except ValueError:
        raise Rejection(400, TWICE) from None  # there are fewer known parameters than were sent
    given = dict(pairs)
    if not given.keys() <= known.keys():
        raise Rejection(400, unknown)
    if len(given) != len(pairs):
        raise Rejection(400, TWICE)
    return given


def whole(given: Mapping[str, str], name: str, expected: str, low: int, high: int = LAST_OFFSET) -> int:
    """The value of the parameter `name`, a whole number from `low` to `high`. Raises `Rejection`."""
    text = given[name]
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise bad_parameter(name, expected)
    return int(text)


def bad_parameter(name: str, expected: str) -> Rejection:
    """Make the rejection of a bad parameter: its name and what was expected."""
    return Rejection(400, f"{name}: expected {expected}")
