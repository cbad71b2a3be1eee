"""WebSockets (RFC 6455) on Halley's own host; `frames.py` reads and makes their frames.

The transport's protocol is this object once the 101 is sent; engines know it as their `Link`. It needs no base class:
event loops call the methods of `asyncio.Protocol` on an object without `get_buffer`. A frame for a hundred peers is
made once, so sending it costs one call of the transport for each of them and nothing else. Where the settings allow it,
messages are compressed (`deflate.py`), also once for all peers that take them so.

A WebSocket ends in one of four ways: the peer sends a close frame, which is echoed; the engine closes it, and the peer
has `kill_s` to echo; the peer violates the protocol and receives the code for that; or the connection is lost. The
engine is notified once.

`WebSockets` has those of one route: their opening handshake and their deadlines.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, MutableSet, Sequence
from time import monotonic
from typing import Any, Final, cast

from websockets.utils import accept_key

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.broker.limits import Meter
from halley.host import deflate
from halley.host.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    INVALID_DATA,
    PING,
    PONG,
    TEXT,
    TOO_BIG,
    BadFrame,
    FrameReader,
    close_frame,
    frame,
)
from halley.host.kernel import limit_unsent, set_keepalive, unread_bytes
from halley.host.timeouts import DISCARDED_BYTES, SLICE_S, ServerContext
from halley.protocols.contract import ABNORMAL, GOING_AWAY, INTERNAL_ERROR, POLICY_VIOLATION, Close, Engine, Pings
from halley.transports.addresses import Proxies
from halley.transports.guard import Rejection
from halley.transports.head import Head, Header
from halley.transports.websocket import WebSocketRoute, check


class WebSocket:
    """A peer's WebSocket. `sockets` has what all of the same route share."""

    __slots__ = (
        "_address",
        "_empty_frames",
        "_engine",
        "_fragments",
        "_has_ended",
        "_has_eof",
        "_head",
        "_is_paused",
        "_is_working",
        "_late_bytes",
        "_messages",
        "_opcode",
        "_parts",
        "_pinged_at",
        "_pinged_since",
        "_pings",
        "_pings_and_pongs",
        "_reader",
        "_received_at",
        "_shared",
        "_sockets",
        "_transport",
        "_unread_bytes",
        "subprotocol",
    )

    kind = "websocket"

    def __init__(self, head: Head, subprotocol: str, sockets: WebSockets) -> None:
        route = sockets.route
        self.subprotocol = subprotocol
        self._head: Head | None = head  # until the engine has it
        self._address = head.address
        self._sockets = sockets
        self._shared = sockets.shared
        self._reader = FrameReader(route.service.message_bytes)
        self._pings = route.service.subprotocols[subprotocol]
        self._pings_and_pongs = _per_second(route.service.pings_per_s)
        self._empty_frames = _per_second(sockets.shared.limits.empty_frames_per_s)
        self._transport: asyncio.Transport
        self._engine: Engine | None = None  # until it was notified of the end
        self._is_working = False  # received bytes are processed now, or in a later turn
        self._is_paused = False  # nothing is read until then
        self._has_eof = False  # the peer has ended its stream
        self._messages: Iterator[Any] | None = None  # those of the latest frame that the engine has not received
        self._parts = bytearray()  # a message in fragments, as far as received
        self._fragments = 0
        self._opcode: int = TEXT  # of that message
        self._received_at = monotonic()
        self._pinged_since = 0.0  # time of the first ping after which nothing was received; 0: none
        self._pinged_at = 0.0  # time of the latest ping, where they are sent at fixed intervals
        self._unread_bytes = 0  # when the write deadline was last checked
        self._late_bytes = 0  # received after the end
        self._has_ended = False  # nothing more is written

    def begin(self, transport: asyncio.Transport, accepted: bytes, rest: bytes) -> None:
        """Take over a connection, which reads: send `accepted`, then process `rest`, the bytes behind the head."""
        head, self._head = self._head, None
        assert head is not None
        self._transport = transport
        self._engine = self._sockets.route.connect(self, head, self._received_at)
        self._sockets.add(self, self._received_at)
        transport.set_protocol(cast(Any, self))
        if not self._sockets.route.service.reports_left:
            limit_unsent(transport.get_extra_info("socket"), 0)
        transport.write(accepted)
        if self._pings is None:
            set_keepalive(transport)
        if rest:
            self.data_received(rest)

    # Link

    @staticmethod
    def text(message: bytes) -> bytes:
        """Return a text message as a frame."""
        return frame(TEXT, message)

    @staticmethod
    def binary(message: bytes) -> bytes:
        """Return a binary message as a frame."""
        return frame(BINARY, message)

    @property
    def backlog_bytes(self) -> int:
        """The number of written bytes that the kernel has not accepted."""
        return self._transport.get_write_buffer_size()

    def write(self, outcome: list[bytes] | Close) -> None:
        """Send frames, or frames and a close frame; see `Link`."""
        if self._has_ended:
            return
        if isinstance(outcome, list):
            self._transport.write(outcome[0] if len(outcome) == 1 else b"".join(outcome))
        elif outcome.code == ABNORMAL:
            self.cut(outcome.reason)
        else:
            self._end(outcome.code, outcome.reason, outcome.frames)

    # What `asyncio.Protocol` has

    def data_received(self, data: bytes) -> None:
        """Process received bytes: frames or parts of them."""
        if self._has_ended:
            self._late_bytes += len(data)
            if self._late_bytes > DISCARDED_BYTES:
                self.cut("sends_on")
        self._reader.feed(data)
        if not self._is_working:
            self._is_working = True
            if not self._shared.turns.run(self):
                self._is_paused = True
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The peer has ended its stream: it counts as gone once all bytes received before are processed."""
        self._has_eof = True
        self.data_received(b"")
        return True

    def pause_writing(self) -> None:
        """Start the write deadline and notify the engine: the peer reads more slowly than we write."""
        self._unread_bytes = unread_bytes(self._transport)
        self._shared.writes.add(self, monotonic())
        if self._engine is not None and not self._has_ended:
            self._engine.paused()

    def resume_writing(self) -> None:
        """All written bytes are in the kernel: end the write deadline and notify the engine."""
        self._shared.writes.forget(self)
        if self._engine is not None and not self._has_ended:
            self._engine.resumed(monotonic())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's form
        """The connection is closed: notify the engine."""
        self._sockets.remove(self)
        self._report_lost()
        # The engine refers to this, and the cyclic collector may run much later: it counts objects, not their bytes.
        self._reader.end()
        self._messages, self._parts = None, bytearray()

    # What the sweeper and the server call

    def slowness(self, now: float) -> str:  # noqa: ARG002 - `Writer`'s form
        """See `Writer`: the peer must have read any of the bytes written to it since the last call."""
        before, self._unread_bytes = self._unread_bytes, unread_bytes(self._transport)
        return "" if self._unread_bytes < before else "write_s"

    def cut(self, reason: str) -> None:
        """Abort the connection without sending anything. Logs the `reason`."""
        self._shared.note_cut(self._address, reason)
        self._transport.abort()

    def check_silence(self, now: float) -> None:
        """Ping a silent peer; close the connection if it has not replied in time."""
        pings = self._pings
        if self._has_ended or pings is None:
            return
        if pings.is_steady:
            self._ping_steadily(pings, now)
            return
        if self._received_at > self._pinged_since:
            self._pinged_since = 0.0
        if self._pinged_since:
            if now - self._pinged_since >= pings.pong_s:
                self._fail(pings.lost_code, "no reply to a ping", "pong_s")
        elif now - self._received_at >= pings.ping_s:
            self._pinged_since = now
            self._transport.write(frame(PING, b""))

    def _ping_steadily(self, pings: Pings, now: float) -> None:
        if self._received_at > self._pinged_since:
            self._pinged_since = 0.0
        # A peer that was not pinged is not to blame for its silence: the server may have been stalled.
        was_pinged = self._pinged_since and now - self._pinged_since >= pings.pong_s - pings.ping_s
        if was_pinged and now - self._received_at >= pings.pong_s:
            self._fail(GOING_AWAY, "connection timed out", "pong_s")
        elif now - self._pinged_at >= pings.ping_s:
            self._pinged_since = self._pinged_since or now
            self._pinged_at = now
            self._transport.write(frame(PING, b""))

    def abort(self) -> None:
        """Close immediately, without a word in the log."""
        self._transport.abort()

    def shutdown(self) -> None:
        """Close the WebSocket because the server shuts down; engines have closed those with a session before."""
        self._fail(GOING_AWAY, "the server is shutting down")

    # Receiving

    def work(self, now: float) -> bool:
        """Process received bytes; see `Worker`."""
        self._received_at = now
        try:
            if self._process(now):
                return True
        except Exception as error:  # noqa: BLE001 - an error here must not affect other connections
            telemetry.fault("websocket", error)
            self._messages = None
            self._fail(INTERNAL_ERROR, "internal error")
        self._is_working = False
        if self._is_paused:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return False

    def _process(self, now: float) -> bool:
        """Process frames and their messages for a slice at most; whether some are left."""
        while self._messages is not None or self._read_frame(now):
            if self._messages is not None:
                for message in self._messages:
                    if self._engine is None:
                        break
                    self._engine.receive(message, now)
                    if monotonic() - now > SLICE_S:
                        return True
                self._messages = None
            if monotonic() - now > SLICE_S:  # there are frames without a message
                return True
        if self._has_eof:
            self._report_lost()
            self._transport.close()
        return False

    def _read_frame(self, now: float) -> bool:
        """Process the next frame; False if none is there whole, or the connection is closing."""
        try:
            found = self._reader.read()
        except BadFrame as wrong:
            if not self._transport.is_closing():
                self._refuse(wrong)
            return False
        if found is None or self._transport.is_closing():
            return False
        opcode, is_final, data = found
        if opcode == CLOSE:
            self._answer_close(data)
        elif not self._has_ended:
            if opcode > CLOSE:
                self._accept_control(opcode, data, now)
            elif not (data or self._empty_frames.admits(now)):
                self._fail(POLICY_VIOLATION, "too many empty frames", "empty_frames_per_s")
            elif is_final and opcode != CONTINUATION:
                self._accept_message(opcode, data, now)
            else:
                self._accept_fragment(opcode, data, now, is_final=is_final)
        return True

    def _accept_control(self, opcode: int, data: bytes, now: float) -> None:
        """Answer a ping, or note a pong; each is counted, but for a pong that was expected."""
        if opcode == PONG and self._pinged_since:
            self._pinged_since = 0.0
        elif not self._pings_and_pongs.admits(now):
            self._fail(POLICY_VIOLATION, "too many pings", "pings_per_s")
        elif opcode == PING:
            self._transport.write(frame(PONG, data))

    def _accept_fragment(self, opcode: int, data: bytes, now: float, *, is_final: bool) -> None:
        if opcode != CONTINUATION:
            self._opcode = opcode
        self._parts += data
        self._fragments += 1
        if self._fragments > self._shared.limits.fragments:
            self._fail(TOO_BIG, "too many fragments", "fragments")
        elif is_final:
            whole, self._parts, self._fragments = bytes(self._parts), bytearray(), 0
            self._accept_message(self._opcode, whole, now)

    def _accept_message(self, opcode: int, data: bytes, now: float) -> None:
        """Have the engine split a WebSocket message into its own."""
        if opcode == TEXT and not data.isascii() and not _is_utf8(data):
            self._fail(INVALID_DATA, "not UTF-8")
        elif self._engine is not None:
            self._messages = iter(self._engine.split(data, now, is_binary=opcode == BINARY))

    # The end

    def _fail(self, code: int, reason: str, limit: str = "") -> None:
        """Send a close frame and notify the engine of the end; `limit` is the setting that was exceeded."""
        if self._has_ended:
            return
        if limit:
            self._shared.hits[limit] += 1
        if code == INTERNAL_ERROR or not self._is_ended_by_flush():
            self._end(code, reason)
        self._report_lost()

    def _answer_close(self, data: bytes) -> None:
        """End the connection because of the peer's close frame, which is echoed unless it is an echo itself."""
        if not self._has_ended:
            self._transport.write(frame(CLOSE, data))
        self._report_lost()
        self._transport.close()

    def _refuse(self, wrong: BadFrame) -> None:
        """End the connection of a peer that violates the framing, with a close frame unless one was sent before."""
        if not self._has_ended:
            if not self._is_ended_by_flush():
                self._transport.write(close_frame(wrong.code, wrong.reason))
            if wrong.code == TOO_BIG:
                self._shared.hits["message_bytes"] += 1
        self._report_lost()
        self._linger()

    def _end(self, code: int, reason: str, frames: list[bytes] | None = None) -> None:
        """Send a close frame; the peer has `kill_s` to read and echo it."""
        self._has_ended = True
        self._parts = bytearray()
        self._transport.write(b"".join((*(frames or ()), close_frame(code, reason))))
        self._sockets.leaving.add(self, monotonic())

    def _linger(self) -> None:
        """Close for writing now and for reading soon: else unread bytes would reset it before the peer has read why."""
        self._sockets.leaving.add(self, monotonic())
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # the peer may have reset the connection
                self._transport.abort()

    def _is_ended_by_flush(self) -> bool:
        """Write now what the engine has to say to what came before the end; whether that has closed the connection.

        Of a close that it returns only the frames are written, since another close frame follows.
        """
        if self._engine is not None:
            for link, output in self._engine.flush(monotonic()):
                frames = output.frames if isinstance(output, Close) else output
                if frames:
                    link.write(frames)
        return self._has_ended

    def _report_lost(self) -> None:
        if self._engine is not None:
            engine, self._engine, self._has_ended = self._engine, None, True
            engine.lost(monotonic())


