"""The protocols that the server speaks, and how each is composed.

To add a protocol, write its room and a function here that makes its parts, and list that in `PROTOCOLS`: the server
sweeps, drains, measures and shows all that are listed, and knows no more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from halley import __version__
from halley.access.control import AccessControl
from halley.broker.broker import Broker
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.protocol import BayeuxProtocol
from halley.protocols.contract import Part, WireProtocol
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
from halley.transports.routes import WebSocketEndpoint
from halley.transports.waits import Waits
from halley.transports.wamp import WampEndpoint
from halley.transports.websocket import WebSocketRoute


class Common(NamedTuple):
    """What the protocols of one server have in common, and are composed with."""

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


Compose = Callable[[Common], Sequence[Part]]
"""Makes the parts of a protocol: itself, its endpoint and what else it needs; none if the settings turn it off.

An endpoint can also be all.
"""


def bayeux(common: Common) -> Sequence[Part]:
    """Compose Bayeux: make the endpoint for the engine that every server has."""
    note = common.session_log.request_refused
    endpoint = BayeuxEndpoint(common.bayeux, common.guard, note, common.settings, common.others)
    return common.bayeux, endpoint


def wamp(common: Common) -> Sequence[Part]:
    """Compose WAMP: a router for the realms of the settings, which in a cluster also answers other nodes."""
    settings = common.settings
    is_recorded = settings.history.enabled
    router = Router(
        common.broker,
        settings.wamp,
        realms_of(settings),
        common.access,
        Authentication(common.access, anonymous=settings.wamp.anonymous),
        Environment(
            reserve=ReservedIds(Path(settings.data_dir) if is_recorded else None),
            wait=common.waits.wait,
            policy=common.hooks,
            policy_s=settings.bayeux.policy_s,
            agent=f"Halley-{__version__}",
            denied=(common.session_log.refused,),
            archive=common.history if is_recorded else None,
            nodes=common.others,
        ),
    )
    others, sessions = common.others, router.remote_sessions
    if others is not None and sessions is not None:
        others.answer(meta_queries.KIND, lambda _node, question: router.answer(question, monotonic()))
        others.answer(META_EVENT, lambda _node, news: router.arrived(news, monotonic()))
        others.answer(SESSION, lambda node, report: sessions.arrived(node, report, monotonic()))
        others.answer(remote_sessions.LIST, lambda _node, question: sessions.page(question))
        others.report(remote_sessions.REPORT_COUNT, sessions.report_count)
    note, node_id = common.session_log.request_refused, "" if others is None else others.id
    return router, WampEndpoint(router, common.guard, note, settings, common.broker, node_id, others)


def nt4(common: Common) -> Sequence[Part]:
    """Compose NetworkTables; nothing if it is turned off. In a cluster only its home serves clients."""
    settings, file = common.settings, PersistentTopics.of(common.settings)
    if not settings.nt4.enabled:
        return ()
    protocol = NetworkTables(
        common.broker, settings.nt4, common.access, common.hooks, common.waits.wait, settings.bayeux.policy_s
    )
    if common.others is not None:  # `nt4_home.py` has the rest, when the node has joined the cluster
        protocol.stand_by(monotonic())
        common.others.serve_nt4(protocol, file)
        return _by_websockets(common, nt4_route(protocol, settings, settings.host, protocol.serves))
    saver = TopicSaver(protocol, file, settings.nt4.save_every_s)
    common.broker.values.keep_in(protocol.bridge)
    common.broker.add_holder(saver)
    return _by_websockets(common, nt4_route(protocol, settings, settings.host), saver)


def events(common: Common) -> Sequence[Part]:
    """Compose the streams of events, which publish through Bayeux' engine."""
    settings, access = common.settings, common.access
    wait, read, note = common.waits.wait, common.history.read, common.session_log.request_refused
    protocol = Events(Streams(common.broker, settings.events, access, wait, read, common.hooks.report))
    endpoint = EventsEndpoint(protocol, common.bayeux.engine, common.guard, note, access, access, settings)
    return protocol, endpoint


def websocket(common: Common, protocol: WireProtocol) -> Sequence[Part]:
    """Compose a protocol that is reached by WebSockets alone, at `protocol.websocket`."""
    assert protocol.websocket is not None
    return _by_websockets(common, WebSocketRoute(protocol, protocol.websocket, common.guard))


def _by_websockets(common: Common, route: WebSocketRoute, *others: Part) -> Sequence[Part]:
    return route.protocol, WebSocketEndpoint(route, common.guard), *others


PROTOCOLS: tuple[Compose, ...] = (wamp, nt4, bayeux, events)
"""All protocols; a path that several have is that of the first."""
