"""The routes of a server: which endpoint serves a path, and by which guard. There is one table, which everyone asks.

A request is admitted by its head alone, before its body has come: its path, the names of its host and origin, its
method, what its headers say of its body, and what the endpoint reads in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from halley.protocols.contract import Part
from halley.transports.exchange import Endpoint, Exchange, HeadOf, Note
from halley.transports.guard import Guard, Rejection
from halley.transports.head import Head, Header, Headers
from halley.transports.websocket import UPGRADE, WebSocketRoute

_ALLOW: Final = (b"allow", b"GET, HEAD, POST, DELETE, OPTIONS")
"""What is served at some path."""


@dataclass(frozen=True, slots=True)
class Route:
    """What serves requests to `path`, and with `has_below` also to all paths below it.

    `guard` checks them; without one, all who can connect may send any. They have one of `methods`, OPTIONS among them.
    Where there are none the endpoint responds to all, and only the names of host and origin are checked before.
    `sockets` are the WebSockets that can be opened there, with a guard of their own.
    """

    path: str
    endpoint: Endpoint
    guard: Guard | None
    methods: tuple[str, ...] = ()
    has_below: bool = True
    sockets: WebSocketRoute | None = None

    @property
    def prefix(self) -> str:
        """How the paths below it begin."""
        return self.path if len(self.path) > 1 and self.path.endswith("/") else f"{self.path}/"


class ProtocolEndpoint(Part, Endpoint):
    """A part of the server that serves routes, and keeps connections itself: a protocol as it is reached by HTTP."""

    def routes(self) -> list[Route]:
        """Return the protocol's routes."""
        raise NotImplementedError


class WebSocketEndpoint(ProtocolEndpoint):
    """The endpoint of a protocol that is reached by WebSockets alone: all other requests are turned away."""

    def __init__(self, sockets: WebSocketRoute, guard: Guard) -> None:
        """`guard` is for requests that open no WebSocket."""
        self.sockets = sockets
        self._guard = guard

    def routes(self) -> list[Route]:
        """Return the routes of the protocol's paths."""
        paths = [each for path in self.sockets.service.paths for each in (path, f"{path}/")]
        below = self.sockets.has_below
        return [Route(path, self, self._guard, ("GET", "OPTIONS"), below, self.sockets) for path in paths]

    def prepare(self, head: Head, headers: Sequence[Header]) -> None:  # noqa: ARG002 - Endpoint's form
        """Turn a request away. Raises `Rejection` (426)."""
        raise Rejection(426, "this path accepts only WebSockets", headers=UPGRADE)


class Admitted(NamedTuple):
    """A request that may be served: by which endpoint, what that has `prepared`, and the CORS headers of its response.

    `is_gzip`: its body is compressed, and is to be inflated first.
    """

    endpoint: Endpoint
    prepared: Any
    cors: tuple[Header, ...] = ()
    is_gzip: bool = False


class Routes:
    """The routes of one listener; `default` serves all other paths.

    The longest path that matches counts, and of several routes with the same the first.
    """

    def __init__(self, routes: Iterable[Route], default: Route, note: Note) -> None:
        self._routes = tuple(routes)
        self._exact: dict[str, Route] = {}
        for route in self._routes:
            self._exact.setdefault(route.path, route)
        below = [(route.prefix, route) for route in self._routes if route.has_below]
        self._below = sorted(below, key=lambda each: len(each[0]), reverse=True)
        self._default = default
        self.note = note
        self._fixed = _Fixed()

    def find(self, path: str) -> Route:
        """Return the route of a path."""
        route = self._exact.get(path)
        if route is None:
            for prefix, below in self._below:
                if path.startswith(prefix):
                    return below
            return self._default
        return route

    @property
    def sockets(self) -> list[WebSocketRoute]:
        """The WebSockets of all routes."""
        return [*{id(route.sockets): route.sockets for route in self._routes if route.sockets is not None}.values()]

    def admit(self, head: Head, headers: Sequence[Header]) -> Admitted:
        """Find what serves a request, by its head; `headers` are all of them, with repeated ones.

        Raises `Rejection`, with the headers of CORS where they are known.
        """
        route = self.find(head.own_path)
        try:
            return self._admit(route, head, headers)
        except Rejection:
            route.endpoint.hide(head)
            raise

    def _admit(self, route: Route, head: Head, headers: Sequence[Header]) -> Admitted:
        guard, endpoint = route.guard, route.endpoint
        if guard is not None:
            (guard if route.sockets is None else route.sockets.guard).check_names(headers, head)
            if head.method == "OPTIONS" and head.target == b"*":  # RFC 9110, 9.3.7
                return Admitted(self._fixed, None)
        if guard is None or not route.methods:
            return Admitted(endpoint, endpoint.prepare(head, headers))
        is_gzip = False  # before the guard, which knows no other coding
        if guard.takes_gzip and head.fields.get(b"content-encoding", b"").strip().lower() == b"gzip":
            is_gzip = True
            headers = [header for header in headers if header[0] != b"content-encoding"]
            del head.fields[b"content-encoding"]
        cors = guard.check(head, route.methods)
        if head.method == "OPTIONS":
            return Admitted(self._fixed, guard.preflight(cors, route.methods), (), is_gzip)
        try:
            return Admitted(endpoint, endpoint.prepare(head, headers), cors, is_gzip)
        except Rejection as rejection:
            rejection.add_headers(cors)
            raise


class _Fixed(Endpoint):
    """Responds to OPTIONS; `prepared` are the headers of a preflight, or None for the server as a whole."""

    takes_body = False

    def serve(self, exchange: Exchange, prepared: Any, body: bytes, head: HeadOf) -> None:  # noqa: ARG002
        """Respond at once."""
        if prepared is None:
            exchange.respond(204, _FOR_ALL)
        else:
            exchange.respond(200, _NONE, more=prepared)


_FOR_ALL: Final = Headers(_ALLOW)
_NONE: Final = Headers()
