"""Tables that lose their oldest entries, in a time that does not depend on how many there are, and in pieces.

A dict finds its first entry by walking over the places of all that were removed before it, so to remove the first one
again and again takes quadratic time: 100,000 entries that expired together would hold the event loop for half a minute.
An `OrderedDict` knows its first entry. Every table whose oldest entries are removed is one, and what looks at a whole
table looks at a part in each turn of the event loop. `tests/test_growth.py` has the list of all tables.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

BATCH: Final = 500
"""Entries that are removed or looked at in one turn of the event loop: at most a few milliseconds."""


def expired(
    table: OrderedDict[Key, Value], is_over: Callable[[Value], bool], most: int = BATCH
) -> Iterator[tuple[Key, Value]]:
    """Remove and yield the oldest entries of which `is_over` is true, at most `most`.

    The table may change meanwhile. Its order is that in which entries become over.
    """
    for _ in range(most):
        if not has_expired(table, is_over):
            return
        yield table.popitem(last=False)


def has_expired(table: OrderedDict[Key, Value], is_over: Callable[[Value], bool]) -> bool:
    """Whether `is_over` is true of the oldest entry."""
    return len(table) > 0 and is_over(next(iter(table.values())))


def drop_expired(table: OrderedDict[Key, Value], is_over: Callable[[Value], bool], most: int = BATCH) -> bool:
    """Remove the oldest entries of which `is_over` is true, at most `most`; whether there are more."""
    for _ in expired(table, is_over, most):
        pass
    return has_expired(table, is_over)


class TimeoutQueue(Generic[Key]):
    """What must do something within `limit_s` seconds, such as connections.

    All have the same time limit, so they become overdue in the order in which they were added.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since: OrderedDict[Key, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._since)

    def add(self, what: Key, now: float) -> None:
        """Start the deadline, unless it runs already: a peer must not gain time by sending a byte a second."""
        self._since.setdefault(what, now)

    def restart(self, what: Key, now: float) -> None:
        """Start the deadline, also if it runs already."""
        self._since[what] = now
        self._since.move_to_end(what)

    def forget(self, what: Key) -> None:
        """End the deadline, if one runs."""
        self._since.pop(what, None)

    def overdue(self, now: float, most: int = BATCH) -> Iterator[Key]:
        """Yield those whose deadline has passed, at most `most`, and forget each."""
        for what, _ in expired(self._since, lambda since: since + self.limit_s <= now, most):
            yield what

    def has_overdue(self, now: float) -> bool:
        """Whether a deadline has passed."""
        return has_expired(self._since, lambda since: since + self.limit_s <= now)


class Round(Generic[Key]):
    """A look at all entries of a table in several turns of the event loop, where no order says which are over."""

    def __init__(self) -> None:
        self._left: list[Key] = []

    def __len__(self) -> int:
        """Count the keys that are still to be looked at in this round."""
        return len(self._left)

    def piece(self, table: Iterable[Key]) -> list[Key]:
        """The keys to look at now; the first piece of a round notes those that are in the table, others may follow."""
        if len(self._left) == 0:
            self._left = [*table]
        piece = self._left[-BATCH:]
        del self._left[-BATCH:]
        return piece
