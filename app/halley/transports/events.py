"""The endpoint of events: `GET /events/CHANNEL` is a stream of them, `POST /events/CHANNEL` publishes one.

A browser's `EventSource` comes back after the end of a stream, but never after another status than 200. So what is
wrong with a request is answered by 4xx, and what is only so at the moment is not: such a stream ends at once, with the
time to come back. A reader that does not name `text/event-stream`, or prefers lines of JSON, gets 503 instead.

What stands for `EventSource` where that cannot do what a page needs adds parameters of its own to the URL: where the
reader was, and others that only keep caches away. A page cannot change them, so an error would end it for ever.

On Halley's own host a stream gets its connection (`host/streams.py`), and needs no task. Under other servers, and for
HTTP/1.0, a task of each stream writes what comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final, NamedTuple

import orjson
from starlette.types import Receive, Scope, Send

from halley.broker.errors import AtCapacity, InvalidName, Refusal
from halley.broker.names import Pattern
from halley.broker.policy import Identities, Rights
from halley.broker.ports import Query
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.names import META, SERVICE, to_pattern
from halley.protocols.bayeux.outcomes import Request, Transport
from halley.protocols.contract import Close, Engine
from halley.protocols.events.messages import LINES, SSE, WITH_POSITION_EVENTS, Form
from halley.protocols.events.protocol import Beginning, Events
from halley.protocols.events.stream import LATER_S
from halley.settings import Settings
from halley.transports.api.archive import unread
from halley.transports.api.identity import Caller, caller_by
from halley.transports.api.parameters import bad_parameter, number_of, pairs_of, single, whole
from halley.transports.api.responses import PRIVATE
from halley.transports.asgi import AsgiConnection, host_connection, reader_in, respond
from halley.transports.bodies import disconnected, read_body, value_of_body, while_connected
from halley.transports.guard import Guard, Rejection
from halley.transports.head import RETRY_AFTER, Head, Header, bearer_token, route_path, weights
from halley.transports.middleware import GuardMiddleware, Note, cors_in, head_in
from halley.transports.waits import outcome_of
from halley.transports.websocket import Endpoint

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
_NO_LOG: Final = ""  # the log of an id that is not a position: of another server's event
_STATUSES: Final = {402: 403, 404: 403, 405: 400, 412: 409}
"""The statuses for codes of Bayeux's errors that mean something else in HTTP."""


class Asked(NamedTuple):
    """What a request for a stream asks for; `last` is the number of events before it that it is to begin with."""

    beginning: Beginning
    last: int
    form: Form
    can_come_back: bool
    """Whether the client names `text/event-stream`, and gets it: it comes back when its stream ends."""


