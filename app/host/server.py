"""Halley's own server process: its listeners, one event loop, and a shutdown that drains clients.

SIGTERM (or Ctrl-C) drains: holds are answered, running requests are finished, then the process exits with 0 (130). A
second signal ends it immediately; requests may have been cut, so the exit code is then 128 plus the signal's number.
SIGHUP reloads access rules, tokens, users and the certificate, and everything else that is registered with
`House.on_reload`.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from app import __version__, telemetry
from app.access.keys import BadKeys
from app.configuration import Configuration
from app.configuration.protection import NotProtected
from app.embed import Halley, load
from app.history.folder import FolderLocked, FolderUnusable
from app.host.announcement import STOPPING, announce, tell
from app.host.connection import Connection
from app.host.listening import CannotListen, Listeners, close, let_wait, listen, url_of
from app.host.resources import OUT_OF_FILES, Resources
from app.host.servers import PromptServer, SideServer, config_of, nt4_server
from app.host.short_way import BayeuxConnection, ShortWay
from app.host.timeouts import Watch
from app.host.tls import BadCertificate, Certificate, Tls
from app.host.websocket import Sockets
from app.server import metrics
from app.server.history import BadRecord
from app.server.reloading import Reloading
from app.server.server import House
from app.transports.api.operations import operations_app

if TYPE_CHECKING:
    import socket

_SCRAPE_S = 1
"""Grace period of the operations listener: for requests for metrics or health that run at the very end."""
_COLLECT_AFTER = (50_000, 20, 100)
_OK, _WRONG_USE, _SIGNALLED, _INTERRUPTED = 0, 2, 128, 130


_WRONG = (BadCertificate, BadKeys, BadRecord, NotProtected, CannotListen, FolderLocked, FolderUnusable, ImportError)
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
        halley.house.on_reload.append(Reloading(halley.house, configuration, read))
        for name in settings.load:
            load(name, halley)
        listeners = listen(settings)
        halley.house.open()
    except _WRONG as error:
        close(listeners or ())
        print(f"halley: {error}", file=sys.stderr)  # noqa: T201 - for the terminal that the server was started in
        return _WRONG_USE
    telemetry.log.info(
        "started",
        version=__version__,
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
    house = halley.house
    watch = Watch(house.settings.limits, house.broker.hits)
    public = HalleyServer(house, watch, certificate)
    watches = [watch]
    if listeners.nt4 is not None:
        public.beside = nt4_server(house, listeners.nt4)
        watches.append(public.beside.watch)
    operations: SideServer | None = None
    if listeners.operations is not None:
        app = operations_app(
            is_live=house.is_live, is_ready=house.is_ready, metrics=lambda: metrics.exposition(house, *watches)
        )
        operations = SideServer(app, house, listeners.operations, scheme="http", grace_s=_SCRAPE_S)
        operations.begin()
    public.on_startup = partial(announce, house, listeners)
    await public.serve([listeners.public])
    if operations is not None:
        await operations.end()
    return exit_code(public.signals)


def exit_code(signals: Sequence[int]) -> int:
    """Return the process' exit code for the received signals: 0, or 130 if the first one was Ctrl-C (SIGINT).

    If a second signal cut the shutdown short: 128 plus its number, as shells report a process that a signal ended.
    """
    if len(signals) > 1:
        return _SIGNALLED + signals[1]
    return _INTERRUPTED if signals and signals[0] == signal.SIGINT else _OK


def _protocol(house: House, watch: Watch, certificate: Certificate | None) -> Callable[..., asyncio.Protocol]:
    """Return the factory of the protocols for new public connections."""
    plain: Callable[..., Connection] = partial(Connection, watch=watch)
    if house.settings.short_way:
        plain = partial(BayeuxConnection, watch=watch, short_way=ShortWay(house))
    if certificate is None:
        return plain

    def make(**named: Any) -> Tls:
        connection = plain(**named)
        return Tls(connection, certificate.context, watch.turns, connection.has_no_tls)

    return make


class HalleyServer(PromptServer):
    """The public server, which drains before it closes. `signals` are the received ones, in order."""

    def __init__(self, house: House, watch: Watch, certificate: Certificate | None = None) -> None:
        super().__init__(config_of(house, house.settings, _protocol(house, watch, certificate)))
        for spoken in house.spoken:
            sockets = Sockets(spoken.face.family, house.proxies, watch)
            sockets.connections = self.server_state.connections
            watch.sockets.append(sockets)
        house.on_sweep += [watch.sweep, Resources(house.broker).sweep]
        self._scheme = "https" if certificate else "http"
        if certificate is not None:
            house.on_reload.append(certificate.reload)
        self._loop: asyncio.AbstractEventLoop
        self.signals: list[int] = []
        self.on_startup: Callable[[], None] = lambda: None
        self.beside: SideServer | None = None  # NetworkTables' own server, which starts and shuts down with this one
        self._house = house

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; unlike uvicorn, without raising them again afterwards."""
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
        self.force_exit = self.should_exit
        self.should_exit = True
        self.signals.append(sig)
        self._loop.call_soon_threadsafe(partial(self.leave, is_forced=self.force_exit))
        self._log_soon(sig, "exits immediately" if self.force_exit else "shuts down")

    def handle_reload(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal.signal's form
        """Reload the settings, the certificate and everything else that is registered with `House.on_reload`."""
        self._log_soon(sig, "reloads")
        self._loop.call_soon_threadsafe(self._house.reload)

    def _log_soon(self, sig: int, then: str) -> None:
        """Log a signal on the event loop: it may have interrupted the writing of another line."""
        name = signal.Signals(sig).name
        self._loop.call_soon_threadsafe(partial(telemetry.log.info, "signal", name=name, then=then))

    def leave(self, *, is_forced: bool = False) -> None:
        """See `PromptServer`."""
        super().leave(is_forced=is_forced)
        if is_forced and self.beside is not None:
            self.beside.leave(is_forced=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and announce it."""
        await super().startup(sockets)
        let_wait(sockets)
        if self.beside is not None:
            self.beside.begin()
        self.on_startup()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain while still listening, then close everything."""
        tell(STOPPING)
        await self._house.drain(is_forced=lambda: self.force_exit)
        for bound in sockets or ():
            telemetry.log.info("not_listening", url=url_of(bound, self._scheme))
        if self.beside is not None:
            telemetry.log.info("not_listening", url=self.beside.url)
            await self.beside.end()  # before the sweeper ends: it cuts peers that do not close
        await super().shutdown(sockets)
        if self.force_exit:  # then `super().shutdown` did not shut down the application
            await self._house.stop(is_cut_short=True)
            await self.lifespan.shutdown()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception that nothing handles; `Resources` logs that the process can open no more files."""
    if getattr(context.get("exception"), "errno", None) not in OUT_OF_FILES:
        loop.default_exception_handler(context)


def raise_file_limit() -> int | None:
    """Raise the limit of open files, of which each connection is one, to its maximum; return it, None if unlimited."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return None if hard == resource.RLIM_INFINITY else hard
    return None


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
