"""Halley's own server process: one event loop, its listeners, its signals and resources, and the supervisor.

SIGTERM (or Ctrl-C) drains: holds are answered, running requests are finished, then the process exits with 0 (130). A
second signal ends it immediately; requests may have been cut, so the exit code is then 128 plus the signal's number.
SIGHUP reloads access rules, tokens, users and the certificate, and everything else that is registered by
`Reloading.register`.

The supervisor is systemd with `Type=notify`, see sd_notify(3); without `NOTIFY_SOCKET` in the environment it is not
notified.

While more than `limits.memory_share` of the memory is used, the broker refuses requests that would make it grow. This
is the last limit behind all others; it frees nothing and ends no session. It is off where the system does not report
how much memory there is.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import platform
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from halley import __version__, is_compiled, telemetry
from halley.access.keys import BadKeys
from halley.broker.broker import Broker
from halley.configuration import Configuration
from halley.configuration.protection import NotProtected
from halley.embed import Halley, load
from halley.history.folder import FolderLocked, FolderUnusable
from halley.host.http import Connection
from halley.host.listener import (
    CannotListen,
    HomeServer,
    HttpServer,
    Listeners,
    SideServer,
    accept_sockets,
    close,
    config_of,
    listen,
    nt4_server,
    url_of,
)
from halley.host.relayed import NodeServer
from halley.host.requests import Site
from halley.host.timeouts import Receiver, ServerContext
from halley.host.tls import BadCertificate, Certificate, Tls
from halley.processes import raise_file_limit
from halley.protocols.contract import Part
from halley.server import metrics
from halley.server.composition import Server
from halley.server.other_nodes import CannotJoin
from halley.server.recording import BadRecord
from halley.server.reloading import SettingsFiles
from halley.server.sweeper import Swept
from halley.transports.api.operations import operations_routes

READY = b"READY=1"
STOPPING = b"STOPPING=1"

_RESOURCES_S = 1.0
"""How often memory and open files are checked."""

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)

_SCRAPE_S = 1
"""Grace period of the operations listener: for requests for metrics or health that run at the very end."""
_COLLECT_AFTER = (50_000, 20, 100)
_OK, _WRONG_USE, _SIGNALLED, _INTERRUPTED = 0, 2, 128, 130
_EARLY = 75
"""The same start may succeed later (EX_TEMPFAIL of sysexits.h)."""


_CORRECTABLE = (
    BadCertificate,
    BadKeys,
    BadRecord,
    CannotJoin,
    NotProtected,
    CannotListen,
    FolderLocked,
    FolderUnusable,
    ImportError,
)
"""Errors that keep the server from starting and that the operator can correct."""


def run(configuration: Configuration, read: Callable[[], Configuration]) -> int:
    """Serve until a signal ends the server; return the process' exit code.

    `read` reads the settings again, and raises `BadSettings`.
    """
    settings = configuration.settings
    telemetry.configure(settings.log)
    open_files = raise_file_limit()
    listeners: Listeners | None = None
    try:
        certificate = Certificate(settings.tls) if settings.tls.cert else None
        halley = Halley(settings)
        reloading = halley.server.reloading
        reloading.register(SettingsFiles(reloading, configuration, read))
        for name in settings.load:
            load(name, halley)
        listeners = listen(settings)
        halley.server.lifecycle.open()
    except _CORRECTABLE as error:
        close(listeners or ())
        telemetry.write_line(f"halley: {error}")
        return _EARLY if isinstance(error, CannotJoin) and error.is_early else _WRONG_USE
    telemetry.log.info(
        "started",
        version=__version__,
        compiled=is_compiled(),
        python=platform.python_version(),
        tls=settings.tls.min_version if certificate else "",
        open_files=open_files,
        settings=configuration.changes,
    )
    # Objects that live as long as the process need not be collected. Nor should each burst of a few hundred messages
    # cause a collection: a pass over all sessions costs more than all deliveries of a burst.
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    if settings.history.enabled:  # the writer's thread needs the interpreter again after every call into SQLite
        sys.setswitchinterval(settings.history.switch_s)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(halley, listeners, certificate))
    except KeyboardInterrupt:  # another Ctrl-C, after serving has ended
        return _INTERRUPTED


async def _serve(halley: Halley, listeners: Listeners, certificate: Certificate | None) -> int:
    asyncio.get_running_loop().set_exception_handler(_report)
    server = halley.server
    shared = ServerContext(server.settings.limits, server.broker.hits)
    side_servers: list[SideServer] = [] if listeners.nt4 is None else [nt4_server(server, listeners.nt4)]
    if listeners.nt4 is None and server.settings.nt4.enabled:
        side_servers.append(HomeServer(server))
    if listeners.nodes is not None:
        side_servers.append(NodeServer(server, listeners.nodes))
    contexts = [shared, *(side.shared for side in side_servers)]
    public = HalleyServer(server, shared, certificate, side_servers, partial(announce, server, listeners))
    operations: SideServer | None = None
    if listeners.operations is not None:
        routes = operations_routes(
            server.routes.note,
            is_live=lambda: server.sweeper.is_live,
            is_ready=lambda: server.lifecycle.is_ready and server.history.is_ready,
            refusal=lambda: server.history.refusal,
            metrics=lambda: metrics.exposition(server, *contexts),
            cluster=None if server.others is None else server.others.figures,
        )
        site = Site(routes, server.proxies)
        operations = SideServer(site, server, listeners.operations, scheme="http", grace_s=_SCRAPE_S)
        operations.begin()
    await public.serve([listeners.public])
    if operations is not None:
        await operations.end()
    for each in (public, *side_servers, *filter(None, [operations])):
        each.abort()
    if public.fatal_error:
        telemetry.write_line(f"halley: {public.fatal_error}")
        return _WRONG_USE
    return exit_code(public.signals)


def exit_code(signals: Sequence[int]) -> int:
    """Return the process' exit code for the received signals: 0, or 130 if the first one was Ctrl-C (SIGINT).

    If a second signal cut the shutdown short: 128 plus its number, as shells report a process that a signal ended.
    """
    if len(signals) > 1:
        return _SIGNALLED + signals[1]
    return _INTERRUPTED if signals and signals[0] == signal.SIGINT else _OK


def _protocol(site: Site, shared: ServerContext, certificate: Certificate | None) -> Callable[..., Receiver]:
    """Return the factory of the protocols for new public connections."""
    plain: Callable[..., Connection] = partial(Connection, shared=shared, site=site)
    if certificate is None:
        return plain

    def make(**named: Any) -> Tls:
        connection = plain(**named)
        return Tls(connection, certificate.context, shared.turns, connection.has_no_tls)

    return make


class HalleyServer(HttpServer):
    """The public server, which drains before it closes. `signals` are the received ones, in order.

    It also leaves by itself, as after a first signal, if the history says so: `fatal_error` is why then.

    The servers in `side_servers` start and shut down with it. `on_startup` is called when all serve.
    """

    def __init__(
        self,
        server: Server,
        shared: ServerContext,
        certificate: Certificate | None = None,
        side_servers: Sequence[SideServer] = (),
        on_startup: Callable[[], None] = lambda: None,
    ) -> None:
        settings = server.settings
        site = Site(server.routes, server.proxies, remembers=settings.short_way)
        super().__init__(config_of(settings, _protocol(site, shared, certificate), settings.drain.grace_s))
        accept_sockets(site, server, shared, self.server_state.connections)
        server.add(Swept(shared.sweep), Resources(server.broker), Swept(self._check_history))
        self._scheme = "https" if certificate else "http"
        if certificate is not None:
            server.reloading.register(certificate.reload)
        self._loop: asyncio.AbstractEventLoop
        self.signals: list[int] = []
        self.fatal_error = ""
        self._side_servers = side_servers
        self._on_startup = on_startup
        self._server = server

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until a signal or `begin_shutdown` ends the server."""
        with self._handling_signals():
            await super().serve(sockets)

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._loop = asyncio.get_running_loop()
        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}
        if hasattr(signal, "SIGHUP"):  # not on Windows
            handlers[signal.SIGHUP] = self.handle_reload
        before = {wanted: signal.signal(wanted, handler) for wanted, handler in handlers.items()}
        try:
            yield
        finally:
            for wanted, handler in before.items():
                signal.signal(wanted, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal.signal's form
        """Begin to shut down on the first signal; exit immediately on any further one."""
        is_forced = bool(self.signals)
        self.is_shutting_down, self.is_forced = True, is_forced
        self.signals.append(sig)
        self._loop.call_soon_threadsafe(partial(self.begin_shutdown, is_forced=is_forced))
        self._log_soon(sig, "exits immediately" if is_forced else "shuts down")

    def handle_reload(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal.signal's form
        """Reload the settings, the certificate and everything else that is registered by `Reloading.register`."""
        self._log_soon(sig, "reloads")
        self._loop.call_soon_threadsafe(self._server.reloading.reload)

    def _check_history(self, _now: float) -> None:
        if not self.is_shutting_down and self._server.history.fatal_error:
            self.fatal_error = self._server.history.fatal_error
            self.begin_shutdown()

    def _log_soon(self, sig: int, then: str) -> None:
        """Log a signal on the event loop: it may have interrupted the writing of another line."""
        name = signal.Signals(sig).name
        self._loop.call_soon_threadsafe(partial(telemetry.log.info, "signal", name=name, then=then))

    def begin_shutdown(self, *, is_forced: bool = False) -> None:
        """Begin to shut down; with `is_forced` the side servers also stop waiting for requests."""
        super().begin_shutdown(is_forced=is_forced)
        for side in self._side_servers if is_forced else ():
            side.begin_shutdown(is_forced=True)

    async def startup(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to serve, and announce it."""
        self._server.lifecycle.start()
        await super().startup(sockets)
        for side in self._side_servers:
            side.begin()
        self._on_startup()

    async def shutdown(self, sockets: Sequence[socket.socket]) -> None:
        """Drain while still listening, then close everything."""
        notify(STOPPING)
        await self._server.lifecycle.drain(is_forced=lambda: self.is_forced)
        for bound in sockets:
            telemetry.log.info("not_listening", url=url_of(bound, self._scheme))
        for side in self._side_servers:
            if side.url:
                telemetry.log.info("not_listening", url=side.url)
            await side.end()  # before the sweeper ends: it cuts peers that do not close
        await super().shutdown(sockets)
        await self._server.lifecycle.stop(is_cut_short=self.is_forced)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that nothing handles, and close the connection that had it, which cannot go on as it should.

    `Resources` logs that the process can open no more files.
    """
    error = context.get("exception")
    if getattr(error, "errno", None) in OUT_OF_FILES:
        return
    if isinstance(error, Exception):
        telemetry.fault("callback", error)
    else:
        loop.default_exception_handler(context)
    transport: Any = context.get("transport")  # uvloop's have no base class
    if hasattr(transport, "abort"):
        loop.call_soon(_abort, transport)  # not within asyncio's own method, which would end the connection twice


def _abort(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.abort()


def notify(state: bytes) -> None:
    """Send a state to the socket that the environment names; a supervisor that does not read it is not waited for."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(0)
        supervisor.sendto(state, "\0" + address[1:] if address.startswith("@") else address)


def announce(server: Server, listeners: Listeners) -> None:
    """Print the addresses and commands to try, log the listeners, and notify the supervisor."""
    settings, tls = server.settings, server.settings.tls
    url = url_of(listeners.public, "https" if tls.cert else "http")
    urls = [url]
    path = settings.bayeux.paths[0]
    console = f"{url}/" if "/bayeux" in settings.bayeux.paths else f"{url}/?server={path}"
    lines = [f"console: {console}", f"history: {server.history}"]
    if listeners.operations is not None:
        urls.append(url_of(listeners.operations))
        lines.append(f"health and metrics: {urls[-1]}/health/ready, /metrics")
    if listeners.nt4 is not None:
        urls.append(url_of(listeners.nt4, "ws"))
        lines.append(f"networktables: {urls[-1]}/nt/NAME")
    if listeners.nodes is not None:
        urls.append(url_of(listeners.nodes))
        lines.append(f"other nodes: {urls[-1]}")
    for listens in urls:
        telemetry.log.info("listening", url=listens)
    trust = f"--cacert {shlex.quote(tls.cert)} " if tls.cert else ""
    is_plain = not (
        settings.access or settings.cluster.urls
    )  # access rules could refuse them, and a node is one of many
    tries = examples(trust + url + path) if is_plain else []
    # The console's address is where it can be seen, above and below. Programs wait for the last line.
    lines += [*tries, f"halley is listening on {url} (console: {console})"]
    telemetry.write_line("\n".join(lines))
    notify(READY)


def examples(bayeux: str) -> list[str]:
    """Return lines with three curl commands; `bayeux` is the address, after any options that it needs."""
    handshake = '{"channel":"/meta/handshake","version":"1.0","supportedConnectionTypes":["long-polling"]}'
    batch = """[{\\"channel\\":\\"/meta/subscribe\\",\\"subscription\\":\\"/hello\\",\\"clientId\\":\\"$id\\"},"""
    batch += """{\\"channel\\":\\"/hello\\",\\"data\\":\\"world\\"}]"""
    return [
        "try (and watch with: halley subscribe /hello)",
        f"""  curl {bayeux} -d '{{"channel":"/hello","data":"world"}}'""",
        f"""  id=$(curl -s {bayeux} -d '{handshake}' | grep -o '[0-9a-z]\\{{40,\\}}'); curl {bayeux} -d "{batch}\"""",
        f"""  curl -G {bayeux} --data-urlencode jsonp=show --data-urlencode 'message={handshake}'""",
    ]


class Resources(Part):
    """Reports the memory in use to the broker, and logs when the process can open no more files."""

    def __init__(
        self,
        broker: Broker,
        *,
        resident_bytes: Callable[[], int] | None = None,
        available_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        self._broker = broker
        self._resident_bytes = resident_bytes or own_resident_bytes
        self._checked_at = float("-inf")
        available = (available_bytes or memory_bytes)()
        share = broker.limits.memory_share
        if available is not None and share:
            broker.memory.limit(share * available)

    def sweep(self, now: float) -> None:
        """Check the memory and the files, at most once a second; `now` is monotonic, in seconds."""
        if now - self._checked_at < _RESOURCES_S:
            return
        self._checked_at = now
        try:
            self._broker.memory.set(self._resident_bytes())
        except OSError as error:
            # New connections are closed or wait, existing ones are served; nothing else would log why.
            if error.errno in OUT_OF_FILES:
                telemetry.log.warning("out_of_files", reason=error.strerror)


def own_resident_bytes() -> int:
    """Return the bytes of memory that this process uses. Raises `OSError` where that cannot be read."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that this process can use: the least limit of cgroup and machine; None if unknown."""
    return min(_limits(root), default=None)


def _limits(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                yield from _cgroup_limits(root / "sys/fs/cgroup", group, "memory.max")
            elif "memory" in controllers.split(","):
                yield from _cgroup_limits(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes")
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) * 1024


def _cgroup_limits(hierarchy: Path, group: str, name: str) -> Iterator[int]:
    """Yield the limits of a cgroup and of its parents; in a container its own is often shown as the root."""
    folder = hierarchy / group.lstrip("/")
    for place in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # ValueError: "max"
            yield int((place / name).read_text())
        if place == hierarchy:
            return


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
