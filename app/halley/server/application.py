"""The ASGI application, for any server; Halley's own host serves the same routes without ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from halley.server.lifecycle import Lifecycle
from halley.transports.asgi import AsgiServer, reject
from halley.transports.exchange import shutting_down


class Application:
    """Serves requests and WebSockets by `asgi`.

    The life of the server is tied to ASGI's lifespan, or begins with the first request where a server has none.
    """

    def __init__(self, asgi: AsgiServer, lifecycle: Lifecycle) -> None:
        self._asgi = asgi
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
            return
        self._lifecycle.start()
        serve = self._asgi.serve_socket if scope["type"] == "websocket" else self._asgi.serve
        try:
            await serve(scope, receive, send)
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
