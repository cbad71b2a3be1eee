"""The limits, deadlines and counts that all connections of a server share."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from app.host.reaper import Reaper
from app.host.turns import Turns
from app.settings import Limits

if TYPE_CHECKING:
    from app.host.peer import Peer
    from app.host.sockets import Sockets


_IDLE_LOOKS = 4
"""Checks in one `keep_alive_s`. Restarting a reaper's deadline for each request would cost more than its head."""


class Writer(Protocol):
    """A connection that writes to a peer that may not read."""

    def is_read_from(self) -> bool:
        """Whether the peer has read any of the bytes written to it since the last call."""

    def cut(self, reason: str) -> None:
        """Abort the connection without sending anything."""


class Watch:
    """The limits, the four deadlines and the counts for telemetry that all connections of a server share.

    `hits` counts how often each limit was reached, by its setting; servers pass `Broker.hits`.
    """

    def __init__(self, limits: Limits, hits: Counter[str] | None = None) -> None:
        self.limits = limits
        self.hits = Counter() if hits is None else hits
        self.heads: Reaper[Peer] = Reaper(limits.head_s)
        self.bodies: Reaper[Peer] = Reaper(limits.body_s)
        self.writes: Reaper[Writer] = Reaper(limits.write_s)
        self.idle: Reaper[Peer] = Reaper(
            limits.keep_alive_s / _IDLE_LOOKS
        )  # all connections, each checked at this interval
        self.turns = Turns()
        self.sockets: list[Sockets] = []  # the families of WebSockets that a connection can become
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
