"""The endpoint of events: `GET /events/CHANNEL` is a stream of them, `POST /events/CHANNEL` publishes one.

A browser's `EventSource` comes back after the end of a stream, but never after another status than 200. So what is
wrong with a request is answered by 4xx, and what is only so at the moment is not: such a stream ends at once, with the
time to come back. A reader that does not name `text/event-stream`, or prefers lines of JSON, gets 503 instead.

What stands for `EventSource` where that cannot do what a page needs adds parameters of its own to the URL: where the
reader was, and others that only keep caches away. A page cannot change them, so an error would end it for ever.

A stream needs a task only until it begins, where a program's policy or the history has to be waited for; on Halley's
own host it has its connection to itself then (`host/streams.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

import orjson

from halley.broker.errors import AtCapacity, InvalidName, Refusal
from halley.broker.names import Pattern
from halley.broker.policy import Identities, Rights
from halley.broker.ports import Query
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.names import META, SERVICE, to_pattern
from halley.protocols.bayeux.outcomes import AbortConnection, AwaitHook, Outcome, Request, Transport
from halley.protocols.bayeux.session import Reply
from halley.protocols.events.messages import LINES, SSE, WITH_POSITION_EVENTS, Form
from halley.protocols.events.protocol import Events, StartPosition
from halley.protocols.events.stream import LATER_S
from halley.settings import Settings
from halley.transports.api.archive import unread
from halley.transports.api.identity import Caller, caller_by, reader_of
from halley.transports.api.parameters import bad_parameter, int_param, number_of, pairs_of, unique_params
from halley.transports.api.responses import PRIVATE
from halley.transports.bodies import value_of_body
from halley.transports.exchange import Endpoint, Exchange, HeadOf, Note, fail, while_connected
from halley.transports.guard import Guard, Rejection
from halley.transports.head import RETRY_AFTER, Head, Header, Headers, bearer_token, weights
from halley.transports.routes import ProtocolEndpoint, Route
from halley.transports.waits import await_hooks, outcome_of

PATH: Final = "/events"
_CHANNELS: Final = 16

EXPECTED = {
    "channel": "a Bayeux channel, or one that ends in /* or /**",
    "after_position": "a position, a whole number of at least 0",
    "last": "a number of events, a whole number of at least 0",
    "log": "the id of a log, as Halley-Log names it",
    "positions": "event",
}
"""What each parameter besides the token and the last id expects."""

LAST_IDS: Final = ("lastEventId", "Last-Event-ID", "evs_last_event_id")
"""The parameters by which event-source-polyfill, reconnecting-eventsource and amvtek's polyfill send the last id."""

NO_CHANNEL = f"expected {PATH}/CHANNEL, where the channel may end in /* or /**, or {PATH}?channel=/CHANNEL"
TWO_WAYS = "expected a channel in the path or as a parameter, not both"
TOO_MANY = f"channel: expected at most {_CHANNELS}"
BAD_CHANNEL = f"channel: expected {EXPECTED['channel']}"
KNOWN = f"expected one of {', '.join(EXPECTED)}"
NONE_TAKEN = "publishing takes none"
CONTRADICTION = "expected one of after_position and last, not both"
NO_QUERY_TOKEN = "access_token: expected a token in Authorization, since events.query_token is off"  # noqa: S105
TWO_TOKENS = "expected a token in Authorization or as access_token, not both"
TWO_KEYS = "expected one Idempotency-Key"
UNACCEPTABLE = "expected Accept to allow text/event-stream or application/x-ndjson"
NOT_FOR_CLIENTS = "not allowed: /meta and /service are Bayeux's own"
DENIED = "the server's policy does not allow subscribing to that"
NO_ROOM = "no room for another stream; try again later"
BEHIND = "this node is behind that position, which its cluster may have reached; try again later"

_UNBUFFERED: Final = (b"x-accel-buffering", b"no")  # nginx would hold a stream back
_STREAMS: Final = {
    form: Headers((b"content-type", form.content_type), *PRIVATE, _UNBUFFERED, (b"vary", b"Accept"))
    for each in (SSE, LINES)
    for form in (each, WITH_POSITION_EVENTS[each])
}
_PUBLISHED: Final = Headers((b"content-type", b"application/json"), *PRIVATE)
_NO_LOG: Final = ""  # the log of an id that is not a position: of another server's event
_STATUSES: Final = {402: 403, 404: 403, 405: 400, 412: 409}
"""The statuses for codes of Bayeux's errors that mean something else in HTTP."""


class StreamRequest(NamedTuple):
    """What a request for a stream asks for; `last` is the number of events before it that it is to begin with."""

    beginning: StartPosition
    last: int
    form: Form
    reconnects: bool
    """Whether the client names `text/event-stream`, and gets it: it comes back when its stream ends."""


