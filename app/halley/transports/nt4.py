"""The endpoint of NetworkTables: serves all requests for `/nt/<name>`, and the page of its own listener.

Clients of 4.1 disconnect after a second without a message from the server. Halley's own host therefore pings them; a
foreign ASGI server must be configured to do so (uvicorn: `--ws-ping-interval 0.2 --ws-ping-timeout 1`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from time import monotonic

from halley.protocols.contract import Pings, WebSocketService, WireProtocol
from halley.protocols.nt4.names import BASE, RTT, V40, V41, client_name
from halley.settings import Settings
from halley.transports.api.operations import NOT_FOUND, PLAIN, page_at
from halley.transports.exchange import Note
from halley.transports.guard import Guard, Rejection
from halley.transports.head import UNCACHED, Head
from halley.transports.routes import Route, Routes
from halley.transports.websocket import WebSocketRoute

Serves = Callable[[float], bool]

_CHECKS = 4
"""Looks at each client in one `ping_s`: how precisely silence is measured, by which a lost client is recognized."""

_PAGE = b"This is a NetworkTables 4.1 server; connect a WebSocket to /nt/NAME.\n"
_FOR_ALL = ((b"access-control-allow-origin", b"*"), *UNCACHED)
"""Any page may read it: dashboards request it to find out whether a server is there, and it holds no secret."""

_RETRY = ((b"retry-after", b"1"),)


@dataclass(frozen=True, slots=True)
class Nt4Route(WebSocketRoute):
    """The route of NetworkTables: clients give their name in the path, and the newest common version is chosen."""

    name_bytes: int
    serves: Serves | None = None
    """Whether clients are served here at a monotonic time; None: always. Of a cluster one node at a time does."""

    @property
    def has_below(self) -> bool:
        """Whether the paths below those of `service` are the route's, too: they have the client's name."""
        return True

    def matches(self, path: str) -> bool:
        """Whether a path is one of NetworkTables, with or without a client's name."""
        return path == BASE or path.startswith(f"{BASE}/")

    def check_head(self, head: Head) -> None:
        """Check that the path has a client's name in UTF-8 of at most `name_bytes` bytes. Raises `Rejection`.

        It raises one for every path while clients are not served here.
        """
        if self.serves is not None and not self.serves(monotonic()):
            raise Rejection(503, "another node of the cluster serves NetworkTables", headers=_RETRY)
        try:
            name = client_name(head.path)
        except UnicodeDecodeError:
            raise Rejection(400, "the name in the path must be UTF-8") from None
        if not name:
            raise Rejection(404, f"expected {BASE}/NAME, where NAME is the client's name")
        if len(name.encode()) > self.name_bytes:
            raise Rejection(414, "the name in the path is too long", limit="name_bytes")

    def choose(self, offered: Iterable[str]) -> str:
        """The newest common subprotocol, since some clients list the old one first. Raises `Rejection`."""
        wanted = frozenset(offered)
        for name in self.service.subprotocols:
            if name in wanted:
                return name
        raise self._nothing_in_common()


def own_routes(note: Note, sockets: WebSocketRoute) -> Routes:
    """The routes of NetworkTables' own listener: its WebSockets, and the page that it serves besides."""
    at = [Route(path, NOT_FOUND.endpoint, None, sockets=sockets) for path in sockets.service.paths]
    return Routes([page_at("/", lambda: (200, PLAIN, _PAGE), *_FOR_ALL), *at], NOT_FOUND, note)


def guard_at(host: str, settings: Settings) -> Guard:
    """The guard of NetworkTables on a listener at `host`: it admits pages of `nt4.origins` too, and an empty Host."""
    cors = replace(settings.cors, origins=(*settings.cors.origins, *settings.nt4.origins))
    return Guard(replace(settings, host=host, cors=cors), accepts_nameless=True)


def nt4_route(protocol: WireProtocol, settings: Settings, host: str, serves: Serves | None = None) -> Nt4Route:
    """The route of NetworkTables on a listener at `host`: the server's main one, or its own (`nt4.host`).

    For `serves` see `Nt4Route`.
    """
    options = settings.nt4
    pings = Pings(options.ping_s, options.pong_s, is_steady=True)
    service = WebSocketService(
        (BASE,),
        {V41: pings, RTT: pings, V40: None},
        options.message_bytes,
        options.pings_per_s,
        options.kill_s,
        options.ping_s / _CHECKS,
    )
    return Nt4Route(protocol, service, guard_at(host, settings), options.name_bytes, serves)
