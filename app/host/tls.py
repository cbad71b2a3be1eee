"""TLS between a socket and a connection: a protocol to the one, a transport to the other.

The event loop's own layer keeps what the kernel does not take in a buffer that its user cannot see. So nobody would
know what has been written, and a peer that reads nothing would never be late. This one keeps nothing: the connection
sees the socket's own buffer, its pauses and its limits, with TLS as without.

There is no handshake of its own to wait for either. A connection exists from its first byte on, and the deadline of
its first request's head runs meanwhile. Cryptography is OpenSSL's alone; here bytes are only carried.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 65_536
_PLAIN_HTTP = "HTTP_REQUEST"  # OpenSSL's word for what a browser sends that was told http://
_SPEAKS_HTTPS = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 29\r\n"
    b"connection: close\r\n\r\nthis port speaks only https:\n"
)


class Tls(asyncio.Transport, asyncio.Protocol):
    """One connection's TLS; `on_failure` is told OpenSSL's word for why there was none."""

    def __init__(self, above: asyncio.Protocol, context: ssl.SSLContext, on_failure: Callable[[str], None]) -> None:
        super().__init__()
        self._above = above
        self._on_failure = on_failure
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._engine = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._below: asyncio.Transport
        self._is_agreed = False  # the handshake is over
        self._has_left = False  # TLS' farewell has been sent: nothing can follow it

    # The protocol of the socket

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer has connected, and has yet to say so in TLS."""
        self._below = transport
        self._above.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Records came: some of the handshake, some with bytes for the connection."""
        if self._has_left:  # what still comes is thrown away; whoever refused it waits only for a moment
            return
        self._incoming.write(data)
        try:
            if not self._is_agreed:
                self._engine.do_handshake()
                self._is_agreed = True
            while not (self._has_left or self._below.is_closing()):
                plain = self._engine.read(_READ_BYTES)
                if not plain:
                    raise ssl.SSLZeroReturnError
                self._above.data_received(plain)
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLZeroReturnError:  # the peer's farewell
            if not self._above.eof_received():
                self.close()
        except ssl.SSLError as error:
            self._fail(error.reason or "unknown")

    def eof_received(self) -> bool | None:
        """The peer has ended its stream, without TLS' farewell."""
        return self._above.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._above.connection_lost(exc)

    def pause_writing(self) -> None:
        """The kernel has not taken all."""
        self._above.pause_writing()

    def resume_writing(self) -> None:
        """Now it has."""
        self._above.resume_writing()

    # The transport of the connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; before the handshake is over nothing can be said to a peer, and nothing after the farewell."""
        if not self._is_agreed or self._has_left or self._below.is_closing():
            return
        rest = memoryview(data)
        while rest:
            rest = rest[self._engine.write(rest) :]
        self._flush()

    def can_write_eof(self) -> bool:
        """As the socket can."""
        return self._below.can_write_eof()

    def write_eof(self) -> None:
        """Say that no more will come, and go on reading."""
        self._take_leave()
        self._below.write_eof()

    def close(self) -> None:
        """Close once all has been sent; a farewell of the peer's is not waited for."""
        self._take_leave()
        self._below.close()

    def abort(self) -> None:
        """Close at once."""
        self._below.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._below.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the socket's buffer, which is the only one."""
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Of what the kernel has not taken."""
        return self._below.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Read no more; what has been read is still passed on."""
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._below.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the socket, and the `ssl_object`; that there is an `sslcontext` tells https from http."""
        if name == "sslcontext":
            return self._engine.context
        return self._engine if name == "ssl_object" else self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Another takes the connection over."""
        self._above = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Whose connection it is."""
        return self._above

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._below.is_closing():
            self._below.write(data)

    def _take_leave(self) -> None:
        if self._is_agreed and not self._has_left:
            self._has_left = True
            with suppress(ssl.SSLError):  # it wants the peer's farewell, which nobody waits for
                self._engine.unwrap()
            self._flush()

    def _fail(self, reason: str) -> None:
        self._on_failure(reason)
        if reason == _PLAIN_HTTP:
            self._below.write(_SPEAKS_HTTPS)
        else:
            self._flush()  # OpenSSL's alert, which says why
        self._has_left = True
        self._below.close()
