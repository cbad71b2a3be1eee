"""TLS: the server's certificate, and the layer between a socket and a connection.

It is a protocol for the socket, and a transport for the connection.

The event loop's own TLS layer keeps bytes that the kernel does not accept in a buffer that its user cannot see. So
nothing would know what has been written, and no deadline would notice a peer that reads nothing. This layer keeps
nothing that is written: with TLS as without, the connection sees the socket's own buffer, its pauses and its limits.
Received records are kept until it is their turn (`timeouts.py`). OpenSSL gets bytes in pieces, since its buffers never
shrink: else every connection would keep as much memory as the longest request and response on it.

Nor is there a separate wait for the handshake: a connection exists from its first byte on, and the deadline of its
first request's head runs during the handshake. OpenSSL does all cryptography; this module only moves bytes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, cast

from halley import telemetry
from halley.host.timeouts import SLICE_S, Receiver, Turns
from halley.settings import Tls as TlsSettings

_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's reasons when the key does not belong to the certificate; the last one is for another type of key."""

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class BadCertificate(Exception):
    """A file of the certificate or key cannot be used; the text names it and says why."""


class Certificate:
    """The server's certificate; new connections use its `context`. Raises `BadCertificate`."""

    def __init__(self, options: TlsSettings) -> None:
        self._options = options
        self.context = _context(options)

    def reload(self) -> None:
        """Read the files again, for new connections; if they cannot be used, log that and keep the old certificate."""
        try:
            # A new context: the old one would go on offering an RSA certificate next to a new one of another type.
            self.context = _context(self._options)
        except BadCertificate as error:
            telemetry.log.error("reload_failed", what="certificate", reason=str(error))
        else:
            telemetry.log.info("reloaded", what="certificate", file=self._options.cert)


def _context(options: TlsSettings) -> ssl.SSLContext:
    cert, key = options.cert, options.key or options.cert
    if "-----BEGIN CERTIFICATE-----" not in _text(cert):
        raise BadCertificate(f"{cert} contains no certificate (expected PEM)")
    if "PRIVATE KEY-----" not in (text := _text(key)):
        hint = "" if options.key else "; name its file with --tls-key"
        raise BadCertificate(f"{key} contains no private key (expected PEM){hint}")
    if "ENCRYPTED" in text:
        raise BadCertificate(f"the key in {key} is encrypted (expected an unencrypted key)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # else a client could repeat the part that is costly for the server
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            raise BadCertificate(f"the key in {key} does not belong to the certificate in {cert}") from None
        raise BadCertificate(f"{cert} or {key} is damaged ({error.reason or 'no valid PEM'})") from None
    return context


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="latin-1")
    except OSError as error:
        raise BadCertificate(f"{file} cannot be read ({error.strerror})") from None


_READ_BYTES = 65_536
_READ_RECORDS = 64
"""How much is decrypted before it is passed on. A peer can send records of one byte, each as costly as a long one."""

_PIECE_BYTES = 16_384
"""How much OpenSSL gets at a time. Its buffers keep, as long as a connection lives, the size that they once had."""

_PLAIN_HTTP = "HTTP_REQUEST"  # OpenSSL's reason when a client sends plain HTTP
_SPEAKS_HTTPS = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 29\r\n"
    b"connection: close\r\n\r\nthis port speaks only https:\n"
)


_NO_CONNECTION = asyncio.Protocol()
"""What is above TLS once the connection is lost: it does nothing."""


def _ignore(_reason: str) -> None:
    """Do nothing about a failure of TLS once the connection is lost."""