class PublishHead(NamedTuple):
    """What the head of a publish says: the channel and more of its target, and who sends it."""

    channel: str
    query_string: bytes
    token: str | None
    keys: tuple[bytes, ...]
    traceparent: bytes | None
    address: str


class EventsEndpoint(ProtocolEndpoint):
    """Serves `/events` and all below it."""

    def __init__(
        self,
        events: Events,
        engine: BayeuxEngine,
        guard: Guard,
        note: Note,
        rights: Rights,
        identities: Identities,
        settings: Settings,
    ) -> None:
        """Serve the streams of `events`, and publish by `engine`."""
        self._guard = guard
        self._events = events
        self._engine = engine
        self._note = note
        self._rights = rights
        self._identities = identities
        self._settings = settings

    def routes(self) -> list[Route]:
        """Return the route of `/events` and all below it."""
        return [Route(PATH, self, self._guard, ("GET", "HEAD", "POST", "OPTIONS"))]

    def prepare(self, head: Head, headers: Sequence[Header]) -> PublishHead | None:
        """Read what a publish needs of its head; nothing of a request for a stream."""
        if head.method != "POST":
            return None
        fields = head.fields
        return PublishHead(
            head.own_path[len(PATH) :],
            head.query_string,
            bearer_token(fields.get(b"authorization")),
            tuple([value for name, value in headers if name == b"idempotency-key"]),
            fields.get(b"traceparent"),
            head.address,
        )

    def serve(self, exchange: Exchange, prepared: PublishHead | None, body: bytes, head: HeadOf) -> None:
        """Serve one request, a stream or a publish. Raises `Rejection`."""
        if prepared is not None:
            self._publish(exchange, prepared, body, head)
            return
        known = head()
        pairs = pairs_of(known.query_string)
        caller, _ = self._caller(bearer_token(known.fields.get(b"authorization")), pairs, known.address)
        pairs = [pair for pair in pairs if pair[0] != "access_token"]
        with caller.asking():
            asked = self._read(known.own_path[len(PATH) :], pairs, known)
        exchange.run(self._answer(exchange, asked, caller, known), head)

    async def _answer(self, exchange: Exchange, asked: StreamRequest, caller: Caller, head: Head) -> None:
        """Admit a request for a stream, and begin that. Raises `Rejection`, `Disconnected`."""
        headers = _STREAMS[asked.form]
        try:
            with caller.asking():
                beginning = await self._beginning_of(exchange, asked, caller, head)
            if head.method == "HEAD":
                caller.require_still()
                exchange.respond(200, headers, None, self._more(exchange))
            else:
                self._stream(exchange, asked, beginning, caller, head)
        except Rejection as rejection:
            if rejection.status != 503 or not asked.reconnects or head.method == "HEAD":
                raise
            self._note(rejection, head)
            exchange.respond(200, headers, asked.form.later(LATER_S), self._more(exchange))

    def _caller(self, token: str | None, pairs: list[tuple[str, str]], address: str) -> tuple[Caller, str | None]:
        """Who asks, by this token or that of the parameters, and the token that proves it. Raises `Rejection`."""
        tokens = [value for name, value in pairs if name == "access_token"]
        if tokens:
            if not self._settings.events.query_token:  # it would be passed over, and its reader be anybody
                raise Rejection(400, NO_QUERY_TOKEN)
            if len(tokens) + (token is not None) > 1:  # RFC 6750, 2
                raise Rejection(400, TWO_TOKENS)
            token = tokens[0]
        rates = self._engine.broker.rates
        return caller_by(token, address, self._rights, self._identities, rates), token

    # Streams

    def _read(self, channel: str, pairs: list[tuple[str, str]], head: Head) -> StreamRequest:
        """Parse a request for a stream. Raises `Rejection`."""
        accept = head.fields.get(b"accept", b"").decode("latin-1")
        form = form_of(accept)
        can_come_back = form is SSE and "event-stream" in accept.lower()
        patterns = self._patterns(channel, [value for name, value in pairs if name == "channel"])
        ids = [value for name, value in pairs if name in LAST_IDS]  # a page's own, and behind it the reader's
        ids.append(head.fields.get(b"last-event-id", b"").decode("latin-1").strip())
        pairs = [pair for pair in pairs if pair[0] not in ("channel", *LAST_IDS)]
        if can_come_back:
            pairs = [pair for pair in pairs if pair[0] in EXPECTED]
        given = unique_params(pairs, EXPECTED, KNOWN)
        if given.get("positions", "event") != "event":
            raise bad_parameter("positions", EXPECTED["positions"])
        if "positions" in given:
            form = WITH_POSITION_EVENTS[form]
        after, last, log = self._start(given, next(filter(None, reversed(ids)), ""))
        return StreamRequest(StartPosition(patterns, after, log), last, form, can_come_back)

    def _start(self, given: Mapping[str, str], last_id: str) -> tuple[int | None, int, str | None]:
        """After which position a stream begins, how many events before it, and of which log. Raises `Rejection`."""
        after, last, log = None, 0, given.get("log")
        if "after_position" in given and "last" in given:
            raise Rejection(400, CONTRADICTION)
        if "after_position" in given:
            after = int_param(given, "after_position", EXPECTED["after_position"], 0)
        if "last" in given:
            last = min(int_param(given, "last", EXPECTED["last"], 0), self._settings.history.page_events)
        if log == "":
            raise bad_parameter("log", EXPECTED["log"])
        if not last_id:
            return after, last, log
        position = number_of(last_id)  # who comes back sends the first URL again, and this
        return (0, 0, _NO_LOG) if position is None else (position, 0, log)

    def _patterns(self, channel: str, names: list[str]) -> tuple[Pattern, ...]:
        """What a stream is of, as the path or the parameters name it. Raises `Rejection`."""
        if len(channel) > 1:
            if names:
                raise Rejection(400, TWO_WAYS)
            names = [channel]
        if not names:
            raise Rejection(400, NO_CHANNEL)
        if len(names) > _CHANNELS:
            raise Rejection(400, TOO_MANY)
        return tuple(dict.fromkeys(self._pattern(name) for name in names))

    def _pattern(self, name: str) -> Pattern:
        try:
            pattern = to_pattern(name, self._engine.bounds)
        except InvalidName:
            raise Rejection(400, BAD_CHANNEL) from None
        _check_open_to_clients(name)
        return pattern

    async def _beginning_of(
        self, exchange: Exchange, asked: StreamRequest, caller: Caller, head: Head
    ) -> StartPosition:
        """Check that a client may have a stream, and find where it begins, if it is to be one (GET).

        Raises `Rejection`, `Disconnected`.
        """
        beginning = asked.beginning
        policy_s = self._settings.bayeux.policy_s
        await caller.authorize(beginning.patterns, self._engine.hooks, head, policy_s, DENIED)
        commits = self._engine.broker.commits
        if beginning.after is not None and commits.reach is not None and beginning.after > commits.tail.head:
            is_known, _ = await outcome_of(commits.reach(beginning.after), self._settings.history.read_s)
            if is_known is False:  # that position may be one of the log: as of another, the reader would get it twice
                raise Rejection(503, BEHIND, headers=(RETRY_AFTER,))
        if asked.last and commits.log is not None and head.method != "HEAD":
            beginning = await while_connected(exchange, self._before_last(exchange, asked, caller))
        return beginning

    async def _before_last(self, exchange: Exchange, asked: StreamRequest, caller: Caller) -> StartPosition:
        """Where a stream begins with the last events that a client asked for. Raises `Rejection` (503).

        They may be seldom, and the log is long: so it is searched page by page, each in its turn, for
        `events.last_pages` of them and for `history.read_s` at most; then the stream begins there.
        """
        broker, proof = self._engine.broker, caller.proof
        reader = reader_of(exchange, proof.authid, broker.account_of)
        wanted = tuple((pattern, 0) for pattern in asked.beginning.patterns)
        left, head = asked.last, broker.commits.tail.head
        after = at = head
        try:
            async with asyncio.timeout(self._settings.history.read_s):
                for _ in range(self._settings.events.last_pages):
                    query = Query(wanted, at, 1, proof.authid, proof.role, limit=left, is_reverse=True)
                    page = await self._events.streams.read(query, reader)
                    if page.events:
                        after = page.events[-1].position - 1
                    left, at = left - len(page.events), page.reached - 1
                    if page.is_end or not left:
                        return asked.beginning._replace(after=after, log=None)
        except OSError as error:
            if at == head or not isinstance(error, TimeoutError):
                raise unread(error) from None
        broker.hits["last_pages"] += 1
        return asked.beginning._replace(after=at, log=None, is_short=True)

    def _stream(
        self, exchange: Exchange, asked: StreamRequest, beginning: StartPosition, caller: Caller, head: Head
    ) -> None:
        """Begin a stream. Raises `Rejection`."""
        link = exchange.stream()
        caller.require_still()
        try:
            engine, first = self._events.open_stream(beginning, link, asked.form, caller.proof, head, monotonic())
        except AtCapacity:
            raise Rejection(503, NO_ROOM, headers=(RETRY_AFTER,)) from None
        except Refusal as refusal:
            raise Rejection(403, f"not allowed: {refusal.reason}") from None
        link.engine = engine
        exchange.begin_stream(link, _STREAMS[asked.form], self._more(exchange), first)

    def _more(self, exchange: Exchange) -> list[Header]:
        """The id of the log, and what lets a page of another origin read it, if CORS is about such a page."""
        log = self._engine.broker.commits.log
        if log is None:
            return []
        more = [(b"halley-log", log.log_id.encode())]
        if any(name == b"access-control-allow-origin" for name, _ in exchange.cors):
            more.append((b"access-control-expose-headers", b"Halley-Log"))
        return more

    # Publishing

    def _publish(self, exchange: Exchange, asked: PublishHead, body: bytes, head: HeadOf) -> None:
        """Publish the body as a Bayeux publish without a session is published. Raises `Rejection`."""
        channel, query_string, token, keys, traceparent, address = asked
        pairs = pairs_of(query_string) if query_string else []
        caller, token = self._caller(token, pairs, address)
        if pairs:
            unique_params([pair for pair in pairs if pair[0] != "access_token"], {}, NONE_TAKEN)
        if len(channel) < 2:
            raise Rejection(400, f"expected {PATH}/CHANNEL")
        _check_open_to_clients(channel)
        data, has_big_numbers = value_of_body(body, self._settings.limits)
        fields: dict[str, Any] = {"channel": channel, "data": data}
        if len(keys) > 1:  # a gateway that adds one of its own would have a repeat published again
            raise Rejection(400, TWO_KEYS)
        if keys:
            fields["ext"] = {"idempotency_key": keys[0].decode("latin-1")}
        request = Request([fields], Transport.LONG_POLLING, exchange, (), head, address)
        request.has_big_numbers = has_big_numbers
        request.token, request.visitor = token, caller.proof
        request.traceparent = traceparent
        exchange.endpoint = _Published(self, caller, head)
        exchange.write(self._engine.receive(request, monotonic()))

    def wait(self, exchange: Exchange, outcome: Outcome | AbortConnection, head: HeadOf) -> None:
        """Await the hook of the program that a publish waits for; what else it waits for writes the outcome later."""
        if isinstance(outcome, AwaitHook):
            await_hooks(self._engine, exchange, outcome, head)

    def respond(self, exchange: Exchange, reply: Reply, caller: Caller, head: HeadOf) -> None:
        """Answer a publish with its position, or with what Bayeux's error is in HTTP."""
        answer = orjson.loads(reply.parts[0])
        if answer["successful"]:
            position = (answer.get("ext") or {}).get("position")
            exchange.respond(200, _PUBLISHED, orjson.dumps({"position": position}))
            return
        try:
            caller.require_still()  # of a token that is gone HTTP has its own word
            raise self._refusal(answer["error"], caller)
        except Rejection as rejection:
            fail(exchange, rejection, self._note, head)

    def _refusal(self, error: str, caller: Caller) -> Rejection:
        """The rejection that a Bayeux error is in HTTP."""
        code, text = int(error[:3]), error.partition(":")[2].strip(":").replace(":", ": ")
        if error.startswith("403:rate_limited:"):
            return Rejection(429, text, headers=(RETRY_AFTER,))
        status = _STATUSES.get(code, code)
        if status == 503:
            return Rejection(status, text, headers=(RETRY_AFTER,))
        if status == 403 and self._identities.accept_tokens and caller.proof.authid is None:
            return Rejection(401, text, headers=((b"www-authenticate", b"Bearer"),))
        return Rejection(status, text)


