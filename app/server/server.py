"""The composition root: builds the parts of a server, joins them, and runs what must run on the event loop.

`create_app` makes an ASGI application for any server; `host/server.py` runs it under Halley's own. A `House` is one
server with the two things that need an event loop: a flush once a turn when events wait, and the sweeper.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from app import telemetry
from app.access.control import AccessControl, Authenticator
from app.broker.broker import Broker
from app.broker.errors import TokenRefused
from app.broker.flow import Delays
from app.broker.policy import SERVER
from app.configuration.protection import check_protected, grants_of
from app.protocols.bayeux.engine import Engine
from app.protocols.bayeux.hooks import Hooks
from app.protocols.contract import WireProtocol
from app.server.history import HistoryService
from app.server.persistent_topics import PersistentTopics
from app.server.protocols import PROTOCOLS, Compose, Parts, Spoken
from app.server.pump import Pump
from app.server.routing import SettledArchive, Waits
from app.server.session_log import SessionLog
from app.server.sweeper import Sweeper
from app.server.system_events import SystemEvents
from app.server.ticks import Ticker
from app.settings import Settings
from app.transports.addresses import accounts
from app.transports.api.application import Apis
from app.transports.api.pages import Pages
from app.transports.door import reject
from app.transports.endpoint import Endpoint, leaving
from app.transports.exchange import target_of
from app.transports.guard import Guard, Rejection, check_framing
from app.transports.head import Head
from app.transports.paths import route_path
from app.transports.proxies import Proxies

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_PROGRESS_S = 1.0
"""Interval of the `drain_progress` lines in the log."""

_FORCE_S = 0.1
"""How soon a second signal is noticed while draining waits."""


class House:
    """One server: its broker, engines and HTTP paths, and an ASGI application.

    Raises `NotProtected`, or `BadKeys` (`app/access/keys.py`). `settings` and `hooks` are the defaults where None.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        hooks: Hooks | None = None,
        protocols: Sequence[Compose] = PROTOCOLS,
    ) -> None:
        self.settings = settings = settings or Settings()
        self.hooks = hooks or Hooks()
        self.guard = Guard(settings)
        check_protected(settings)
        self.access = AccessControl(grants_of(settings, Authenticator.of(settings, _report_keys)), self._token_refused)
        self.broker = Broker(settings.limits, settings.history, settings.ticks)
        self.protocols: list[WireProtocol] = []
        self.pump = Pump(self.broker, self.protocols)
        self.broker.wake = self.pump.wake
        self.broker.account_of = accounts((*settings.limits.exempt, *settings.proxies))
        self.engine = Engine(
            self.broker,
            settings.bayeux,
            self.access,
            self.hooks,
            identities=self.access,
            connection_types=self._connection_types(),
        )
        self._waits = Waits()
        self._session_log = SessionLog(self.broker)
        system_events = SystemEvents(self.broker)
        self.broker.observers += [self._session_log, system_events]
        self.hooks.message_refused.append(self._session_log.message_refused)
        self.hooks.report = telemetry.fault
        self.endpoint = Endpoint(self.engine, self.guard, settings)
        self.apis = Apis(
            settings,
            self.endpoint.door,
            self.access,
            self.access,
            self.hooks,
            archive=lambda: self.recorder,
        )
        self.pages = Pages()
        self.recorder: HistoryService | None = None  # once `open` has been called, if the history is on
        self.proxies = Proxies(settings.proxies)
        self.on_reload: list[Callable[[], None]] = []  # on SIGHUP: each reads its files again, and logs that
        self.on_sweep: list[Callable[[float], None]] = []
        self.background: list[Callable[[], Coroutine[Any, Any, None]]] = []  # a program's own tasks
        self._is_leaving = False
        self._dropped_before = 0  # events, when leaving began
        self._drain_told_at = 0.0
        self._tasks: list[asyncio.Task[None]] = []  # the sweeper, then the program's own
        self._sweeper = Sweeper(settings, self.broker, self._sweeps)
        self._sweeper.slow += [
            lambda _: self.engine.sweep(),
            self.broker.meters.sweep,
            self.access.look,
            self._session_log.report_limits,
            lambda _: telemetry.report_suppressed(),
        ]
        self._ticker = Ticker(self, settings.ticks, system_events)
        parts = Parts(
            settings,
            self.broker,
            self.access,
            self.hooks,
            self.guard,
            self.endpoint,
            self._waits,
            self._session_log,
            self.pump.wake,
        )
        self.spoken = [spoken for compose in protocols if (spoken := compose(parts)) is not None]
        self.protocols += [spoken.protocol for spoken in self.spoken]
        self.services = [service for spoken in self.spoken for service in spoken.services]
        if not settings.nt4.enabled:
            self.broker.holders.append(PersistentTopics.of(settings))  # an earlier run's

    def speak(self, spoken: Spoken) -> None:
        """Speak another protocol, in place of the one with the same name if there is one."""
        by_name = {each.protocol.name: each for each in self.spoken} | {spoken.protocol.name: spoken}
        self.spoken = [*by_name.values()]
        self.protocols[:] = [each.protocol for each in self.spoken]
        self.services = [service for each in self.spoken for service in each.services]

    def protocol(self, name: str) -> Any:
        """The protocol of that name. Raises `StopIteration` if the server does not speak it."""
        return next(each.protocol for each in self.spoken if each.protocol.name == name)

    def _token_refused(self, refused: TokenRefused) -> None:
        self.broker.counted(refused)
        telemetry.log.info("token_refused", reason=refused.reason, detail=refused.detail)

    def _connection_types(self) -> list[str]:
        names = ["long-polling"]
        if self.guard.serves_other_origins:
            names.append("cross-origin-long-polling")  # Faye's name for a POST by CORS; it uses no transport unlisted
        if self.settings.bayeux.callback_polling:
            names.append("callback-polling")
        return names

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        path = route_path(scope)
        spoken = next((each.face for each in self.spoken if each.face.leads_to(path)), None)
        if scope["type"] != "http" and spoken is None:
            await send({"type": "websocket.close", "code": 1000})
            return
        self.start()
        self.proxies.reveal(scope)
        try:
            guard = self.guard if spoken is None else spoken.family.guard
            guard.check_names(scope["headers"], target_of(scope))
            check_framing(scope.get("http_version", ""), scope["headers"])
        except Rejection as rejection:
            telemetry.request_refused(rejection.status, rejection.text, head=Head.of(scope))
            await reject(scope, send, rejection)
            return
        is_bayeux = any(path == mount or path.startswith(f"{mount}/") for mount in self.settings.bayeux.paths)
        try:
            serve = spoken or (self.endpoint if is_bayeux else self.apis if self.apis.leads_to(path) else self.pages)
            await serve(scope, receive, send)
        except asyncio.CancelledError:
            if not self._is_leaving:
                raise
            await reject(scope, send, leaving())

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            elif event["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    @asynccontextmanager
    async def lifespan(self, _app: ASGIApp | None = None) -> AsyncIterator[None]:
        """A lifespan for programs that mount this application: start it, and drain and stop it at the end."""
        self.start()
        try:
            yield
        finally:
            await self.drain()
            await self.stop()

    # The event loop

    def open(self) -> None:
        """Open the history, if it is on and not open yet. Raises `BadRecord`, `FolderLocked`, `FolderUnusable`."""
        if self.recorder is None and self.settings.history.enabled:
            self.recorder = HistoryService(self.settings, self.broker, self.pump.wake)
            self.engine.read = self.recorder.read
            self.protocol("wamp").archive = SettledArchive(self.recorder)
        for service in self.services:
            service.open()

    def start(self) -> None:
        """Open the history and begin sweeping, once; the first request does it where no lifespan has."""
        if not self._tasks:
            self.open()
            if self.recorder is not None:
                self.recorder.listen()
            self._sweeper.begin()
            jobs = [self._sweeper.run(), *(self._run(job) for job in self.background)]
            self._tasks = [asyncio.get_running_loop().create_task(job) for job in jobs]
            self.pump.wake()

    async def stop(self, *, is_cut_short: bool = False) -> None:
        """End what runs on the loop, close the history, and log how many events were lost.

        `is_cut_short` is logged too: a second signal ended the drain, so more may be lost than was counted.
        """
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._waits.stop()
        for service in self.services:
            await service.close()
        if self.recorder is not None:
            recorder, self.recorder, self.engine.read = self.recorder, None, None
            self.protocol("wamp").archive = None
            await recorder.close()
            self.pump.turn()
        self.pump.stop()
        telemetry.report_suppressed()
        dropped = self.broker.dropped - self._dropped_before if self._is_leaving else 0
        waiting = (event for session in self.broker.sessions.values() for event in session.outbox)
        lost = sum(not event.position for event in waiting) + dropped
        telemetry.log.info("stopped", undelivered_events=lost, is_cut_short=is_cut_short)

    def regrant(self, settings: Settings) -> tuple[int, int]:
        """Have the access rules, tokens and users of `settings` count from now on; all else must be as before.

        Returns the numbers of sessions that have ended, and of other sessions' subscriptions that have. Raises
        `NotProtected`, and then changes nothing.
        """
        if settings == self.settings:  # after a renewal of the certificate alone, for example
            return 0, 0
        check_protected(settings)
        self.access.grants = grants_of(settings, self.access.grants.authenticator)
        self.settings = settings
        return self.broker.rights_changed(self.access.stand_by, monotonic())

    def reload(self) -> None:
        """Read settings, certificates and other files again; connections and sessions continue."""
        if not self.on_reload:
            telemetry.log.info("reloaded", what="nothing")
        for read_again in self.on_reload:
            try:
                read_again()
            except Exception as error:  # noqa: BLE001 - the others must still be read
                telemetry.fault("reload", error)

    def is_live(self) -> bool:
        """Whether the sweeper has run recently."""
        return self._sweeper.is_live

    def is_ready(self) -> bool:
        """Whether new clients are accepted: the server has started and does not drain."""
        return bool(self._tasks) and not self._is_leaving

    def sweeper_age_s(self) -> float:
        """Seconds since the sweeper last checked deadlines."""
        return self._sweeper.age_s

    @property
    def loop_lags(self) -> Delays:
        """How late the event loop ran the sweeper."""
        return self._sweeper.lags

    def queued_events(self) -> int:
        """The number of events in all outboxes."""
        return sum(len(session.outbox) for session in self.broker.sessions.values())

    async def _run(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await job()
        except Exception as error:  # noqa: BLE001 - a program's task may raise anything
            telemetry.fault("background", error)

    def _sweeps(self) -> list[Callable[[float], None]]:
        sweeps = [self.broker.due, self._ticker.sweep, *self.on_sweep]
        for spoken in self.spoken:
            sweeps += [spoken.protocol.sweep, spoken.face.sweep]
        if self.recorder is not None:
            sweeps.append(self.recorder.sweep)
        return sweeps

    async def drain(self, is_forced: Callable[[], bool] = lambda: False) -> None:
        """Release all clients: answer the held connects, spread over time and in random order.

        Events published before a hold is answered are sent with the reply. Clients that connect meanwhile are
        answered immediately with their waiting events, and with advice when to reconnect. All waiting ends as soon as
        `is_forced` returns True.
        """
        if self._is_leaving:
            return
        self._is_leaving = True
        self._dropped_before = self.broker.dropped
        self._drain_told_at = monotonic()
        options = self.settings.drain
        telemetry.log.info("draining", holds=self.engine.holds)
        await self._pause(options.not_ready_s, is_forced)
        releases: list[Callable[[float], None]] = [
            partial(self.engine.release, session) for session in self.engine.drain()
        ]
        for protocol in self.protocols:
            releases += protocol.drain()
        clients = sum(session.role != SERVER for session in self.broker.sessions.values())
        random.shuffle(releases)
        spread_s = min(options.spread_s, clients / options.clients_per_s)
        self.engine.advisor.drain_interval = lambda: random.uniform(0, spread_s)  # noqa: S311 - no secret
        began = monotonic()
        for count, release in enumerate(releases):
            await self._pause(spread_s * count / len(releases) - (monotonic() - began), is_forced)
            release(monotonic())
            await asyncio.sleep(0)  # other tasks must run even where there is no time to spread over
        await self._pause(spread_s - (monotonic() - began), is_forced)  # for clients that were between two polls
        for spoken in self.spoken:
            spoken.face.leave(monotonic())
        telemetry.log.info("drained", seconds=round(monotonic() - began, 3))

    async def _pause(self, seconds: float, is_forced: Callable[[], bool]) -> None:
        until = monotonic() + seconds
        while (left_s := until - monotonic()) > 0 and not is_forced():
            await asyncio.sleep(min(_FORCE_S, left_s))  # a signal handler sets no events
            if monotonic() - self._drain_told_at > _PROGRESS_S:
                self._drain_told_at = monotonic()
                telemetry.log.info("drain_progress", holds=self.engine.holds)


def _report_keys(line: str, *, is_error: bool = False) -> None:
    if is_error:
        telemetry.log.error("keys", what=line)
    else:
        telemetry.log.warning("keys", what=line)


def create_app(settings: Settings | None = None) -> House:
    """Make an ASGI application for any server: `uvicorn app.server:create_app --factory`.

    Raises `NotProtected`, or `BadKeys` (`app/access/keys.py`). `settings` are the defaults where None.
    """
    return House(settings)
