"""What a piece of work leaves allocated, in bytes of Python's objects."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 2


def left_by(work: Callable[[int], object]) -> int:
    """Return the bytes that are left by `work`, with what it returns; it is called with the number of each round.

    The round with the least counts: in another, Python may renew its table of interned strings, which has megabytes.
    """
    tracemalloc.start()
    try:
        return min(_left_by_one(work, number) for number in range(ROUNDS))
    finally:
        tracemalloc.stop()


def _left_by_one(work: Callable[[int], object], number: int) -> int:
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    kept = work(number)
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] - before
    del kept
    return left
