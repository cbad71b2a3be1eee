"""Erases the events of a pattern or a publisher from a log, by rewriting the segments that have such events.

An erased event is replaced by a tombstone with its offset, time and publication (`stored.tombstone`). The new file has
nothing else of the event, neither in free pages nor in a WAL. It replaces the old file in three steps, each on disk
before the next: the old seal is deleted, the new file is renamed over the old one, the new seal is put in place. After
a crash the old or the new segment is there; without a seal it is examined and sealed at the next start (`recovery.py`).

Damaged rows cannot be rewritten. The log records them as holes, on disk before the first of the three steps: a crash
after it leaves holes at which damaged rows still exist, but never missing rows that are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson

from app.broker.erasure import Erasure
from app.history import seals, segment
from app.history.documents import DRAFT, sync_folder
from app.history.folder import HOLES, Folder, Segment, delete, segment_files
from app.history.rows import walk
from app.history.stored import Stored, tombstone

_WAL_BYTES = 8_388_608


def purge(folder: Folder, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
    """Erase from all segments that are not being written; returns the number of erased events.

    This process must have locked the folder, and no other thread may remove segments meanwhile. The caller ends the
    current segment before, so that it is included (`History.purge`). `tell(done, total)` is called with offsets, as
    progress. Raises `sqlite3.Error`, `OSError`; what was erased until then stays erased, and the call may be repeated.
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


def is_concerned(row: Stored, erasure: Erasure) -> bool:
    """Whether a row is to be erased, and not erased yet."""
    return not row.is_purged and erasure.concerns(row.topic, row.authid, row.payload)


def _count(listed: Segment, erasure: Erasure) -> int:
    """How many rows of a segment are concerned, including rows of refused events above its last offset."""
    with closing(segment.read(listed.path, is_sealed=listed.is_sealed)) as connection:
        last = connection.execute("select max(offset) from stored").fetchone()[0] or 0
        found = (row for rows, _ in walk(connection, listed.first, last) for row in rows)
        return sum(is_concerned(row, erasure) for row in found)


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
                    new.write([tombstone(row) if is_concerned(row, erasure) else row for row in rows])
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
    between = replace(listed, is_sealed=False)  # so that a reader does not take the missing seal for damage
    after = replace(listed)
    folder.replace(listed, between)
    try:
        _take_place(draft, listed.path)
        after = replace(listed, last=last, is_sealed=True, is_sound=True, nbytes=seal.nbytes)
    finally:
        folder.replace(between, after)


def _end(folder: Folder, listed: Segment) -> int:
    """The last offset of a segment including damaged rows at its end: the one before the next segment."""
    files = (first for first, _ in segment_files(folder.path))
    following = [first for first in (*files, *(each.first for each in folder.segments)) if first > listed.first]
    return min(following) - 1 if following else listed.last or 0


def _take_place(draft: Path, path: Path) -> None:
    """Replace a segment by a sealed draft."""
    seals.seal_path(path).unlink(missing_ok=True)
    sync_folder(path.parent)
    for leftover in segment.companions(path):  # only a damaged segment that could not be sealed has companions
        leftover.unlink(missing_ok=True)
    draft.replace(path)
    sync_folder(path.parent)
    seals.seal_path(draft).replace(seals.seal_path(path))
    sync_folder(path.parent)
