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
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from uvicorn.server import ServerState

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.host.asgi import STATUS_LINES, Cycle
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


class Peer:
    """The peer of one connection; the event loop knows it as the protocol of `transport`.

    It has no base class, so that it can be native: event loops ask only whether a protocol has a buffer of its own.
    `shared` is what all connections of a server have in common, and `state` the sets in which uvicorn has them.
    """

    __slots__ = (
        "_connections",
        "_discarded_bytes",
        "_has_ended",
        "_is_lost",
        "_lingering",
        "_read_by",
        "_running",
        "_settling",
        "_state",
        "_timeouts",
        "_unread_bytes",
        "_waiting",
        "_was_cut",
        "client",
        "is_paused",
        "scheme",
        "shared",
        "transport",
    )

    def __init__(self, state: ServerState, shared: ServerContext) -> None:
        self.shared = shared
        self._connections: Any = state.connections  # not a `set`, whose methods a compiled module would call past it
        self.transport: Any = None
        self.client: tuple[str, int] | None = None  # may be a proxy; None if unknown
        self.scheme = "http"
        self.is_paused = False  # the kernel does not take all that is written
        self._state = state
        self._running: Cycle | None = None  # the request that the application is answering
        self._waiting: deque[Cycle] | None = None  # those behind it, and behind one that a subclass has taken
        self._settling: list[Callable[[bool], None]] = []
        self._unread_bytes = 0  # when the write deadline was last checked
        self._read_by = 0.0  # when the peer is to have read all that is written, at the least rate
        self._has_ended = False  # the peer has ended its stream
        self._is_lost = False
        self._was_cut = False
        self._lingering: asyncio.TimerHandle | None = None  # when the peer must have read why its request was refused
        self._discarded_bytes = -1  # received since a request was refused; negative before
        self._timeouts: TimeoutQueue[Requester] | None = None  # the one whose deadline runs: for heads or for bodies

    # asyncio.Protocol

    def connection_made(self, transport: Any) -> None:
        """Count the connection; writing to it pauses as soon as the kernel does not take all bytes."""
        self.transport = transport
        name = transport.get_extra_info("peername")
        self.client = (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
        self.scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        transport.set_write_buffer_limits(0)
        self._connections.add(self)
        self.shared.connections += 1

    def eof_received(self) -> None:
        """The peer has ended its stream: it counts as gone, and the transport closes once its buffer is sent."""
        self._has_ended = True

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
        """The connection is closed: notify the application, for running and for queued requests.

        All cycles of references with its requests are broken, so that everything is freed immediately. The cyclic
        collector counts objects and not their bytes, so it may run much later.
        """
        self._is_lost = True
        self._connections.discard(self)
        self.shared.connections -= 1
        self.shared.writes.forget(self)
        self.shared.idle.forget(self)
        self._set_timeout(None)
        for cycle in (self._running, *(self._waiting or ())):
            if cycle is not None:
                cycle.lose()
        self._running = self._waiting = None
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        # A transport that closes without an error, and is not aborted by us, has flushed its buffer.
        self._settle(is_written=exc is None and not self._was_cut)

    # What applications and the sweeper call

    def settle(self, report: Callable[[bool], None]) -> None:
        """Call `report(True)` when all bytes written until now are in the kernel.

        Calls `report(False)` if the connection is lost before that. Reports immediately what is known now: nothing
        arrives that is written after the peer has ended its stream, or was refused.
        """
        if self._is_lost or self._has_ended or self._discarded_bytes >= 0:
            report(False)  # noqa: FBT003 - the callback's one meaning
        elif not self.is_paused and not self.transport.is_closing():
            report(True)  # noqa: FBT003
        else:
            self._settling.append(report)

    async def drained(self) -> None:
        """Return when all written bytes are in the kernel, or never will be."""
        if self.is_paused:
            drained: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._settling.append(partial(_set, drained))  # not `settle`, which does not wait for who is given up
            await drained

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
        running = self._running
        if self._discarded_bytes >= 0:
            return
        if self.transport.is_closing():
            if running is not None:
                running.lose()  # it gets no response, and that is not a fault
            return
        self.shared.refused[status] = self.shared.refused.get(status, 0) + 1
        if limit:
            self.shared.hits[limit] += 1
        if not is_logged:
            telemetry.request_refused(status, text, address=self.address)
        self._discarded_bytes = 0
        self._set_timeout(None)
        is_answered = running is not None and running.is_begun
        if running is not None:
            running.lose()  # the application need not respond any more
        if not is_answered:
            self.transport.write(response(status, (*TEXT_HEADERS, *headers, CLOSE), text.encode()))
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer may have reset the connection
                self.transport.write_eof()
        self._lingering = asyncio.get_running_loop().call_later(self.shared.limits.linger_s, self._end_linger)

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


def _set(future: asyncio.Future[bool], result: bool) -> None:  # noqa: FBT001 - as `settle` calls it
    if not future.done():
        future.set_result(result)


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


# Responses as bytes, for requests that are served without ASGI


def begin(status: int, headers: Iterable[Header]) -> bytes:
    """Return the part of a response that ends before the value of its Content-Length."""
    lines = [name + b": " + value + b"\r\n" for name, value in headers]
    return STATUS_LINES[status] + b"".join(lines) + b"content-length: "


def response(status: int, headers: Iterable[Header], body: bytes) -> bytes:
    """Return a whole response as bytes; its Content-Length is added to `headers`."""
    return b"%b%d\r\n\r\n%b" % (begin(status, headers), len(body), body)
