"""What all connections of a server share: limits, deadlines, counts."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from app.host.reaper import Reaper

if TYPE_CHECKING:
    from app.settings import Limits


_IDLE_LOOKS = 4
"""In one `keep_alive_s`. To note each request in a reaper would cost more than reading its head."""


class Watch:
    """What all connections of a server share: their limits, the four deadlines, and counts for telemetry."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.heads = Reaper(limits.head_s)
        self.bodies = Reaper(limits.body_s)
        self.writes = Reaper(limits.write_s)
        self.idle = Reaper(limits.keep_alive_s / _IDLE_LOOKS)  # every connection, looked at every so often
        self.connections = 0
        self.refused: dict[int, int] = {}  # by status
        self.cut = 0  # for being too slow

    def sweep(self, now: float) -> None:
        """End the connections that took too long."""
        for connection in self.heads.overdue(now):
            connection.cut()
        for connection in self.bodies.overdue(now):
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT, "request body took too long")
        for connection in list(self.idle.overdue(now)):
            if connection.is_idle(now - self.limits.keep_alive_s):
                connection.transport.close()
            else:
                self.idle.watch(connection, now)
        for connection in list(self.writes.overdue(now)):
            if connection.is_read_from():
                self.writes.watch(connection, now)
            else:
                connection.cut()
