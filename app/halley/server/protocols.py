"""The protocols that the server speaks, and how each is composed.

To add a protocol, write its room and a function here that makes its endpoint, and list that in `PROTOCOLS`: the server
sweeps, drains, measures and shows all that are listed, and knows no more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Protocol

from halley import __version__
from halley.access.control import AccessControl
from halley.broker.broker import Broker
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.protocol import BayeuxProtocol
from halley.protocols.contract import Count, WireProtocol
from halley.protocols.events.protocol import Events
from halley.protocols.events.stream import Streams
from halley.protocols.nt4.protocol import NetworkTables
from halley.protocols.wamp import meta_queries, remote_sessions
from halley.protocols.wamp.authentication import Authentication
from halley.protocols.wamp.names import realms_of
from halley.protocols.wamp.protocol import Router
from halley.protocols.wamp.state import META_EVENT, SESSION, Environment
from halley.server.history import HistoryService
from halley.server.other_nodes import OtherNodes
from halley.server.persistence import PersistentTopics, ReservedIds, TopicSaver
from halley.server.session_log import SessionLog
from halley.settings import Settings
from halley.transports.bayeux_route import BayeuxEndpoint
from halley.transports.events import EventsEndpoint
from halley.transports.guard import Guard
from halley.transports.nt4 import nt4_route
from halley.transports.routes import ProtocolEndpoint, WebSocketEndpoint
from halley.transports.waits import Waits
from halley.transports.wamp import WampEndpoint
from halley.transports.websocket import WebSocketRoute


class Parts(NamedTuple):
    """What a protocol is composed of: the parts of one server."""

    settings: Settings
    broker: Broker
    access: AccessControl
    hooks: Hooks
    guard: Guard
    history: HistoryService
    waits: Waits
    session_log: SessionLog
    bayeux: BayeuxProtocol
    """Bayeux without an endpoint, which every server has: the program's own sessions and publishes use it."""
    others: OtherNodes | None = None
    """The other nodes, where the server is a node of a cluster."""


class Service(Protocol):
    """What has something to open before the server begins, and to close when it ends. A protocol may be one itself."""

    def open(self) -> None:
        """Restore what an earlier run has kept; called again when the event loop runs."""

    def sweep(self, now: float) -> bool | None:
        """Do what is due, a part of it if it is much; called a few times a second. True if there is more."""

    async def close(self) -> None:
        """Keep what a later run is to restore."""

    def counts(self) -> Iterable[Count]:
        """The service's own metrics."""


class Mount(NamedTuple):
    """A protocol as the server has it: with the endpoint that serves its paths, and the services that it needs."""

    protocol: WireProtocol
    endpoint: ProtocolEndpoint
    services: tuple[Service, ...] = ()


Compose = Callable[[Parts], Mount | None]
"""Composes a protocol; None if the settings turn it off."""


def bayeux(parts: Parts) -> Mount:
    """Compose Bayeux: make the endpoint for the engine that every server has."""
    note = parts.session_log.request_refused
    endpoint = BayeuxEndpoint(parts.bayeux, parts.guard, note, parts.settings, parts.others)
    return Mount(parts.bayeux, endpoint)


def wamp(parts: Parts) -> Mount:
    """Compose WAMP: a router for the realms of the settings, which in a cluster also answers other nodes."""
    settings = parts.settings
    is_recorded = settings.history.enabled
    router = Router(
        parts.broker,
        settings.wamp,
        realms_of(settings),
        parts.access,
        Authentication(parts.access, anonymous=settings.wamp.anonymous),
        Environment(
            reserve=ReservedIds(Path(settings.data_dir) if is_recorded else None),
            wait=parts.waits.wait,
            policy=parts.hooks,
            policy_s=settings.bayeux.policy_s,
            agent=f"Halley-{__version__}",
            denied=(parts.session_log.refused,),
            archive=parts.history if is_recorded else None,
            nodes=parts.others,
        ),
    )
    others, sessions = parts.others, router.remote_sessions
    if others is not None and sessions is not None:
        others.answer(meta_queries.KIND, lambda _node, question: router.answer(question, monotonic()))
        others.answer(META_EVENT, lambda _node, news: router.arrived(news, monotonic()))
        others.answer(SESSION, lambda node, report: sessions.arrived(node, report, monotonic()))
        others.answer(remote_sessions.LIST, lambda _node, question: sessions.page(question))
        others.report(remote_sessions.REPORT_COUNT, sessions.report_count)
    note, node_id = parts.session_log.request_refused, "" if others is None else others.id
    return Mount(router, WampEndpoint(router, parts.guard, note, settings, parts.broker, node_id, others))


def nt4(parts: Parts) -> Mount | None:
    """Compose NetworkTables; None if it is turned off. In a cluster only its home serves clients."""
    settings, file = parts.settings, PersistentTopics.of(parts.settings)
    if not settings.nt4.enabled:
        return None
    protocol = NetworkTables(
        parts.broker, settings.nt4, parts.access, parts.hooks, parts.waits.wait, settings.bayeux.policy_s
    )
    if parts.others is not None:  # `nt4_home.py` has the rest, when the node has joined the cluster
        protocol.stand_by(monotonic())
        parts.others.serve_nt4(protocol, file)
        return _by_websockets(parts, nt4_route(protocol, settings, settings.host, protocol.serves))
    saver = TopicSaver(protocol, file, settings.nt4.save_every_s)
    parts.broker.values.keep_in(protocol.bridge)
    parts.broker.add_holder(saver)
    return _by_websockets(parts, nt4_route(protocol, settings, settings.host), (saver,))


def events(parts: Parts) -> Mount:
    """Compose the streams of events, which publish through Bayeux' engine."""
    settings, access = parts.settings, parts.access
    streams = Streams(parts.broker, settings.events, access, parts.waits.wait, parts.history.read, parts.hooks.report)
    protocol, note = Events(streams), parts.session_log.request_refused
    endpoint = EventsEndpoint(protocol, parts.bayeux.engine, parts.guard, note, access, access, settings)
    return Mount(protocol, endpoint)


def websocket(parts: Parts, protocol: WireProtocol) -> Mount:
    """Compose a protocol that is reached by WebSockets alone, at `protocol.websocket`."""
    assert protocol.websocket is not None
    return _by_websockets(parts, WebSocketRoute(protocol, protocol.websocket, parts.guard))


def _by_websockets(parts: Parts, route: WebSocketRoute, services: tuple[Service, ...] = ()) -> Mount:
    return Mount(route.protocol, WebSocketEndpoint(route, parts.guard), services)


PROTOCOLS: tuple[Compose, ...] = (wamp, nt4, bayeux, events)
"""All protocols; a path that several have is that of the first."""
