"""The Bayeux endpoint: serves every request below one of Bayeux's paths.

It has two interfaces. One is the ASGI application, which serves everything and runs under any server. The other is
`request` and `headers`, with which Halley's own host serves hot requests without a task for each
(`host/short_way.py`). It is a raw ASGI application on purpose: the request and response objects of a framework cost
more than all of Bayeux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app import telemetry
from app.protocols.bayeux.engine import Engine
from app.protocols.bayeux.exchanges import Reply, Request, Transport
from app.settings import Settings
from app.transports import callback_polling, long_polling
from app.transports.bodies import Batch, messages_of_body, read_body
from app.transports.cookies import browser_cookie, cookie_values
from app.transports.exchange import Exchange, respond
from app.transports.guard import Guard, Rejection
from app.transports.head import Head, bearer_token
from app.transports.middleware import CLOSE, RETRY_AFTER, GuardMiddleware, RequestContext

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Header = tuple[bytes, bytes]


class Endpoint:
    """Serves Bayeux over HTTP: long-polling by POST, callback-polling by GET."""

    def __init__(self, engine: Engine, guard: Guard, settings: Settings) -> None:
        self._engine = engine
        self._guard = guard
        self.middleware = GuardMiddleware(guard, self.note)
        self._settings = settings
        self._cookie_field = settings.cookie.name.encode()

    # The ASGI application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to one request; a bad one gets a status and text of Halley too."""
        await self.middleware.dispatch(("GET", "POST"), self._serve, scope, receive, send)

    async def _serve(self, context: RequestContext) -> None:
        exchange = Exchange(self._engine, context.scope, context.receive, context.send)
        if context.head.method == "POST":
            await self._long_poll(context.head, context.cors, exchange)
        elif await self._admits_script(context):
            await self._callback_poll(context.head, context.cors, exchange)

    async def _long_poll(self, head: Head, cors: tuple[Header, ...], exchange: Exchange) -> None:
        body = await read_body(exchange.receive, self._settings.limits)
        reply = await exchange.reply_to(self.request(head, body, exchange))
        if reply is not None:
            headers = [*long_polling.HEADERS, *cors, *self.headers(reply, head.scheme)]
            await exchange.respond(reply, headers, reply.body())

    async def _admits_script(self, context: RequestContext) -> bool:
        """Whether a page may load this script; if not, respond with one that says so. Raises `Rejection`."""
        callback_polling.check(context.head, self._settings.bayeux)
        try:
            self._guard.check_script(context.head)
        except Rejection as rejection:
            self.note(rejection, context.head)
            body = callback_polling.render_refusal(rejection.text)
            await respond(context.send, rejection.status, [*callback_polling.HEADERS], body)
            return False
        return True

    async def _callback_poll(self, head: Head, cors: tuple[Header, ...], exchange: Exchange) -> None:
        callback, batch = callback_polling.read(head, self._settings.bayeux, self._settings.limits)
        reply = await exchange.reply_to(self._request(callback_polling.TRANSPORT, batch, head, exchange))
        if reply is not None:
            headers = [*callback_polling.HEADERS, *cors, *self.headers(reply, head.scheme)]
            await exchange.respond(reply, headers, callback_polling.render(reply, callback))

    # Used by the ASGI application and by Halley's own host

    def note(self, rejection: Rejection, head: Head) -> None:
        """Log that a request was rejected, and count the rejection if a limit was the reason."""
        telemetry.request_refused(rejection.status, rejection.text, head=head)
        if rejection.limit:
            self._engine.broker.hits[rejection.limit] += 1

    def request(self, head: Head, body: bytes, connection: object) -> Request:
        """Make the engine's `Request` from a POST; `connection` is where its reply will go. Raises `Rejection`."""
        batch = messages_of_body(body, head.fields.get(b"content-type", b""), self._settings.limits)
        request = self._request(long_polling.TRANSPORT, batch, head, connection)
        request.token = bearer_token(head.fields.get(b"authorization"))
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

    def _request(self, transport: Transport, batch: Batch, head: Head, connection: object) -> Request:
        cookie = head.fields.get(b"cookie")
        cookies = () if cookie is None else cookie_values(cookie, self._cookie_field)
        return Request(batch.messages, transport, connection, cookies, head, has_odd_numbers=batch.has_odd_numbers)


def leaving() -> Rejection:
    """Return the rejection of a request that still runs when the server's grace period has ended."""
    return Rejection(503, "the server is shutting down", closes=True, headers=(RETRY_AFTER,))
