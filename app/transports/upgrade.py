"""The subprotocols of WebSockets, and the checks of a request that opens one.

Halley's own host and foreign ones share these checks and responses. A page's scripts may open a WebSocket to any server
without a preflight, so the Origin must be checked here (S25).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.protocols.contract import WebSocketService, WireProtocol
from app.transports.guard import Guard, Rejection
from app.transports.head import Head

Header = tuple[bytes, bytes]

_REASON_BYTES = 123

TURN_S = 0.01
"""How long one peer's messages are taken in one turn; the rest waits until the other peers have had their turn."""


@dataclass(frozen=True, slots=True)
class WebSocketRoute:
    """A protocol's WebSockets: how they reach it (`service`), and the guard of their opening requests."""

    protocol: WireProtocol
    service: WebSocketService
    guard: Guard

    def matches(self, path: str) -> bool:
        """Whether a path is one of the route's."""
        return path.removesuffix("/") in self.service.paths

    def check_path(self, path: str) -> None:
        """Check that a path, as it was sent, has what the engine needs. Raises `Rejection`."""

    def choose(self, offered: Iterable[str]) -> str:
        """The first of the offered subprotocols that the route has. Raises `Rejection`."""
        for name in offered:
            if name in self.service.subprotocols:
                return name
        raise self._nothing_in_common()

    def _nothing_in_common(self) -> Rejection:
        return Rejection(400, f"no common subprotocol; expected one of {', '.join(self.service.subprotocols)}")


def check(head: Head, headers: Sequence[Header], route: WebSocketRoute) -> str:
    """Check a request that opens a WebSocket, and choose one of the subprotocols in all its headers.

    Raises `Rejection`.
    """
    route.guard.check_names(headers)
    route.guard.check_origin(head)
    route.check_path(head.path)
    offered = [value for name, value in headers if name == b"sec-websocket-protocol"]
    return route.choose(name.strip() for names in offered for name in names.decode("latin-1").split(","))


def reason_bytes(reason: str) -> bytes:
    """The reason of a close frame in UTF-8, cut to the 123 bytes for which it has room."""
    return reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()  # not cut in the middle of a character
