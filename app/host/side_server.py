"""The servers of one process: how uvicorn is configured, and the servers that run in addition to the public one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import uvicorn

from app.host.connection import Connection
from app.host.listening import let_wait, url_of
from app.host.prompt import PromptServer
from app.host.sockets import Sockets
from app.host.watch import Watch
from app.server.server import House
from app.settings import Settings
from app.transports.nt4 import own_page

if TYPE_CHECKING:
    import socket

    from starlette.types import ASGIApp

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

    def __init__(self, app: ASGIApp, house: House, bound: socket.socket, *, scheme: str, grace_s: float) -> None:
        self.watch = Watch(house.settings.limits, house.broker.hits)
        config = config_of(app, house.settings, partial(Connection, watch=self.watch))
        config.timeout_graceful_shutdown = int(grace_s)
        super().__init__(config)
        house.on_sweep.append(self.watch.sweep)
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


def nt4_server(house: House, bound: socket.socket) -> SideServer:
    """Return the server of NetworkTables' own port, without TLS; the public one serves the same paths with `wss`."""
    server = SideServer(own_page(), house, bound, scheme="ws", grace_s=house.settings.drain.grace_s)
    if house.nt4 is not None:
        sockets = Sockets(house.nt4.own_family, house.proxies, server.watch)
        sockets.connections = server.server_state.connections
        server.watch.sockets.append(sockets)
    return server
