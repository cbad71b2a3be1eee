"""WebSockets: where they reach a protocol, and the checks of a request that opens one.

Halley's own host (`host/websocket.py`) and other servers (`asgi.py`) share the checks and the responses. A page's
scripts may open a WebSocket to any server without a preflight, so the Origin must be checked here (S25).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from halley.protocols.contract import Engine, Link, WebSocketService, WireProtocol
from halley.transports.guard import Guard, Rejection
from halley.transports.head import Head, Header

_REASON_BYTES = 123
UPGRADE = ((b"upgrade", b"websocket"), (b"connection", b"upgrade"))

TURN_S = 0.01
"""How long one peer's messages are taken in one turn; the rest waits until the other peers have had their turn."""


@dataclass(frozen=True, slots=True)
class WebSocketRoute:
    """A protocol's WebSockets: how they reach it (`service`), and the guard of their opening requests."""

    protocol: WireProtocol
    service: WebSocketService
    guard: Guard

    @property
    def has_below(self) -> bool:
        """Whether the paths below those of `service` are the route's, too."""
        return False

    def matches(self, path: str) -> bool:
        """Whether a path is one of the route's."""
        return path.removesuffix("/") in self.service.paths

    def check_head(self, head: Head) -> None:
        """Check that a head, with its path as it was sent, has what the engine needs. Raises `Rejection`."""

    def connect(self, link: Link, head: Head, now: float) -> Engine:
        """Make the engine for a WebSocket that was accepted."""
        return self.protocol.connect(link, head, now)

    def choose(self, offered: Iterable[str]) -> str:
        """The first of the offered subprotocols that the route has. Raises `Rejection`."""
        for name in offered:
            if name in self.service.subprotocols:
                return name
        raise self._nothing_in_common()

    def _nothing_in_common(self) -> Rejection:
        return Rejection(400, f"no common subprotocol; expected one of {', '.join(self.service.subprotocols)}")


def check(head: Head, headers: Sequence[Header], route: WebSocketRoute) -> str:
    """Check a request that opens a WebSocket, and choose one of its subprotocols. Raises `Rejection`."""
    route.guard.check_names(headers, head)
    route.guard.check_origin(head)
    route.check_head(head)
    offered = [value for name, value in headers if name == b"sec-websocket-protocol"]
    return route.choose(name.strip() for names in offered for name in names.decode("latin-1").split(","))


def reason_bytes(reason: str) -> bytes:
    """The reason of a close frame in UTF-8, cut to the 123 bytes for which it has room."""
    return reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()  # not cut in the middle of a character
