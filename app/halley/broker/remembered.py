"""What is worked out of names and other texts that peers choose, and is remembered within a bound in bytes.

A peer makes up texts, also without any right, and makes them as long as it may. So each table has a bound for its
entries and one for the bytes of an entry: what is larger is worked out each time. `tests/tables.txt` has the worst case
of each, which is at most 4 MB.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from sys import getsizeof
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

ENTRIES = 4_000
ENTRY_BYTES = 768
"""Of a key and its value: two names of 255 letters have 608, usual ones 150."""


class Remembered(OrderedDict[Key, Value]):
    """A table of at most `most` entries, each of at most `nbytes` bytes; the oldest entry is forgotten for a new one.

    A hit costs what it costs in a dict. For any thread.
    """

    def __init__(self, most: int = ENTRIES, nbytes: int = ENTRY_BYTES) -> None:
        super().__init__()
        self.most = most
        self.nbytes = nbytes

    def remember(self, key: Key, value: Value) -> None:
        """Add an entry, unless it is too large."""
        if _bytes_of(key) + _bytes_of(value) > self.nbytes:
            return
        if len(self) >= self.most:
            self.popitem(last=False)
        self[key] = value


class Results(Remembered[Key, Value]):
    """A table of the results of a function: `results[key]` is `work_out(key)`. An exception is not remembered."""

    def __init__(self, work_out: Callable[[Key], Value], most: int = ENTRIES, nbytes: int = ENTRY_BYTES) -> None:
        super().__init__(most, nbytes)
        self._work_out = work_out

    def __missing__(self, key: Key) -> Value:
        """Work out the value of a key that is not in the table."""
        value = self._work_out(key)
        self.remember(key, value)
        return value


def remembered(
    most: int = ENTRIES, nbytes: int = ENTRY_BYTES
) -> Callable[[Callable[[Key], Value]], Callable[[Key], Value]]:
    """Decorate a function of one argument, so that its results are remembered in a table (`Results`).

    The function is then the table's own look-up, and its `__self__` the table: a hit calls nothing in Python.
    """

    def decorate(work_out: Callable[[Key], Value]) -> Callable[[Key], Value]:
        return Results(work_out, most, nbytes).__getitem__

    return decorate


def _bytes_of(what: object) -> int:
    """The bytes of texts and of what contains them; of other objects none, which belong to others as well."""
    if isinstance(what, (str, bytes)):
        return getsizeof(what)
    if isinstance(what, (tuple, list, frozenset)):
        return getsizeof(what) + sum(map(_bytes_of, what))
    return 0
