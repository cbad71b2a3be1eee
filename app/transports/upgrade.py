"""What may be spoken over WebSockets, and what the request that opens one must be like, whoever serves it.

The same checks and the same sentences for Halley's own host and for foreign ones. A page's scripts may open a WebSocket
to anywhere, and the browser asks nobody: so the Origin is looked at here, or never (S25).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.protocols.wamp.formats import SUBPROTOCOLS, Format
from app.protocols.wamp.serializers import SERIALIZERS
from app.transports.guard import Rejection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from app.protocols.wamp.links import Switchboard
    from app.settings import Wamp
    from app.transports.guard import Guard
    from app.transports.head import Head

    Framing = Callable[[bytes], bytes]

_REASON_BYTES = 123

TURN_S = 0.01
"""One peer's messages are taken for so long at once; the rest waits until the others have had their turn."""


@dataclass(frozen=True, slots=True)
class Family:
    """Subprotocols with the same paths and bounds, and who speaks them."""

    paths: tuple[str, ...]
    subprotocols: tuple[str, ...]
    switchboard: Switchboard
    message_bytes: int
    ping_s: float
    pong_s: float
    pings_per_s: float
    kill_s: float

    def leads_to(self, path: str) -> bool:
        """Whether a path is one at which it is spoken."""
        return path.removesuffix("/") in self.paths

    def format(self, subprotocol: str, text: Framing, binary: Framing, kind: str) -> Format:
        """How messages of one of them are written, where text and binary ones are framed so; `kind` names both."""
        return Format(subprotocol, binary if is_binary(subprotocol) else text, kind)


def wamp(switchboard: Switchboard, options: Wamp) -> Family:
    """WAMP's."""
    return Family(
        tuple(path.rstrip("/") for path in options.paths),
        SUBPROTOCOLS,
        switchboard,
        options.message_bytes,
        options.ping_s,
        options.pong_s,
        options.pings_per_s,
        options.kill_s,
    )


def copied(message: bytes) -> bytes:
    """A message that waits without a frame: a copy, since what orjson makes keeps kilobytes behind its end."""
    return bytes(memoryview(message))


def is_binary(subprotocol: str) -> bool:
    """Whether its messages are binary ones."""
    return SERIALIZERS[subprotocol.split(".")[2]].is_binary


def check(head: Head, hosts: Iterable[bytes], offered: Iterable[bytes], guard: Guard, family: Family) -> str:
    """Which of the subprotocols that a peer has `offered`, all headers of them, is to be spoken. Raises `Rejection`."""
    guard.check_host(*hosts)
    guard.check_origin(head)
    return choose((name.strip() for names in offered for name in names.decode("latin-1").split(",")), family)


def choose(offered: Iterable[str], family: Family) -> str:
    """The first that the peer names and we speak (wamp.md 58). Raises `Rejection`."""
    for name in offered:
        if name in family.subprotocols:
            return name
    raise Rejection(400, f"no subprotocol in common; spoken here: {', '.join(family.subprotocols)}")


def reason_bytes(reason: str) -> bytes:
    """Why a WebSocket is closed, as far as a close frame has room for it."""
    return reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()  # not cut in the middle of a character
