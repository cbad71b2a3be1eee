"""Rewrites segments: to erase events (`purge`), to keep what is intact of damaged ones (`salvage`), or to fill them.

Where there is another copy of the log, what it has is filled in (`fill`), also in holes, which are none any more then.

An erased event is replaced by a tombstone with its offset, time and publication (`stored.tombstone`), and the digest of
what came with its idempotency key goes with it; those of other events stay (`key_digests.py`). The new file has
nothing else of the event, neither in free pages nor in a WAL. It replaces the old file in three steps, each on disk
before the next: the old seal is deleted, the new file is renamed over the old one, the new seal is put in place. After
a crash the old or the new segment is there; without a seal it is examined and sealed at the next start (`recovery.py`).
No offset changes.

Damaged rows cannot be copied. Any of them may be one that is to be erased, so both works rewrite every damaged segment:
what is erased is gone from all files, readable or not. The log records damaged rows as holes, on disk before the first
of the three steps: after a crash there may be holes at which damaged rows still exist, but no missing rows that are not
recorded. Where no row is intact, the file is deleted once the hole is recorded. So either work may be interrupted at
any point, and repeated.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from halley.broker.events import Publications
from halley.broker.ports import Erasure
from halley.history import key_digests, seals, segment
from halley.history.checksummed_json import DRAFT, DocumentDamaged, sync_folder
from halley.history.damage import Damage, is_passing, joined, outside
from halley.history.examination import examine, highest_offset, intact_rows
from halley.history.folder import HOLES, Folder, Segment, delete
from halley.history.rules import NEVER
from halley.history.stored import Stored, tombstone

Progress = Callable[[int, int], None]
"""Called with how many offsets are done, and of how many."""


Chosen = Callable[[Stored], bool]
"""Whether a row is to be erased, and not erased yet."""


def purge(is_chosen: Chosen, folder: Folder, on_progress: Progress) -> int:
    """Erase from all segments that are not being written; returns the number of erased events.

    Events that are damaged count as erased, since nobody can say whether they were to be.

    This process must have locked the folder, and no other thread may remove segments meanwhile. The caller ends the
    current segment before, so that it is included (`History.purge`). Raises `sqlite3.Error`, `OSError`; what was done
    until then stays done, and the call may be repeated.
    """
    erased = 0
    for each in _ended(folder, on_progress):
        count, is_whole = _count_chosen(is_chosen, each, folder.identity.holes)
        if count or not is_whole:
            erased += count + sum(high - low + 1 for low, high in _rewrite(folder, each, is_chosen))
    return erased


def _count_chosen(is_chosen: Chosen, listed: Segment, holes: Sequence[tuple[int, int]]) -> tuple[int, bool]:
    """How many of a segment's rows are chosen, and whether all of its rows can be read and no byte has changed."""
    count, last = 0, listed.first - 1
    is_whole = _is_as_sealed(listed)
    for rows, _ in _intact_rows(listed, with_refused=True):
        for row in rows:
            count += is_chosen(row)
            is_whole = is_whole and not any(outside(last + 1, row.offset - 1, holes))
            last = row.offset
    assert listed.last is not None
    return count, is_whole and not any(outside(last + 1, listed.last, holes))


def _is_as_sealed(listed: Segment) -> bool:
    """Whether a segment is not known to be damaged, and no byte of it has changed if it is sealed. Raises `OSError`."""
    if not listed.is_intact or not listed.is_sealed:
        return listed.is_intact
    try:
        return seals.Seal.load(listed.path).matches(listed.path)
    except DocumentDamaged:
        return False


Supply = Callable[[int, int], Iterator[list[Stored]]]
"""Yields the rows of another copy of the log between two offsets, in order and as far as it has them.

Raises `OSError` where it does not know.
"""


def fill(supply: Supply, segment_bytes: int, folder: Folder, on_progress: Progress) -> int:
    """Rewrite the first damaged segment, or hole, of which another copy of the log has rows; returns how many.

    What that copy lacks of a damaged segment becomes a hole; with 0 nothing is left that it has. Holes between segments
    become segments of about `segment_bytes`. The conditions and errors are those of `purge`, and those of `supply`.
    """
    filler = _HoleFiller(folder, supply)
    for each in _ended(folder, on_progress):
        holes = joined(folder.identity.holes, each.first, each.last or 0)
        if not each.is_intact or any(filler.has_some(*hole) for hole in holes):
            _rewrite(folder, each, None, filler)
            if filler.count:
                return filler.count
    listed = [(each.first, each.last or NEVER) for each in folder.segments]
    for hole in folder.identity.holes:
        for low, high in outside(*hole, listed):
            if filler.has_some(low, high):
                _insert(folder, (low, high), filler, segment_bytes)
                return filler.count
    return 0


