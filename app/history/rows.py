"""Reads the rows of one segment in the order of their offsets; damaged rows are left out."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from app.history.stored import COLUMNS, Stored

BATCH = 256
_SELECT = f"select {', '.join(COLUMNS)} from events where offset between ? and ? order by offset limit ?"  # noqa: S608

_SELECT_KEYED = (
    f"select {', '.join(COLUMNS)} from events where offset between ? and ? and idempotency_key is not null "  # noqa: S608
    "order by offset desc"
)


def walk(connection: sqlite3.Connection, first: int, last: int) -> Iterator[tuple[list[Stored], int]]:
    """The intact rows from `first` to `last`, in batches, each with the offset up to which all rows were read.

    An unreadable page, an undecodable text or a wrong checksum costs only the rows concerned. So an offset up to there
    without a row is missing or damaged.
    """
    at = first
    while at <= last:
        try:
            found = _select(connection, at, last)
            reached = found[-1].offset if len(found) == BATCH else last
        except sqlite3.Error:
            reached = min(at + BATCH - 1, last)
            found = list(_rescue(connection, at, reached))
        sound = []
        previous = at - 1
        for row in found:
            if row.is_sound and previous < row.offset <= last:
                sound.append(row)
                previous = row.offset
        if sound and reached != last:
            reached = previous  # the offset of a damaged row does not show how far the batch reaches
        yield sound, max(reached, at)
        at = max(reached, at) + 1


def _rescue(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Stored]:
    """The readable rows of a range that cannot be read as a whole: reads its halves, their halves, and so on."""
    try:
        yield from _select(connection, first, last)
    except sqlite3.Error:
        if first < last:
            middle = (first + last) // 2
            yield from _rescue(connection, first, middle)
            yield from _rescue(connection, middle + 1, last)


def keyed(connection: sqlite3.Connection, first: int, last: int) -> list[Stored]:
    """The intact rows with an idempotency key from `first` to `last`, newest first. Raises `sqlite3.Error`."""
    return [row for row in _found(connection, _SELECT_KEYED, first, last) if row.is_sound]


def _select(connection: sqlite3.Connection, first: int, last: int) -> list[Stored]:
    return _found(connection, _SELECT, first, last, BATCH)


def _found(connection: sqlite3.Connection, query: str, *parameters: int) -> list[Stored]:
    try:
        return [Stored._make(row) for row in connection.execute(query, parameters)]
    except UnicodeDecodeError as error:  # SQLite's error text quotes the damaged bytes
        raise sqlite3.DatabaseError("malformed") from error
