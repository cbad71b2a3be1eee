"""The way from an engine to its peer, whatever carries it: a WebSocket, or WAMP's long-polling.

A transport makes a `Link` for each connection and gives it to a `Switchboard`, which returns the engine that speaks on
it. What the engine has to say comes back by the switchboard's `answers`: frames to write, in order, or a `Close`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY_VIOLATION, INTERNAL_ERROR = 1000, 1001, 1002, 1008, 1011
TRY_AGAIN_LATER = 1013
"""Why a WebSocket is closed (RFC 6455, 7.4.1)."""


class Close(NamedTuple):
    """The end of a connection: `frames` first, then a close with this code. Peers that linger are cut after a while."""

    frames: list[bytes]
    code: int
    reason: str


class Link(Protocol):
    """One connection. Called on the event loop; nothing of it waits.

    Links of the same `kind` frame alike: what `text` and `binary` make may be written to all of them.
    """

    kind: str
    subprotocol: str

    def text(self, message: bytes) -> bytes:
        """A text message as it is written."""

    def binary(self, message: bytes) -> bytes:
        """A binary message as it is written."""

    @property
    def backlog_bytes(self) -> int:
        """What has been written and has not left."""

    def answer(self, outcome: list[bytes] | Close) -> None:
        """Write these frames, each made by `text` or `binary` of a link of the same kind; or write and close."""


class Context(Protocol):
    """What is known of the HTTP request that a connection began with, or that brought a message of Bayeux."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name; the first of each."""

    @property
    def path(self) -> str:
        """Without the query; decoded, but a WebSocket's as it was sent, escapes and all."""

    @property
    def scheme(self) -> str:
        """`http` or `https`, of WebSockets too."""

    @property
    def address(self) -> str:
        """The peer's IP address."""

    @property
    def port(self) -> int:
        """The peer's port; 0 where nobody knows."""


class Speaker(Protocol):
    """What a transport knows of an engine."""

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Iterable[Any]:
        """What one transport message has, each to be given to `receive`; made one by one, as far as that takes time."""

    def receive(self, message: Any, now: float) -> None:
        """One of these. Many may have come, and each costs what it costs: others must get their turn in between."""

    def paused(self) -> None:
        """The link takes nothing for now."""

    def resumed(self, now: float) -> None:
        """It takes more."""

    def lost(self, now: float) -> None:
        """The connection is gone, or will be: nothing more is read from it, and nothing need be written."""


class Switchboard(Protocol):
    """What a transport knows of all engines of a protocol."""

    def connect(self, link: Link, context: Context, now: float) -> Speaker:
        """Somebody has connected. The engine answers through `answers`, never before this returns."""