class DeflatedWebSocket(WebSocket):
    """A WebSocket whose messages may be compressed, in both directions (RFC 7692)."""

    __slots__ = ()

    kind = "websocket+deflate"

    def __init__(self, head: Head, subprotocol: str, sockets: WebSockets) -> None:
        super().__init__(head, subprotocol, sockets)
        self._reader = FrameReader(sockets.route.service.message_bytes, takes_deflated=True)

    @staticmethod
    def text(message: bytes) -> bytes:
        """Return a text message as a frame, compressed if that is worth it."""
        return deflate.frame_of(TEXT, message)

    @staticmethod
    def binary(message: bytes) -> bytes:
        """Return a binary message as a frame, compressed if that is worth it."""
        return deflate.frame_of(BINARY, message)

    def _accept_message(self, opcode: int, data: bytes, now: float) -> None:
        """Inflate a message that is compressed. One that is not deflate data, or is too large, ends the connection."""
        if self._reader.is_deflated:
            self._reader.is_deflated = False
            try:
                data = deflate.inflate(data, self._sockets.route.service.message_bytes)
            except BadFrame as wrong:
                self._fail(wrong.code, wrong.reason, "message_bytes" if wrong.code == TOO_BIG else "")
                return
        super()._accept_message(opcode, data, now)


