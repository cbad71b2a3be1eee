"""Halley's own server process: its listeners, one event loop, and a leave-taking that loses nobody.

SIGTERM (or Ctrl-C) drains: holds are answered, requests under way are finished, then the process goes with 0 (130). A
second signal ends it at once; its exit code is then a shell's word for a process that a signal ended, since requests
may have been cut. SIGHUP reads certificates again, and whatever else has registered with `House.on_reload`.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import signal
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from app import __version__, metrics, telemetry
from app.access.keys import BadKeys
from app.embed import Halley, load
from app.history.folder import FolderLocked, FolderUnusable
from app.host import supervisor
from app.host.announcement import announce
from app.host.certificate import BadCertificate, Certificate
from app.host.connection import Connection
from app.host.listening import CannotListen, Listeners, close, let_wait, listen, url_of
from app.host.prompt import PromptServer
from app.host.resources import OUT_OF_FILES, Resources
from app.host.short_way import BayeuxConnection, ShortWay
from app.host.side_server import SideServer, config_of, nt4_server
from app.host.sockets import Sockets
from app.host.tls import Tls
from app.host.watch import Watch
from app.protection import NotProtected
from app.recorder import BadRecord
from app.transports.operations import operations_app

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from app.server import House
    from app.settings import Settings

_SCRAPE_S = 1
"""For a request for metrics or health that is under way when all else is over."""
_COLLECT_AFTER = (50_000, 20, 100)
_OK, _WRONG_USE, _SIGNALLED, _INTERRUPTED = 0, 2, 128, 130


_WRONG = (BadCertificate, BadKeys, BadRecord, NotProtected, CannotListen, FolderLocked, FolderUnusable, ImportError)
"""Why there is nothing to serve: all of it is for whoever started us to put right."""


def run(settings: Settings, origins: Mapping[str, str] | None = None) -> int:
    """Serve until told to stop; returns the process' exit code.

    `origins` tells, for the log, where those settings come from that are not the usual ones.
    """
    telemetry.configure(settings.log)
    open_files = raise_file_limit()
    listeners: Listeners | None = None
    try:
        certificate = Certificate(settings.tls) if settings.tls.cert else None
        halley = Halley(settings)
        for name in settings.load:
            load(name, halley)
        listeners = listen(settings)
        halley.house.open()
    except _WRONG as error:
        close(listeners or ())
        print(f"halley: {error}", file=sys.stderr)  # noqa: T201 - the one who started us reads it
        return _WRONG_USE
    telemetry.log.info(
        "started",
        version=__version__,
        python=platform.python_version(),
        tls=settings.tls.min_version if certificate else "",
        open_files=open_files,
        settings=dict(origins or {}),
    )
    # What lives as long as the process need not be looked at again and again; nor does every burst of a few hundred
    # messages deserve a collection: a pass over all sessions costs more than all of a burst's deliveries.
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(halley, listeners, certificate))
    except KeyboardInterrupt:  # once more, when all was over
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
    """What the process says of its end, by the signals that came: 0, or 130 for Ctrl-C, if it left in good order.

    Cut short by a second signal, it says what a shell says of a process that a signal has ended: 128 and its number.
    """
    if len(signals) > 1:
        return _SIGNALLED + signals[1]
    return _INTERRUPTED if signals and signals[0] == signal.SIGINT else _OK


def _protocol(house: House, watch: Watch, certificate: Certificate | None) -> Callable[..., asyncio.Protocol]:
    """What makes the protocol of each new connection of clients."""
    plain: Callable[..., Connection] = partial(Connection, watch=watch)
    if house.settings.short_way:
        plain = partial(BayeuxConnection, watch=watch, short_way=ShortWay(house))
    if certificate is None:
        return plain

    def make(**named: Any) -> Tls:
        connection = plain(**named)
        return Tls(connection, certificate.context, connection.has_no_tls)

    return make


class HalleyServer(PromptServer):
    """uvicorn's server, which drains before it shuts down. `signals` are those that came, in order."""

    def __init__(self, house: House, watch: Watch, certificate: Certificate | None = None) -> None:
        super().__init__(config_of(house, house.settings, _protocol(house, watch, certificate)))
        for spoken in (house.wamp, house.nt4):
            if spoken is not None:
                sockets = Sockets(spoken.family, house.proxies, watch)
                sockets.connections = self.server_state.connections
                watch.sockets.append(sockets)
        house.on_sweep += [watch.sweep, Resources(house.broker).sweep]
        self._scheme = "https" if certificate else "http"
        if certificate is not None:
            house.on_reload.append(certificate.reload)
        self._loop: asyncio.AbstractEventLoop
        self.signals: list[int] = []
        self.on_startup: Callable[[], None] = lambda: None
        self.beside: SideServer | None = None  # of clients too, so it begins and leaves along with this one
        self._house = house

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; unlike uvicorn's own, exit with a code of ours and not by the signal."""
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
        """The first signal asks to leave, any further one to leave now."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self.signals.append(sig)
        self._loop.call_soon_threadsafe(partial(self.leave, is_forced=self.force_exit))  # wakes who waits for that
        self._log_soon(sig, "leaves at once" if self.force_exit else "leaves")

    def handle_reload(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal.signal's form
        """Read certificates and the like again."""
        self._log_soon(sig, "reloads")
        self._loop.call_soon_threadsafe(self._house.reload)

    def _log_soon(self, sig: int, then: str) -> None:
        """Not at once: the signal may have come in the middle of a line."""
        name = signal.Signals(sig).name
        self._loop.call_soon_threadsafe(partial(telemetry.log.info, "signal", name=name, then=then))

    def leave(self, *, is_forced: bool = False) -> None:
        """See `PromptServer`."""
        super().leave(is_forced=is_forced)
        if is_forced and self.beside is not None:
            self.beside.leave(is_forced=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and say so: from then on signals are handled."""
        await super().startup(sockets)
        let_wait(sockets)
        if self.beside is not None:
            self.beside.begin()
        self.on_startup()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the holds while still listening, then close."""
        supervisor.tell(supervisor.STOPPING)
        await self._house.drain(is_forced=lambda: self.force_exit)
        for bound in sockets or ():
            telemetry.log.info("not_listening", url=url_of(bound, self._scheme))
        if self.beside is not None:
            telemetry.log.info("not_listening", url=self.beside.url)
            await self.beside.end()  # before the sweeper, which cuts who does not go
        await super().shutdown(sockets)
        if self.force_exit:  # then the application was left as it was
            await self._house.stop(is_cut_short=True)
            await self.lifespan.shutdown()


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop has nobody to tell of; that there are no more files, `Resources` says."""
    if getattr(context.get("exception"), "errno", None) not in OUT_OF_FILES:
        loop.default_exception_handler(context)


def raise_file_limit() -> int | None:
    """Let as many connections be open as the system allows: each is a file. How many that are, if there is a limit."""
    with suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415 - not on Windows

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return None if hard == resource.RLIM_INFINITY else hard
    return None


def _loop_factory() -> Any:
    try:
        import uvloop  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
