"""The limits, deadlines and counts that all connections of a server share.

There is one queue for each kind of deadline (`halley/broker/aging.py`).

Connections also share the time in which received bytes are processed. A few that send tiny frames, TLS records or
requests as fast as they can would otherwise keep everybody else waiting. In one turn of the event loop the bytes of all
connections together are processed for `TURN_S` seconds. The rest is processed in later turns, a slice of each
connection at a time; its reading is paused until then.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from http import HTTPStatus
from time import monotonic, time
from typing import Any, Protocol

from halley import telemetry
from halley.broker.aging import TimeoutQueue
from halley.host.responses import date_line, status_line
from halley.settings import Limits

TURN_S = 0.005
"""How long received bytes are processed before all other events of the loop have their turn."""

SLICE_S = 0.001
"""How long the bytes of one connection are processed before those of others are; longer if one message takes longer."""

DISCARDED_BYTES = 1_048_576
"""How much is received and not used after a refusal or a close: the peer may have sent it before it read of that."""

_IDLE_CHECKS = 4
"""Checks in one `keep_alive_s`. To restart a deadline with each request would cost more than its head."""


class Receiver(Protocol):
    """What an event loop calls: the methods of `asyncio.Protocol`, which need not be a base class."""

    def connection_made(self, transport: Any) -> None:
        """A peer has connected by this transport."""

    def data_received(self, data: bytes) -> None:
        """The peer has sent these bytes."""

    def eof_received(self) -> bool | None:
        """The peer has ended its stream; true: the transport stays open."""

    def pause_writing(self) -> None:
        """The kernel does not take all that is written."""

    def resume_writing(self) -> None:
        """The kernel has taken all that was written."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed; `exc` is the error that did it, if one did."""


class Writer(Protocol):
    """A connection that writes to a peer that may not read."""

    def slowness(self, now: float) -> str:
        """The setting by which the peer reads too slowly, as of `now`; empty if it does not."""

    def cut(self, reason: str) -> None:
        """Abort the connection without sending anything."""


class Requester(Writer, Protocol):
    """An HTTP connection, whose peer has a deadline for its request."""

    transport: Any

    def refuse(self, status: int, text: str, *, limit: str = "") -> None:
        """Answer a request that is not complete, and close."""

    def abort(self) -> None:
        """Close immediately, without a word in the log."""

    def is_idle(self, since: float) -> bool:
        """Whether no request has been served since that time (monotonic seconds)."""


class PausableReader(Protocol):
    """A connection with received bytes."""

    def work(self, now: float) -> bool:
        """Process received bytes for `SLICE_S` seconds at most, from `now` on; whether some are left.

        While some are, it is called again in later turns; when none are left, it resumes reading.
        """


class Turns:
    """The turns of one server's connections."""

    def __init__(self) -> None:
        self._waiting: deque[PausableReader] = deque()
        self._spent_s = 0.0  # since others had their turn
        self._is_over = False  # nothing more is processed in this turn of the loop

    def run(self, worker: PausableReader) -> bool:
        """Let a connection process received bytes, now or in later turns; False if it must pause reading until then."""
        if self._is_over:
            self._waiting.append(worker)
            return False
        if is_left := self._run(worker):
            self._waiting.append(worker)
        if is_left or self._spent_s >= TURN_S:
            self._end()
        return not is_left

    def _run(self, worker: PausableReader) -> bool:
        began, spent_s = monotonic(), self._spent_s
        is_left = worker.work(began)
        self._spent_s = spent_s + monotonic() - began  # includes what a worker above this one has spent
        return is_left

    def _end(self) -> None:
        """Leave what waits for the next turn of the loop."""
        if not self._is_over:
            self._is_over = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._spent_s, self._is_over = 0.0, False
        try:
            while self._waiting and self._spent_s < TURN_S:
                worker = self._waiting.popleft()
                if self._run(worker):
                    self._waiting.append(worker)
        finally:
            if self._waiting or self._spent_s >= TURN_S:
                self._end()


class SocketSweep(Protocol):
    """The WebSockets of a route."""

    def sweep(self, now: float) -> bool:
        """Ping silent peers, and cut those that have not closed in time; whether there are more."""


class ServerContext:
    """The limits, the five deadlines, the date and the counts for telemetry that all connections of a server share.

    `hits` counts how often each limit was reached, by its setting; servers pass `Broker.hits`. `date` is the line of
    its responses that says when they were made, and `ok_lines` are the status line of 200 and that one. A server that
    is not `dated` has none: nodes remember the heads of each other's responses (`relay.py`).
    """

    def __init__(self, limits: Limits, hits: Counter[str] | None = None, *, is_dated: bool = True) -> None:
        self.limits = limits
        self.hits = Counter() if hits is None else hits
        self.heads: TimeoutQueue[Requester] = TimeoutQueue(limits.head_s)
        self.bodies: TimeoutQueue[Requester] = TimeoutQueue(limits.body_s)
        self.lingering: TimeoutQueue[Requester] = TimeoutQueue(limits.linger_s)  # to read why they are refused
        self.writes: TimeoutQueue[Writer] = TimeoutQueue(limits.write_s)
        self.idle: TimeoutQueue[Requester] = TimeoutQueue(limits.keep_alive_s / _IDLE_CHECKS)  # all connections
        self.turns = Turns()
        self.sockets: list[SocketSweep] = []  # the WebSockets that connections have become, by route
        self.connections = 0
        self.refused: dict[int, int] = {}  # by status
        self.cut = 0  # connections that were aborted, mostly for being too slow
        self.tls_failed = 0
        self._is_dated = is_dated
        self._second = 0
        self.date = b""
        self.ok_lines = status_line(HTTPStatus.OK)
        self._set_date()

    def _set_date(self) -> None:
        """Make the texts of the second that has begun."""
        second = int(time())
        if self._is_dated and second != self._second:
            self._second = second
            self.date = date_line(second)
            self.ok_lines = status_line(HTTPStatus.OK) + self.date

    def note_cut(self, address: str, reason: str) -> None:
        """Count and log a connection that is aborted without another byte."""
        self.cut += 1
        telemetry.log.info("connection_cut", reason=reason, address=address)

    def sweep(self, now: float) -> bool:
        """End connections whose deadline has passed, `now` in monotonic seconds; whether there are more."""
        self._set_date()
        has_more = [route.sweep(now) for route in self.sockets]
        for connection in self.heads.overdue(now):
            self.hits["head_s"] += 1
            connection.cut("slow_head")
        for connection in self.bodies.overdue(now):
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "request body took too long", limit="body_s")
        for connection in self.lingering.overdue(now):
            self.hits["linger_s"] += 1
            connection.abort()
        for connection in list(self.idle.overdue(now)):
            if connection.is_idle(now - self.limits.keep_alive_s):
                self.hits["keep_alive_s"] += 1
                connection.transport.close()
            else:
                self.idle.add(connection, now)
        for writer in list(self.writes.overdue(now)):
            if limit := writer.slowness(now):
                self.hits[limit] += 1
                writer.cut("slow_reader")
            else:
                self.writes.add(writer, now)
        queues = (self.heads, self.bodies, self.lingering, self.idle, self.writes)
        return any(has_more) or any(queue.has_overdue(now) for queue in queues)
