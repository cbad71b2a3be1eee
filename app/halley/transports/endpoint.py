"""The Bayeux endpoint: serves every request below one of Bayeux's paths.

A POST is long-polling (Bayeux 1.0, 6.1): messages in its body, and replies as a JSON array. A GET is callback-polling
(`callback_polling.py`), or opens a WebSocket (`BayeuxRoute`). `request` makes the engine's request, and `headers` those
of its response; Halley's own host uses both too, which serves a POST without a scope and a task (`host/bayeux.py`). For
all other requests and servers this is an ASGI application. It is a raw one on purpose: the request and response objects
of a framework cost more than all of Bayeux.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from halley.broker.errors import AtCapacity, TokenRefused
from halley.protocols.bayeux.outcomes import Misdirected, Request, Transport
from halley.protocols.bayeux.protocol import BayeuxProtocol
from halley.protocols.bayeux.session import Reply
from halley.protocols.contract import Engine, Link
from halley.settings import Cookie, Settings
from halley.transports import callback_polling
from halley.transports.asgi import AsgiConnection, respond
from halley.transports.bodies import messages_of_body, read_body, usual_messages
from halley.transports.guard import Guard, Rejection
from halley.transports.head import BAD_TOKEN, CLOSE, JSON, RETRY_AFTER, UNCACHED, Head, Header, bearer_token
from halley.transports.middleware import GuardMiddleware, Note, cors_in, head_in
from halley.transports.relay import Relay, is_relayed, relay_text
from halley.transports.websocket import Endpoint, WebSocketRoute, serve_socket

HEADERS: tuple[Header, ...] = (JSON, *UNCACHED)
"""The headers of every response by long-polling."""

_COOKIES_LOOKED_AT = 8
"""Values read of one name: servers on other ports or paths of the host may have set some, and browsers send all."""

_LONG_POLLING = Transport.LONG_POLLING


class PostHead(NamedTuple):
    """What the head of a POST says of its messages, and of who sends them."""

    content_type: bytes
    cookies: tuple[str, ...]
    token: str | None


@dataclass(frozen=True, slots=True)
class BayeuxRoute(WebSocketRoute):
    """The WebSockets of Bayeux, at its paths and below them; a subprotocol may be offered, and none is chosen."""

    bayeux: BayeuxProtocol
    cookie: Cookie

    def matches(self, path: str) -> bool:
        """Whether a path is one of Bayeux's, or below one."""
        return any(f"{path}/".startswith(f"{mount}/") for mount in self.service.paths)

    def check_head(self, head: Head) -> None:
        """Check that connections are accepted now, and the token, if there is one. Raises `Rejection`."""
        engine = self.bayeux.engine
        if engine.replies.advisor.is_draining:
            raise Rejection(503, "the server is shutting down", headers=(RETRY_AFTER,))
        try:
            engine.broker.check_load()
        except AtCapacity:
            raise Rejection(503, "the server is full", headers=(RETRY_AFTER,)) from None
        token = bearer_token(head.fields.get(b"authorization"))
        if token is not None and engine.identities.accept_tokens:
            try:
                engine.identities.prove(token, engine.sessions.wall_s(monotonic()))
            except TokenRefused as refused:
                raise Rejection(401, refused.reason, headers=(BAD_TOKEN,)) from None

    def choose(self, offered: Iterable[str]) -> str:  # noqa: ARG002 - none of them is
        """No subprotocol, which is empty."""
        return ""

    def headers(self, head: Head) -> list[Header]:
        """The browser cookie, if the request has none."""
        if self._cookies(head):
            return []
        head.new_cookie = self.bayeux.engine.sessions.new_id()
        return [(b"set-cookie", browser_cookie(head.new_cookie, self.cookie, is_secure=head.scheme == "https"))]

    def connect(self, link: Link, head: Head, now: float) -> Engine:
        """Make the engine for a WebSocket, with what its opening request says of who sends the messages."""
        token = bearer_token(head.fields.get(b"authorization"))
        return self.bayeux.connect(link, head, now, self._cookies(head), head.new_cookie, token)

    def _cookies(self, head: Head) -> tuple[str, ...]:
        return cookie_values(head.fields.get(b"cookie", b""), self.cookie.name.encode())


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
            body = callback_polling.render_refusal(rejection.text)
            await respond(send, rejection.status, [*callback_polling.HEADERS], body)
        else:
            await self._callback_poll(head, connection)

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
            relay, node = self.relay, misdirected.node
            assert relay is not None
            scope, receive, send = connection.scope, connection.receive, connection.send
            if await is_relayed(relay, node, body, scope, receive, send, is_poll=request.is_poll):
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
        return PostHead(fields.get(b"content-type", b""), cookies, bearer_token(fields.get(b"authorization")))

    def request(self, post: PostHead, body: bytes, connection: Any, context: Head | Callable[[], Head]) -> Request:
        """Make the engine's `Request` from a POST; `connection` is where its reply will go. Raises `Rejection`.

        `context` is the request's whole head or makes it.
        """
        content_type, cookies, token = post
        messages = usual_messages(body, content_type, self._limits)
        if messages is not None:
            request = Request(messages, _LONG_POLLING, connection, cookies, context)
        else:
            batch = messages_of_body(body, content_type, self._limits)
            request = Request(batch.messages, _LONG_POLLING, connection, cookies, context)
            request.has_odd_numbers = batch.has_odd_numbers
        if token is not None:
            request.token = token
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


def cookie_values(header: bytes, name: bytes) -> tuple[str, ...]:
    """The first eight values that a Cookie header has for `name`."""
    values = []
    for pair in header.split(b";"):
        if name in pair:
            found, _, value = pair.partition(b"=")
            if found.strip() == name:
                values.append(value.strip(b' \t"').decode("latin-1"))
    return tuple(values[:_COOKIES_LOOKED_AT])


def browser_cookie(value: str, options: Cookie, *, is_secure: bool) -> bytes:
    """The value of a Set-Cookie header; `is_secure` is whether the request used https."""
    parts = [f"{options.name}={value}", f"Path={options.path}"]
    if options.domain:
        parts.append(f"Domain={options.domain}")
    if options.max_age_s >= 0:
        parts.append(f"Max-Age={options.max_age_s}")
    if options.http_only:
        parts.append("HttpOnly")
    if options.secure == "on" or (options.secure == "auto" and is_secure):
        parts.append("Secure")
    if options.same_site:
        parts.append(f"SameSite={options.same_site}")
    if options.partitioned:
        parts.append("Partitioned")
    return "; ".join(parts).encode("latin-1")


def shutting_down() -> Rejection:
    """Return the rejection of a request that still runs when the server's grace period has ended."""
    return Rejection(503, "the server is shutting down", closes=True, headers=(RETRY_AFTER,))
