"""Output: the control messages and values of one turn, in order, in one write for each client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from app.protocols.contract import Close, Link
from app.protocols.nt4 import messages, values

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client

_AT_ONCE_BYTES = 16_384
"""About how much of one client's backlog is written in one turn of the loop, so that other clients get theirs."""


class Outgoing:
    """Collects the output of all clients.

    `control_bytes` bounds what a client that does not read may have unread. `wake` is called when there is output;
    `linger` schedules a client's backlog for the next turn. `too_slow` are the clients over the bound, to be closed.
    """

    def __init__(self, control_bytes: int, wake: Callable[[], None], linger: Callable[[Client], None]) -> None:
        self._control_bytes = control_bytes
        self._wake = wake
        self.linger = linger
        self._spoken_to: dict[Client, None] = {}
        self._closing: dict[Link, Close] = {}
        self.too_slow: list[Client] = []  # to be closed as slow consumers

    def tell(self, client: Client, text: bytes) -> None:
        """Send one text message, batched with other messages of this turn."""
        client.texts.append(text)
        self._mark(client)

    def say(self, client: Client, frames: list[bytes]) -> None:
        """Send frames that are already encoded, after the text messages sent before."""
        if client.texts:
            self._settle(client)
        client.frames += frames
        self._mark(client)

    def close(self, link: Link, code: int, reason: str, client: Client | None = None) -> None:
        """Close a link after the client's collected output; `code` is a WebSocket close code."""
        frames: list[bytes] = []
        if client is not None:
            self._settle(client)
            frames, client.frames = client.frames, []
            self._spoken_to.pop(client, None)
        self._closing[link] = Close(frames, code, reason)
        self._wake()

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
            self.linger(client)
        return len(taken)

    def answers(self) -> Iterator[tuple[Link, list[bytes] | Close]]:
        """Yield the collected output by link: frames, or frames and a close."""
        spoken_to, self._spoken_to = self._spoken_to, {}
        for client in spoken_to:
            self._settle(client)
            frames, client.frames = client.frames, []
            if client.is_paused and client.link.backlog_bytes > self._control_bytes:
                self.too_slow.append(client)
            if client.closed is None:
                yield client.link, frames
        closing, self._closing = self._closing, {}
        yield from closing.items()

    def _settle(self, client: Client) -> None:
        if client.texts:
            texts, client.texts = client.texts, []
            client.frames += map(client.link.text, messages.packed(texts))

    def _mark(self, client: Client) -> None:
        if not self._spoken_to:
            self._wake()
        self._spoken_to[client] = None