def form_of(accept: str) -> Form:
    """The form that an Accept header asks for; server-sent events if it allows both alike. Raises `Rejection` (406)."""
    if not accept.strip():
        return SSE
    named = weights(accept)

    def quality(form: Form) -> float:
        kind = form.content_type.decode()
        names = (kind, f"{kind.partition('/')[0]}/*", "*/*")
        return next((named[name] for name in names if name in named), 0.0)

    events, lines = quality(SSE), quality(LINES)
    if not events and not lines:
        raise Rejection(406, UNACCEPTABLE, headers=((b"vary", b"Accept"),))
    return SSE if events >= lines else LINES


def _check_open_to_clients(channel: str) -> None:
    """Check that a channel is not Bayeux's own. Raises `Rejection` (403)."""
    if channel == META.rstrip("/") or channel.startswith((META, SERVICE)):
        raise Rejection(403, NOT_FOR_CLIENTS)


class _Published(Endpoint):
    """What answers one publish."""

    def __init__(self, events: EventsEndpoint, caller: Caller, head: HeadOf) -> None:
        self._events = events
        self._caller = caller
        self._head = head

    def write(self, exchange: Exchange, outcome: Any) -> None:
        """Respond, or wait for what has to be awaited."""
        if type(outcome) is Reply:
            self._events.respond(exchange, outcome, self._caller, self._head)
        else:
            self._events.wait(exchange, outcome, self._head)
