"""The composition root: builds the parts of a server, and joins them by the arguments of their constructors.

`create_app` makes an ASGI application for any server; `halley/host` runs it under Halley's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.types import Receive, Scope, Send

from halley import telemetry
from halley.access.control import AccessControl, Authenticator
from halley.broker.broker import Broker
from halley.broker.errors import TokenRefused
from halley.broker.sharing import Sharing
from halley.configuration.programs import checked
from halley.configuration.protection import rights_of
from halley.protocols.bayeux.engine import BayeuxEngine, new_id
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.protocol import BayeuxProtocol
from halley.protocols.contract import Part, WireProtocol
from halley.server.application import Application
from halley.server.folder_log import FolderLog
from halley.server.history import AnyLog, HistoryService, Opening
from halley.server.lifecycle import Lifecycle
from halley.server.other_nodes import OtherNodes
from halley.server.persistence import PersistentTopics
from halley.server.protocols import PROTOCOLS, Common, Compose
from halley.server.pump import Pump
from halley.server.reloading import Reloading
from halley.server.session_log import SessionLog
from halley.server.sweeper import Sweep, Sweeper, Swept
from halley.server.topics import SystemEvents, Ticker
from halley.settings import Settings
from halley.transports.addresses import Proxies, accounts
from halley.transports.api.application import Apis
from halley.transports.api.pages import Pages
from halley.transports.asgi import AsgiServer
from halley.transports.guard import Guard
from halley.transports.routes import ProtocolEndpoint, Route, Routes
from halley.transports.waits import Waits


class Server:
    """One server: its parts, and the ASGI application that they make.

    Raises `BadSettings`, `NotProtected`, or `BadKeys` (`halley/access/keys.py`). `settings` are the defaults where
    None.
    """

    def __init__(self, settings: Settings | None = None, protocols: Sequence[Compose] = PROTOCOLS) -> None:
        settings = checked(settings or Settings())
        self.guard = Guard(settings)
        self.proxies = Proxies(settings.proxies)
        self.access = AccessControl(
            settings,
            rights_of(settings),
            Authenticator.of(settings),
            self._token_refused,
            program_reads=lambda: self.hooks.proves_identities,
        )
        self.broker = Broker(
            settings.limits,
            settings.history,
            settings.ticks,
            wake=self._wake,
            account_of=accounts((*settings.limits.exempt, *settings.proxies)),
            has_rules=lambda: self.access.is_configured,
            report=telemetry.fault,
        )
        node = settings.cluster.node if settings.cluster.urls else None
        self.others = others = None if node is None else OtherNodes(node, lambda: self.settings)
        self._history = HistoryService(settings, self.broker, self._wake, _opening(others))
        session_log = SessionLog(self.broker)
        system_events = SystemEvents(self.broker, node)
        self.broker.add_observer(session_log)
        self.broker.add_observer(system_events)
        self.hooks = Hooks(telemetry.fault, session_log.message_refused)
        waits = Waits()
        prefix = "" if others is None else others.id
        self.engine = BayeuxEngine(
            self.broker,
            settings.bayeux,
            self.access,
            self.hooks,
            identities=self.access,
            connection_types=_connection_types(settings, self.guard),
            new_id=lambda: prefix + new_id(),
            read=self._history.read,
            node_of=None if others is None else others.node_of,
            lazy=settings.lazy,
        )
        common = Common(
            settings,
            self.broker,
            self.access,
            self.hooks,
            self.guard,
            self._history,
            waits,
            session_log,
            BayeuxProtocol(self.engine, waits.wait),
            others,
        )
        composed = [part for compose in protocols for part in compose(common)]
        self.protocols = [part for part in composed if isinstance(part, WireProtocol)]
        if self.protocol("nt4") is None:  # the values that an earlier run has kept can still be erased
            self.broker.add_holder(PersistentTopics.of(settings))
        # The pump need not ask the protocols without turns of their own in each turn of the loop.
        self.pump = Pump(self.broker, [each for each in self.protocols if type(each).turn is not WireProtocol.turn])
        self.ticker = Ticker(self.broker, self.protocols, self._history, system_events, settings.ticks, others)
        self._sharing = Sharing(self.broker)
        self.reloading = Reloading(settings, self.access, self.broker)
        if others is not None:
            self.reloading.register(others.reload)
        swept = map(Swept, (self.broker.due, self._sharing.sweep, self.engine.sweep))
        self.parts = [*swept, self.ticker, self._history, *composed, self.reloading]
        note, guard = session_log.request_refused, self.guard
        self.pages = Pages()
        self.apis = Apis(
            settings,
            self.access,
            self.access,
            self.hooks,
            self.broker.rates,
            archive=lambda: self.history.archive,
        )
        routes = [route for part in composed if isinstance(part, ProtocolEndpoint) for route in part.routes()]
        self.routes = Routes([*routes, *self.apis.routes(guard)], Route("", self.pages, guard), note)
        every_s = min([settings.sweep_s, *(sockets.service.check_interval_s for sockets in self.routes.sockets)])
        slow: list[Sweep] = [self.broker.rates.sweep, self.access.refresh_keys, session_log.report_limits]
        slow.append(lambda _: telemetry.report_suppressed())
        self.sweeper = Sweeper(every_s, self.broker, self.parts, slow)
        self.lifecycle = Lifecycle(
            self.broker, self.parts, self.protocols, self.pump, self.sweeper, waits, settings.drain, self._drain_s
        )
        asgi = AsgiServer(self.routes, self.proxies, settings.limits, self.broker.hits, _patience_s(settings))
        self.application = Application(asgi, self.lifecycle)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan (ASGI)."""
        await self.application(scope, receive, send)

    @property
    def settings(self) -> Settings:
        """The settings that count now."""
        return self.reloading.settings

    @property
    def history(self) -> AnyLog:
        """The log of the server; where none is open, one that says so."""
        return self._history.log

    def protocol(self, name: str) -> WireProtocol | None:
        """The protocol of that name; None if the server does not speak it."""
        return next((each for each in self.protocols if each.name == name), None)

    def add(self, *parts: Part) -> None:
        """Have parts of the host or the program live with the server, behind all others."""
        self.parts += parts

    def _wake(self) -> None:
        self.pump.wake()

    def _drain_s(self) -> float:
        """Over how many seconds a drain is spread: many clients that come back at once would stop another server."""
        options = self.settings.drain
        return min(options.spread_s, self.broker.census.clients / options.clients_per_s)

    def _token_refused(self, refused: TokenRefused) -> None:
        self.broker.counted(refused)
        telemetry.log.info("token_refused", reason=refused.reason, detail=refused.detail)


def _connection_types(settings: Settings, guard: Guard) -> list[str]:
    """The connection types that Bayeux's clients may choose from."""
    types = ["long-polling"]
    if guard.serves_other_origins:
        types.append("cross-origin-long-polling")  # Faye's name for a POST by CORS, which it must find here
    if settings.bayeux.callback_polling:
        types.append("callback-polling")
    types.append("websocket")
    return types


def _patience_s(settings: Settings) -> float:
    longest_s = max(settings.bayeux.hold_s, settings.wamp.poll_s, settings.history.read_s)
    return longest_s + settings.bayeux.policy_s + settings.history.commit_s


def _opening(others: OtherNodes | None) -> Opening:
    """What opens the history; a server that runs alone imports nothing of clusters."""
    if others is None:
        return FolderLog.of_single_server
    from halley.server.cluster_history import open_cluster_history

    return partial(open_cluster_history, others=others)


def create_app(settings: Settings | None = None) -> Server:
    """Make an ASGI application for any server: `uvicorn halley.server:create_app --factory`.

    Raises `BadSettings`, `NotProtected`, or `BadKeys` (`halley/access/keys.py`). `settings` are the defaults where
    None.
    """
    return Server(settings)
