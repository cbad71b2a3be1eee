"""The limits, deadlines and counts that all connections of a server share.

There is one queue for each kind of deadline. All entries of a queue have the same time limit, so they become overdue in
the order in which they were added: adding and removing are dictionary operations, and a sweep touches only overdue
entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar

from app.host.turns import Turns
from app.settings import Limits

Watched = TypeVar("Watched")


class Reaper(Generic[Watched]):
    """Connections that must do something within `limit_s` seconds."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since: dict[Watched, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def watch(self, connection: Watched, now: float) -> None:
        """Start the deadline, unless it runs already: a peer must not gain time by sending a byte a second."""
        self._since.setdefault(connection, now)

    def forget(self, connection: Watched) -> None:
        """End the deadline, if one runs."""
        self._since.pop(connection, None)

    def overdue(self, now: float) -> Iterator[Watched]:
        """Yield each connection whose deadline has passed, and forget it."""
        while self._since:
            connection, since = next(iter(self._since.items()))
            if since + self.limit_s > now:
                return
            del self._since[connection]
            yield connection


_IDLE_LOOKS = 4
"""Checks in one `keep_alive_s`. Restarting a reaper's deadline for each request would cost more than its head."""


class Writer(Protocol):
    """A connection that writes to a peer that may not read."""

    def is_read_from(self) -> bool:
        """Whether the peer has read any of the bytes written to it since the last call."""

    def cut(self, reason: str) -> None:
        """Abort the connection without sending anything."""


class Asking(Writer, Protocol):
    """An HTTP connection, whose peer has a deadline for its request."""

    transport: Any

    def refuse(self, status: int, text: str, *, limit: str = "") -> None:
        """Answer a request that is not complete, and close."""

    def is_idle(self, since: float) -> bool:
        """Whether no request has been served since that time (monotonic seconds)."""


class Swept(Protocol):
    """A family of WebSockets that a connection can become."""

    def sweep(self, now: float) -> None:
        """Ping silent peers, and cut those that have not closed in time."""

    def leads_to(self, url: bytes) -> bool:
        """Whether a request target is one of the family's paths."""

    def open(self, asked_by: Any) -> tuple[Any, bytes]:
        """Make the WebSocket that a request asks for, and the response that accepts it. Raises `Rejection`."""


class Watch:
    """The limits, the four deadlines and the counts for telemetry that all connections of a server share.

    `hits` counts how often each limit was reached, by its setting; servers pass `Broker.hits`.
    """

    def __init__(self, limits: Limits, hits: Counter[str] | None = None) -> None:
        self.limits = limits
        self.hits = Counter() if hits is None else hits
        self.heads: Reaper[Asking] = Reaper(limits.head_s)
        self.bodies: Reaper[Asking] = Reaper(limits.body_s)
        self.writes: Reaper[Writer] = Reaper(limits.write_s)
        self.idle: Reaper[Asking] = Reaper(
            limits.keep_alive_s / _IDLE_LOOKS
        )  # all connections, each checked at this interval
        self.turns = Turns()
        self.sockets: list[Swept] = []  # the families of WebSockets that a connection can become
        self.connections = 0
        self.refused: dict[int, int] = {}  # by status
        self.cut = 0  # connections that were aborted, mostly for being too slow
        self.tls_failed = 0

    def sweep(self, now: float) -> None:
        """End the connections whose deadline has passed; `now` is monotonic, in seconds."""
        for family in self.sockets:
            family.sweep(now)
        for connection in self.heads.overdue(now):
            self.hits["head_s"] += 1
            connection.cut("slow_head")
        for connection in self.bodies.overdue(now):
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "request body took too long", limit="body_s")
        for connection in list(self.idle.overdue(now)):
            if connection.is_idle(now - self.limits.keep_alive_s):
                self.hits["keep_alive_s"] += 1
                connection.transport.close()
            else:
                self.idle.watch(connection, now)
        for writer in list(self.writes.overdue(now)):
            if writer.is_read_from():
                self.writes.watch(writer, now)
            else:
                self.hits["write_s"] += 1
                writer.cut("slow_reader")
