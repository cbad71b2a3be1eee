"""The Bayeux endpoint: serves every request below one of Bayeux's paths.

A POST is long-polling (Bayeux 1.0, 6.1): messages in its body, and replies as a JSON array. A GET is callback-polling
(`callback_polling.py`), or opens a WebSocket (`bayeux_route.py`). `request` makes the engine's request, and `headers`
those of its response; Halley's own host uses both too, which serves a POST without a scope and a task
(`host/bayeux.py`). For all other requests and servers this is an ASGI application. It is a raw one on purpose: the
request and response objects of a framework cost more than all of Bayeux.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from halley.protocols.bayeux.batches import usual
from halley.protocols.bayeux.outcomes import Misdirected, Request, Transport
from halley.protocols.bayeux.protocol import BayeuxProtocol
from halley.protocols.bayeux.session import Reply
from halley.settings import Settings
from halley.transports import callback_polling
from halley.transports.asgi import AsgiConnection, respond
from halley.transports.bayeux_route import BayeuxRoute
from halley.transports.bodies import IN_UTF_8, charset_of, messages_of_body, read_body
from halley.transports.cookies import browser_cookie, cookie_values
from halley.transports.guard import Guard, Rejection
from halley.transports.head import CLOSE, JSON, RETRY_AFTER, UNCACHED, Head, Header, bearer_token
from halley.transports.middleware import GuardMiddleware, Note, cors_in, head_in
from halley.transports.relay import Relay, is_relayed, relay_text
from halley.transports.websocket import Endpoint, serve_socket

HEADERS: tuple[Header, ...] = (JSON, *UNCACHED)
"""The headers of every response by long-polling."""

_LONG_POLLING = Transport.LONG_POLLING


class PostHead(NamedTuple):
    """What the head of a POST says of its messages, of who sends them, and in which trace."""

    content_type: bytes
    cookies: tuple[str, ...]
    token: str | None
    traceparent: bytes | None = None


class BayeuxEndpoint(Endpoint):
    """Serves Bayeux: long-polling by POST, callback-polling by GET, and WebSockets by `route`.

    `relay` passes on requests of sessions that another node of a cluster has; a server alone has none.
    """

    route: BayeuxRoute

    def __init__(
        self, bayeux: BayeuxProtocol, guard: Guard, note: Note, settings: Settings, relay: Relay | None = None
    ) -> None:
        self.guard = guard
        self.route = BayeuxRoute(bayeux, bayeux.service, guard, bayeux, settings.cookie)
        self.relay = relay
        if relay is not None:
            bayeux.relay_by(partial(relay_text, relay, note))
        self.note = note
        self._engine = bayeux.engine
        self._guarded = GuardMiddleware(self._serve, guard, note, "GET", "POST")
        self._paths = frozenset(settings.bayeux.paths)
        self._below = tuple(f"{path}/" for path in settings.bayeux.paths)
        self._settings = settings
        self._limits = settings.limits
        self._cookie_field = settings.cookie.name.encode()

    # The ASGI application

    def matches(self, path: str) -> bool:
        """Whether a path is one of Bayeux's, or below one."""
        return path in self._paths or path.startswith(self._below)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request, or serve a WebSocket; a bad request gets a status and text of Halley too."""
        if scope["type"] == "websocket":
            await serve_socket(self.route, self._limits, self.note, scope, receive, send)
        else:
            await self._guarded(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        head, connection = head_in(scope), AsgiConnection(self._engine, scope, receive, send)
        if head.method == "POST":
            await self._long_poll(head, connection)
            return
        callback_polling.check(head, self._settings.bayeux)
        try:
            self.guard.check_script(head, scope["headers"])
        except Rejection as rejection:  # a script says so: no page can read the response
            self.note(rejection, head)
            refusal = rejection.status, callback_polling.render_refusal(rejection.text)
        else:
            await self._callback_poll(head, connection)
            return
        status, body = refusal
        await respond(send, status, [*callback_polling.HEADERS], body)

    async def _long_poll(self, head: Head, connection: AsgiConnection) -> None:
        body = await read_body(connection.receive, self._limits)
        request = self.request(self.read_head(head.fields), body, connection, head)
        reply = await self._reply_to(request, connection, body)
        if reply is not None:
            headers = [*HEADERS, *cors_in(connection.scope), *self.headers(reply, head.scheme)]
            await connection.respond(reply, headers, reply.body())

    async def _reply_to(self, request: Request, connection: AsgiConnection, body: bytes) -> Reply | None:
        """The reply to a request; None if its peer has disconnected, or if another node of the cluster has replied."""
        try:
            return await connection.reply_to(request)
        except Misdirected as misdirected:
            node = misdirected.node
        assert self.relay is not None
        scope, receive, send = connection.scope, connection.receive, connection.send
        if await is_relayed(self.relay, node, body, scope, receive, send, is_poll=request.is_poll):
            return None
        return await connection.reply_to(request, is_here=True)

    async def _callback_poll(self, head: Head, connection: AsgiConnection) -> None:
        callback, batch = callback_polling.read(head, self._settings.bayeux, self._limits)
        cookies = cookie_values(head.fields.get(b"cookie", b""), self._cookie_field)
        request = Request(batch.messages, Transport.CALLBACK_POLLING, connection, cookies, head)
        request.has_odd_numbers = batch.has_odd_numbers
        reply = await self._reply_to(request, connection, b"")
        if reply is not None:
            headers = [*callback_polling.HEADERS, *cors_in(connection.scope), *self.headers(reply, head.scheme)]
            await connection.respond(reply, headers, callback_polling.render(reply, callback))

    # Used by the ASGI application and by Halley's own host

    def read_head(self, fields: dict[bytes, bytes]) -> PostHead:
        """Read what `request` needs from the headers of a POST."""
        cookie = fields.get(b"cookie")
        cookies = () if cookie is None else cookie_values(cookie, self._cookie_field)
        token = bearer_token(fields.get(b"authorization"))
        return PostHead(fields.get(b"content-type", b""), cookies, token, fields.get(b"traceparent"))

    def request(self, post: PostHead, body: bytes, connection: Any, context: Head | Callable[[], Head]) -> Request:
        """Make the engine's `Request` from a POST; `connection` is where its reply will go. Raises `Rejection`.

        `context` is the request's whole head or makes it.
        """
        content_type, cookies, token, traceparent = post
        is_utf_8 = content_type in IN_UTF_8 or charset_of(content_type) == "utf-8"
        messages = usual(body, self._limits) if is_utf_8 else None
        if messages is not None:
            request = Request(messages, _LONG_POLLING, connection, cookies, context)
        else:
            batch = messages_of_body(body, content_type, self._limits)
            request = Request(batch.messages, _LONG_POLLING, connection, cookies, context)
            request.has_odd_numbers = batch.has_odd_numbers
        if token is not None:
            request.token = token
        if traceparent is not None:
            request.traceparent = traceparent
        return request

    def headers(self, reply: Reply, scheme: str) -> list[Header]:
        """The headers that a reply adds to those of its transport: the cookie, `Retry-After`, `Connection: close`."""
        headers: list[Header] = []
        if reply.set_cookie is not None:
            cookie = browser_cookie(reply.set_cookie, self._settings.cookie, is_secure=scheme == "https")
            headers.append((b"set-cookie", cookie))
        if reply.status == 503:
            headers.append(RETRY_AFTER)
        if reply.is_last:
            headers.append(CLOSE)
        return headers


def shutting_down() -> Rejection:
    """Return the rejection of a request that still runs when the server's grace period has ended."""
    return Rejection(503, "the server is shutting down", closes=True, headers=(RETRY_AFTER,))