class EventsEndpoint(Endpoint):
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
        self.guard = guard
        self._events = events
        self._engine = engine
        self._note = note
        self._rights = rights
        self._identities = identities
        self._settings = settings
        self._guarded = GuardMiddleware(self._serve, guard, note, "GET", "HEAD", "POST")

    def matches(self, path: str) -> bool:
        """Whether a path is `/events`, or below it."""
        return path == PATH or path.startswith(f"{PATH}/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, a stream or a publish (ASGI)."""
        await self._guarded(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = head_in(scope)
        channel = route_path(scope)[len(PATH) :]
        pairs = pairs_of(head.query_string)
        caller, token = self._caller(head, pairs)
        pairs = [pair for pair in pairs if pair[0] != "access_token"]
        if head.method == "POST":
            single(pairs, {}, NONE_TAKEN)
            await self._publish(channel, caller, token, AsgiConnection(self._engine, scope, receive, send))
            return
        with caller.asking():
            asked = self._read(channel, pairs, head)
        if head.method == "HEAD":
            await self._admit(asked, caller, scope, receive)
            caller.require_still()
            await send({"type": "http.response.start", "status": 200, "headers": self._headers(asked.form, scope)})
            await send({"type": "http.response.body", "body": b""})
            return
        try:
            beginning = await self._admit(asked, caller, scope, receive)
            await self._stream(asked, beginning, caller, scope, receive, send)
        except Rejection as rejection:
            if rejection.status != 503 or not asked.can_come_back:
                raise
            self._note(rejection, head)
            await respond(send, 200, self._headers(asked.form, scope), asked.form.later(LATER_S))

    def _caller(self, head: Head, pairs: list[tuple[str, str]]) -> tuple[Caller, str | None]:
        """Who asks, and the token that proves it. Raises `Rejection`."""
        token = bearer_token(head.fields.get(b"authorization"))
        tokens = [value for name, value in pairs if name == "access_token"]
        if tokens:
            if not self._settings.events.query_token:  # it would be passed over, and its reader be anybody
                raise Rejection(400, NO_QUERY_TOKEN)
            if len(tokens) + (token is not None) > 1:  # RFC 6750, 2
                raise Rejection(400, TWO_TOKENS)
            token = tokens[0]
        rates = self._engine.broker.rates
        return caller_by(token, head.address, self._rights, self._identities, rates), token

    # Streams

    def _read(self, channel: str, pairs: list[tuple[str, str]], head: Head) -> Asked:
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
        given = single(pairs, EXPECTED, KNOWN)
        if given.get("positions", "event") != "event":
            raise bad_parameter("positions", EXPECTED["positions"])
        if "positions" in given:
            form = WITH_POSITION_EVENTS[form]
        after, last, log = self._start(given, next(filter(None, reversed(ids)), ""))
        return Asked(Beginning(patterns, after, log), last, form, can_come_back)

    def _start(self, given: Mapping[str, str], last_id: str) -> tuple[int | None, int, str | None]:
        """After which position a stream begins, how many events before it, and of which log. Raises `Rejection`."""
        after, last, log = None, 0, given.get("log")
        if "after_position" in given and "last" in given:
            raise Rejection(400, CONTRADICTION)
        if "after_position" in given:
            after = whole(given, "after_position", EXPECTED["after_position"], 0)
        if "last" in given:
            last = min(whole(given, "last", EXPECTED["last"], 0), self._settings.history.page_events)
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

    async def _admit(self, asked: Asked, caller: Caller, scope: Scope, receive: Receive) -> Beginning:
        """Check that a client may have a stream, and find where it begins, if it is to be one (GET).

        Raises `Rejection`, `Disconnected`.
        """
        with caller.asking():
            return await self._beginning_of(asked, caller, scope, receive)

    async def _beginning_of(self, asked: Asked, caller: Caller, scope: Scope, receive: Receive) -> Beginning:
        head, beginning, patterns = head_in(scope), asked.beginning, asked.beginning.patterns
        for pattern in patterns:
            caller.require("subscribe", pattern)
        hooks = self._engine.hooks
        answers = hooks.permit_each("subscribe", patterns, caller.proof, head)
        if not isinstance(answers, list):
            answers, error = await outcome_of(answers, self._settings.bayeux.policy_s)
            if error is not None:
                hooks.report("policy.can_subscribe", error)
        if not answers or not all(answers):
            raise Rejection(403, DENIED)
        commits = self._engine.broker.commits
        if beginning.after is not None and commits.reach is not None and beginning.after > commits.tail.head:
            is_known, _ = await outcome_of(commits.reach(beginning.after), self._settings.history.read_s)
            if is_known is False:  # that position may be one of the log: as of another, the reader would get it twice
                raise Rejection(503, BEHIND, headers=(RETRY_AFTER,))
        if asked.last and commits.log is not None and head.method != "HEAD":
            beginning = await while_connected(receive, self._before_last(asked, caller, scope))
        return beginning

    async def _before_last(self, asked: Asked, caller: Caller, scope: Scope) -> Beginning:
        """Where a stream begins with the last events that a client asked for. Raises `Rejection` (503).

        They may be seldom, and the log is long: so it is searched page by page, each in its turn, for
        `events.last_pages` of them and for `history.read_s` at most; then the stream begins there.
        """
        broker, proof = self._engine.broker, caller.proof
        reader = reader_in(scope, proof.authid, broker.account_of)
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

    async def _stream(
        self, asked: Asked, beginning: Beginning, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Begin a stream; under a foreign server, serve it to its end. Raises `Rejection`."""
        head, headers, form = head_in(scope), self._headers(asked.form, scope), asked.form
        connection = host_connection(scope)
        link: Any = None
        if connection is not None and scope["http_version"] == "1.1":
            await connection.drained()
            link = connection.stream()
        else:
            link = AsgiStream(send, self._settings.limits.write_s)
        caller.require_still()
        try:
            engine, first = self._events.open(beginning, link, form, caller.proof, head, monotonic())
        except AtCapacity:
            raise Rejection(503, NO_ROOM, headers=(RETRY_AFTER,)) from None
        except Refusal as refusal:
            raise Rejection(403, f"not allowed: {refusal.reason}") from None
        link.engine = engine
        if connection is not None and not isinstance(link, AsgiStream):
            connection.begin_stream(link, headers, link.text(first) if first else b"")
        else:
            await link.serve(receive, headers, first)

    def _headers(self, form: Form, scope: Scope) -> list[Header]:
        headers = [(b"content-type", form.content_type), *PRIVATE, _UNBUFFERED, (b"vary", b"Accept"), *cors_in(scope)]
        log = self._engine.broker.commits.log
        return headers if log is None else [*headers, (b"halley-log", log.log_id.encode()), *_exposed(headers)]

    # Publishing

    async def _publish(self, channel: str, caller: Caller, token: str | None, connection: AsgiConnection) -> None:
        """Publish the body as a Bayeux publish without a session is published, and answer with its position."""
        scope, head = connection.scope, head_in(connection.scope)
        body = await read_body(connection.receive, self._settings.limits)
        if len(channel) < 2:
            raise Rejection(400, f"expected {PATH}/CHANNEL")
        _check_open_to_clients(channel)
        data, has_odd_numbers = value_of_body(body, self._settings.limits)
        fields: dict[str, Any] = {"channel": channel, "data": data}
        keys = [value for name, value in scope["headers"] if name == b"idempotency-key"]
        if len(keys) > 1:  # a gateway that adds one of its own would have a repeat published again
            raise Rejection(400, TWO_KEYS)
        if keys:
            fields["ext"] = {"idempotency_key": keys[0].decode("latin-1")}
        request = Request([fields], Transport.LONG_POLLING, connection, (), head)
        request.has_odd_numbers = has_odd_numbers
        request.token, request.visitor = token, caller.proof
        request.traceparent = head.fields.get(b"traceparent")
        reply = await connection.reply_to(request)
        if reply is None:
            return
        answer = orjson.loads(reply.parts[0])
        if not answer["successful"]:
            caller.require_still()  # of a token that is gone HTTP has its own word
            raise self._refusal(answer["error"], caller)
        position = (answer.get("ext") or {}).get("position")
        headers = [(b"content-type", b"application/json"), *PRIVATE, *cors_in(scope)]
        await respond(connection.send, 200, headers, orjson.dumps({"position": position}))

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


def _exposed(headers: list[Header]) -> list[Header]:
    """What lets a page of another origin read the id of the log, if CORS is about such a page."""
    is_foreign = any(name == b"access-control-allow-origin" for name, _ in headers)
    return [(b"access-control-expose-headers", b"Halley-Log")] if is_foreign else []


def _check_open_to_clients(channel: str) -> None:
    """Check that a channel is not Bayeux's own. Raises `Rejection` (403)."""
    if channel == META.rstrip("/") or channel.startswith((META, SERVICE)):
        raise Rejection(403, NOT_FOR_CLIENTS)


class AsgiStream:
    """A stream under another server than Halley's own host; the engine's `Link`.

    Its messages go through `send`, one at a time, which waits for a slow peer. So the engine is paused as soon as a
    message waits here. A peer that takes none for `write_s` is given up.
    """

    kind = "plain"
    subprotocol = ""
    engine: Engine

    def __init__(self, send: Send, write_s: float) -> None:
        self._send = send
        self._write_s = write_s
        self._waiting: list[bytes] = []
        self._news = asyncio.Event()
        self._is_over = False
        self.backlog_bytes = 0

    @staticmethod
    def text(message: bytes) -> bytes:
        """Return a message as it is: the server frames it."""
        return message

    binary = text

    def write(self, outcome: list[bytes] | Close) -> None:
        """Send messages; a `Close` ends the response after them. See `Link`."""
        if self._is_over:
            return
        if isinstance(outcome, Close):
            self._is_over = True
            outcome = outcome.frames
        else:
            self.engine.paused()
        self._waiting += outcome
        self.backlog_bytes += sum(map(len, outcome))
        self._news.set()

    async def serve(self, receive: Receive, headers: list[Header], first: bytes) -> None:
        """Send the head and the first message, then write until either side ends the stream."""
        ends = [asyncio.ensure_future(disconnected(receive)), asyncio.ensure_future(self._write(headers, first))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._is_over = True
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            self.engine.lost(monotonic())
            del self.engine  # it refers to this: else both would wait for the cyclic collector

    async def _write(self, headers: list[Header], first: bytes) -> None:
        """Return when the end has been written, or the peer takes nothing any more."""
        start = {"type": "http.response.start", "status": 200, "headers": headers}
        is_taken = await self._is_sent(start) and await self._is_sent(_body(first))
        while is_taken:
            await self._news.wait()
            self._news.clear()
            messages, self._waiting = self._waiting, []
            if messages:
                is_taken = await self._is_sent(_body(b"".join(messages)))
            self.backlog_bytes -= sum(map(len, messages))
            if self._is_over:
                await self._is_sent(_body(b"", is_last=True))
                return
            self.engine.resumed(monotonic())

    async def _is_sent(self, event: dict[str, Any]) -> bool:
        """Whether an event could be sent: the peer is connected, and reads."""
        _, error = await outcome_of(self._send(event), self._write_s)  # servers raise different ones for a lost peer
        return error is None


def _body(piece: bytes, *, is_last: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": piece, "more_body": not is_last}
