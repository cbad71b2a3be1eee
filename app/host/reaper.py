"""Deadlines for connections: one queue for each kind of deadline.

All entries of a queue have the same time limit, so they become overdue in the order in which they were added: adding
and removing are dictionary operations, and a sweep touches only overdue entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

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
