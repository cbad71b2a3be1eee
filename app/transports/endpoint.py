"""The Bayeux endpoint: an ASGI application for all requests below one of its paths.

A raw ASGI application on purpose: request and response objects of a framework cost more than all of Bayeux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app import telemetry
from app.protocols.bayeux.exchanges import Request
from app.transports import callback_polling, long_polling
from app.transports.bodies import Disconnected
from app.transports.context import HttpContext
from app.transports.cookies import browser_cookie, cookie_values
from app.transports.exchange import TEXT_HEADERS, Exchange, respond, socket_of
from app.transports.guard import Rejection

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from app.protocols.bayeux.engine import Engine
    from app.protocols.bayeux.exchanges import Reply, Transport
    from app.settings import Settings
    from app.transports.bodies import Batch
    from app.transports.guard import Guard, Head

    Header = tuple[bytes, bytes]

_RETRY_AFTER = (b"retry-after", b"5")


class Endpoint:
    """Serves Bayeux to whatever comes by HTTP."""

    def __init__(self, engine: Engine, guard: Guard, settings: Settings) -> None:
        self._engine = engine
        self._guard = guard
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; whatever it was, with a status and text of ours."""
        cors: tuple[Header, ...] = ()
        try:
            head = self._guard.check_head(scope)
            cors = head.cors
            if scope["method"] == "POST":
                await self._long_poll(scope, receive, send, head)
            elif scope["method"] == "GET":
                await self._callback_poll(scope, receive, send, head)
            else:
                await respond(send, 200, [*self._guard.preflight(head)], b"")
        except Disconnected:
            pass
        except Rejection as rejection:
            telemetry.request_rejected(scope, rejection.status, rejection.text)
            if rejection.limit:
                self._engine.broker.hits[rejection.limit] += 1
            rejection.headers += tuple(header for header in cors if header not in rejection.headers)
            await reject(scope, send, rejection)
        except Exception as error:  # noqa: BLE001 - ours, whatever it is: the peer learns nothing of it
            telemetry.fault("request", error)
            await reject(scope, send, Rejection(500, "internal error", headers=cors))

    async def _long_poll(self, scope: Scope, receive: Receive, send: Send, head: Head) -> None:
        batch = await long_polling.read(head, receive, self._settings.limits)
        exchange = Exchange(self._engine, scope, receive, send)
        reply = await exchange.reply_to(self._request(long_polling.TRANSPORT, batch, scope, head, exchange))
        if reply is not None:
            headers = [*long_polling.HEADERS, *head.cors, *self._headers_of(reply, scope)]
            await exchange.write(reply, headers, long_polling.render(reply))

    async def _callback_poll(self, scope: Scope, receive: Receive, send: Send, head: Head) -> None:
        callback, batch = callback_polling.read(scope, head, self._settings.bayeux, self._settings.limits)
        exchange = Exchange(self._engine, scope, receive, send)
        reply = await exchange.reply_to(self._request(callback_polling.TRANSPORT, batch, scope, head, exchange))
        if reply is not None:
            headers = [*callback_polling.HEADERS, *head.cors, *self._headers_of(reply, scope)]
            await exchange.write(reply, headers, callback_polling.render(reply, callback))

    def _request(self, transport: Transport, batch: Batch, scope: Scope, head: Head, exchange: Exchange) -> Request:
        cookies = cookie_values(head.headers.get(b"cookie", b""), self._settings.cookie.name)
        context = HttpContext(scope)
        return Request(batch.messages, transport, exchange, cookies, context, has_odd_numbers=batch.has_odd_numbers)

    def _headers_of(self, reply: Reply, scope: Scope) -> list[Header]:
        headers: list[Header] = []
        if reply.set_cookie is not None:
            is_secure = scope["scheme"] == "https"
            headers.append(
                (b"set-cookie", browser_cookie(reply.set_cookie, self._settings.cookie, is_secure=is_secure))
            )
        if reply.status == 503:
            headers.append(_RETRY_AFTER)
        if reply.is_last:
            headers.append((b"connection", b"close"))
        return headers


async def reject(scope: Scope, send: Send, rejection: Rejection) -> None:
    """Answer a request that no engine sees."""
    socket = socket_of(scope)
    if rejection.closes and socket is not None:
        socket.refuse(rejection.status, rejection.text, rejection.headers)
        return
    headers = [*TEXT_HEADERS, *rejection.headers]
    if rejection.closes:
        headers.append((b"connection", b"close"))
    await respond(send, rejection.status, headers, rejection.text.encode())
