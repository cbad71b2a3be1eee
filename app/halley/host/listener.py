"""Listeners: the sockets that are bound before anything is served, and the HTTP servers that accept on them.

A server begins to shut down on request, and ends when its last connection is closed; an idle one does nothing at all.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, cast

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from halley import telemetry
from halley.host.http import Connection
from halley.host.kernel import UNSENT_BYTES, limit_unsent
from halley.host.requests import Site
from halley.host.timeouts import Receiver, ServerContext
from halley.host.websocket import WebSockets
from halley.protocols.nt4.protocol import NetworkTables
from halley.server.composition import Server
from halley.server.sweeper import Swept
from halley.settings import Settings
from halley.transports.nt4 import Serves, nt4_route, own_routes

_log = logging.getLogger("uvicorn.error")

_BACKLOG = 4_096
_ACCEPTED_AT_ONCE = 1
"""The backlog that asyncio's own loop is given. It tries to accept that often in a row, and when no files are left each
try writes a log entry and starts a timer that tries again. The sockets' own backlog is set again afterwards.
"""

_AGAIN_S = 1.0
_NO_STATE: dict[str, Any] = {}  # the host starts and stops its application itself: no lifespan has any
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)


class CannotListen(Exception):
    """A listener cannot be bound: its port is taken or not allowed, or its address does not belong to this machine."""


class Listeners(NamedTuple):
    """The listening sockets: the public one; those for operations, NetworkTables and other nodes are None if off.

    In a cluster that of NetworkTables is bound later, at its home (`HomeServer`).
    """

    public: socket.socket
    operations: socket.socket | None
    nt4: socket.socket | None
    nodes: socket.socket | None


def listen(settings: Settings) -> Listeners:
    """Bind all listeners of the settings. Raises `CannotListen`; then none stays bound."""
    operations, nt4, cluster = settings.operations, settings.nt4, settings.cluster
    nodes_host, _, nodes_port = cluster.listen.rpartition(":")
    bound: list[socket.socket | None] = []
    try:
        for is_wanted, host, port, flag in (
            (True, settings.host, settings.port, "--port"),
            (operations.enabled, operations.host, operations.port, "--operations-port"),
            (nt4.enabled and not cluster.urls, nt4.host, nt4.port, "--nt4-port"),
            (cluster.urls, nodes_host.strip("[]"), nodes_port, "cluster.listen"),
        ):
            bound.append(bind(host, int(port), flag) if is_wanted else None)
    except CannotListen:
        close(bound)
        raise
    public, *others = bound
    assert public is not None
    return Listeners(public, *others)


def close(listeners: Iterable[socket.socket | None]) -> None:
    """Close the sockets of all listeners; None stands for one that is off."""
    for bound in listeners:
        if bound is not None:
            bound.close()


def bind(host: str, port: int, flag: str) -> socket.socket:
    """Return a listening socket. Raises `CannotListen`; where another port could help, its text names `flag`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            limit_unsent(bound, UNSENT_BYTES)  # connections that it accepts inherit this
            bound.listen(_BACKLOG)  # from now on clients wait to be accepted instead of being refused
        except OSError:
            bound.close()
            raise
    except OSError as error:
        advice = f"; choose another with {flag}" if error.errno in _PORT_ERRORS else ""
        raise CannotListen(f"cannot listen on {host}:{port} ({error.strerror}){advice}") from None
    bound.setblocking(False)  # noqa: FBT003 - the standard library's form
    return bound


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Members(set[Any]):
    """A set that calls `emptied` when its last member is removed with `discard`."""

    def __init__(self, emptied: Callable[[], None]) -> None:
        super().__init__()
        self._emptied = emptied

    def discard(self, member: Any) -> None:
        super().discard(member)
        if not self:
            self._emptied()


class _State(ServerState):
    """The sets that connections enter themselves into, and tasks of requests; `emptied` is called when one is empty."""

    def __init__(self, emptied: Callable[[], None]) -> None:
        super().__init__()
        self.connections: _Members = _Members(emptied)
        self.tasks: _Members = _Members(emptied)


