"""How many bytes of Python's objects are in use, since `tracemalloc` was started."""

from __future__ import annotations

import gc
import tracemalloc

LARGE_BYTES = 400_000
"""A block of this size or more is the interpreter's table of interned strings, which it renews all of a sudden.

What the tests fill by some hundreds of messages or files has no block as large.
"""


def traced_bytes() -> int:
    """Collect the garbage, and return the bytes that are left, without those of large blocks."""
    gc.collect()
    return sum(trace.size for trace in tracemalloc.take_snapshot().traces if trace.size < LARGE_BYTES)
