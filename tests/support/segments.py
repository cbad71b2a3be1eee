"""Segments of a log, made from the rows that a test wants to read from them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import orjson

from halley.broker.events import Publications
from halley.history import seals, segment
from halley.history.folder import Folder, Segment
from halley.history.stored import Stored, checksum, tombstone

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from pathlib import Path

    from halley.broker.events import Audience


class Row(NamedTuple):
    """The fields of an event that matter to a reader; `stored` fills in all others."""

    topic: str
    time_us: int = 0
    audience: Audience | None = None
    payload: str = "{}"
    is_purged: bool = False


def stored(rows: Sequence[Row], publications: Publications, first: int = 1) -> list[Stored]:
    """Return the rows as they are stored in a log, with offsets from `first` on."""
    found = []
    for offset, row in enumerate(rows, first):
        audience = None if row.audience is None else orjson.dumps([*row.audience]).decode()
        place = (offset, row.time_us, row.topic, publications.next())
        made = Stored(*place, "bayeux", "bare", row.payload, None, audience, None, None, None, None, None, 0)
        made = made._replace(crc=checksum(made[:-1]))
        found.append(tombstone(made) if row.is_purged else made)
    return found


def write(
    path: Path, segments: Sequence[Sequence[Row]], *, skip: int = 0, damaged: Container[int] = ()
) -> tuple[Folder, list[Stored]]:
    """Make a folder with these segments, and return it, open, and all rows.

    All segments but the last are sealed. Between two of them `skip` offsets are lost. At the offsets in `damaged` the
    payload on disk differs from the one in the row.
    """
    folder = Folder(path)
    publications = Publications(folder.identity.publication_key)
    everything: list[Stored] = []
    first = 1
    for number, rows in enumerate(segments, 1):
        is_last = number == len(segments)
        file = folder.segment_path(first)
        found = stored(rows, publications, first)
        with closing(segment.create(file, folder.log_id, first)) as writer:
            if found:
                writer.write(found)
            for row in found:
                if row.offset in damaged:
                    writer.connection.execute("update stored set payload = '666' where offset = ?", (row.offset,))
        last = first + len(rows) - 1
        if not is_last:
            seals.seal(file, folder.log_id, first, last)
        folder.add(Segment(file, first, None if is_last else last, is_sealed=not is_last))
        everything += found
        first = last + 1 + skip
    return folder, everything
