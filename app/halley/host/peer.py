"""The writing half of an HTTP connection: whether written bytes have reached the kernel, and ways to end it.

* `settle` reports when all written bytes are in the kernel, or that they never will be. The write buffer's limit is 0,
  so that "not paused" means that all were written. The kernel takes only what it can send soon (`limit_unsent`).
* A request that is refused before it is complete gets a response, and its sender has `linger_s` to read it.
* The connection is in one queue of deadlines at a time for what the peer must send, and in another for what it must
  read.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.host.timeouts import Requester, ServerContext
from halley.transports.guard import TEXT_HEADERS
from halley.transports.head import CLOSE, Header

DISCARDED_BYTES = 1_048_576
"""How much is received and not used after a refusal or a close: the peer may have sent it before it read of that."""


UNSENT_BYTES = 32_768
"""How much of what is written the kernel may have and not have sent.

Otherwise it takes up to 4 MB (Linux' `tcp_wmem`), and an answer counts as written that its reader has hardly begun.
"""


def limit_unsent(bound: socket.socket | None, nbytes: int) -> None:
    """Limit the written bytes of a socket that the kernel has not sent, where the system can; 0: as the system has it.

    A limit does not slow a fast reader down: bytes that are on their way to it do not count.
    """
    if bound is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with suppress(OSError):
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, nbytes)


class Peer(HttpToolsProtocol):
    """The peer of one connection. `shared` is what all connections of a server have in common."""

    __slots__ = (
        "_discarded_bytes",
        "_has_ended",
        "_is_lost",
        "_lingering",
        "_read_by",
        "_running",
        "_settling",
        "_timeouts",
        "_unread_bytes",
        "_was_cut",
        "shared",
    )

    def __init__(self, *arguments: Any, shared: ServerContext, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.shared = shared
        self._running: RequestResponseCycle | None = None  # the request that the application is answering
        self._settling: list[Callable[[bool], None]] = []
        self._unread_bytes = 0  # when the write deadline was last checked
        self._read_by = 0.0  # when the peer is to have read all that is written, at the least rate
        self._has_ended = False  # the peer has ended its stream
        self._is_lost = False
        self._was_cut = False
        self._lingering: asyncio.TimerHandle | None = None  # when the peer must have read why its request was refused
        self._discarded_bytes: int | None = None  # received since a request was refused; None before
        self._timeouts: TimeoutQueue[Requester] | None = None  # the one whose deadline runs: for heads or for bodies

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection; writing to it pauses as soon as the kernel does not take all bytes."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)
        self.shared.connections += 1

    def eof_received(self) -> None:
        """The peer has ended its stream: it counts as gone, and the transport closes once its buffer is sent."""
        self._has_ended = True

    def pause_writing(self) -> None:
        """Start the write deadline: the peer reads more slowly than we write."""
        super().pause_writing()
        self._unread_bytes = nbytes = unread_bytes(self.transport)
        now = monotonic()
        self._read_by = now + nbytes / self.shared.limits.read_bytes_per_s
        self.shared.writes.add(self, now)

    def resume_writing(self) -> None:
        """All written bytes are in the kernel: end the write deadline, and report that."""
        super().resume_writing()
        self.shared.writes.forget(self)
        if not self.transport.is_closing():
            self._settle(is_written=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: notify the application, for running and for queued requests.

        All cycles of references with its requests and timers are broken, so that everything is freed immediately. The
        cyclic collector counts objects and not their bytes, so it may run much later.
        """
        self._is_lost = True
        self.shared.connections -= 1
        self.shared.writes.forget(self)
        self.shared.idle.forget(self)
        self._set_timeout(None)
        unanswered = [cycle for cycle, _ in self.pipeline]
        if self._running is not None:
            unanswered.append(self._running)
        for cycle in unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn does that only where there is no error
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._forget_request()
        self.pipeline.clear()
        # A transport that closes without an error, and is not aborted by us, has flushed its buffer.
        self._settle(is_written=exc is None and not self._was_cut)

    def _forget_request(self) -> None:
        """Forget the application's latest request, which refers to the connection (`scope["extensions"]`)."""
        self.cycle = self.scope = self._running = None  # type: ignore[assignment]

    # What applications and the sweeper call

    def settle(self, report: Callable[[bool], None]) -> None:
        """Call `report(True)` when all bytes written until now are in the kernel.

        Calls `report(False)` if the connection is lost before that. Reports immediately what is known now: nothing
        arrives that is written after the peer has ended its stream, or was refused.
        """
        if self._is_lost or self._has_ended or self._discarded_bytes is not None:
            report(False)  # noqa: FBT003 - the callback's one meaning
        elif not self.flow.write_paused and not self.transport.is_closing():
            report(True)  # noqa: FBT003
        else:
            self._settling.append(report)

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
        self.shared.cut += 1
        telemetry.log.info("connection_cut", reason=reason, address=self.address)
        self._abort()

    def is_idle(self, since: float) -> bool:
        """Whether nothing has happened on the connection since the time `since`."""
        raise NotImplementedError

    def slowness(self, now: float) -> str:
        """See `Writer`: the peer must read some bytes between two calls, and all of them at a least rate.

        It is called every `write_s`, so a response has that much more time.
        """
        before, self._unread_bytes = self._unread_bytes, unread_bytes(self.transport)
        if self._unread_bytes >= before:
            return "write_s"
        return "" if now < self._read_by else "read_bytes_per_s"

    def refuse(
        self,
        status: int,
        text: str,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        *,
        limit: str = "",
        is_logged: bool = False,
    ) -> None:
        """Respond to an incomplete request, then close the connection: now for writing, after `linger_s` for reading.

        If it were closed for reading now, unread bytes would make the kernel reset it, and the response would be lost.
        `limit` is the setting that the request exceeded, which is counted here. `is_logged`: it was logged before.
        """
        if self._discarded_bytes is not None:
            return
        if self.transport.is_closing():
            if self._running is not None:
                self._running.disconnected = True  # it gets no response, and that is not a fault
            return
        self.shared.refused[status] = self.shared.refused.get(status, 0) + 1
        if limit:
            self.shared.hits[limit] += 1
        if not is_logged:
            telemetry.request_refused(status, text, address=self.address)
        self._discarded_bytes = 0
        self._unset_keepalive_if_required()
        self._set_timeout(None)
        running = self._running
        is_over = running is None or (running.response_complete and not running.more_body)  # another one is refused
        is_answered = not is_over and running is not None and running.response_started
        if running is not None and not running.response_complete:
            running.disconnected = True  # the application need not respond any more
            running.waiting_for_100_continue = False  # nor is the body wanted
            running.message_event.set()
        if not is_answered:
            self.transport.write(response(status, (*TEXT_HEADERS, *headers, CLOSE), text.encode()))
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer may have reset the connection
                self.transport.write_eof()
        self._lingering = self.loop.call_later(self.shared.limits.linger_s, self._end_linger)

    def _end_linger(self) -> None:
        self._lingering = None
        self.shared.hits["linger_s"] += 1
        self._abort()

    def _abort(self) -> None:
        self._was_cut = True
        self.transport.abort()

    def _settle(self, *, is_written: bool) -> None:
        if self._settling:
            reports, self._settling = self._settling, []
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


def unread_bytes(transport: asyncio.Transport) -> int:
    """Return the number of bytes that the peer has not read, in the transport's buffer and in the kernel's.

    The kernel accepts nothing until a third of its buffer is free, which can be megabytes. Judged by the transport's
    buffer alone, a slow reader would look like a peer that does not read.
    """
    nbytes = transport.get_write_buffer_size()
    with suppress(ImportError, OSError):
        import fcntl
        import termios

        waiting = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        nbytes += int.from_bytes(waiting, sys.byteorder)
    return nbytes


# Responses as bytes, for requests that are served without ASGI; in the form that uvicorn writes

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def begin(status: int, headers: Iterable[Header]) -> bytes:
    """Return the part of a response that ends before the value of its Content-Length."""
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return STATUS_LINES[status] + b"".join(lines) + b"content-length: "


def response(status: int, headers: Iterable[Header], body: bytes) -> bytes:
    """Return a whole response as bytes; its Content-Length is added to `headers`."""
    return b"%b%d\r\n\r\n%b" % (begin(status, headers), len(body), body)
