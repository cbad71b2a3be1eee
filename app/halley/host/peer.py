"""The writing half of an HTTP connection: whether written bytes have reached the kernel, and ways to end it.

* `settle` reports when all written bytes are in the kernel, or that they never will be. The write buffer's limit is 0,
  so that "not paused" means that all were written. The kernel takes only what it can send soon (`kernel.py`).
* A request that is refused before it is complete gets a response, and its sender has `linger_s` to read it.
* A peer that ends its stream is gone. A subclass may still answer what it has sent before.
* The connection is in one queue of deadlines at a time for what the peer must send or when it must close, and in
  another for what it must read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from uvicorn.server import ServerState

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.host.asgi import Cycle
from halley.host.kernel import unread_bytes
from halley.host.responses import response
from halley.host.timeouts import Requester, ServerContext
from halley.transports.guard import TEXT_HEADERS, Rejection
from halley.transports.head import CLOSE, Header

STAYS_OPEN: Final = 0
HALF_CLOSED: Final = 1
SHUTTING_DOWN: Final = 2
"""When a connection is closed: not because of a response; once no response is due, since the peer has ended its stream;
or behind the next response, since the server shuts down.
"""


class Peer:
    """The peer of one connection; the event loop knows it as the protocol of `transport`.

    It has no base class, so that it can be native: event loops ask only whether a protocol has a buffer of its own.
    `shared` is what all connections of a server have in common, and `state` the sets in which uvicorn has them.
    """

    __slots__ = (
        "_closing",
        "_discarded_bytes",
        "_is_over",
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
        self.transport: Any = None
        self.client: tuple[str, int] | None = None  # may be a proxy; None if unknown
        self.scheme = "http"
        self.is_paused = False  # the kernel does not take all that is written
        self._state: Any = state  # its sets may be of a class of their own, whose methods a native call would pass by
        self._running: Cycle | None = None  # the request that the application is answering
        # Those behind it, and behind one that a subclass has taken; the last may be the refusal of what follows them.
        self._waiting: tuple[Cycle | bytes, ...] = ()
        self._settling: tuple[Callable[[bool], None], ...] = ()
        self._unread_bytes = 0  # when the write deadline was last checked
        self._read_by = 0.0  # when the peer is to have read all that is written, at the least rate
        self._closing: int = STAYS_OPEN
        self._is_over = False  # the peer has ended its stream, was refused or is gone: nothing more is served
        self._was_cut = False
        self._discarded_bytes = 0  # received since it is over
        self._timeouts: TimeoutQueue[Requester] | None = None  # the one whose deadline runs, but for what is written

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
        self._is_over = True
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
        """The connection is closed: notify the application, for running and for queued requests.

        All cycles of references with its requests are broken, so that everything is freed immediately. The cyclic
        collector counts objects and not their bytes, so it may run much later.
        """
        self._is_over = True
        self._state.connections.discard(self)
        self.shared.connections -= 1
        self.shared.writes.forget(self)
        self.shared.idle.forget(self)
        self._set_timeout(None)
        for cycle in (self._running, *self._waiting):
            if isinstance(cycle, Cycle):
                cycle.lose()
        self._running, self._waiting = None, ()
        # A transport that closes without an error, and is not aborted by us, has flushed its buffer.
        self._settle(is_written=exc is None and not self._was_cut)

    # What applications and the sweeper call

    def settle(self, report: Callable[[bool], None]) -> None:
        """Call `report(True)` when all bytes written until now are in the kernel.

        Calls `report(False)` if the connection is lost before that. Reports immediately what is known now: nothing
        arrives that is written after the peer has ended its stream, or was refused.
        """
        if self._is_over:
            report(False)  # noqa: FBT003 - the callback's one meaning
        elif not self.is_paused and not self.transport.is_closing():
            report(True)  # noqa: FBT003
        else:
            self._settling = (*self._settling, report)

    async def drained(self) -> None:
        """Return when all written bytes are in the kernel, or never will be."""
        if self.is_paused:
            drained = asyncio.Event()
            self._settling = (*self._settling, lambda _: drained.set())  # `settle` does not wait for who is given up
            await drained.wait()

    @property
    def date(self) -> bytes:
        """The line of a response's Date, or empty (`ServerContext`)."""
        return self.shared.date

    @property
    def _last(self) -> Cycle | None:
        """The latest request for the application, whose body may still be received; None once one is refused."""
        last = self._waiting[-1] if self._waiting else self._running
        return last if isinstance(last, Cycle) else None

    @property
    def _is_refused(self) -> bool:
        """Whether what the peer has sent last is refused, and the refusal waits for the responses before it."""
        return bool(self._waiting) and isinstance(self._waiting[-1], bytes)

    @property
    def is_over(self) -> bool:
        """Whether the peer has ended its stream, was refused or is gone."""
        return self._is_over or self._closing == HALF_CLOSED

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
        headers: tuple[Header, ...] = (),
        *,
        limit: str = "",
        is_logged: bool = False,
    ) -> None:
        """Respond to the request whose response is due, complete or not, and then close the connection.

        `limit` is the setting that the request exceeded, which is counted here. `is_logged`: it was logged before.
        """
        running = self._running
        is_head = running is not None and running.is_head
        self._refuse(Rejection(status, text, headers=headers, limit=limit), is_logged=is_logged, is_head=is_head)

    def _refuse(self, rejection: Rejection, *, is_logged: bool, is_head: bool) -> None:
        running = self._running
        if self._is_over or self.transport.is_closing():
            if running is not None:
                running.lose()  # it gets no response, and that is not a fault
            return
        refusal = self._refusal(rejection, is_logged=is_logged, is_head=is_head)
        if running is not None:
            running.lose()  # the application need not respond any more
        self._end(b"" if running is not None and running.is_begun else refusal)

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
        self._is_over = True
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
