"""The middleware of all HTTP requests that Halley's own host does not serve itself."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from halley import telemetry
from halley.transports.asgi import host_connection, respond
from halley.transports.bodies import Disconnected, inflated
from halley.transports.guard import TEXT_HEADERS, Guard, Rejection
from halley.transports.head import CLOSE, Head, Header

Note = Callable[[Rejection, Head], None]
"""Logs and counts a rejection."""

_HEAD, _CORS = "halley.head", "halley.cors"


class Begun(Exception):
    """A failure after the response had begun: the connection must end, so that it is not taken for complete."""


class GuardMiddleware:
    """ASGI middleware that passes on the requests of these `methods` that the guard admits.

    It responds to OPTIONS, and to all failures: a `Rejection` that `app` raises is the response, any other exception
    causes a 500. None is raised on. What it knows of a request is in the scope, for `head_in` and `cors_in`.
    """

    def __init__(self, app: ASGIApp, guard: Guard, note: Note, *methods: str) -> None:
        self._app = app
        self._guard = guard
        self._note = note
        self._methods = (*methods, "OPTIONS")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and serve one request (ASGI)."""
        head = Head.of(scope)
        if self._guard.takes_gzip and head.fields.get(b"content-encoding", b"").strip().lower() == b"gzip":
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"content-encoding"]}
            head, receive = Head.of(scope), inflated(receive, self._guard.body_bytes)
        cors: tuple[Header, ...] = ()
        try:
            cors = self._guard.check(head, self._methods)
            if head.method == "OPTIONS":
                await respond(send, 200, [*self._guard.preflight(cors, self._methods)], b"")
            else:
                # The exception handlers of a program that mounts Halley are for its own faults.
                known = {_HEAD: head, _CORS: cors, "starlette.exception_handlers": ({}, {})}
                await self._app({**scope, **known}, receive, send)
        except (Disconnected, Begun):
            pass
        except Rejection as rejection:
            self._note(rejection, head)
            rejection.headers += tuple(header for header in cors if header not in rejection.headers)
            await reject(scope, send, rejection)
        except Exception as error:  # noqa: BLE001 - a fault of ours: the peer learns nothing of it
            telemetry.fault("request", error)
            await reject(scope, send, Rejection(500, "internal error", headers=cors))


class GuardedResponse(Response):
    """The response to a request that has passed the guard: these headers, and those of CORS."""

    def __init__(self, request: Request, body: bytes | None, *headers: Header, status: int = 200) -> None:
        super().__init__(body, status)
        self.raw_headers[:0] = [*headers, *cors_in(request.scope)]


def head_in(scope: Scope) -> Head:
    """The head of a request that has passed the guard."""
    head: Head = scope[_HEAD]
    return head


def cors_in(scope: Scope) -> tuple[Header, ...]:
    """The CORS headers for the response to a request that has passed the guard."""
    cors: tuple[Header, ...] = scope[_CORS]
    return cors


async def reject(scope: Scope, send: Send, rejection: Rejection) -> None:
    """Respond with a rejection; some ASGI servers can only reject a WebSocket with 403."""
    connection = host_connection(scope)
    if rejection.closes and connection is not None:
        connection.refuse(rejection.status, rejection.text, rejection.headers, is_logged=True)
        return
    headers = [*TEXT_HEADERS, *rejection.headers]
    if rejection.closes:
        headers.append(CLOSE)
    if scope["type"] != "websocket":
        await respond(send, rejection.status, headers, rejection.text.encode())
    elif "websocket.http.response" in (scope.get("extensions") or {}):
        await respond(send, rejection.status, headers, rejection.text.encode(), "websocket.http.response")
    else:
        await send({"type": "websocket.close"})
