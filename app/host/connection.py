"""One HTTP connection: uvicorn's httptools protocol with the guards it lacks.

* Head: size, number of headers and a deadline; bytes are counted as they come, before any parser has buffered them.
* Body: a deadline; chunked framing is bounded along with the content.
* While a request is being answered nothing further is parsed: bytes that come meanwhile are kept, up to one head and
  body, so that a peer that closes is noticed at once, whatever it sent before.
* `settle` tells when what was written has left for the kernel, or that it never will. The write buffer's limit is 0,
  so that "not paused" means "all gone".
* A request refused half-way is answered before the connection is cut, and the sender has a moment to read why.

It knows nothing of Bayeux. ASGI applications find it as `scope["extensions"]["halley"]`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app import telemetry
from app.host.reaper import Reaper

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn._types import ASGI3Application
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from app.settings import Limits

_HUGE_LENGTH = re.compile(rb"^content-length:[ \t]*[0-9]{19,}[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_PIECE_BYTES = 16_384
"""Fed to the parser at once, so that a body's framing is counted to within so much."""
_PIPELINED_REQUESTS = 16
_DISCARDED_BYTES = 1_048_576


class Watch:
    """What all connections of a server share: their limits, the three deadlines, and counts for telemetry."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.heads = Reaper(limits.head_s)
        self.bodies = Reaper(limits.body_s)
        self.writes = Reaper(limits.write_s)
        self.connections = 0
        self.refused: dict[int, int] = {}  # by status
        self.cut = 0  # for being too slow
        self.tls_failed = 0

    def sweep(self, now: float) -> None:
        """End the connections that took too long."""
        for connection in self.heads.overdue(now):
            connection.cut("slow_head")
        for connection in self.bodies.overdue(now):
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "request body took too long")
        for connection in list(self.writes.overdue(now)):
            if connection.is_read_from():
                self.writes.watch(connection, now)
            else:
                connection.cut("slow_reader")


class _Refused(Exception):
    """Raised in a parser callback once the request has been refused."""


class Connection(HttpToolsProtocol):
    """A guarded connection. `watch` is what it shares with all others of the server."""

    def __init__(self, *arguments: Any, watch: Watch, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.watch = watch

        # Per-connection state
        self._running: RequestResponseCycle | None = None  # the request being answered
        self._kept = bytearray()  # came meanwhile
        self._settling: list[Callable[[bool], None]] = []
        self._unsent_bytes = 0  # when the writes' deadline last came up
        self._has_ended = False  # the peer has ended its stream
        self._is_lost = False
        self._was_cut = False
        self._discarded_bytes: int | None = None  # counts once the connection has been refused

        # Per-request state
        self._is_in_head = True  # of a request, or before one
        self._has_begun = False  # part of a head has been parsed
        self._lacks_body = False  # asked for an upgrade, for which httptools skips the body
        self._fed_bytes = 0  # of this head, or of this body with its framing
        self._head_bytes = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer has connected; its first request is under the deadline at once."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)
        self.watch.connections += 1
        self.watch.heads.watch(self, monotonic())

    def data_received(self, data: bytes) -> None:
        """Bytes came: parse them, keep them for later, or throw them away."""
        if self._discarded_bytes is not None:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _DISCARDED_BYTES:
                self.cut("sends_on")
        elif self._is_busy():
            self._kept += data
            limits = self.watch.limits
            if len(self._kept) > limits.head_bytes + limits.body_bytes:
                self.cut("too_much_ahead")
        else:
            self._feed(data)

    def eof_received(self) -> None:
        """The peer sends no more: it counts as gone, and the transport closes once it has sent what was written."""
        self._has_ended = True

    def pause_writing(self) -> None:
        """The peer does not keep up with reading."""
        super().pause_writing()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self.watch.writes.watch(self, monotonic())

    def resume_writing(self) -> None:
        """All that was written has left."""
        super().resume_writing()
        self.watch.writes.forget(self)
        if not self.transport.is_closing():
            self._settle(is_written=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over; whoever is answering a request, or waits to, is told."""
        self._is_lost = True
        self.watch.connections -= 1
        for reaper in (self.watch.heads, self.watch.bodies, self.watch.writes):
            reaper.forget(self)
        unanswered = [cycle for cycle, _ in self.pipeline]
        if self._running is not None:
            unanswered.append(self._running)
        for cycle in unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        # Without an error, and not cut by us, the transport has flushed its buffer before it closed.
        self._settle(is_written=exc is None and not self._was_cut)

    # What applications and the sweeper call

    def settle(self, report: Callable[[bool], None]) -> None:
        """Have `report(True)` called when what was written just now has left for the kernel.

        `report(False)` when the connection is lost first. At once if either is known now: what is written after the
        peer has ended its stream, or been refused, goes nowhere.
        """
        if self._is_lost or self._has_ended or self._discarded_bytes is not None:
            report(False)  # noqa: FBT003 - the callback's one meaning
        elif not self.flow.write_paused and not self.transport.is_closing():
            report(True)  # noqa: FBT003
        else:
            self._settling.append(report)

    def cut(self, reason: str) -> None:
        """End the connection without a further byte; what the transport still buffered is lost."""
        self.watch.cut += 1
        telemetry.log.info("connection_cut", reason=reason, address=self.address)
        self._abort()

    def _abort(self) -> None:
        self._was_cut = True
        self.transport.abort()

    def has_no_tls(self, reason: str) -> None:
        """The peer does not speak TLS, or not as we do."""
        self.watch.tls_failed += 1
        telemetry.log.info("tls_failed", reason=reason, address=self.address)

    @property
    def address(self) -> str:
        """The peer's, or that of the proxy before it."""
        return self.client[0] if self.client else ""

    def is_read_from(self) -> bool:
        """Whether the peer has taken anything of what waits for it since this was last asked."""
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        return self._unsent_bytes < before

    def refuse(
        self, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = (), *, is_logged: bool = False
    ) -> None:
        """Answer a request that has not come in whole, then close: at once to writing, soon to reading.

        Closed at once, unread bytes would make the kernel reset the connection, and the peer would not see the answer.
        """
        if self._discarded_bytes is not None:
            return
        if self.transport.is_closing():
            if self._running is not None:
                self._running.disconnected = True  # it gets no answer, and that is nobody's fault
            return
        self.watch.refused[status] = self.watch.refused.get(status, 0) + 1
        if not is_logged:
            telemetry.request_refused(status, text, address=self.address)
        self._discarded_bytes = 0
        self._unset_keepalive_if_required()
        for reaper in (self.watch.heads, self.watch.bodies):
            reaper.forget(self)
        answered = self._running is not None and self._running.response_started
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # the application is not asked for an answer any more
            self._running.message_event.set()
        if not answered:
            self.transport.write(_bare_response(status, text, headers))
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer may have reset the connection, and we not heard of it yet
                self.transport.write_eof()
        self.loop.call_later(self.watch.limits.linger_s, self._abort)

    # Parsing

    def _is_busy(self) -> bool:
        """Whether a request has come in whole and is not answered yet."""
        running = self._running
        return running is not None and not running.response_complete and not running.more_body

    def _feed(self, data: bytes) -> None:
        if len(data) > _PIECE_BYTES:
            for start in range(0, len(data), _PIECE_BYTES):
                self.data_received(data[start : start + _PIECE_BYTES])
            return
        self._unset_keepalive_if_required()
        if self._is_in_head:
            self.watch.heads.watch(self, monotonic())
        self._fed_bytes += len(data)
        self._parse(data)
        if self._has_begun and not self._is_busy():
            self.watch.heads.watch(self, monotonic())
        if self.pipeline:
            if len(self.pipeline) > _PIPELINED_REQUESTS:
                self.cut("too_much_ahead")
            self.flow.resume_reading()  # else a peer that closes would not be noticed; bytes are kept, and bounded

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No protocol is switched to (RFC 9110, 7.8: "a server MAY ignore"); what follows is HTTP/1.1 again.
            self._renew_parser()
            if self._lacks_body:
                self.parser.feed_data(self._body_head())
            rest = data[upgrade.args[0] :]
            if rest:
                self.data_received(rest)
        except httptools.HttpParserError:
            if self._is_in_head and _HUGE_LENGTH.search(data):  # more than the parser can count
                self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large")
            else:
                self.refuse(HTTPStatus.BAD_REQUEST, "bad request")
        else:
            self._check_fed()

    def _check_fed(self) -> None:
        limits = self.watch.limits
        if self._is_in_head and self._fed_bytes > limits.head_bytes:
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large")
        elif not self._is_in_head and self._fed_bytes > limits.body_bytes:
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request body too large")

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _body_head(self) -> bytes:
        """A head that makes a new parser expect the body of the request at hand; nothing else of it is read."""
        framing = [(name, value) for name, value in self.headers if name in (b"content-length", b"transfer-encoding")]
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % header for header in framing)

    def _settle(self, *, is_written: bool) -> None:
        reports, self._settling = self._settling, []
        for report in reports:
            report(is_written)

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._lacks_body:
            return
        super().on_message_begin()
        self.scope["extensions"] = {"halley": self}  # type: ignore[dict-item]
        self._has_begun = True
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request target."""
        if self._lacks_body:
            return
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, whole."""
        if self._lacks_body:
            return
        self._count_head(len(name) + len(value) + 4)
        if len(self.headers) >= self.watch.limits.headers:
            self._refuse_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: check what only the raw head shows, then let the application begin."""
        if self._lacks_body:
            self._lacks_body = False
            return
        self._is_in_head = self._has_begun = False
        self._fed_bytes = 0
        self.watch.heads.forget(self)
        if not self._is_busy():
            self.watch.bodies.watch(self, monotonic())
        if len(self.url.partition(b"?")[2]) > self.watch.limits.query_bytes:
            self._refuse_head(HTTPStatus.REQUEST_URI_TOO_LONG, "query too long")
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (len(codings) > 1 or codings[0].strip().lower() != b"chunked"):
            # What an intermediary reads differently from us is how requests are smuggled.
            self._refuse_head(HTTPStatus.BAD_REQUEST, "transfer encoding not supported")
        super().on_headers_complete()
        self._lacks_body = self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )

    def on_message_complete(self) -> None:
        """The request has come in whole."""
        if self._lacks_body:
            return
        self._is_in_head = True
        self._fed_bytes = 0
        self.watch.bodies.forget(self)
        super().on_message_complete()
        if self._running is not None and self._running.response_complete:  # it was answered before it was whole
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        """A request has been answered: go on with what came meanwhile."""
        super().on_response_complete()
        if self._is_busy() or self.transport.is_closing():
            return
        if self._has_begun:
            self.watch.heads.watch(self, monotonic())
        elif not self._is_in_head:
            self.watch.bodies.watch(self, monotonic())
        if self._kept:
            kept, self._kept = bytes(self._kept), bytearray()
            self._feed(kept)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _count_head(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        if self._head_bytes > self.watch.limits.head_bytes:
            self._refuse_head(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request head too large")

    def _refuse_head(self, status: HTTPStatus, text: str) -> None:
        self.refuse(status, text)
        raise _Refused


def _bare_response(status: int, text: str, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    body = text.encode()
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(),
        b"content-type: text/plain; charset=utf-8",
        b"content-length: %d" % len(body),
        b"cache-control: no-store",
        b"x-content-type-options: nosniff",
        b"connection: close",
        *(name + b": " + value for name, value in headers),
        b"",
        body,
    ]
    return b"\r\n".join(lines)
