"""Output: the control messages and values of one turn, in order, in one write for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.protocols.contract import Close, Link
from app.protocols.nt4 import messages, values

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client

_AT_ONCE_BYTES = 16_384
"""About how much of one client's backlog is written in one turn of the loop, so that other clients get theirs."""


class Outgoing:
    """Collects the output of each client until the end of the turn; `mark_ready` has a client flushed then."""

    def __init__(self, mark_ready: Callable[[Client], None]) -> None:
        self.mark_ready = mark_ready

    def tell(self, client: Client, text: bytes) -> None:
        """Send one text message, batched with other messages of this turn."""
        client.texts.append(text)
        self.mark_ready(client)

    def say(self, client: Client, frames: list[bytes]) -> None:
        """Send frames that are already encoded, after the text messages sent before."""
        if client.texts:
            self._settle(client)
        client.frames += frames
        self.mark_ready(client)

    def close(self, client: Client, code: int, reason: str) -> None:
        """Close a client's link after its collected output; `code` is a WebSocket close code."""
        client.closing = (code, reason)
        self.mark_ready(client)

    def pack(self, client: Client, frames: list[bytes]) -> list[bytes]:
        """Return frames of encoded values; they may be written to all links of the client's kind."""
        return [*map(client.link.binary, values.packed(frames))]

    def write_backlog(self, client: Client) -> int:
        """Send a part of a client's backlog, if the client reads; return the number of values sent."""
        if client.is_paused or client.closed is not None:
            return 0
        taken = client.backlog.take(_AT_ONCE_BYTES)
        if taken:
            self.say(client, self.pack(client, taken))
        if len(client.backlog):
            self.mark_ready(client)
        return len(taken)

    def take(self, client: Client) -> Iterable[tuple[Link, list[bytes] | Close]]:
        """Take a client's collected output: frames, or frames and a close; nothing for a client that is lost."""
        self._settle(client)
        frames, client.frames = client.frames, []
        if client.closing is not None:
            closing, client.closing = client.closing, None
            return ((client.link, Close(frames, *closing)),)
        return ((client.link, frames),) if frames and client.closed is None else ()

    def _settle(self, client: Client) -> None:
        if client.texts:
            texts, client.texts = client.texts, []
            client.frames += map(client.link.text, messages.packed(texts))
