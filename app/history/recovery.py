"""Opens a log after a crash: finds which segments and rows are intact, and from which offset to continue writing.

Nothing here changes or deletes a file that may hold events. A damaged segment is not changed, even the newest one: the
log continues in a new segment, above every offset that may have been used.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from app.broker.publications import Publications
from app.history import documents, seals, segment
from app.history.folder import Damage, Folder, Segment, first_of, segment_files
from app.history.ranges import outside
from app.history.rows import walk

_LEAST_ROW_BYTES = 32  # on disk; bounds the search for rows in a file whose number of rows is unreadable
_UNSEEN_PUBLICATIONS = 1 << 20  # the number of publications that may have been lost without a trace


@dataclass(slots=True)
class Recovered:
    """The end of a recovered log, from which the writer continues.

    head         the last offset that was used
    last_number  the number of the newest publication
    current      the newest segment, open for writing; None where it cannot be continued
    unsealed     intact segments that are full and have no seal
    """

    head: int = 0
    last_number: int = 0
    current: segment.SegmentWriter | None = None
    unsealed: list[Segment] = field(default_factory=list)


@dataclass(slots=True)
class _Found:
    """The result of examining every row of a segment; `last` is `first - 1` where no row is intact."""

    last: int
    publication: int = 0  # of the last intact row
    is_ours: bool = True
    is_sound: bool = True


def recover(folder: Folder) -> Recovered:
    """List the segments of a locked folder, and note their damage in it. Blocks. Raises `OSError`."""
    return _Recovery(folder).run()


class _Recovery:
    """One pass over the segments, oldest first; `expected` is the next offset if nothing is missing, 0 if unknown."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.expected = folder.identity.first
        self.head = folder.mark.offset
        self.publication = (0, 0)  # offset and publication of the last intact row
        self.newest: Segment | None = None  # if it can be continued
        self.unsealed: list[Segment] = []
        self.is_doubtful = False  # behind the last listed segment is a file that may have rows but cannot be read

    def run(self) -> Recovered:
        _tidy(self.folder.path)
        for first, last in self.folder.identity.holes:
            self.folder.note(Damage(first, last, "log.json", "lost before an earlier start"))
        files = segment_files(self.folder.path)
        followings = [*(first for first, _ in files[1:]), None]
        for (first, path), following in zip(files, followings, strict=False):  # without files `followings` is longer
            if not self._sealed(path, first, following):
                self._unsealed(path, first, following)
        if not files:
            self.expected = max(self.expected, 1)
        is_torn = self.folder.mark.offset >= max(self.expected, 1)
        if is_torn:
            self._lose_tail()
        current = None
        if self.newest is not None:
            current = None if is_torn else _go_on(self.newest)
            self._list_newest(self.newest, current)
        return Recovered(max(self.head, self.expected - 1), self._last_number(), current, self.unsealed)

    def _sealed(self, path: Path, first: int, following: int | None) -> bool:
        """List a segment by its seal; False where it has no valid seal."""
        try:
            seal = seals.Seal.load(path)
            nbytes = path.stat().st_size
        except (documents.DocumentDamaged, OSError):
            return False
        if seal.first != first or seal.nbytes != nbytes or not self.folder.identity.owns(seal.log_id):
            return False
        with suppress(OSError):
            seals.clear(path)
        last = seal.last if following is None else min(seal.last, following - 1)
        if following is None:
            with suppress(sqlite3.Error), closing(segment.read(path, is_sealed=True)) as connection:
                for rows, _ in walk(connection, last, last):
                    self.publication = max(self.publication, *((row.offset, row.publication) for row in rows))
        self._list(Segment(path, first, last, is_sealed=True, nbytes=nbytes))
        return True

    def _unsealed(self, path: Path, first: int, following: int | None) -> None:
        """List a segment by its rows."""
        found = self._examine(path, first, following)
        nbytes = segment.nbytes_with_wal(path)
        if not found.is_ours:
            self.folder.note(Damage(first, first, path.name, "belongs to another log and is ignored"))
            self.head = max(self.head, first)
            self.is_doubtful = True
            return
        self.publication = max(self.publication, (found.last, found.publication))
        if not found.is_sound:
            self.head = max(self.head, first)
            if found.last >= first:
                self._list(Segment(path, first, found.last, is_sound=False, nbytes=nbytes))
            self.is_doubtful = True
        elif following is None:
            self._missing_before(first)
            self.expected = found.last + 1
            self.newest = Segment(path, first, found.last, nbytes=nbytes)
        elif found.last >= first:
            self.unsealed.append(self._list(Segment(path, first, found.last, nbytes=nbytes)))

    def _examine(self, path: Path, first: int, following: int | None) -> _Found:
        """Check every row, and that the indexes match the rows; note the damage."""
        found = _Found(first - 1)
        if following is None:
            limit, lost = first - 1 + _most_rows(path), max(first, self.folder.mark.offset)
        else:
            limit = lost = following - 1

        def note(from_: int, until: int, what: str) -> None:
            found.is_sound = False
            self.folder.note(Damage(from_, until, path.name, what))

        try:
            with closing(segment.read(path, is_sealed=False)) as connection:
                problem = self._problem(connection, first, found)
                if not found.is_ours:
                    return found
                steps, latest_us = [], 0
                for rows, _ in walk(connection, first, limit):
                    for row in rows:
                        for gap in outside(found.last + 1, row.offset - 1, self.folder.identity.holes):
                            note(*gap, "damaged rows")
                        found.last, found.publication = row.offset, row.publication
                        if row.time_us < latest_us:
                            steps.append(row.offset)
                        latest_us = row.time_us
                listed = connection.execute("select offset from steps where offset <= ? order by offset", (found.last,))
                if not problem and [offset for (offset,) in listed] != steps:
                    problem = "its table steps does not match its times"  # this table has no checksum
        except sqlite3.Error as error:
            problem = str(error)
        if problem and found.last < first:
            note(first, lost, f"cannot be read: {problem}")
        elif problem:
            note(first, found.last, f"read row by row: {problem}")
        return found

    def _problem(self, connection: sqlite3.Connection, first: int, found: _Found) -> str:
        """What is wrong with a database as a whole; "" if nothing."""
        try:
            meta = dict(connection.execute("select name, value from meta"))
            identity = self.folder.identity
            # Either the id or the key is enough, in case of a flipped bit: two logs have neither in common.
            is_same_key = meta.get("publication_key") == str(identity.publication_key)
            found.is_ours = identity.owns(meta.get("log_id")) or is_same_key
            # This is not a later version's log: `log.json` was read before, and would have said so.
            if (meta.get("format"), meta.get("first")) != (segment.FORMAT, first) or not identity.owns(meta["log_id"]):
                return f"its table meta has unexpected values: {meta}"
            check = str(connection.execute("pragma integrity_check(1)").fetchone()[0])
        except (sqlite3.Error, KeyError, ValueError) as error:
            return str(error)
        return "" if check == "ok" else check

    def _list(self, segment: Segment) -> Segment:
        self._missing_before(segment.first)
        assert segment.last is not None
        self.expected = segment.last + 1
        self.is_doubtful = False
        self.folder.add(segment)
        return segment

    def _list_newest(self, newest: Segment, current: segment.SegmentWriter | None) -> None:
        assert newest.last is not None
        if newest.last < newest.first:
            return  # the writer lists it with its first row
        if current is not None:
            newest = Segment(newest.path, newest.first, None)
        else:
            self.unsealed.append(newest)
        self.folder.add(newest)

    def _missing_before(self, first: int) -> None:
        """Note the offsets that are missing between the last listed segment and `first`."""
        if self.expected:
            self._lose(first - 1, self.folder.segment_path(first).name, "missing before this segment")

    def _lose_tail(self) -> None:
        """Note that the mark is above the last row: the end of a WAL is lost. Its offsets are not used again."""
        last = self.folder.mark.offset
        if self.newest is not None:
            self._lose(last, self.newest.path.name, "lost: written before, missing now")
        else:
            self._missing_before(last + 1)

    def _lose(self, last: int, file: str, what: str) -> None:
        """Note that the offsets from `expected` to `last` are missing, except those already known to be.

        They are recorded as lost permanently, unless they may be in a file that cannot be read.
        """
        damage = ((each.first, each.last) for each in self.folder.damage)
        lost = [*outside(self.expected, last, (*self.folder.identity.holes, *damage))]
        for each in lost:
            self.folder.note(Damage(*each, file, what))
        if not self.is_doubtful:
            with suppress(OSError):  # then the next segment's meta has the hole, or the next start finds it
                self.folder.add_holes(lost)

    def _last_number(self) -> int:
        mark, (offset, publication) = self.folder.mark, self.publication
        known = mark.number
        if publication:
            known = max(known, Publications(self.folder.identity.publication_key).number_of(publication))
        is_all = max(mark.offset, offset) >= max(self.head, self.expected - 1)
        return known if is_all else known + _UNSEEN_PUBLICATIONS


def _go_on(newest: Segment) -> segment.SegmentWriter | None:
    """Open an intact segment for writing, and sync its WAL to disk; None where that fails."""
    if segment.is_finished(newest.path):
        return None
    writer = None
    try:
        writer = segment.reopen(newest.path)
        # Rows of a failed commit may be in the page cache only; from here on they count.
        writer.checkpoint()
    except (sqlite3.Error, OSError):
        if writer is not None:
            writer.abandon().close()
        return None
    return writer


def _most_rows(path: Path) -> int:
    return segment.nbytes_with_wal(path) // _LEAST_ROW_BYTES + 1


def _tidy(path: Path) -> None:
    """Delete what a crash has left: unfinished files, and files of a segment that was deleted."""
    for file in list(path.iterdir()):
        is_draft = file.name.startswith(documents.DRAFT)
        owner = file.with_suffix(".db")
        is_orphan = file != owner and first_of(owner) is not None and not owner.exists()
        if is_draft or is_orphan:
            file.unlink()
