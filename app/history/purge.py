"""Erasing from a log: what a channel or a person has left goes, by writing the segments that have it anew.

Where an event was, a tombstone keeps its offset, time and publication (`stored.tombstone`). A new file holds nothing
else of it, neither in free pages nor in a WAL. It takes the old one's place in three steps, each on disk before the
next: the old seal goes, the new file is renamed over the old one, and gets its seal. A crash leaves the old segment or
the new one; one without a seal is looked at and sealed at the next start (`recovery.py`).

Damaged rows cannot be written anew. The log records them as holes, on disk before the first of the three steps: a crash
behind it leaves holes at which there are damaged rows still, and never rows that are gone and that nobody knows of.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson

from app.broker.topics import RESERVED, Pattern, matches
from app.history import seals, segment
from app.history.documents import DRAFT, sync_folder
from app.history.folder import HOLES, delete, segment_files
from app.history.rows import walk
from app.history.stored import tombstone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from app.history.folder import Folder, Segment
    from app.history.stored import Stored

_WAL_BYTES = 8_388_608


@dataclass(frozen=True, slots=True)
class Erasure:
    """What is to go: what `pattern` matches, or what `publisher` (an authid) has published; one of the two is None.

    Of a publisher also what the server itself has recorded about it on its own topics: sessions and subscriptions.
    """

    pattern: Pattern | None
    publisher: str | None

    def concerns(self, row: Stored) -> bool:
        """Whether a row is to be erased."""
        if row.is_purged:
            return False
        if self.pattern is not None:
            return matches(self.pattern, row.topic)
        return row.authid == self.publisher or (row.topic.startswith(f"{RESERVED}/") and self._is_spoken_of(row))

    def _is_spoken_of(self, row: Stored) -> bool:
        told = orjson.loads(row.payload or "null")
        return isinstance(told, dict) and told.get("authid") == self.publisher


def purge(folder: Folder, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
    """Erase from all sealed segments of a folder that this process has locked; returns how many events that were.

    The segment that is being written is no business of this: whoever calls has seen to it that another is. Segments
    must not be removed meanwhile. `tell` hears how many offsets are done, and of how many. Raises `sqlite3.Error`,
    `OSError`; what is erased by then is erased, and it may be repeated.
    """
    chosen = [each for each in folder.segments if each.last is not None]
    total = sum(_rows_of(each) for each in chosen)
    done = erased = 0
    for each in chosen:
        count = _count(each, erasure)
        if count:
            _rewrite(folder, each, erasure)
            erased += count
        done += _rows_of(each)
        tell(done, total)
    return erased


def _rows_of(listed: Segment) -> int:
    return (listed.last or 0) - listed.first + 1


def _count(listed: Segment, erasure: Erasure) -> int:
    """How many events of a segment are concerned; those too that were refused and count for nobody."""
    with closing(segment.read(listed.path, is_sealed=listed.is_sealed)) as connection:
        last = connection.execute("select max(offset) from stored").fetchone()[0] or 0
        found = (row for rows, _ in walk(connection, listed.first, last) for row in rows)
        return sum(erasure.concerns(row) for row in found)


def _rewrite(folder: Folder, listed: Segment, erasure: Erasure) -> None:
    assert listed.last is not None
    lost: list[tuple[int, int]] = []
    last = listed.first - 1
    draft = listed.path.with_name(f"{DRAFT}purged-{listed.path.name}")
    delete(draft)
    with closing(segment.read(listed.path, is_sealed=listed.is_sealed)) as old:
        meta = dict(old.execute("select name, value from meta"))
        log_id = str(meta.pop("log_id"))
        more = {name: value for name, value in meta.items() if name not in ("format", "first", HOLES)}
        new = segment.create(draft, log_id, listed.first, **more)
        try:
            for rows, _ in walk(old, listed.first, listed.last):
                if rows:
                    new.write([tombstone(row) if erasure.concerns(row) else row for row in rows])
                for row in rows:
                    if row.offset != last + 1:
                        lost.append((last + 1, row.offset - 1))
                    last = row.offset
                if new.wal_bytes > _WAL_BYTES:
                    new.checkpoint()
            if last < (end := _end(folder, listed)):
                lost.append((last + 1, end))
            if lost:
                new.connection.execute("insert into meta values (?, ?)", (HOLES, orjson.dumps(lost).decode()))
        finally:
            new.close()
    seal = seals.seal(draft, log_id, listed.first, last)
    folder.add_holes(lost)
    between = replace(listed, is_sealed=False)  # lest a reader miss the seal and call it damage
    after = replace(listed)
    folder.replace(listed, between)
    try:
        _take_place(draft, listed.path)
        after = replace(listed, last=last, is_sealed=True, is_sound=True, nbytes=seal.nbytes)
    finally:
        folder.replace(between, after)


def _end(folder: Folder, listed: Segment) -> int:
    """How far a segment reaches, with what is damaged at its end: up to the next one."""
    files = (first for first, _ in segment_files(folder.path))
    following = [first for first in (*files, *(each.first for each in folder.segments)) if first > listed.first]
    return min(following) - 1 if following else listed.last or 0


def _take_place(draft: Path, path: Path) -> None:
    """Put a sealed draft where a segment was."""
    seals.seal_path(path).unlink(missing_ok=True)
    sync_folder(path.parent)
    for leftover in segment.companions(path):  # only a damaged segment that could not be sealed has any
        leftover.unlink(missing_ok=True)
    draft.replace(path)
    sync_folder(path.parent)
    seals.seal_path(draft).replace(seals.seal_path(path))
    sync_folder(path.parent)
