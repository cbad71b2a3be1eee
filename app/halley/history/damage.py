"""Damage to a log, and the words for it, which mean different things everywhere in this room.

damage   Bytes on disk are not what was written. It is found where a checksum, a digest or an index does not match, or
         SQLite calls a file malformed. A segment with any damage is *damaged*, otherwise *intact*; `Corrupt` is raised
         where damage is found. A damaged segment is not read, written or sealed from then on.
missing  Offsets that have no row, for no reason known yet: a file was deleted, or the end of a WAL is gone.
lost     Offsets whose events cannot be restored. Missing offsets are lost, unless they may be in a file that cannot be
         read; those of a damaged segment are lost only if `halley history salvage` does not find them.
hole     A range of lost offsets that the log has recorded in `log.json`, so that it is not reported as news at each
         start, and is never used again. It stays, unless another copy of the log has the events.
gap      What a reader learns: a range of offsets that has, or may have, events which it does not get. Gaps are the
         holes, the damaged segments, and what retention has deleted.

So a damaged segment is one gap, although most of its rows may be intact. While a server runs, nothing is gained by
looking for them: every query would have to read each row, and the rest of the log is served anyway. They are searched
once, offline, by `halley history salvage` (`rewriting.py`), which turns the damage into holes. A keeper of a cluster
gets what is damaged or in a hole from another keeper (`History.fill`): then it is neither any more.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MOST_DAMAGE = 1_000
"""How many places of damage are listed at most."""

_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
_PASSING_NUMBERS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}


class Corrupt(Exception):
    """A segment's file is damaged: its content is not what was written."""


def is_passing(error: sqlite3.Error | OSError) -> bool:
    """Whether an error is about a resource (locks, memory, file descriptors) and does not mean a damaged file."""
    if isinstance(error, OSError):
        return error.errno in _PASSING_NUMBERS
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _PASSING


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of offsets that is damaged or missing, both ends included; `what` says how.

    `first` and `last` are 0 where no offset is concerned; `file` is the name of the file in the data folder.
    """

    first: int
    last: int
    file: str
    what: str


def joined(ranges: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """The parts of `ranges` between `low` and `high`, sorted; overlapping and adjacent ones are merged."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted((max(first, low), min(last, high)) for first, last in ranges):
        if first > last:
            continue
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def outside(first: int, last: int, known: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of the range `first` to `last` that lie in none of the `known` ranges."""
    at = first
    for low, high in joined(known, first, last):
        if at < low:
            yield at, low - 1
        at = high + 1
    if at <= last:
        yield at, last
