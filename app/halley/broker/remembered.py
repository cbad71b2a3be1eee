"""What is worked out of names and other texts that peers choose, and is remembered within a bound in bytes.

A peer makes up texts, also without any right, and makes them as long as it may. So each table has a bound for all its
bytes, which is in `tests/tables.txt`, and one for those of an entry: what is larger is worked out each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

TABLE_BYTES = 3_500_000
"""Of a table: some 10,000 names with what is made of each."""

ENTRY_BYTES = 1_000
"""Of an entry: two names of 255 letters have 810 with their place in the table, usual ones 330."""

_PLACE_BYTES = 200
"""Of a place in a table, at most: it grows threefold when two thirds of its places are or were taken."""


class Remembered(OrderedDict[Key, Value]):
    """A table of at most `most_bytes`, each entry of at most `entry_bytes`; the oldest are forgotten for a new one.

    `bytes_of_entry` returns the bytes of a key with its value, always the same for an entry. A hit costs what it costs
    in a dict. For any thread: where two add entries at the same moment, the count of bytes may be off by one of them.
    """

    def __init__(
        self,
        most_bytes: int = TABLE_BYTES,
        entry_bytes: int = ENTRY_BYTES,
        bytes_of_entry: Callable[[Key, Value], int] | None = None,
    ) -> None:
        super().__init__()
        self.most_bytes = most_bytes
        self.entry_bytes = entry_bytes
        self._bytes_of_entry = bytes_of_entry or _texts_of
        self._used_bytes = 0

    def remember(self, key: Key, value: Value) -> Sequence[tuple[Key, Value]]:
        """Add an entry, unless it is there or is too large; returns those that were forgotten for it."""
        nbytes = self._bytes_of_entry(key, value) + _PLACE_BYTES
        if nbytes > self.entry_bytes or key in self:
            return ()
        self[key] = value
        self._used_bytes += nbytes
        return self._make_room() if self._used_bytes > self.most_bytes else ()

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._used_bytes = 0

    def _make_room(self) -> list[tuple[Key, Value]]:
        forgotten = []
        while self._used_bytes > self.most_bytes and self:
            oldest = self.popitem(last=False)
            self._used_bytes -= self._bytes_of_entry(*oldest) + _PLACE_BYTES
            forgotten.append(oldest)
        return forgotten


class Results(Remembered[Key, Value]):
    """A table of the results of a function: `results[key]` is `work_out(key)`. An exception is not remembered."""

    def __init__(
        self, work_out: Callable[[Key], Value], most_bytes: int = TABLE_BYTES, entry_bytes: int = ENTRY_BYTES
    ) -> None:
        super().__init__(most_bytes, entry_bytes)
        self._work_out = work_out

    def __missing__(self, key: Key) -> Value:
        """Work out the value of a key that is not in the table."""
        value = self._work_out(key)
        self.remember(key, value)
        return value


def remembered(
    most_bytes: int = TABLE_BYTES, entry_bytes: int = ENTRY_BYTES
) -> Callable[[Callable[[Key], Value]], Callable[[Key], Value]]:
    """Decorate a function of one argument, so that its results are remembered in a table (`Results`).

    The function is then the table's own look-up, and its `__self__` the table: a hit calls nothing in Python.
    """

    def decorate(work_out: Callable[[Key], Value]) -> Callable[[Key], Value]:
        return Results(work_out, most_bytes, entry_bytes).__getitem__

    return decorate


def _texts_of(key: object, value: object) -> int:
    return bytes_of(key) + bytes_of(value)


def bytes_of(what: object) -> int:
    """The most bytes of texts and of what contains them; of other objects none, which belong to others as well.

    A text of other letters than ASCII has four bytes for each at most, and as many for its UTF-8, which Python keeps.
    """
    if isinstance(what, str):
        return 50 + len(what) if what.isascii() else 80 + 8 * len(what)
    if isinstance(what, bytes):
        return getsizeof(what)
    if isinstance(what, (tuple, list, frozenset)):
        return getsizeof(what) + sum(map(bytes_of, what))
    return 0
