"""What all WebSockets of one family share on Halley's own host: deadlines, and the opening handshake."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from websockets.utils import accept_key

from app.host.reaper import Reaper
from app.host.websocket import WebSocket
from app.transports.guard import Rejection
from app.transports.head import Head
from app.transports.proxies import Proxies
from app.transports.upgrade import Family, check

if TYPE_CHECKING:
    from app.host.connection import Connection
    from app.host.watch import Watch

Header = tuple[bytes, bytes]

_ACCEPTED = (
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    "sec-websocket-accept: {}\r\nsec-websocket-protocol: {}\r\n\r\n"
)
_VERSION = (b"sec-websocket-version", b"13")
_UPGRADE = (b"upgrade", b"websocket")
_KEY_BYTES = 16


class Sockets:
    """The WebSockets of one family. `connections` are all of the server; it closes them when it shuts down."""

    def __init__(self, family: Family, proxies: Proxies, watch: Watch) -> None:
        self.family = family
        self.watch = watch
        self.connections: set[Any] = set()
        self.leaving: Reaper[WebSocket] = Reaper(family.kill_s)
        self._proxies = proxies
        self._looks: Reaper[WebSocket] = Reaper(family.look_s)

    def leads_to(self, url: bytes) -> bool:
        """Whether a request target is one of the family's paths, with any query."""
        return self.family.leads_to(url.partition(b"?")[0].decode("latin-1"))

    def open(self, asked_by: Connection) -> tuple[WebSocket, bytes]:
        """Make the WebSocket that a request asks for, and the response that accepts it. Raises `Rejection`."""
        headers, parser = asked_by.headers, asked_by.parser
        seen: tuple[str, str] = (asked_by.address, asked_by.scheme or "http")
        port = asked_by.port
        if seen[0] in self._proxies:
            seen, port = self._proxies.seen_through(*seen, headers), 0
        path, _, query = asked_by.url.partition(b"?")
        fields = dict(reversed(headers))
        head = Head(parser.get_method().decode(), path.decode("latin-1"), query, fields, *seen, port)
        subprotocol = check(head, headers, self.family)
        if head.method != "GET":
            raise Rejection(405, "only GET opens a WebSocket", headers=((b"allow", b"GET"),))
        key = _key(headers)
        if parser.get_http_version() != "1.1" or _framed(head.fields):
            raise Rejection(400, "a WebSocket is opened with HTTP/1.1 and without a body")
        if _all(headers, _VERSION[0]) != [_VERSION[1]]:
            raise Rejection(426, "only version 13 of WebSocket is supported", headers=(_VERSION, _UPGRADE))
        accepted = _ACCEPTED.format(accept_key(key), subprotocol).encode()
        return WebSocket(head, subprotocol, self), accepted

    def add(self, socket: WebSocket, now: float) -> None:
        """Add a WebSocket that has replaced its HTTP connection."""
        self.connections.add(socket)
        self._looks.watch(socket, now)

    def remove(self, socket: WebSocket) -> None:
        """Remove a WebSocket whose connection is closed."""
        self.watch.connections -= 1
        self.watch.writes.forget(socket)
        self.leaving.forget(socket)
        self._looks.forget(socket)
        self.connections.discard(socket)

    def sweep(self, now: float) -> None:
        """Ping silent peers, and cut those that have not closed in time."""
        for socket in list(self._looks.overdue(now)):
            socket.look(now)
            self._looks.watch(socket, now)
        for socket in self.leaving.overdue(now):
            self.watch.hits["kill_s"] += 1
            socket.cut("lingers")


def open_socket(asked_by: Connection) -> tuple[WebSocket, bytes] | None:
    """Make the WebSocket that a request asks for, and the response that accepts it; None if its path has none.

    Also None while an earlier response of the connection is not in the kernel: nothing would report when it is. Raises
    `Rejection` if the request is not a valid opening handshake (RFC 6455, 4.2).
    """
    if asked_by.flow.write_paused:
        return None
    return next((family.open(asked_by) for family in asked_by.watch.sockets if family.leads_to(asked_by.url)), None)


def _all(headers: Sequence[Header], wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _framed(fields: dict[bytes, bytes]) -> bool:
    """Whether the request has a body."""
    return b"transfer-encoding" in fields or bool(fields.get(b"content-length", b"0").strip(b"0"))


def _key(headers: Sequence[Header]) -> str:
    """Return the handshake's key. Raises `Rejection`."""
    keys = _all(headers, b"sec-websocket-key")
    try:
        if len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == _KEY_BYTES:
            return keys[0].decode()
    except binascii.Error:
        pass
    raise Rejection(400, "expected one Sec-WebSocket-Key: 16 bytes in base64")
