"""Halley's own server process: two listeners, one event loop, and a leave-taking that loses nobody.

SIGTERM (or Ctrl-C) drains: holds are answered, requests under way are finished, then the process goes with 0 (130). A
second signal ends it at once; its exit code is then a shell's word for a process that a signal ended, since requests
may have been cut. SIGHUP reads certificates again, and whatever else has registered with `House.on_reload`.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import platform
import shlex
import signal
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from app import __version__, metrics, telemetry
from app.access.keys import BadKeys
from app.embed import Halley, load
from app.history.folder import FolderLocked, FolderUnusable
from app.host.certificate import BadCertificate, Certificate
from app.host.connection import Connection
from app.host.prompt import PromptServer
from app.host.resources import OUT_OF_FILES, Resources
from app.host.short_way import BayeuxConnection, ShortWay
from app.host.sockets import Sockets
from app.host.tls import Tls
from app.host.watch import Watch
from app.recorder import BadRecord
from app.server import NotProtected
from app.transports.operations import operations_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from starlette.types import ASGIApp

    from app.server import House
    from app.settings import Settings

_BACKLOG = 4_096
_ACCEPTED_AT_ONCE = 1
"""What asyncio's own loop takes for the backlog: out of files it fails as often in a row, each time with a log entry
and a timer that does it again. The sockets' real backlog is set beside it.
"""

_SCRAPE_S = 1
"""For a request for metrics or health that is under way when all else is over."""
_PORT_ERRORS = (errno.EADDRINUSE, errno.EACCES)
_COLLECT_AFTER = (50_000, 20, 100)
_OK, _WRONG_USE, _SIGNALLED, _INTERRUPTED = 0, 2, 128, 130


class CannotListen(Exception):
    """A port is taken, or an address is not this machine's."""


_WRONG = (BadCertificate, BadKeys, BadRecord, NotProtected, CannotListen, FolderLocked, FolderUnusable, ImportError)
"""Why there is nothing to serve: all of it is for whoever started us to put right."""


def run(settings: Settings, origins: Mapping[str, str] | None = None) -> int:
    """Serve until told to stop; returns the process' exit code.

    `origins` tells, for the log, where those settings come from that are not the usual ones.
    """
    telemetry.configure(settings.log)
    open_files = raise_file_limit()
    sockets: list[socket.socket] = []
    try:
        certificate = Certificate(settings.tls) if settings.tls.cert else None
        halley = Halley(settings)
        for name in settings.load:
            load(name, halley)
        sockets.append(bind(settings.host, settings.port, "--port"))
        if settings.operations.enabled:
            sockets.append(bind(settings.operations.host, settings.operations.port, "--operations-port"))
        halley.house.open()
    except _WRONG as error:
        for bound in sockets:
            bound.close()
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
            return runner.run(_serve(halley, sockets, certificate))
    except KeyboardInterrupt:  # once more, when all was over
        return _INTERRUPTED


async def _serve(halley: Halley, sockets: list[socket.socket], certificate: Certificate | None) -> int:
    asyncio.get_running_loop().set_exception_handler(_report)
    house = halley.house
    watch = Watch(house.settings.limits, house.broker.hits)
    public = HalleyServer(house, watch, certificate)
    operations: _OperationsServer | None = None
    running: asyncio.Task[None] | None = None
    if len(sockets) > 1:
        app = operations_app(
            is_live=house.is_live, is_ready=house.is_ready, metrics=lambda: metrics.exposition(house, watch)
        )
        operations = _OperationsServer(app, house)
        running = asyncio.create_task(operations.serve(sockets[1:]))
    public.on_startup = partial(announce, house, sockets)
    await public.serve(sockets[:1])
    if operations is not None and running is not None:
        operations.leave()
        await running
    return exit_code(public.signals)


def exit_code(signals: Sequence[int]) -> int:
    """What the process says of its end, by the signals that came: 0, or 130 for Ctrl-C, if it left in good order.

    Cut short by a second signal, it says what a shell says of a process that a signal has ended: 128 and its number.
    """
    if len(signals) > 1:
        return _SIGNALLED + signals[1]
    return _INTERRUPTED if signals and signals[0] == signal.SIGINT else _OK


