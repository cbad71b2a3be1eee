"""What all connections of a server share: limits, deadlines, counts."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from app.host.reaper import Reaper

if TYPE_CHECKING:
    from app.settings import Limits


class Watch:
    """What all connections of a server share: their limits, the four deadlines, and counts for telemetry."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.heads = Reaper(limits.head_s)
        self.bodies = Reaper(limits.body_s)
        self.writes = Reaper(limits.write_s)
        self.idle = Reaper(limits.keep_alive_s)
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
        for connection in self.idle.overdue(now):
            connection.transport.close()
        for connection in list(self.writes.overdue(now)):
            if connection.is_read_from():
                self.writes.watch(connection, now)
            else:
                connection.cut("slow_reader")
