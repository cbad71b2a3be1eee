"""What was sent with idempotency keys: a digest next to each row with a key, for a server that starts again.

It is not the digest of the row's payload, which a program's listener may have changed (`protocols/value_digest.py`). It
is in the table `stored`, not in the view `events`, so readers of the log do not get it. Segments of earlier versions do
not have the column; it is added to one that is still written. A digest has a checksum of its own: one that is damaged
is none, so that a repeat is taken for one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from zlib import crc32

COLUMN = "key_digest"

Digests = Mapping[int, bytes]
"""Digests by the offset of their row."""

NONE: Digests = {}

_DIGEST_BYTES, _CRC_BYTES = 8, 4
_READ = f"select offset, {COLUMN} from stored where offset between ? and ? and {COLUMN} is not null"  # noqa: S608


def has_column(connection: sqlite3.Connection) -> bool:
    """Whether a segment has the column. Raises `sqlite3.Error`."""
    return any(name == COLUMN for _, name, *_ in connection.execute("pragma table_info(stored)"))


def add_column(connection: sqlite3.Connection) -> None:
    """Add the column to a segment that does not have it, within a transaction. Raises `sqlite3.Error`."""
    connection.execute(f"alter table stored add column {COLUMN} blob")


def sealed(digest: bytes, offset: int) -> bytes:
    """What the row at an offset has in the column."""
    return digest + _crc(digest, offset)


def read(connection: sqlite3.Connection, first: int, last: int) -> dict[int, bytes]:
    """The intact digests of a segment from the offset `first` to `last`; none where they cannot be read."""
    found: dict[int, bytes] = {}
    with suppress(sqlite3.Error):
        for offset, value in connection.execute(_READ, (first, last)):
            if type(value) is bytes and len(value) == _DIGEST_BYTES + _CRC_BYTES:
                digest = value[:_DIGEST_BYTES]
                if value == sealed(digest, offset):
                    found[offset] = digest
    return found


def _crc(digest: bytes, offset: int) -> bytes:
    return crc32(digest, offset & 0xFFFF_FFFF).to_bytes(_CRC_BYTES)