class _HoleFiller:
    """Rows of another copy of the log, of which `count` have been written."""

    def __init__(self, folder: Folder, supply: Supply) -> None:
        self.count = 0
        self._publications = Publications(folder.identity.publication_key)
        self._most = folder.mark.number or NEVER  # no publication has a higher number
        self._supply = supply

    def has_some(self, first: int, last: int) -> bool:
        """Whether the other copy has any row between two offsets."""
        return any(rows for rows in self._rows(first, last))

    def _rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The rows between two offsets. Raises `OSError` where they cannot be of this log."""
        for rows in self._supply(first, last):
            offset, number = first - 1, 0
            for row in rows:
                before, number = number, self._publications.number_of(row.publication)
                if not (offset < row.offset <= last and before < number <= self._most and row.is_intact):
                    raise OSError(errno.EINVAL, "the rows are not those of this log")
                offset = row.offset
            yield rows

    def write(
        self, new: segment.SegmentWriter, first: int, last: int, most_bytes: float = inf
    ) -> list[tuple[int, int]]:
        """Write the rows between two offsets, about `most_bytes` at most; returns the ranges that were written."""
        written: list[tuple[int, int]] = []
        nbytes = 0
        for rows in self._rows(first, last):
            if rows:
                new.write(rows)
                nbytes += new.wal_bytes
                new.checkpoint()
                self.count += len(rows)
                written += [(row.offset, row.offset) for row in rows]
            if nbytes > most_bytes:
                break
        return joined(written, first, last)


def _insert(folder: Folder, hole: tuple[int, int], filler: _HoleFiller, segment_bytes: int) -> None:
    """Make a segment of a hole, or of its first part."""
    first, path = hole[0], folder.segment_path(hole[0])
    if path.exists() and not examine(path, first, hole[1] + 1, folder.identity).is_ours:
        raise FileExistsError(errno.EEXIST, "a file of another log has the name of the segment", str(path))
    draft = path.with_name(f"{DRAFT}new-{path.name}")
    delete(draft)
    meta: dict[str, Any] = folder.identity.meta(first)
    with closing(segment.create(draft, folder.log_id, first, segment.NO_STATE, **meta)) as new:
        written = filler.write(new, *hole, segment_bytes)
    last = written[-1][1]
    seal = seals.seal(draft, folder.log_id, first, last)
    _take_place(draft, path)
    folder.add(Segment(path, first, last, is_sealed=True, nbytes=seal.nbytes))
    folder.fill_holes(written)


class Salvaged(NamedTuple):
    """What `salvage` has done: how many segments were damaged, and the lost ranges of offsets, both ends included."""

    segments: int
    lost: list[tuple[int, int]]


def salvage(folder: Folder, on_progress: Progress) -> Salvaged:
    """Rewrite each damaged segment with the rows that are intact, and record the others as holes.

    The conditions and errors are those of `purge`.
    """
    segments = 0
    lost: list[tuple[int, int]] = []
    for each in _ended(folder, on_progress):
        if not _is_intact(folder, each):
            segments += 1
            lost += _rewrite(folder, each, None)
    return Salvaged(segments, lost)


def _ended(folder: Folder, on_progress: Progress) -> Iterator[Segment]:
    """The segments that are not being written; progress is reported after the work on each."""
    segments = [(each, each.last - each.first + 1) for each in folder.segments if each.last is not None]
    done, total = 0, sum(count for _, count in segments)
    for each, count in segments:
        yield each
        done += count
        on_progress(done, total)


def _is_intact(folder: Folder, listed: Segment) -> bool:
    """Whether nothing at all is wrong with a segment; every byte of it is looked at."""
    if not _is_as_sealed(listed):
        return False
    following = (listed.last or 0) + 1
    return examine(listed.path, listed.first, following, folder.identity, is_sealed=listed.is_sealed).is_intact


def is_concerned(row: Stored, erasure: Erasure) -> bool:
    """Whether a row is to be erased, and not erased yet."""
    return not row.is_purged and erasure.concerns(row.topic, row.authid, row.payload)


def concerned_by(erasure: Erasure, last: int = NEVER) -> Chosen:
    """Choose the rows with an offset up to `last` that an erasure concerns."""
    return lambda row: row.offset <= last and is_concerned(row, erasure)


def _intact_rows(listed: Segment, *, with_refused: bool = False) -> Iterator[tuple[list[Stored], sqlite3.Connection]]:
    """The rows of a segment that can be read, and what they are read by.

    With `with_refused` also those of refused events above its last offset. Raises `sqlite3.Error` where the system is
    short of a resource.
    """
    if not listed.path.exists():
        return
    try:
        connection = segment.read(listed.path, is_sealed=listed.is_sealed)
    except sqlite3.Error as error:
        if is_passing(error):
            raise
        return  # it is not a database any more
    last = listed.last or 0
    with closing(connection):
        with suppress(sqlite3.DatabaseError):  # it may be damaged
            if with_refused:
                last = max(last, connection.execute("select max(offset) from stored").fetchone()[0] or 0)
        for rows in intact_rows(connection, listed.first, min(last, highest_offset(listed.path, listed.first))):
            yield rows, connection


def _rewrite(
    folder: Folder, listed: Segment, is_chosen: Chosen | None, filler: _HoleFiller | None = None
) -> list[tuple[int, int]]:
    """Rewrite a segment without what is to be erased; returns the ranges of rows that could not be copied.

    Without those that are holes already, and those that `filler` has.
    """
    assert listed.last is not None
    lost: list[tuple[int, int]] = []
    last = listed.first - 1
    draft = listed.path.with_name(f"{DRAFT}new-{listed.path.name}")
    delete(draft)
    meta: dict[str, Any] = {**folder.identity.meta(listed.first)}
    with closing(segment.create(draft, folder.log_id, listed.first, **meta)) as new:
        for rows, connection in _intact_rows(listed):
            if rows:
                digests = key_digests.read(connection, rows[0].offset, rows[-1].offset)
                kept = [tombstone(row) if is_chosen is not None and is_chosen(row) else row for row in rows]
                new.write(kept, digests=digests)
            for row in rows:
                if row.offset != last + 1:
                    lost.append((last + 1, row.offset - 1))
                last = row.offset
            if new.wal_bytes > segment.WAL_BYTES:
                new.checkpoint()
        if last < listed.last:
            lost.append((last + 1, listed.last))
        filled = [] if filler is None else [part for each in lost for part in filler.write(new, *each)]
        lost = [part for each in lost for part in outside(*each, filled)]
        last = max([last, *(high for _, high in filled)])
        if lost:
            new.connection.execute("insert into meta values (?, ?)", (HOLES, orjson.dumps(lost).decode()))
    news = [part for low, high in lost for part in outside(low, high, folder.identity.holes)]
    if last < listed.first:
        with suppress(FileNotFoundError):
            for _ in seals.digests_of(listed.path):
                pass  # raises `OSError` where it is the disk that cannot read: it may do so later
        folder.add_holes(lost)
        folder.drop(listed)
        delete(draft)
        return _noted(folder, listed, news)
    seal = seals.seal(draft, folder.log_id, listed.first, last)
    folder.add_holes(lost)
    folder.change(listed.first, is_sealed=False)  # so that a reader does not take the missing seal for damage
    try:
        _take_place(draft, listed.path)
    except BaseException:
        folder.change(listed.first, is_sealed=listed.is_sealed)
        raise
    folder.change(listed.first, last=last, is_sealed=True, is_intact=True, nbytes=seal.nbytes)
    folder.fill_holes(filled)
    return _noted(folder, listed, news)


def _noted(folder: Folder, listed: Segment, lost: list[tuple[int, int]]) -> list[tuple[int, int]]:
    for low, high in lost:
        folder.note(Damage(low, high, listed.path.name, "lost: damaged when the segment was rewritten"))
    return lost


def _take_place(draft: Path, path: Path) -> None:
    """Replace a segment by a sealed draft."""
    seals.seal_path(path).unlink(missing_ok=True)
    sync_folder(path.parent)
    segment.delete_companions(path)  # only a damaged segment that could not be sealed has any
    draft.replace(path)
    sync_folder(path.parent)
    seals.seal_path(draft).replace(seals.seal_path(path))
    sync_folder(path.parent)
