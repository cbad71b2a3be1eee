"""What may be spoken over WebSockets, and what the request that opens one must be like, whoever serves it.

The same checks and the same sentences for Halley's own host and for foreign ones. A page's scripts may open a WebSocket
to anywhere, and the browser asks nobody: so the Origin is looked at here, or never (S25).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from app.transports.guard import Rejection

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from app.protocols.links import Switchboard
    from app.transports.guard import Guard
    from app.transports.head import Head

_REASON_BYTES = 123

TURN_S = 0.01
"""One peer's messages are taken for so long at once; the rest waits until the others have had their turn."""


class Pings(NamedTuple):
    """How it is found out that a peer has left without a word.

    One that is silent for `ping_s` is asked, and has `pong_s` to answer. Where they are `is_steady` each peer is asked
    so often, since it may itself hang up on who is silent, and has left once it has been silent for `pong_s`.
    """

    ping_s: float
    pong_s: float
    is_steady: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """Subprotocols with the same paths and bounds, who may come to speak them, and with whom.

    `subprotocols` are those that are spoken, each with its pings, if it has any; those we like best stand first.
    """

    paths: tuple[str, ...]
    subprotocols: Mapping[str, Pings | None]
    switchboard: Switchboard
    guard: Guard
    message_bytes: int
    pings_per_s: float
    kill_s: float
    look_s: float
    """How often each peer is looked at. To note each message somewhere would cost more than reading it."""

    def leads_to(self, path: str) -> bool:
        """Whether a path is one at which it is spoken."""
        return path.removesuffix("/") in self.paths

    def check_path(self, path: str) -> None:
        """That such a path, as it was sent, has what the engines need. Raises `Rejection`."""

    def choose(self, offered: Iterable[str]) -> str:
        """The first that the peer names and we speak (wamp.md 58). Raises `Rejection`."""
        for name in offered:
            if name in self.subprotocols:
                return name
        raise self._nothing_in_common()

    def _nothing_in_common(self) -> Rejection:
        return Rejection(400, f"no subprotocol in common; spoken here: {', '.join(self.subprotocols)}")


def check(head: Head, hosts: Iterable[bytes], offered: Iterable[bytes], family: Family) -> str:
    """Which of the subprotocols that a peer has `offered`, all headers of them, is to be spoken. Raises `Rejection`."""
    family.guard.check_host(*hosts)
    family.guard.check_origin(head)
    family.check_path(head.path)
    return family.choose(name.strip() for names in offered for name in names.decode("latin-1").split(","))


def reason_bytes(reason: str) -> bytes:
    """Why a WebSocket is closed, as far as a close frame has room for it."""
    return reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()  # not cut in the middle of a character
