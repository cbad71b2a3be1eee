"""The writing half of an HTTP connection: responses, whether they have reached the kernel, and ways to end it.

This is the half by which an endpoint knows a connection: the `Exchange` of the request that it answers at present
(`transports/exchange.py`). There is no object for each request.

* `when_written` reports that all written bytes are in the kernel, or that they never will be. The write buffer's limit
  is 0, so that "not paused" means that all were written. The kernel takes only what it can send soon (`kernel.py`).
* A request that is refused before it is complete gets a response, and its sender has `linger_s` to read it.
* A peer that ends its stream is gone. A subclass may still answer what it has sent before.
* The connection is in one queue of deadlines at a time for what the peer must send or when it must close, and in
  another for what it must read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from uvicorn.server import ServerState

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.host.kernel import unread_bytes
from halley.host.repeated import RememberedRequest
from halley.host.responses import LENGTH_LINES, dated, head_lines, length_line, response, status_line
from halley.host.timeouts import Requester, ServerContext
from halley.transports.exchange import Disconnected, Exchange
from halley.transports.guard import TEXT_HEADERS, Rejection
from halley.transports.head import BODILESS, CLOSE, CONTENT_LENGTH, Header, Headers, header_lines

STAYS_OPEN: Final = 0
HALF_CLOSED: Final = 1
SHUTTING_DOWN: Final = 2
"""When a connection is closed: not because of a response; once no response is due, since the peer has ended its stream;
or behind the next response, since the server shuts down.
"""


BETWEEN: Final = 0
IN_HEAD: Final = 1
IN_BODY: Final = 2
"""Where the parser is: between two requests, or in a part of one."""

CHUNKED: Final = (b"transfer-encoding", b"chunked")


class ConnectionWriter(Exchange):
    """The peer of one connection; the event loop knows it as the protocol of `transport`.

    It is not an `asyncio.Protocol`, so that it can be native: event loops ask only whether a protocol has a buffer of
    its own. `shared` is what all connections of a server have in common, and `state` has the sets in which uvicorn has
    them.
    """

    __slots__ = (
        "_closing",
        "_discarded_bytes",
        "_has_chunks",
        "_idle_since",
        "_is_answering",
        "_is_begun",
        "_is_head",
        "_keeps_alive",
        "_read_by",
        "_settling",
        "_stage",
        "_state",
        "_timeouts",
        "_unparsed",
        "_unread_bytes",
        "_waiting",
        "_was_cut",
        "client",
        "is_paused",
        "repeated",
        "scheme",
        "shared",
        "transport",
    )

    def __init__(self, state: ServerState, shared: ServerContext) -> None:
        super().__init__()
        self.shared = shared
        self.transport: Any = None
        self.client: tuple[str, int] | None = None  # may be a proxy; None if unknown
        self.scheme = "http"
        self.is_paused = False  # the kernel does not take all that is written
        self._state: Any = state  # its sets may be of a class of their own, whose methods a native call would pass by
        self._settling: tuple[Callable[[bool], None], ...] = ()
        self._unread_bytes = 0  # when the write deadline was last checked
        self._read_by = 0.0  # when the peer is to have read all that is written, at the minimum rate
        self._closing: int = STAYS_OPEN
        self._was_cut = False
        self._discarded_bytes = 0  # received since it is over
        self._timeouts: TimeoutQueue[Requester] | None = None  # the one whose deadline runs, but for what is written
        self._idle_since = 0.0  # when the latest response was written

        # What was received behind the request that is answered: whole requests, of which the last may be the refusal of
        # what follows them, a part of one, and what is not parsed yet, or is too much for one turn.
        self._waiting: tuple[Any, ...] = ()
        self._stage: int = BETWEEN
        self._unparsed: bytearray | None = None

        # Of the request that is answered
        self.repeated: RememberedRequest | None = None  # it, if its head may come again
        self._is_answering = False  # it is complete, its response is not all written, and its peer may still read that
        self._is_begun = False  # the head of a response in pieces is written
        self._is_head = False
        self._has_chunks = True  # it is of HTTP/1.1
        self._keeps_alive = True

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """Count the connection; writing to it pauses as soon as the kernel does not take all bytes."""
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.client = (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        transport.set_write_buffer_limits(0)
        self._state.connections.add(self)
        self.shared.connections += 1

    def eof_received(self) -> bool:
        """The peer has ended its stream: it counts as gone, and the transport closes once its buffer is sent."""
        self.is_gone, self.is_over, self._is_answering = True, True, False
        return False

    def pause_writing(self) -> None:
        """Start the write deadline: the peer reads more slowly than we write."""
        self.is_paused = True
        self._unread_bytes = nbytes = unread_bytes(self.transport)
        now = monotonic()
        self._read_by = now + nbytes / self.shared.limits.read_bytes_per_s
        self.shared.writes.add(self, now)

    def resume_writing(self) -> None:
        """All written bytes are in the kernel: end the write deadline, and report that."""
        self.is_paused = False
        self.shared.writes.forget(self)
        if not self.transport.is_closing():
            self._settle(is_written=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: report that, and notify who waits for its peer."""
        self.is_gone, self.is_over, self._is_answering = True, True, False
        self._state.connections.discard(self)
        self.shared.connections -= 1
        self.shared.writes.forget(self)
        self.shared.idle.forget(self)
        self._set_timeout(None)
        self.repeated = None
        # A transport that closes without an error, and is not aborted by us, has flushed its buffer.
        self._settle(is_written=exc is None and not self._was_cut)
        waiting, self.waiting = self.waiting, None
        if isinstance(waiting, asyncio.Future):
            waiting.cancel()
        elif waiting is not None and self.endpoint is not None:
            self.endpoint.lost(self, waiting)

    # Exchange

    @property
    def peer(self) -> object:
        """The connection, which has an identity of its own."""
        return self

    def respond(self, status: int, headers: Headers, body: bytes | None = b"", more: Sequence[Header] = ()) -> bool:
        """Write a response in one piece; True if all of it is in the kernel (`Exchange.respond`)."""
        lines = [self.shared.ok_lines if status == 200 else status_line(status) + self.shared.date, headers.lines]
        if self.cors:
            lines.append(header_lines(self.cors))
        nbytes = 0 if body is None else len(body)
        if more:
            lines += [length_line(nbytes) if each == CONTENT_LENGTH else header_lines((each,)) for each in more]
        is_bodiless = body is None or status in BODILESS
        if not (is_bodiless or CONTENT_LENGTH in more):
            lines.append(length_line(nbytes))
        closes = CLOSE in more
        if not (closes or self._stays_open):
            closes = True
            lines.append(header_lines((CLOSE,)))
        lines.append(b"\r\n")
        if body is not None and not (is_bodiless or self._is_head):
            lines.append(body)
        return self._finish(b"".join(lines), closes=closes)

    def respond_array(self, headers: Headers, texts: list[bytes]) -> bool:
        """Write what nearly all polls get, in the same bytes as `respond` and in fewer steps."""
        if self.cors or self._closing or self._is_head or not (self._keeps_alive and self._is_answering):
            return self.respond(200, headers, b"[%b]" % b",".join(texts))
        body = b",".join(texts)
        nbytes = len(body) + 2
        length = LENGTH_LINES[nbytes] if nbytes < len(LENGTH_LINES) else length_line(nbytes)
        self.transport.write(b"".join((self.shared.ok_lines, headers.lines, length, b"\r\n[", body, b"]")))
        self.waiting = None
        self._is_answering = False
        self._idle_since = monotonic()
        is_written = not (self.is_paused or self.transport.is_closing())
        if self._waiting or self._unparsed or self._stage != BETWEEN:
            self._go_on()
        return is_written

    def pass_on(self, status: int, headers: Sequence[Header], body: bytes, whole: bytes = b"") -> bool:
        """Write the response of another node, which has made it whole (`Exchange.pass_on`)."""
        date, closes = self.shared.date, CLOSE in headers
        if closes or self._stays_open:
            return self._finish(
                dated(whole, date) if whole else head_lines(status, headers, date) + b"\r\n" + body, closes=closes
            )
        return self._finish(head_lines(status, (*headers, CLOSE), date) + b"\r\n" + body, closes=True)

    @property
    def _stays_open(self) -> bool:
        return self._keeps_alive and self._closing != SHUTTING_DOWN

    def _finish(self, last: bytes, *, closes: bool = False) -> bool:
        """Write all, or the rest, of a response, and go on with the next request.

        True if all that is written is in the kernel. What closes the connection is not known to be.
        """
        if not self._is_answering:
            return False
        transport = self.transport
        transport.write(last)
        if closes:
            transport.close()
        self.waiting = None
        self._is_answering = self._is_begun = False
        self._idle_since = monotonic()
        is_written = not (self.is_paused or transport.is_closing())
        if self._waiting or self._unparsed or self._stage != BETWEEN or self._closing:
            self._go_on()
        return is_written

    def _go_on(self) -> None:
        """Begin with the next request, if there is one."""
        raise NotImplementedError

    def reject(self, rejection: Rejection) -> None:
        """Write the response that a rejection is; nothing if there has been one (`Exchange.reject`)."""
        if not self._is_answering:
            return
        if rejection.closes or self._is_begun:
            rejection.add_headers(self.cors)
            self._refuse(rejection, is_logged=True, is_head=self._is_head, is_begun=self._is_begun)
            return
        headers = [header for header in rejection.headers if header not in self.cors]
        self.respond(rejection.status, Headers(*TEXT_HEADERS, *headers), rejection.text.encode())

    def leave(self) -> None:
        """End the exchange without a response: close the connection."""
        self.waiting = None
        self._is_answering = False
        if not self.transport.is_closing():
            self.transport.close()

    def begin_response(self, status: int, headers: Headers, more: Sequence[Header] = ()) -> None:
        """Write the head of a response in pieces: as chunks, or up to the end of the connection."""
        if not self._is_answering:
            return
        self._is_begun = True
        every = [*headers.pairs, *self.cors, *more]
        if not (self._stays_open and self._has_chunks):
            self._keeps_alive = False
            every.append(CLOSE)
        if self._has_chunks and not self._is_head:
            every.append(CHUNKED)
        self.transport.write(head_lines(status, every, self.shared.date) + b"\r\n")

    async def send(self, piece: bytes) -> None:
        """Write a piece, and return when it is in the kernel. Raises `Disconnected` (`Exchange.send`)."""
        if piece and self._is_begun and not (self.is_gone or self._is_head):  # an empty chunk would be the last
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._has_chunks else piece)
            await self.drained()
        if self.is_gone:
            raise Disconnected

    def end_response(self) -> None:
        """End a response in pieces (`Exchange.end_response`)."""
        has_last = self._has_chunks and not self._is_head
        self._finish(b"0\r\n\r\n" if has_last else b"", closes=not self._stays_open)

    # What endpoints and the sweeper call

    def when_written(self, report: Callable[[bool], None]) -> None:
        """Call `report(True)` when all bytes written until now are in the kernel.

        Calls `report(False)` if the connection is lost before that. Reports immediately what is known now: nothing
        arrives that is written after the peer has ended its stream, or was refused.
        """
        if self.is_gone:
            report(False)  # noqa: FBT003 - the callback's one meaning
        elif not self.is_paused and not self.transport.is_closing():
            report(True)  # noqa: FBT003
        else:
            self._settling = (*self._settling, report)

    async def drained(self) -> None:
        """Return when all written bytes are in the kernel, or never will be."""
        if self.is_paused:
            drained = asyncio.Event()
            # `when_written` would not wait for a peer that is given up.
            self._settling = (*self._settling, lambda _: drained.set())
            await drained.wait()

    @property
    def address(self) -> str:
        """The IP address of the peer, which may be a proxy; empty if unknown."""
        return self.client[0] if self.client else ""

    @property
    def port(self) -> int:
        """The port of the peer, which may be a proxy; 0 if unknown."""
        return self.client[1] if self.client else 0

    def has_no_tls(self, reason: str) -> None:
        """Count and log a failed TLS handshake; `reason` is OpenSSL's."""
        self.shared.tls_failed += 1
        telemetry.log.info("tls_failed", reason=reason, address=self.address)

    def cut(self, reason: str) -> None:
        """Abort the connection and log the `reason`: bytes in the transport's buffer are lost."""
        self.shared.note_cut(self.address, reason)
        self.abort()

    def is_idle(self, since: float) -> bool:
        """Whether nothing has happened on the connection since the time `since`."""
        raise NotImplementedError

    def refuse(self, status: int, text: str, *, limit: str = "") -> None:
        """Refuse the request that is being received; `limit` is the setting that it exceeded (`Requester`)."""
        raise NotImplementedError

    def slowness(self, now: float) -> str:
        """See `Writer`: the peer must read some bytes between two calls, and all of them at a minimum rate.

        It is called every `write_s`, so a response has that much more time.
        """
        before, self._unread_bytes = self._unread_bytes, unread_bytes(self.transport)
        if self._unread_bytes >= before:
            return "write_s"
        return "" if now < self._read_by else "read_bytes_per_s"

    def _refuse(self, rejection: Rejection, *, is_logged: bool, is_head: bool, is_begun: bool = False) -> None:
        """Respond to the request whose response is due, complete or not, and then close the connection.

        With `is_begun` its response has begun, and ends without its end.
        """
        if not (self.is_gone or self.transport.is_closing()):
            refusal = self._refusal(rejection, is_logged=is_logged, is_head=is_head)
            self._end(b"" if is_begun else refusal)

    def _refusal(self, rejection: Rejection, *, is_logged: bool, is_head: bool) -> bytes:
        """Count a refusal, and return it as the last response on the connection, to HEAD or another method."""
        status, text = rejection.status, rejection.text
        self.shared.refused[status] = self.shared.refused.get(status, 0) + 1
        if rejection.limit:
            self.shared.hits[rejection.limit] += 1
        if not is_logged:
            telemetry.request_refused(status, text, address=self.address)
        headers = (*TEXT_HEADERS, *rejection.headers, CLOSE)
        return response(status, headers, text.encode(), self.shared.date, is_head=is_head)

    def _end(self, refusal: bytes) -> None:
        """Write the last response, then close the connection: now for writing, after `linger_s` for reading.

        If it were closed for reading now, unread bytes would make the kernel reset it, and the response would be lost.
        """
        self.is_gone, self.is_over, self._is_answering = True, True, False
        self._set_timeout(self.shared.lingering)
        if refusal:
            self.transport.write(refusal)
        if self._closing == HALF_CLOSED:
            self.transport.close()
        elif self.transport.can_write_eof():
            with suppress(OSError):  # the peer may have reset the connection
                self.transport.write_eof()

    def abort(self) -> None:
        """Close immediately; what the kernel has not accepted is lost."""
        self._was_cut = True
        self.transport.abort()

    def _settle(self, *, is_written: bool) -> None:
        reports, self._settling = self._settling, ()
        for report in reports:
            report(is_written)

    def _set_timeout(self, timeouts: TimeoutQueue[Requester] | None) -> None:
        """Start the deadline of this queue and end that of any other."""
        if timeouts is not self._timeouts:
            if self._timeouts is not None:
                self._timeouts.forget(self)
            self._timeouts = timeouts
            if timeouts is not None:
                timeouts.add(self, monotonic())
