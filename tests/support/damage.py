"""Damage to the files of a closed log: rows that are removed, bits that flip, rows that were never committed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from halley.history import seals, segment
from halley.history.folder import HighWaterMark, segment_files

if TYPE_CHECKING:
    from pathlib import Path

    from halley.history.stored import Stored


def files(folder: Path) -> dict[int, Path]:
    """Return the segment files by their first offset."""
    return dict(segment_files(folder))


def move_mark(folder: Path, offset: int) -> None:
    """Make the mark state that this was the last committed offset."""
    mark = HighWaterMark(folder / "mark")
    mark.write(offset, mark.number)
    mark.close()


def remove_rows(path: Path, first: int, last: int) -> None:
    """Remove rows from a segment without a trace."""
    path.chmod(0o644)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("delete from stored where offset between ? and ?", (first, last))


def seal_again(path: Path) -> None:
    """Seal a segment that was changed, so that its digests match."""
    seal = seals.Seal.load(path)
    seals.seal(path, seal.log_id, seal.first, seal.last)


def flip(path: Path, text: bytes) -> None:
    """Flip one bit of a text that occurs once in a file."""
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    assert content.count(text) == 1
    content[content.index(text) + len(text) - 1] ^= 1
    path.write_bytes(content)


def append_rows(path: Path, rows: list[Stored]) -> None:
    """Write rows into a segment, without moving the mark."""
    writer = segment.reopen(path)
    writer.write(rows)
    writer.close()
