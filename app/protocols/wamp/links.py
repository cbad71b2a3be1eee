"""The way from a WAMP engine to its peer, whatever carries it: a WebSocket, or HTTP long-polling.

A transport makes a `Link` for each connection and gives it to `Router.connect`, which returns the engine that speaks on
it. What the engine has to say comes back by `Router.answers`: frames to write, in order, or a `Close`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from app.protocols.wamp.formats import Format

NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY_VIOLATION, INTERNAL_ERROR = 1000, 1001, 1002, 1008, 1011
"""Why a WebSocket is closed (RFC 6455, 7.4.1)."""


class Close(NamedTuple):
    """The end of a connection: `frames` first, then a close with this code. Peers that linger are cut after a while."""

    frames: list[bytes]
    code: int
    reason: str


class Link(Protocol):
    """One connection. Called on the event loop; nothing of it waits."""

    format: Format

    @property
    def backlog_bytes(self) -> int:
        """What has been written and has not left."""

    def answer(self, outcome: list[bytes] | Close) -> None:
        """Write these frames, each already in the link's own format; or write and close."""


class Context(Protocol):
    """What is known of the HTTP request that a connection began with."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name; the first of each."""

    @property
    def scheme(self) -> str:
        """`http` or `https`, of WebSockets too."""

    @property
    def address(self) -> str:
        """The peer's IP address."""


class Speaker(Protocol):
    """What a transport knows of an engine."""

    def split(self, data: bytes, now: float) -> Sequence[bytes]:
        """The messages of one transport message, of the right kind for the serializer: text or binary.

        None of a batch that is wrong, which is a violation.
        """

    def receive(self, message: bytes, now: float) -> None:
        """One message came. Many may have, and each costs what it costs: others must get their turn in between."""

    def violated(self, message: str, now: float) -> None:
        """The peer has done what no serializer allows, such as a binary frame with JSON."""

    def paused(self) -> None:
        """The link takes nothing for now: events are to wait in the session's outbox."""

    def resumed(self, now: float) -> None:
        """It takes more."""

    def lost(self, now: float) -> None:
        """The connection is gone, or will be: nothing more is read from it, and nothing need be written."""


class Switchboard(Protocol):
    """What a transport knows of the router."""

    def connect(self, link: Link, context: Context, now: float) -> Speaker:
        """Somebody has connected. The engine answers through `answers`, never before this returns."""
