"""The endpoint of WAMP: serves all requests for one of its paths, over WebSockets or by long-polling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.protocols.contract import Pings, WebSocketService, WireProtocol
from app.protocols.wamp.formats import SUBPROTOCOLS
from app.settings import Settings, Wamp
from app.transports.addresses import accounts
from app.transports.guard import Guard
from app.transports.head import route_path
from app.transports.middleware import GuardMiddleware
from app.transports.upgrade import WebSocketRoute
from app.transports.wamp_polling import WampPolling
from app.transports.websocket import WebSockets

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_LOOKS = 4
"""Looks at each peer in one `ping_s`."""


class WampEndpoint:
    """The ASGI application of WAMP; Halley's own host serves WebSockets itself, by `route`."""

    def __init__(self, protocol: WireProtocol, middleware: GuardMiddleware, guard: Guard, settings: Settings) -> None:
        self.guard = guard
        self.route = _route(protocol, guard, settings.wamp)
        self._sockets = WebSockets([self.route], settings.limits, middleware.note)
        account_of = accounts((*settings.limits.exempt, *settings.proxies))
        self._polling = WampPolling(self.route, settings.wamp, settings.limits, middleware, account_of)
        self.sweep, self.leave = self._polling.sweep, self._polling.leave  # for the house

    def matches(self, path: str) -> bool:
        """Whether a path is one of WAMP's, or below one."""
        return any(path == mount or path.startswith(f"{mount}/") for mount in self.route.service.paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket or a request at one of its paths."""
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
        else:
            path = route_path(scope)
            below = next(path[len(mount) :] for mount in self.route.service.paths if path.startswith(mount)).strip("/")
            hidden = {**scope, "path": below.rpartition("/")[2]}  # a transport's id is a secret: not for the log
            await self._polling(hidden, below, receive, send)


def _route(protocol: WireProtocol, guard: Guard, options: Wamp) -> WebSocketRoute:
    service = WebSocketService(
        tuple(path.rstrip("/") for path in options.paths),
        dict.fromkeys(SUBPROTOCOLS, Pings(options.ping_s, options.pong_s)),
        options.message_bytes,
        options.pings_per_s,
        options.kill_s,
        options.ping_s / _LOOKS,
    )
    return WebSocketRoute(protocol, service, guard)
