"""The protocols that the server speaks, and how each is composed.

To add a protocol, write its room and a function here that makes its face, and list that in `PROTOCOLS`: the server
sweeps, drains, measures and shows all that are listed, and knows no more of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app import __version__
from app.access.control import AccessControl
from app.broker.broker import Broker
from app.protocols.bayeux.hooks import Hooks
from app.protocols.contract import WireProtocol
from app.protocols.wamp.authentication import Authentication
from app.protocols.wamp.names import realms_of
from app.protocols.wamp.router import Router
from app.protocols.wamp.state import Environment
from app.server.networktables import NetworkTables
from app.server.routing import ReservedIds, Waits
from app.server.session_log import SessionLog
from app.settings import Settings
from app.transports.endpoint import Endpoint
from app.transports.guard import Guard
from app.transports.nt4 import nt4_family
from app.transports.upgrade import Family
from app.transports.wamp import WampEndpoint
from app.transports.websocket import WebSocketEndpoint

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Parts(NamedTuple):
    """What a protocol is composed of: the parts of one server."""

    settings: Settings
    broker: Broker
    access: AccessControl
    hooks: Hooks
    guard: Guard
    endpoint: Endpoint
    waits: Waits
    session_log: SessionLog
    wake: Callable[[], None]


class Face(Protocol):
    """A protocol as clients reach it: an ASGI application for its paths, and the family of its WebSockets."""

    family: Family

    def leads_to(self, path: str) -> bool:
        """Whether a path is one of the protocol's."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or a WebSocket at one of its paths."""

    def sweep(self, now: float) -> None:
        """Handle the deadlines of connections that the transport keeps itself."""

    def leave(self, now: float) -> None:
        """End what still waits at the end of the drain."""


class Service(Protocol):
    """What has something to open before the server begins, and to close when it ends."""

    def open(self) -> None:
        """Restore what an earlier run has kept; repeated calls do nothing."""

    async def close(self) -> None:
        """Keep what a later run is to restore."""


class Spoken(NamedTuple):
    """A protocol that the server speaks, with its face, and the services that it needs."""

    protocol: WireProtocol
    face: Face
    services: tuple[Service, ...] = ()


Compose = Callable[[Parts], Spoken | None]
"""Composes a protocol; None if the settings turn it off."""


def wamp(parts: Parts) -> Spoken:
    """Compose WAMP."""
    settings = parts.settings
    router = Router(
        parts.broker,
        settings.wamp,
        realms_of(settings),
        parts.access,
        Authentication(parts.access, anonymous=settings.wamp.anonymous),
        Environment(
            reserve=ReservedIds(Path(settings.data_dir) if settings.history.enabled else None),
            wait=parts.waits.wait,
            permission=parts.hooks.permit,
            has_policy=parts.hooks.has_policy,
            policy_s=settings.bayeux.policy_s,
            agent=f"Halley-{__version__}",
            denied=(parts.session_log.refused,),
        ),
    )
    return Spoken(router, WampEndpoint(router, parts.endpoint, parts.guard, settings))


def nt4(parts: Parts) -> Spoken | None:
    """Compose NetworkTables."""
    settings = parts.settings
    if not settings.nt4.enabled:
        return None
    tables = NetworkTables(settings, parts.broker, parts.access, parts.waits, parts.hooks, parts.wake)
    return _by_websockets(parts, nt4_family(tables, settings, settings.host), (tables,))


def websocket(parts: Parts, protocol: WireProtocol) -> Spoken:
    """Compose a protocol that is reached by WebSockets alone, at `protocol.websocket`."""
    assert protocol.websocket is not None
    return _by_websockets(parts, Family(protocol, protocol.websocket, parts.guard))


def _by_websockets(parts: Parts, family: Family, services: tuple[Service, ...] = ()) -> Spoken:
    face = WebSocketEndpoint(family, parts.settings.limits, parts.endpoint.door, parts.endpoint.note)
    return Spoken(family.protocol, face, services)


PROTOCOLS: tuple[Compose, ...] = (wamp, nt4)
"""All protocols but Bayeux, which the server is built around."""
