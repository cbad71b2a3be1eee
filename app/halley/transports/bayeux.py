"""The requests of Bayeux, at its paths and below them.

A POST is long-polling (Bayeux 1.0, 6.1): messages in its body, and replies as a JSON array. A GET is callback-polling
(`callback_polling.py`), or opens a WebSocket (`bayeux_route.py`, which also has the routes). The engine knows the
exchange of a request as its `connection`. A held connect is only the `Hold` that its exchange keeps: there is no task
for it, and none for any other request that waits, but for one that waits for a hook of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.fast import FastPath, usual
from halley.protocols.bayeux.outcomes import AbortConnection, AwaitHook, Misdirected, Outcome, Request, Transport
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.protocols.bayeux.sessions import Sessions
from halley.settings import Settings
from halley.transports import callback_polling
from halley.transports.bodies import IN_UTF_8, charset_of, messages_of_body
from halley.transports.cookies import browser_cookie, cookie_values
from halley.transports.exchange import Endpoint, Exchange, HeadOf, Note
from halley.transports.guard import Guard, Rejection
from halley.transports.head import CLOSE, JSON, RETRY_AFTER, UNCACHED, Head, Header, Headers, bearer_token
from halley.transports.relay import Relay, pass_on
from halley.transports.waits import await_hooks

_HEADERS: Final = Headers(JSON, *UNCACHED)
"""The headers of every response by long-polling."""
_SCRIPT: Final = Headers(*callback_polling.HEADERS)
_LONG_POLLING = Transport.LONG_POLLING
_NO_MORE: Final[tuple[Header, ...]] = ()


class PostHead(NamedTuple):
    """What the head of a POST says of its messages, of who sends them, in which trace, and from where."""

    content_type: bytes
    cookies: tuple[str, ...]
    token: str | None
    traceparent: bytes | None = None
    address: str | None = None


class Polling(Endpoint):
    """The endpoint of long-polling by POST and callback-polling by GET.

    `relay` passes on requests of sessions that another node of a cluster has; a server alone has none.
    """

    def __init__(
        self, engine: BayeuxEngine, guard: Guard, note: Note, settings: Settings, relay: Relay | None = None
    ) -> None:
        self._guard = guard
        self._relay = relay
        self._note = note
        self._engine: BayeuxEngine = engine
        self._sessions: Sessions = engine.sessions
        self._fast: FastPath = engine.fast
        self._by_id = engine.broker.sessions
        self._extensions = engine.hooks.extensions
        self._settings = settings
        self._limits = settings.limits
        self._cookie_field = settings.cookie.name.encode()

    def prepare(self, head: Head, headers: Sequence[Header]) -> PostHead | Rejection | None:
        """Read what a POST's head says; check whether a GET can be for a script. Raises `Rejection`.

        A page cannot read the refusal of a script: so that is returned, and will be a script.
        """
        fields = head.fields
        if head.method == "POST":
            cookie, proof = fields.get(b"cookie"), fields.get(b"authorization")
            cookies = () if cookie is None else cookie_values(cookie, self._cookie_field)
            token = None if proof is None else bearer_token(proof)
            return PostHead(fields.get(b"content-type", b""), cookies, token, fields.get(b"traceparent"), head.address)
        callback_polling.check(head, self._settings.bayeux)
        try:
            self._guard.check_script(head, headers)
        except Rejection as rejection:
            return rejection
        return None

    def serve(self, exchange: Exchange, prepared: Any, body: bytes, head: HeadOf) -> None:
        """Serve a request. Raises `Rejection`."""
        if type(prepared) is not PostHead:
            self._serve_script(exchange, prepared, head())
            return
        request = self._request(prepared, body, exchange, head)
        try:
            outcome = self._engine.receive(request, monotonic())
        except Misdirected as misdirected:
            self._pass_on(exchange, misdirected, body, head)
            return
        if type(outcome) is Hold and not self._extensions:
            exchange.remember_connect(body, request.messages, outcome.session)
        self.write(exchange, outcome)

    def serve_again(self, exchange: Exchange, session_id: str, cookies: tuple[str, ...], message_id: str) -> bool:
        """Serve a connect of a session that is here (`Endpoint.serve_again`)."""
        session = self._by_id.get(session_id)
        if type(session) is not BayeuxSession:
            return False
        outcome = self._fast.connect_again(session, cookies, message_id, exchange, monotonic())
        if outcome is None:
            return False
        if type(outcome) is Hold:
            exchange.waiting = outcome
        else:
            self.write(exchange, outcome)
        return True

    def _serve_script(self, exchange: Exchange, rejection: Rejection | None, head: Head) -> None:
        """Serve callback-polling. Raises `Rejection`."""
        if rejection is not None:
            self._note(rejection, head)
            exchange.cors = _NO_MORE
            exchange.respond(rejection.status, _SCRIPT, callback_polling.render_refusal(rejection.text))
            return
        callback, batch = callback_polling.read(head, self._settings.bayeux, self._limits)
        exchange.endpoint = _Script(self, callback)
        cookies = cookie_values(head.fields.get(b"cookie", b""), self._cookie_field)
        request = Request(batch.messages, Transport.CALLBACK_POLLING, exchange, cookies, head)
        request.has_big_numbers = batch.has_big_numbers
        try:
            outcome = self._engine.receive(request, monotonic())
        except Misdirected as misdirected:
            self._pass_on(exchange, misdirected, b"", lambda: head)
        else:
            exchange.write(outcome)

    def _request(self, post: PostHead, body: bytes, exchange: Exchange, context: HeadOf) -> Request:
        """Make the engine's `Request` from a POST. Raises `Rejection`."""
        content_type, cookies, token, traceparent, address = post
        is_utf_8 = content_type in IN_UTF_8 or charset_of(content_type) == "utf-8"
        messages = usual(body, self._limits) if is_utf_8 else None
        if messages is not None:
            request = Request(messages, _LONG_POLLING, exchange, cookies, context, address)
        else:
            batch = messages_of_body(body, content_type, self._limits)
            request = Request(batch.messages, _LONG_POLLING, exchange, cookies, context, address)
            request.has_big_numbers = batch.has_big_numbers
        if token is not None:
            request.token = token
        if traceparent is not None:
            request.traceparent = traceparent
        return request

    def write(self, exchange: Exchange, outcome: Any) -> None:
        """Respond with a reply, or wait for one. It is reported to the engine whether a reply was written."""
        if type(outcome) is not Reply:
            self._wait(exchange, outcome)
        elif exchange.is_over and (outcome.events or outcome.answers_connect):
            self._take_back(exchange, outcome)
        elif outcome.status != 200 or outcome.set_cookie is not None or outcome.is_last:
            self._respond(exchange, outcome, _HEADERS, outcome.body())
        elif exchange.respond_array(_HEADERS, outcome.parts):
            self._sessions.settle(outcome)
        else:
            self._settle_later(exchange, outcome)

    def write_script(self, exchange: Exchange, outcome: Any, callback: str) -> None:
        """Do what `write` does, but respond with a call of the script's function `callback`."""
        if type(outcome) is not Reply:
            self._wait(exchange, outcome)
        elif exchange.is_over and (outcome.events or outcome.answers_connect):
            self._take_back(exchange, outcome)
        else:
            self._respond(exchange, outcome, _SCRIPT, callback_polling.render(outcome, callback))

    def _respond(self, exchange: Exchange, reply: Reply, headers: Headers, body: bytes) -> None:
        """Respond with any reply, and its own headers."""
        if exchange.respond(reply.status, headers, body, self._more(reply, exchange.source[1])):
            self._sessions.settle(reply)
        else:
            self._settle_later(exchange, reply)

    def _take_back(self, exchange: Exchange, reply: Reply) -> None:
        self._sessions.take_back(reply)
        exchange.leave()

    def _settle_later(self, exchange: Exchange, reply: Reply) -> None:
        self._sessions.delayed(reply, monotonic())
        exchange.when_written(partial(_report, self._sessions, reply))

    def _wait(self, exchange: Exchange, outcome: Outcome | AbortConnection) -> None:
        """Keep a hold, await a hook, or cut the connection because a newer connect has replaced the one on it."""
        if isinstance(outcome, Hold):
            if exchange.is_over:
                self._sessions.lost(outcome.session, exchange, monotonic())
                exchange.leave()
            else:
                exchange.waiting = outcome
        elif isinstance(outcome, AwaitHook):
            await_hooks(self._engine, exchange, outcome, _no_head)
        elif isinstance(outcome, AbortConnection):
            exchange.cut(outcome.reason)

    def _more(self, reply: Reply, scheme: str) -> tuple[Header, ...]:
        """The headers that a reply adds to those of its transport: the cookie, `Retry-After`, `Connection: close`."""
        headers: list[Header] = []
        if reply.set_cookie is not None:
            cookie = browser_cookie(reply.set_cookie, self._settings.cookie, is_secure=scheme == "https")
            headers.append((b"set-cookie", cookie))
        if reply.status == 503:
            headers.append(RETRY_AFTER)
        if reply.is_last:
            headers.append(CLOSE)
        return tuple(headers)

    def lost(self, exchange: Exchange, waiting: Any) -> None:
        """Note that the peer of a held connect has gone, or of a request that another node answers."""
        if isinstance(waiting, Hold):
            self._sessions.lost(waiting.session, exchange, monotonic())  # does nothing if it has been answered
        else:
            waiting.report_written(False)  # noqa: FBT003 - the callback's one meaning

    def _pass_on(self, exchange: Exchange, misdirected: Misdirected, body: bytes, head: HeadOf) -> None:
        """Have the node that has the session of a request answer it. Raises `Rejection`."""
        assert self._relay is not None
        request = misdirected.request
        gone = partial(self._receive_here, exchange, request)
        pass_on(self._relay, misdirected.node, exchange, body, head, self._note, gone, is_poll=request.is_poll)

    def _receive_here(self, exchange: Exchange, request: Request) -> None:
        exchange.write(self._engine.receive_here(request, monotonic()))


class _Script(Endpoint):
    """What answers one request of callback-polling, by a call of the function that it names."""

    def __init__(self, polling: Polling, callback: str) -> None:
        self._polling = polling
        self._callback = callback

    def write(self, exchange: Exchange, outcome: Any) -> None:
        """Respond with a script, or wait as a POST does."""
        self._polling.write_script(exchange, outcome, self._callback)

    def lost(self, exchange: Exchange, waiting: Any) -> None:
        """See `Polling.lost`."""
        self._polling.lost(exchange, waiting)


def _no_head() -> Head:
    raise NotImplementedError  # no hook of the program raises a rejection


def _report(sessions: Sessions, reply: Reply, is_written: bool) -> None:  # noqa: FBT001 - as `Exchange.when_written` calls it
    """Report whether a reply has reached the kernel. As a closure it would slow down every reply."""
    sessions.settle_delayed(reply, monotonic(), is_written=is_written)
