"""NetworkTables' place in the house: what becomes of whatever comes to `/nt/<name>`, and the page of its own listener.

Clients of 4.1 hang up on a server that they have not heard for a second, and ours are pinged at Halley's own host. A
foreign ASGI server must be told to do that itself (of uvicorn: `--ws-ping-interval 0.2 --ws-ping-timeout 1`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app.protocols.nt4.paths import BASE, RTT, V40, V41, client_name
from app.transports.guard import Guard, Rejection
from app.transports.upgrade import Family, Pings
from app.transports.websocket import WebSockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from app.protocols.links import Switchboard
    from app.settings import Settings
    from app.transports.door import Door
    from app.transports.head import Head

_LOOKS = 4
"""At each client, in one `ping_s`; so precisely a silent one is told from one that has left."""

_UPGRADE = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))
_PAGE = "NetworkTables 4.1 is served here, over WebSockets on /nt/NAME.\n"
_FOR_ALL = {"access-control-allow-origin": "*", "cache-control": "no-store", "x-content-type-options": "nosniff"}
"""Dashboards ask from pages of their own whether a server is here (nt4.md A5), and the page is no secret."""


@dataclass(frozen=True, slots=True)
class Nt4Family(Family):
    """NetworkTables': clients tell their names by the path, and the newest version that both know is spoken."""

    name_bytes: int

    def leads_to(self, path: str) -> bool:
        """See `Family`."""
        return path == BASE or path.startswith(f"{BASE}/")

    def check_path(self, path: str) -> None:
        """See `Family`; that it has a name, which is not too long, in UTF-8 (nt4.md A1)."""
        try:
            name = client_name(path)
        except UnicodeDecodeError:
            raise Rejection(400, "the name in the path must be UTF-8") from None
        if not name:
            raise Rejection(404, f"clients connect to {BASE}/NAME, with a name of theirs")
        if len(name.encode()) > self.name_bytes:
            raise Rejection(414, "name too long", limit="name_bytes")

    def choose(self, offered: Iterable[str]) -> str:
        """See `Family`; some clients list the old one first (nt4.md A2)."""
        wanted = frozenset(offered)
        for name in self.subprotocols:
            if name in wanted:
                return name
        raise self._nothing_in_common()


class Nt4Endpoint:
    """An ASGI application; Halley's own host serves WebSockets itself, by one of the two families.

    `family` is that of the server's main listener, `own_family` that of NetworkTables' own (`nt4.host`).
    """

    def __init__(
        self, switchboard: Switchboard, door: Door, note: Callable[[Rejection, Head], None], settings: Settings
    ) -> None:
        self.family = _family(switchboard, settings, settings.host)
        self.own_family = _family(switchboard, settings, settings.nt4.host)
        self._sockets = WebSockets([self.family], settings.limits, note)
        self._door = door

    def leads_to(self, path: str) -> bool:
        """Whether a path is NetworkTables'."""
        return self.family.leads_to(path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what has come to one of its paths."""
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
        else:
            await self._door.let_in(("GET",), _turn_away, scope, receive, send)


async def _turn_away(_visit: object) -> None:
    raise Rejection(426, "WebSocket is spoken here", headers=_UPGRADE)


def own_page() -> Starlette:
    """The ASGI application of NetworkTables' own listener, beside its WebSockets."""

    async def show(_: Request) -> PlainTextResponse:
        return PlainTextResponse(_PAGE, headers=_FOR_ALL)

    return Starlette(routes=[Route("/", show)])


def guard_at(host: str, settings: Settings) -> Guard:
    """Who may come to a listener on that host: pages of `nt4.origins` too, and clients that name no Host."""
    cors = replace(settings.cors, origins=(*settings.cors.origins, *settings.nt4.origins))
    return Guard(replace(settings, host=host, cors=cors), takes_nameless=True)


def _family(switchboard: Switchboard, settings: Settings, host: str) -> Nt4Family:
    options = settings.nt4
    pings = Pings(options.ping_s, options.pong_s, is_steady=True)
    return Nt4Family(
        (BASE,),
        {V41: pings, RTT: pings, V40: None},
        switchboard,
        guard_at(host, settings),
        options.message_bytes,
        options.pings_per_s,
        options.kill_s,
        options.ping_s / _LOOKS,
        options.name_bytes,
    )