def _per_second(per_s: float) -> Meter:
    return Meter(per_s, max(1, round(per_s)))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


_ACCEPTED = (
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: {}\r\n"
)
_VERSION: Final = (b"sec-websocket-version", b"13")
_UPGRADE: Final = (b"upgrade", b"websocket")
_KEY_BYTES: Final = 16


class WebSockets:
    """The WebSockets of one route. `connections` are all of the server; it closes them when it shuts down.

    With `deflates` messages are compressed for clients that offer it.
    """

    def __init__(
        self,
        route: WebSocketRoute,
        proxies: Proxies,
        shared: ServerContext,
        connections: MutableSet[Any] | None = None,
        *,
        deflates: bool = False,
    ) -> None:
        self.route = route
        self.shared = shared
        # Not typed as a set: compiled, that would call `set.discard`, and the server's set has its own.
        self.connections: MutableSet[Any] = set() if connections is None else connections
        self.leaving: TimeoutQueue[WebSocket] = TimeoutQueue(route.service.kill_s)
        self._proxies = proxies
        self._deflates = deflates
        self._checks: TimeoutQueue[WebSocket] = TimeoutQueue(route.service.check_interval_s)

    def open(self, head: Head, headers: Sequence[Header], http_version: str) -> tuple[WebSocket, bytes]:
        """Make the WebSocket that a request asks for, and the response that accepts it.

        `head` has the address of the peer, which may be a proxy. Raises `Rejection` if the request is not a valid
        opening handshake (RFC 6455, 4.2).
        """
        if head.address in self._proxies:
            head.address, head.scheme = self._proxies.client_of(head.address, head.scheme, headers)
            head.port = 0
        subprotocol = check(head, headers, self.route)
        if head.method != "GET":
            raise Rejection(405, "only GET opens a WebSocket", headers=((b"allow", b"GET"),))
        key = _key(headers)
        has_body = b"transfer-encoding" in head.fields or head.fields.get(b"content-length", b"0").strip(b"0")
        if http_version != "1.1" or has_body:
            raise Rejection(400, "a WebSocket is opened with HTTP/1.1 and without a body")
        if [header for header in headers if header[0] == _VERSION[0]] != [_VERSION]:
            raise Rejection(426, "only version 13 of WebSocket is supported", headers=(_VERSION, _UPGRADE))
        agreed = deflate.agree(headers) if self._deflates else ""
        chosen = ((b"sec-websocket-protocol", subprotocol.encode()), (b"sec-websocket-extensions", agreed.encode()))
        more = [header for header in chosen if header[1]]
        accepted = _ACCEPTED.format(accept_key(key)).encode() + b"".join(b"%b: %b\r\n" % header for header in more)
        return (DeflatedWebSocket if agreed else WebSocket)(head, subprotocol, self), accepted + b"\r\n"

    def add(self, socket: WebSocket, now: float) -> None:
        """Add a WebSocket that has replaced its HTTP connection."""
        self.connections.add(socket)
        self._checks.add(socket, now)

    def remove(self, socket: WebSocket) -> None:
        """Remove a WebSocket whose connection is closed."""
        self.shared.connections -= 1
        self.shared.writes.forget(socket)
        self.leaving.forget(socket)
        self._checks.forget(socket)
        self.connections.discard(socket)

    def sweep(self, now: float) -> bool:
        """Ping silent peers, and cut those that have not closed in time; whether there are more."""
        for each in list(self._checks.overdue(now)):
            each.check_silence(now)
            self._checks.add(each, now)
        for each in self.leaving.overdue(now):
            self.shared.hits["kill_s"] += 1
            each.cut("lingers")
        return self._checks.has_overdue(now) or self.leaving.has_overdue(now)


def _key(headers: Sequence[Header]) -> str:
    """Return the handshake's key. Raises `Rejection`."""
    keys = [value for name, value in headers if name == b"sec-websocket-key"]
    try:
        if len(keys) == 1 and len(base64.b64decode(keys[0], validate=True)) == _KEY_BYTES:
            return keys[0].decode()
    except binascii.Error:
        pass
    raise Rejection(400, "expected one Sec-WebSocket-Key: 16 bytes in base64")
