"""The protocols that the server speaks, and how each is composed.

To add a protocol, write its room and a function here that makes its face, and list that in `PROTOCOLS`: the server
sweeps, drains, measures and shows all that are listed, and knows no more of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app import __version__, telemetry
from app.access.control import AccessControl
from app.broker.broker import Broker
from app.broker.timestamps import SECONDS_TO_2026
from app.broker.topics import Pattern
from app.history.documents import sync_folder
from app.protocols.bayeux.hooks import Hooks
from app.protocols.contract import Context, WireProtocol
from app.protocols.nt4.protocol import NetworkTables
from app.protocols.wamp.authentication import Authentication
from app.protocols.wamp.names import realms_of
from app.protocols.wamp.router import Router
from app.protocols.wamp.state import RESERVED_AT_ONCE, Environment
from app.server.persistent_topics import PersistentTopics, TopicSaver
from app.server.routing import Waits
from app.server.session_log import SessionLog
from app.settings import Settings, Verb
from app.transports.endpoint import Endpoint
from app.transports.guard import Guard
from app.transports.nt4 import nt4_family
from app.transports.upgrade import Family
from app.transports.wamp import WampEndpoint
from app.transports.websocket import WebSocketEndpoint

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


_IDS_FILE = "wamp-subscription-ids"


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
    """What has something to open before the server begins, to keep up to date, and to close when it ends."""

    def open(self) -> None:
        """Restore what an earlier run has kept; repeated calls do nothing."""

    def sweep(self, now: float) -> None:
        """Do what is due; called a few times a second."""

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


class ReservedIds:
    """Reserves WAMP's subscription ids in a file next to the history, so that none is assigned twice.

    `folder` is the folder of the history, if there is one. Without it, or if the file is damaged, ids begin with the
    number of seconds since 2026: earlier runs have not assigned so large ones. In a new folder ids begin with 1.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / _IDS_FILE
        self._next = 1

    def __call__(self) -> int:
        """Reserve the next `RESERVED_AT_ONCE` ids, and return the first of them."""
        first = max(self._next, self._read())
        self._next = first + RESERVED_AT_ONCE
        self._write()
        return first

    def _read(self) -> int:
        if self._path is not None:
            try:
                return int(self._path.read_text("ascii"))
            except FileNotFoundError:
                return 1
            except (OSError, ValueError) as error:
                telemetry.fault("subscription_ids", error)
        return int(time.time()) - SECONDS_TO_2026

    def _write(self) -> None:
        if self._path is not None:
            replacement = self._path.with_suffix(".new")
            try:
                with replacement.open("w", encoding="ascii") as file:
                    file.write(f"{self._next}\n")
                    file.flush()
                    os.fsync(file.fileno())  # after a power cut none of them may be assigned again
                replacement.replace(self._path)
                sync_folder(self._path.parent)
            except OSError as error:
                telemetry.fault("subscription_ids", error)


def nt4(parts: Parts) -> Spoken | None:
    """Compose NetworkTables."""
    settings = parts.settings
    if not settings.nt4.enabled:
        return None
    protocol = NetworkTables(
        parts.broker,
        settings.nt4,
        parts.access,
        wait=parts.waits.wait,
        permission=partial(_permit_each, parts.hooks),
        has_policy=parts.hooks.has_policy,
        policy_s=settings.bayeux.policy_s,
    )
    saver = TopicSaver(protocol, PersistentTopics.of(settings), settings.nt4.save_every_s)
    parts.broker.holders.append(saver)
    return _by_websockets(parts, nt4_family(protocol, settings, settings.host), (saver,))


def _permit_each(
    hooks: Hooks, verb: Verb, patterns: list[Pattern | None], context: Context
) -> list[bool] | Awaitable[list[bool]]:
    """Return the program's decision on each pattern, None being allowed; or an awaitable of the decisions."""
    verdicts = [True if each is None else hooks.permit(verb, each, context) for each in patterns]
    decided = [each for each in verdicts if isinstance(each, bool)]
    return decided if len(decided) == len(verdicts) else _all(verdicts)


async def _all(verdicts: list[bool | Awaitable[bool]]) -> list[bool]:
    return [each if isinstance(each, bool) else await each for each in verdicts]


def websocket(parts: Parts, protocol: WireProtocol) -> Spoken:
    """Compose a protocol that is reached by WebSockets alone, at `protocol.websocket`."""
    assert protocol.websocket is not None
    return _by_websockets(parts, Family(protocol, protocol.websocket, parts.guard))


def _by_websockets(parts: Parts, family: Family, services: tuple[Service, ...] = ()) -> Spoken:
    face = WebSocketEndpoint(family, parts.settings.limits, parts.endpoint.door, parts.endpoint.note)
    return Spoken(family.protocol, face, services)


PROTOCOLS: tuple[Compose, ...] = (wamp, nt4)
"""All protocols but Bayeux, which the server is built around."""
