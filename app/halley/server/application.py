"""The ASGI application: each request is checked by a guard and led to what serves its path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from halley import telemetry
from halley.server.lifecycle import Lifecycle
from halley.server.protocols import Mount
from halley.transports.addresses import Proxies
from halley.transports.asgi import target_of
from halley.transports.endpoint import shutting_down
from halley.transports.guard import Guard, Rejection, check_framing
from halley.transports.head import Head, route_path
from halley.transports.middleware import reject

_ALLOW: Final = (b"allow", b"GET, HEAD, POST, DELETE, OPTIONS")
"""What is served at some path."""


class Application:
    """Serves the protocols of `mounts`, and by `apis` all other paths.

    `guard` checks all requests but those to a protocol, whose guard can be another.

    The life of the server is tied to ASGI's lifespan, or begins with the first request where a server has none.
    """

    def __init__(
        self, mounts: Sequence[Mount], apis: ASGIApp, guard: Guard, proxies: Proxies, lifecycle: Lifecycle
    ) -> None:
        self._mounts = mounts
        self._apis = apis
        self._guard = guard
        self._proxies = proxies
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
            return
        path = route_path(scope)
        endpoint = next((each.endpoint for each in self._mounts if each.endpoint.matches(path)), None)
        if endpoint is None and scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        self._lifecycle.start()
        self._proxies.set_client(scope)
        try:
            guard = self._guard if endpoint is None else endpoint.guard
            guard.check_names(scope["headers"], target_of(scope))
            check_framing(scope.get("http_version", ""), scope["headers"])
        except Rejection as rejection:
            telemetry.request_refused(rejection.status, rejection.text, head=Head.of(scope))
            await reject(scope, send, rejection)
            return
        if scope.get("method") == "OPTIONS" and target_of(scope) == b"*":  # RFC 9110, 9.3.7
            await send({"type": "http.response.start", "status": 204, "headers": [_ALLOW]})
            await send({"type": "http.response.body", "body": b""})
            return
        try:
            await (endpoint or self._apis)(scope, receive, send)
        except asyncio.CancelledError:
            if not self._lifecycle.is_draining:
                raise
            await reject(scope, send, shutting_down())

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                self._lifecycle.start()
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self._lifecycle.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    @asynccontextmanager
    async def lifespan(self, _app: ASGIApp | None = None) -> AsyncIterator[None]:
        """A lifespan for programs that mount this application: start it, and drain and stop it at the end."""
        self._lifecycle.start()
        try:
            yield
        finally:
            await self._lifecycle.drain()
            await self._lifecycle.stop()