class Tls(asyncio.Transport, asyncio.Protocol):
    """The TLS of one connection; `on_failure` is called with OpenSSL's reason when TLS fails."""

    def __init__(
        self, above: Receiver, context: ssl.SSLContext, turns: Turns, on_failure: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._above: Receiver = above
        self._turns = turns
        self._on_failure = on_failure
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._engine = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received = b""  # not yet given to OpenSSL, but for the first `_consumed_bytes`; nearly always empty
        self._consumed_bytes = 0
        self._below: asyncio.Transport
        self._is_established = False  # the handshake is over
        self._is_close_sent = False  # close_notify was sent: nothing can follow it
        self._is_scheduled = False  # received records are decrypted, now or in a later turn
        self._is_paused = False  # the connection above reads nothing for now
        self._has_ended = False  # the peer has ended its stream

    # The protocol of the socket

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer has connected; the handshake follows."""
        self._below = transport
        self._above.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Process TLS records: of the handshake, or with bytes for the connection."""
        if self._is_close_sent:  # further bytes are discarded; the connection above closes soon
            return
        if len(data) <= _PIECE_BYTES and not self._received:
            self._incoming.write(data)
        else:
            self._received, self._consumed_bytes = self._received[self._consumed_bytes :] + data, 0
        self._schedule()

    def eof_received(self) -> bool | None:
        """The peer has ended its stream, without TLS' close_notify: pass that on after all bytes received before."""
        if self._is_close_sent:
            return self._above.eof_received()
        self._has_ended = True
        self._schedule()
        return True

    def work(self, now: float) -> bool:
        """Decrypt what was received, and pass it on; see `Worker`."""
        try:
            if not self._is_established:
                self._handshake()
            while not self._is_stopped():
                self._pass_on()
                if monotonic() - now > SLICE_S:
                    return True
        except ssl.SSLWantReadError:
            self._flush()
            if self._has_ended:
                self._end()
        except ssl.SSLZeroReturnError:  # the peer's close_notify
            self._end()
        except ssl.SSLError as error:
            self._fail(error.reason or "unknown")
        self._is_scheduled = False
        if not (self._is_paused or self._below.is_closing()):  # after close_notify too: the peer's end is waited for
            self._below.resume_reading()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed: notify the connection, and drop the references to it, since it refers to this.

        So the memory that OpenSSL uses for it is freed immediately, and not by the cyclic collector.
        """
        above, self._above = self._above, _NO_CONNECTION
        self._received = b""
        self._on_failure = _ignore
        above.connection_lost(exc)

    def pause_writing(self) -> None:
        """The kernel has not accepted all bytes: notify the connection."""
        self._above.pause_writing()

    def resume_writing(self) -> None:
        """The kernel has accepted all bytes: notify the connection."""
        self._above.resume_writing()

    # The transport of the connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send bytes; they are dropped before the end of the handshake and after close_notify."""
        if not self._is_established or self._is_close_sent or self._below.is_closing():
            return
        rest, records = memoryview(data), []
        while rest:
            rest = rest[self._engine.write(rest[:_PIECE_BYTES]) :]
            records.append(self._outgoing.read())
        self._below.write(b"".join(records))

    def can_write_eof(self) -> bool:
        """Whether the socket can be closed for writing only."""
        return self._below.can_write_eof()

    def write_eof(self) -> None:
        """Send close_notify, close the socket for writing, and go on reading."""
        self._send_close_notify()
        self._below.write_eof()

    def close(self) -> None:
        """Close once all bytes are sent, without waiting for the peer's close_notify."""
        self._send_close_notify()
        self._below.close()

    def abort(self) -> None:
        """Close immediately; buffered bytes are lost."""
        self._below.abort()

    def is_closing(self) -> bool:
        """Whether the socket is closed or closing."""
        return self._below.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of the socket's buffer, which is the only one."""
        self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the kernel has not accepted."""
        return self._below.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Pause reading; nothing is passed on until it is resumed."""
        self._is_paused = True
        self._below.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, of bytes first that have been received already."""
        if self._is_paused:
            self._is_paused = False
            self._schedule()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the socket, or `ssl_object`, or `sslcontext`, by which uvicorn recognizes https."""
        if name == "sslcontext":
            return self._engine.context
        return self._engine if name == "ssl_object" else self._below.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Set the protocol above, when a connection becomes a WebSocket."""
        self._above = cast(Receiver, protocol)

    def _schedule(self) -> None:
        if not (self._is_scheduled or self._is_paused):
            self._is_scheduled = True
            if not self._turns.run(self):
                self._below.pause_reading()

    def _is_stopped(self) -> bool:
        return self._is_paused or self._is_close_sent or self._below.is_closing()

    def _handshake(self) -> None:
        """Go on with the handshake. Raises `ssl.SSLError` if it needs more bytes, or fails."""
        while not self._is_established:
            try:
                self._engine.do_handshake()
                self._is_established = True
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise

    def _read(self, nbytes: int) -> bytes:
        """Decrypt up to `nbytes` of what was received. Raises `ssl.SSLError` if there is no whole record more."""
        while True:
            try:
                return self._engine.read(nbytes)
            except ssl.SSLWantReadError:
                if not self._feed():
                    raise

    def _feed(self) -> bool:
        """Give OpenSSL the next piece of what was received; False if there is none."""
        end = self._consumed_bytes + _PIECE_BYTES
        nbytes = self._incoming.write(self._received[self._consumed_bytes : end])
        self._consumed_bytes = end
        if end >= len(self._received):
            self._received, self._consumed_bytes = b"", 0
        return nbytes > 0

    def _pass_on(self) -> None:
        """Pass on the bytes of the next records, in one piece. Raises `ssl.SSLError` after the last.

        That is raised when they have been passed on: while an exception is handled, the connection's parser would show
        it as the context of its own.
        """
        pieces: list[bytes] = []
        nbytes = 0
        end: ssl.SSLError | None = None
        while end is None and nbytes < _READ_BYTES and len(pieces) < _READ_RECORDS:
            try:
                plain = self._read(_READ_BYTES - nbytes)
            except ssl.SSLError as error:
                end = error
            else:
                if plain:
                    pieces.append(plain)
                    nbytes += len(plain)
                else:
                    end = ssl.SSLZeroReturnError()
        if pieces:
            self._above.data_received(b"".join(pieces))
        if end is not None:
            try:
                raise end
            finally:
                end = None  # its traceback refers to this frame: else both would wait for the cyclic collector

    def _end(self) -> None:
        """Pass on that the peer has ended its stream; close, unless the connection above has something to send."""
        if not (self._is_close_sent or self._below.is_closing() or self._above.eof_received()):
            self.close()

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._below.is_closing():
            self._below.write(data)

    def _send_close_notify(self) -> None:
        if self._is_established and not self._is_close_sent:
            self._is_close_sent = True
            with suppress(ssl.SSLError):  # raised because the peer's close_notify has not arrived; it is not waited for
                self._engine.unwrap()
            self._flush()

    def _fail(self, reason: str) -> None:
        self._on_failure(reason)
        if reason == _PLAIN_HTTP:
            self._below.write(_SPEAKS_HTTPS)
        else:
            self._flush()  # OpenSSL's alert with the reason
        self._is_close_sent = True
        self._below.close()