def _config(app: ASGIApp, settings: Settings, protocol: Callable[..., asyncio.Protocol]) -> uvicorn.Config:
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
        super().__init__(_config(house, house.settings, _protocol(house, watch, certificate)))
        watch.sockets.append(Sockets(house.wamp.family, house.guard, house.proxies, watch))
        for family in watch.sockets:
            family.connections = self.server_state.connections
        house.on_sweep += [watch.sweep, Resources(house.broker).sweep]
        self._scheme = "https" if certificate else "http"
        if certificate is not None:
            house.on_reload.append(certificate.reload)
        self._loop: asyncio.AbstractEventLoop
        self.signals: list[int] = []
        self.on_startup: Callable[[], None] = lambda: None
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and say so: from then on signals are handled."""
        await super().startup(sockets)
        _let_wait(sockets)
        self.on_startup()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the holds while still listening, then close."""
        await self._house.drain(is_forced=lambda: self.force_exit)
        for bound in sockets or ():
            telemetry.log.info("not_listening", url=url_of(bound, self._scheme))
        await super().shutdown(sockets)
        if self.force_exit:  # then the application was left as it was
            await self._house.stop(is_cut_short=True)
            await self.lifespan.shutdown()


class _OperationsServer(PromptServer):
    """The operations listener's server, which leaves the signals to the public one."""

    def __init__(self, app: ASGIApp, house: House) -> None:
        watch = Watch(house.settings.limits, house.broker.hits)
        config = _config(app, house.settings, partial(Connection, watch=watch))
        config.timeout_graceful_shutdown = _SCRAPE_S
        super().__init__(config)
        house.on_sweep.append(watch.sweep)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _let_wait(sockets)


def _let_wait(sockets: list[socket.socket] | None) -> None:
    """Let clients wait to be accepted, many at a time; the event loop has just set it otherwise."""
    for bound in sockets or ():
        bound.listen(_BACKLOG)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the event loop has nobody to tell of; that there are no more files, `Resources` says."""
    if getattr(context.get("exception"), "errno", None) not in OUT_OF_FILES:
        loop.default_exception_handler(context)


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A listening socket. Raises `CannotListen`, which names the flag that would help where another port would."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(_BACKLOG)  # from now on clients wait instead of being refused
        except OSError:
            bound.close()
            raise
    except OSError as error:
        advice = f"; choose another with {flag}" if error.errno in _PORT_ERRORS else ""
        raise CannotListen(f"cannot listen on {host}:{port} ({error.strerror}){advice}") from None
    bound.setblocking(False)  # noqa: FBT003 - the standard library's form
    return bound


def announce(house: House, sockets: list[socket.socket]) -> None:
    """Tell whoever started us what to try; the last line is where we listen."""
    settings, tls = house.settings, house.settings.tls
    url = url_of(sockets[0], "https" if tls.cert else "http")
    path = settings.bayeux.paths[0]
    console = f"{url}/" if "/bayeux" in settings.bayeux.paths else f"{url}/?server={path}"
    recorder = house.recorder
    lines = [f"history: {recorder.folder}" if recorder is not None else "history: off, in memory alone"]
    if len(sockets) > 1:
        lines.append(f"health and metrics: {url_of(sockets[1])}/health/ready, /metrics")
    for listens in (url, *map(url_of, sockets[1:])):
        telemetry.log.info("listening", url=listens)
    trust = f"--cacert {shlex.quote(tls.cert)} " if tls.cert else ""
    tries = [] if settings.access else try_next(trust + url + path)  # which would be refused
    lines += [f"console: {console}", *tries, f"halley is listening on {url}"]
    print("\n".join(lines), file=sys.stderr, flush=True)  # noqa: T201 - the one who started us reads it


def try_next(bayeux: str) -> list[str]:
    """Three curl lines that work when pasted, each by itself; `bayeux` is the address, after options it may need."""
    handshake = '{"channel":"/meta/handshake","version":"1.0","supportedConnectionTypes":["long-polling"]}'
    batch = """[{\\"channel\\":\\"/meta/subscribe\\",\\"subscription\\":\\"/hello\\",\\"clientId\\":\\"$id\\"},"""
    batch += """{\\"channel\\":\\"/hello\\",\\"data\\":\\"world\\"}]"""
    return [
        "try (and watch by: halley subscribe /hello)",
        f"""  curl {bayeux} -d '{{"channel":"/hello","data":"world"}}'""",
        f"""  id=$(curl -s {bayeux} -d '{handshake}' | grep -o '[0-9a-f]\\{{40\\}}'); curl {bayeux} -d "{batch}\"""",
        f"""  curl -G {bayeux} --data-urlencode jsonp=show --data-urlencode 'message={handshake}'""",
    ]


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """The address of a bound socket as a browser takes it."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


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
