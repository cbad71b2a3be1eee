"""The writing half of an HTTP connection: what its peer has taken of what was written, and ways to end it.

* `settle` tells when what was written has left for the kernel, or that it never will. The write buffer's limit is 0,
  so that "not paused" means "all gone".
* A request refused half-way is answered before the connection is cut, and the sender has a moment to read why.
* One reaper at a time has its eye on the connection for what it waits for; another for what it has written.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app import telemetry
from app.host.responses import text_response

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from app.host.reaper import Reaper
    from app.host.watch import Watch


class Peer(HttpToolsProtocol):
    """One connection's other end. `watch` is what it shares with all others of the server."""

    __slots__ = (
        "_discarded_bytes",
        "_has_ended",
        "_is_lost",
        "_reaper",
        "_running",
        "_settling",
        "_unread_bytes",
        "_was_cut",
        "watch",
    )

    def __init__(self, *arguments: Any, watch: Watch, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.watch = watch
        self._running: RequestResponseCycle | None = None  # the request that the application is answering
        self._settling: list[Callable[[bool], None]] = []
        self._unread_bytes = 0  # when the writes' deadline last came up
        self._has_ended = False  # the peer has ended its stream
        self._is_lost = False
        self._was_cut = False
        self._discarded_bytes: int | None = None  # counts once the connection has been refused
        self._reaper: Reaper[Peer] | None = None  # of heads, bodies or idle ones, whichever we are under

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer has connected."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)
        self.watch.connections += 1

    def eof_received(self) -> None:
        """The peer sends no more: it counts as gone, and the transport closes once it has sent what was written."""
        self._has_ended = True

    def pause_writing(self) -> None:
        """The peer does not keep up with reading."""
        super().pause_writing()
        self._unread_bytes = unread_bytes(self.transport)
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
        self.watch.writes.forget(self)
        self.watch.idle.forget(self)
        self._be_under(None)
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

    @property
    def address(self) -> str:
        """The peer's, or that of the proxy before it."""
        return self.client[0] if self.client else ""

    @property
    def port(self) -> int:
        """Likewise; 0 where there is none."""
        return self.client[1] if self.client else 0

    def has_no_tls(self, reason: str) -> None:
        """The peer does not speak TLS, or not as we do."""
        self.watch.tls_failed += 1
        telemetry.log.info("tls_failed", reason=reason, address=self.address)

    def cut(self, reason: str) -> None:
        """End the connection without a further byte; what the transport still buffered is lost."""
        self.watch.cut += 1
        telemetry.log.info("connection_cut", reason=reason, address=self.address)
        self._abort()

    def is_idle(self, since: float) -> bool:
        """Whether nothing has happened since then."""
        raise NotImplementedError

    def is_read_from(self) -> bool:
        """Whether the peer has taken anything of what waits for it since this was last asked."""
        before, self._unread_bytes = self._unread_bytes, unread_bytes(self.transport)
        return self._unread_bytes < before

    def refuse(
        self,
        status: int,
        text: str,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        *,
        limit: str = "",
        is_logged: bool = False,
    ) -> None:
        """Answer a request that has not come in whole, then close: at once to writing, soon to reading.

        `limit` is the setting that said no, to be counted here.
        Closed at once, unread bytes would make the kernel reset the connection, and the peer would not see the answer.
        """
        if self._discarded_bytes is not None:
            return
        if self.transport.is_closing():
            if self._running is not None:
                self._running.disconnected = True  # it gets no answer, and that is nobody's fault
            return
        self.watch.refused[status] = self.watch.refused.get(status, 0) + 1
        if limit:
            self.watch.hits[limit] += 1
        if not is_logged:
            telemetry.request_refused(status, text, address=self.address)
        self._discarded_bytes = 0
        self._unset_keepalive_if_required()
        self._be_under(None)
        answered = self._running is not None and self._running.response_started
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # the application is not asked for an answer any more
            self._running.message_event.set()
        if not answered:
            self.transport.write(text_response(status, text, headers))
        if self.transport.can_write_eof():
            with suppress(OSError):  # the peer may have reset the connection, and we not heard of it yet
                self.transport.write_eof()
        self.loop.call_later(self.watch.limits.linger_s, self._end_linger)

    def _end_linger(self) -> None:
        if not self._is_lost:
            self.watch.hits["linger_s"] += 1
            self._abort()

    def _abort(self) -> None:
        self._was_cut = True
        self.transport.abort()

    def _settle(self, *, is_written: bool) -> None:
        if self._settling:
            reports, self._settling = self._settling, []
            for report in reports:
                report(is_written)

    def _be_under(self, reaper: Reaper[Peer] | None) -> None:
        """Let this reaper's clock run, and no other's."""
        if reaper is not self._reaper:
            if self._reaper is not None:
                self._reaper.forget(self)
            self._reaper = reaper
            if reaper is not None:
                reaper.watch(self, monotonic())


def unread_bytes(transport: asyncio.Transport) -> int:
    """What waits for the peer here and in the kernel.

    The kernel takes nothing from us until a third of its buffer is free, and that may be megabytes: by our own buffer
    alone, whoever reads slowly would look like one who does not read.
    """
    nbytes = transport.get_write_buffer_size()
    with suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415 - not on Windows
        import termios  # noqa: PLC0415 - likewise

        waiting = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        nbytes += int.from_bytes(waiting, sys.byteorder)
    return nbytes