class HttpServer:
    """Serves requests on some sockets; `serve` runs it and `begin_shutdown` ends it.

    It makes and closes connections as uvicorn's own server does: they enter themselves, and the tasks of running
    requests, into the sets of `server_state`.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        self.config = config
        self.started = False
        self.is_shutting_down = False
        self.is_forced = False
        self._news = asyncio.Event()
        self._listeners: list[asyncio.Server] = []
        self.server_state = _State(self._note_emptied)

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until `begin_shutdown`, and then until all connections are closed or the grace period has ended."""
        await self.startup(sockets)
        await self._until(lambda: self.is_shutting_down)
        await self.shutdown(sockets)

    def begin_shutdown(self, *, is_forced: bool = False) -> None:
        """Begin to shut down; if `is_forced`, stop waiting for requests. Call it from the event loop."""
        self.is_shutting_down = True
        self.is_forced = self.is_forced or is_forced
        self._news.set()

    def _note_emptied(self) -> None:
        """Look whether a server that shuts down has ended; before, what ends is nothing to look at."""
        if self.is_shutting_down:
            self._news.set()

    async def startup(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to accept connections."""
        self.config.load()
        for bound in sockets:
            await self.listen_at(bound)
        self.started = True

    async def listen_at(self, bound: socket.socket) -> None:
        """Accept connections of one more socket."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self._connection, sock=bound, backlog=_ACCEPTED_AT_ONCE)
        bound.listen(_BACKLOG)
        self._listeners.append(listener)

    def _connection(self) -> Any:
        make: Any = self.config.http_protocol_class
        connection: Receiver = make(config=self.config, server_state=self.server_state, app_state=_NO_STATE)
        return connection

    async def shutdown(self, sockets: Sequence[socket.socket]) -> None:
        """Stop accepting, wait for requests until the grace period ends or `is_forced`, and cancel what still runs."""
        await self._stop_accepting()
        state = self.server_state
        for bound in sockets:
            bound.close()
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._until(lambda: self.is_forced or not (state.connections or state.tasks))
        except TimeoutError:
            _log.error("%d running requests are cancelled: the grace period has ended", len(state.tasks))
        for task in list(state.tasks):
            task.cancel()

    def abort(self) -> None:
        """Close the connections that are left, as the end of the process would."""
        for connection in list(self.server_state.connections):
            connection.abort()

    async def _stop_accepting(self) -> None:
        """Close the listeners. A connection that was just accepted is in `connections` when this returns.

        asyncio needs two turns to make one: the first makes the transport, which fails if the listener is closed by
        then, the second the connection. A connection made later would not be closed when the server shuts down.
        """
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            for bound in listener.sockets:
                with suppress(NotImplementedError):  # Windows' loop has no readers
                    loop.remove_reader(bound.fileno())
        await asyncio.sleep(0)
        for listener in self._listeners:
            listener.close()
        await asyncio.sleep(0)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()


def config_of(settings: Settings, protocol: Callable[..., Receiver], grace_s: float) -> uvicorn.Config:
    """Return uvicorn's configuration for connections that `protocol` makes, without the features that Halley replaces.

    Running requests have `grace_s` seconds when the server shuts down.
    """
    return uvicorn.Config(
        _no_application,
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",  # the host starts and stops its application itself
        log_config=None,
        access_log=False,  # it would write query strings, and with JSONP these carry session ids
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(settings.limits.keep_alive_s),
        timeout_graceful_shutdown=int(grace_s),
    )


async def _no_application(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand for the application that uvicorn's configuration wants: the connections serve routes."""


class SideServer(HttpServer):
    """The server of a listener other than the public one; its connections have `shared` in common.

    `url` is where it listens; empty where it does not. `protocol` makes the connections. `shared` is made by the
    server's limits unless it is given.
    """

    def __init__(
        self,
        site: Site,
        server: Server,
        bound: socket.socket | None,
        *,
        scheme: str,
        grace_s: float,
        protocol: Callable[..., Receiver] = Connection,
        shared: ServerContext | None = None,
    ) -> None:
        self.shared = shared or ServerContext(server.settings.limits, server.broker.hits)
        super().__init__(config_of(server.settings, partial(protocol, shared=self.shared, site=site), grace_s))
        self.site = site
        server.add(Swept(self.shared.sweep))
        self.url = "" if bound is None else url_of(bound, scheme)
        self._bound = bound
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start to serve, in a task."""
        self._running = asyncio.create_task(self.serve([] if self._bound is None else [self._bound]))

    def accept_sockets(self, server: Server) -> None:
        """Let connections become WebSockets of the routes."""
        accept_sockets(self.site, server, self.shared, self.server_state.connections)

    async def end(self) -> None:
        """Shut down; return when all connections are closed or the grace period has ended."""
        if self._running is not None:
            self.begin_shutdown()
            await self._running


def accept_sockets(site: Site, server: Server, shared: ServerContext, connections: set[Any]) -> None:
    """Let the connections of a listener become WebSockets of its routes."""
    for route in site.routes.sockets:
        sockets = WebSockets(route, server.proxies, shared, connections, deflates=server.settings.permessage_deflate)
        site.add_sockets(sockets)
        shared.sockets.append(sockets)


def nt4_server(server: Server, bound: socket.socket) -> SideServer:
    """Return the server of NetworkTables' own port, without TLS; the public one serves the same paths with `wss`."""
    side = SideServer(nt4_site(server), server, bound, scheme="ws", grace_s=server.settings.drain.grace_s)
    side.accept_sockets(server)
    return side


def nt4_site(server: Server, serves: Serves | None = None) -> Site:
    """Return what NetworkTables' own listener serves."""
    protocol = server.protocol("nt4")
    assert protocol is not None  # it is enabled
    route = nt4_route(protocol, server.settings, server.settings.nt4.host, serves)
    return Site(own_routes(server.routes.note, route), server.proxies)


class HomeServer(SideServer):
    """The server of NetworkTables' own port in a cluster: it listens while the node `serves`, as the home.

    So a client that has a list of servers finds it: it goes on to the next where nobody listens.
    """

    def __init__(self, server: Server) -> None:
        nt4 = server.protocol("nt4")
        assert isinstance(nt4, NetworkTables)
        self.serves: Serves = nt4.serves
        site, grace_s = nt4_site(server, self.serves), server.settings.drain.grace_s
        super().__init__(site, server, None, scheme="ws", grace_s=grace_s)
        self._options = server.settings.nt4
        self._change: asyncio.Task[None] | None = None
        self._again_at = 0.0
        self._last_reason = ""
        server.add(Swept(self._check))
        self.accept_sockets(server)

    def _check(self, now: float) -> None:
        """Begin or end to listen, if it is time to; called a few times a second."""
        is_home = self.started and not self.is_shutting_down and self.serves(now)
        is_idle = self._change is None or self._change.done()
        if is_idle and is_home != (self._bound is not None) and now >= self._again_at:
            if not is_home:
                telemetry.log.info("not_listening", url=self.url)
                self.url = ""
            self._change = asyncio.create_task(self._listen(now) if is_home else self._stop())

    async def _listen(self, now: float) -> None:
        try:
            bound = bind(self._options.host, self._options.port, "--nt4-port")
        except CannotListen as error:  # a node on the same machine that stands still may have the port
            self._again_at = now + _AGAIN_S
            if self._last_reason != str(error):
                telemetry.log.warning("nt4_port", reason=str(error))
            self._last_reason = str(error)
            return
        self._last_reason = ""
        self._bound, self.url = bound, url_of(bound, "ws")
        await self.listen_at(bound)
        telemetry.log.info("listening", url=self.url)

    async def _stop(self) -> None:
        assert self._bound is not None
        await self._stop_accepting()
        self._listeners.clear()
        self._bound.close()
        self._bound, self.url = None, ""

    async def end(self) -> None:
        """See `SideServer`; it does not listen any more then."""
        self.begin_shutdown()
        if self._change is not None:
            await asyncio.gather(self._change, return_exceptions=True)
        if self._bound is not None:
            await self._stop()
        await super().end()
