"""Responses that stay open, on Halley's own host: what is written to one goes straight to its transport.

The transport's protocol is this object once the head is sent, as with a WebSocket; engines know it as their `Link`. A
message is one chunk (RFC 9112, 7.1), made once for all peers that get it. The connection serves nothing else: what its
peer sends behind the request is discarded, and the end of the stream closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableSet
from time import monotonic
from typing import Any, cast

from halley.host.kernel import set_keepalive, unread_bytes
from halley.host.timeouts import DISCARDED_BYTES, ServerContext
from halley.protocols.contract import Close, Engine


class Stream:
    """A response that stays open until its engine or its peer ends it; `engine` is set before it begins."""

    __slots__ = ("_address", "_connections", "_late_bytes", "_shared", "_transport", "_unread_bytes", "engine")

    kind = "chunked"
    subprotocol = ""
    _LAST = b"0\r\n\r\n"

    def __init__(self, address: str, shared: ServerContext, connections: MutableSet[Any]) -> None:
        """`connections` are all of the server, which closes them when it shuts down."""
        self.engine: Engine | None = None  # until it was notified of the end, or has ended the stream
        self._address = address
        self._shared = shared
        self._connections: Any = connections  # not typed as a set: compiled, that would call `set.discard`
        self._transport: asyncio.Transport
        self._unread_bytes = 0  # when the write deadline was last checked
        self._late_bytes = 0  # received behind the request

    def begin(self, transport: asyncio.Transport, accepted: bytes, rest: bytes) -> None:
        """Take over a connection: write `accepted`, the head and the first message; `rest` was received behind it."""
        self._transport = transport
        self._connections.add(self)
        transport.set_protocol(cast(Any, self))
        set_keepalive(transport)
        transport.write(accepted)
        if rest:
            self.data_received(rest)

    # Link

    @staticmethod
    def text(message: bytes) -> bytes:
        """Return a message as a chunk."""
        return b"%x\r\n%b\r\n" % (len(message), message)

    @staticmethod
    def binary(message: bytes) -> bytes:
        """Return a message as a chunk: there is one kind."""
        return b"%x\r\n%b\r\n" % (len(message), message)

    @property
    def backlog_bytes(self) -> int:
        """The number of written bytes that the kernel has not accepted."""
        return self._transport.get_write_buffer_size()

    def write(self, outcome: list[bytes] | Close) -> None:
        """Send chunks, or chunks and the end; see `Link`."""
        if self.engine is None:
            return
        if isinstance(outcome, list):
            self._transport.write(outcome[0] if len(outcome) == 1 else b"".join(outcome))
        else:
            self.engine = None
            self._transport.write(b"".join((*outcome.frames, self._LAST)))
            self._transport.close()

    # What `asyncio.Protocol` has

    def data_received(self, data: bytes) -> None:
        """Discard what is sent behind the request."""
        self._late_bytes += len(data)
        if self._late_bytes > DISCARDED_BYTES:
            self.cut("sends_on")

    def eof_received(self) -> None:
        """The peer has ended its stream: it counts as gone, and the transport closes."""
        self._report_lost()

    def pause_writing(self) -> None:
        """Start the write deadline and notify the engine: the peer reads more slowly than we write."""
        self._unread_bytes = unread_bytes(self._transport)
        self._shared.writes.add(self, monotonic())
        if self.engine is not None:
            self.engine.paused()

    def resume_writing(self) -> None:
        """All written bytes are in the kernel: end the write deadline and notify the engine."""
        self._shared.writes.forget(self)
        if self.engine is not None:
            self.engine.resumed(monotonic())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's form
        """The connection is closed: notify the engine."""
        self._shared.connections -= 1
        self._shared.writes.forget(self)
        self._connections.discard(self)
        self._report_lost()

    # What the sweeper and the server call

    def slowness(self, now: float) -> str:  # noqa: ARG002 - `Writer`'s form
        """See `Writer`: the peer must have read any of the bytes written to it since the last call."""
        before, self._unread_bytes = self._unread_bytes, unread_bytes(self._transport)
        return "" if self._unread_bytes < before else "write_s"

    def cut(self, reason: str) -> None:
        """Abort the connection without sending anything. Logs the `reason`."""
        self._shared.note_cut(self._address, reason)
        self._transport.abort()

    def abort(self) -> None:
        """Close immediately, without a word in the log."""
        self._transport.abort()

    def shutdown(self) -> None:
        """Close the connection because the server shuts down; streams have ended before."""
        self._report_lost()
        self._transport.close()

    def _report_lost(self) -> None:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            engine.lost(monotonic())


class PlainStream(Stream):
    """A stream to a client of HTTP/1.0, which has no chunks: it ends with the connection (RFC 9112, 6.1)."""

    __slots__ = ()

    kind = "plain"
    _LAST = b""

    @staticmethod
    def text(message: bytes) -> bytes:
        """Return a message as it is."""
        return message

    @staticmethod
    def binary(message: bytes) -> bytes:
        """Return a message as it is: there is one kind."""
        return message
