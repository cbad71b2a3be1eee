"""The interfaces between an engine and the transport of its peer: a WebSocket, or WAMP's long-polling.

A transport makes a `Link` for each connection and gives it to a `Switchboard`, which returns the engine for it. The
engine's output comes from the switchboard's `answers`: frames to write, in order, or a `Close`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY_VIOLATION, INTERNAL_ERROR = 1000, 1001, 1002, 1008, 1011
TRY_AGAIN_LATER = 1013
"""Status codes with which a WebSocket is closed (RFC 6455, 7.4.1)."""


class Close(NamedTuple):
    """The end of a connection: `frames` first, then a close with this code; a peer that then stays is cut off."""

    frames: list[bytes]
    code: int
    reason: str


class Link(Protocol):
    """One connection. Its methods are called on the event loop and never block.

    Links of the same `kind` use the same framing: the results of `text` and `binary` may be written to all of them.
    """

    kind: str
    subprotocol: str

    def text(self, message: bytes) -> bytes:
        """Frame a text message."""

    def binary(self, message: bytes) -> bytes:
        """Frame a binary message."""

    @property
    def backlog_bytes(self) -> int:
        """The number of bytes that were written and are not yet sent."""

    def answer(self, outcome: list[bytes] | Close) -> None:
        """Write frames, each made by `text` or `binary` of a link of the same kind; or write a `Close`."""


class Context(Protocol):
    """The HTTP request with which a connection began, or that carried a Bayeux message."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's headers by lower-case name; the first of each name."""

    @property
    def path(self) -> str:
        """The URL's path without the query; percent-decoded, but a WebSocket's as it was sent."""

    @property
    def scheme(self) -> str:
        """The URL's scheme: `http` or `https`, for WebSockets too."""

    @property
    def address(self) -> str:
        """The peer's IP address."""

    @property
    def port(self) -> int:
        """The peer's port; 0 if it is not known."""


class Speaker(Protocol):
    """An engine as its transport sees it."""

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Iterable[Any]:
        """Split a transport message into protocol messages for `receive`, one by one where that takes time."""

    def receive(self, message: Any, now: float) -> None:
        """Handle one message of `split`; the transport lets other connections have their turn between messages."""

    def paused(self) -> None:
        """Note that the link takes no more frames for now."""

    def resumed(self, now: float) -> None:
        """Note that the link takes frames again."""

    def lost(self, now: float) -> None:
        """Note that the connection has ended or is about to: no more is read from it, and nothing need be written."""


class Switchboard(Protocol):
    """A protocol's engines as their transports see them."""

    def connect(self, link: Link, context: Context, now: float) -> Speaker:
        """Make the engine for a new connection. Its output comes from `answers`, never before this returns."""
