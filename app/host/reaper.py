"""Deadlines for connections: one queue for each thing that may take only so long.

All entries of a queue have the same time to live, so they come due in the order they were added: adding and removing
are dictionary operations, and a sweep touches only what is overdue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Watched = TypeVar("Watched")


class Reaper(Generic[Watched]):
    """Connections that must get something done within `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since: dict[Watched, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def watch(self, connection: Watched, now: float) -> None:
        """Start the clock, unless it runs already: a byte a second must not buy more time."""
        self._since.setdefault(connection, now)

    def forget(self, connection: Watched) -> None:
        """It is done, or gone."""
        self._since.pop(connection, None)

    def overdue(self, now: float) -> Iterator[Watched]:
        """Each connection whose time is up, once."""
        while self._since:
            connection, since = next(iter(self._since.items()))
            if since + self.limit_s > now:
                return
            del self._since[connection]
            yield connection
