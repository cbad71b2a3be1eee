"""uvicorn's server, made prompt: it begins to shut down on request, and ends when its last connection is closed.

uvicorn polls instead: ten times a second whether to shut down, and ten times a second whether all connections are
closed. Here an idle server does nothing at all. A `SideServer` runs in addition to the public one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from app.host.connection import Connection
from app.host.listening import let_wait, url_of
from app.host.timeouts import Watch
from app.host.websocket import Sockets
from app.server.composition import Server
from app.settings import Settings
from app.transports.nt4 import nt4_family, own_page

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp


_log = logging.getLogger("uvicorn.error")


class _Members(set[Any]):
    """A set that calls `emptied` when its last member is removed with `discard`."""

    def __init__(self, emptied: Callable[[], None]) -> None:
        super().__init__()
        self._emptied = emptied

    def discard(self, member: Any) -> None:
        super().discard(member)
        if not self:
            self._emptied()


class PromptServer(uvicorn.Server):
    """A server that `serve` runs and `leave` ends.

    uvicorn's polling also serves a Date header, a limit of requests and a callback; Halley uses none of them.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._news = asyncio.Event()
        self.server_state.connections = _Members(self._news.set)
        self.server_state.tasks = _Members(self._news.set)

    def leave(self, *, is_forced: bool = False) -> None:
        """Begin to shut down; if `is_forced`, stop waiting for requests. Call it from the event loop."""
        self.should_exit = True
        self.force_exit = self.force_exit or is_forced
        self._news.set()

    async def main_loop(self) -> None:
        """Wait until the server is to shut down."""
        self.server_state.default_headers = self.config.encoded_headers
        await self._until(lambda: self.should_exit)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, wait for running requests until the grace period ends, and shut down the application."""
        await self._stop_accepting()
        for bound in sockets or ():
            bound.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._until(lambda: self.force_exit or self._is_empty())
        except TimeoutError:
            _log.error("%d running requests are cancelled: the grace period has ended", len(self.server_state.tasks))
            for task in list(self.server_state.tasks):
                task.cancel()
        if not self.force_exit:
            await self.lifespan.shutdown()

    async def _stop_accepting(self) -> None:
        """Close the listeners. A connection that was just accepted is in `connections` when this returns.

        asyncio needs two turns to make one: the first makes the transport, which fails if the listener is closed by
        then, the second the connection. A connection made later would not be closed when the server shuts down.
        """
        loop = asyncio.get_running_loop()
        for listener in self.servers:
            for bound in listener.sockets:
                with suppress(NotImplementedError):  # Windows' loop has no readers
                    loop.remove_reader(bound.fileno())
        await asyncio.sleep(0)
        for listener in self.servers:
            listener.close()
        await asyncio.sleep(0)

    def _is_empty(self) -> bool:
        return not (self.server_state.connections or self.server_state.tasks)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()


_ACCEPTED_AT_ONCE = 1
"""The backlog that asyncio's own loop is given. It tries to accept that often in a row, and when no files are left each
try writes a log entry and starts a timer that tries again. `let_wait` sets the real backlog of the sockets.
"""


def config_of(app: ASGIApp, settings: Settings, protocol: Callable[..., asyncio.Protocol]) -> uvicorn.Config:
    """Return uvicorn's configuration for an application, without the features that Halley replaces."""
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # it would write query strings, and with JSONP these carry session ids
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_AT_ONCE,
        timeout_keep_alive=int(settings.limits.keep_alive_s),
        timeout_graceful_shutdown=int(settings.drain.grace_s),
    )


class SideServer(PromptServer):
    """The server of a listener other than the public one. It handles no signals; its connections share `watch`."""

    def __init__(self, app: ASGIApp, halley: Server, bound: socket.socket, *, scheme: str, grace_s: float) -> None:
        self.watch = Watch(halley.settings.limits, halley.broker.hits)
        config = config_of(app, halley.settings, partial(Connection, watch=self.watch))
        config.timeout_graceful_shutdown = int(grace_s)
        super().__init__(config)
        halley.on_sweep.append(self.watch.sweep)
        self.url = url_of(bound, scheme)
        self._bound = bound
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to serve, in a task."""
        self._running = asyncio.create_task(self.serve([self._bound]))

    async def end(self) -> None:
        """Shut down; return when all connections are closed or the grace period has ended."""
        if self._running is not None:
            self.leave()
            await self._running

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle no signals: the public server does."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        let_wait(sockets)


def nt4_server(halley: Server, bound: socket.socket) -> SideServer:
    """Return the server of NetworkTables' own port, without TLS; the public one serves the same paths with `wss`."""
    server = SideServer(own_page(), halley, bound, scheme="ws", grace_s=halley.settings.drain.grace_s)
    family = nt4_family(halley.protocol("nt4"), halley.settings, halley.settings.nt4.host)
    sockets = Sockets(family, halley.proxies, server.watch)
    sockets.connections = server.server_state.connections
    server.watch.sockets.append(sockets)
    return server
