"""Opens a log after a crash: finds which segments and rows are intact, and from which offset to continue writing.

Nothing here changes or deletes a file that may hold events. A damaged segment is not changed, even the newest one: the
log continues in a new segment, above every offset that may have been used.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from halley.broker.events import Publications
from halley.history import checksummed_json, seals, segment
from halley.history.damage import Damage, outside
from halley.history.examination import examine, intact_rows
from halley.history.folder import Folder, Segment, first_of, read_mark, segment_files
from halley.history.segment import state_of
from halley.history.state import Name

_UNSEEN_PUBLICATIONS = 1 << 20  # the number of publications that may have been lost without a trace


class Recovery:
    """The end of a recovered log, from which the writer continues. It is found in one pass over the segments.

    head         the last offset that was used
    last_number  the number of the newest publication
    current      the newest segment, open for writing; None where it cannot be continued
    unsealed     intact segments that are full and have no seal
    state        the log's state (`state.py`), which the newest segment has
    """

    def __init__(self, folder: Folder, *, goes_back: bool = False) -> None:
        """List the segments of a locked folder, and note their damage in it. Blocks. Raises `OSError`.

        With `goes_back` a lost end of a WAL does not become a hole: the log goes on behind the last row that there is,
        and gets the same events again.
        """
        self.folder = folder
        self.head = folder.mark.offset
        self.current: segment.SegmentWriter | None = None
        self.unsealed: list[Segment] = []
        self.state: dict[Name, str] = {}
        self._expected = folder.identity.first  # the next offset if nothing is missing; 0 if unknown
        self._publication = (0, 0)  # offset and publication of the last intact row
        self._newest: Segment | None = None  # if it can be continued
        self._is_doubtful = False  # behind the last listed segment is a file of another log
        _delete_leftovers(folder.path)
        for first, last in folder.identity.holes:
            folder.note(Damage(first, last, "log.json", "lost before an earlier start"))
        files = segment_files(folder.path)
        followings = [*(first for first, _ in files[1:]), None]
        for (first, path), following in zip(files, followings, strict=False):  # without files `followings` is longer
            if not self._sealed(path, first, following):
                self._unsealed(path, first, following)
        if not files:
            self._expected = max(self._expected, 1)
        is_torn = folder.mark.offset >= max(self._expected, 1)
        if is_torn and goes_back and not self._is_doubtful:
            self.head, is_torn = 0, False
        if is_torn:
            self._note_lost_tail()
        if self._newest is not None:
            self.current = None if is_torn else _reopened(self._newest)
            self._list_newest(self._newest)
        self.head = max(self.head, self._expected - 1)
        self.last_number = self._last_number()

    def _sealed(self, path: Path, first: int, following: int | None) -> bool:
        """List a segment by its seal; False where it has no valid seal."""
        try:
            seal = seals.Seal.load(path)
            nbytes = path.stat().st_size
        except (checksummed_json.DocumentDamaged, OSError):
            return False
        if seal.first != first or seal.nbytes != nbytes or not self.folder.identity.owns(seal.log_id):
            return False
        with suppress(OSError):
            seals.clear(path)
        last = seal.last if following is None else min(seal.last, following - 1)
        if following is None:
            with suppress(sqlite3.Error), closing(segment.read(path, is_sealed=True)) as connection:
                for rows in intact_rows(connection, last, last):
                    self._publication = max(self._publication, *((row.offset, row.publication) for row in rows))
        self._list(Segment(path, first, last, is_sealed=True, nbytes=nbytes))
        return True

    def _unsealed(self, path: Path, first: int, following: int | None) -> None:
        """List a segment by its rows."""
        found = examine(path, first, following, self.folder.identity)
        nbytes = segment.nbytes_with_wal(path)
        if not found.is_ours:
            self.folder.note(Damage(first, first, path.name, "belongs to another log and is ignored"))
            self.head = max(self.head, first)
            self._is_doubtful = True
            return
        self._publication = max(self._publication, (found.last, found.publication))
        self.state = (state_of(path) if following is None else None) or {}
        if not found.is_intact:
            last = max(first, found.last, self.folder.mark.offset) if following is None else following - 1
            damaged = self._list(Segment(path, first, last, nbytes=nbytes))
            what = found.problems[0] if found.problems else f"{len(found.bad)} ranges of rows are missing or damaged"
            self.folder.mark_corrupt(damaged, what)
        elif following is None:
            self._missing_before(first)
            self._expected = found.last + 1
            self._newest = Segment(path, first, found.last, nbytes=nbytes)
        elif found.last >= first:
            self.unsealed.append(self._list(Segment(path, first, found.last, nbytes=nbytes)))

    def _list(self, segment: Segment) -> Segment:
        self._missing_before(segment.first)
        assert segment.last is not None
        self._expected = segment.last + 1
        self._is_doubtful = False
        self.folder.add(segment)
        return segment

    def _list_newest(self, newest: Segment) -> None:
        assert newest.last is not None
        if newest.last < newest.first:
            return  # the writer lists it with its first row
        if self.current is not None:
            newest = replace(newest, last=None)
        else:
            self.unsealed.append(newest)
        self.folder.add(newest)

    def _missing_before(self, first: int) -> None:
        """Note the offsets that are missing between the last listed segment and `first`."""
        if self._expected:
            self._note_lost(first - 1, self.folder.segment_path(first).name, "missing before this segment")

    def _note_lost_tail(self) -> None:
        """Note that the mark is above the last row: the end of a WAL is lost. Its offsets are not used again."""
        last = self.folder.mark.offset
        if self._newest is not None:
            self._note_lost(last, self._newest.path.name, "lost: written before, missing now")
        else:
            self._missing_before(last + 1)

    def _note_lost(self, last: int, file: str, what: str) -> None:
        """Note that the offsets from `expected` to `last` are missing, except those already known to be.

        They are recorded as lost permanently, unless they may be in a file that was taken for another log's.
        """
        damage = ((each.first, each.last) for each in self.folder.damage)
        lost = [*outside(self._expected, last, (*self.folder.identity.holes, *damage))]
        for each in lost:
            self.folder.note(Damage(*each, file, what))
        if not self._is_doubtful:
            with suppress(OSError):  # then the next segment's meta has the hole, or the next start finds it
                self.folder.add_holes(lost)

    def _last_number(self) -> int:
        mark, (offset, publication) = self.folder.mark, self._publication
        known = max(0, mark.number - max(0, mark.offset - self.head))
        if publication:
            known = max(known, Publications(self.folder.identity.publication_key).number_of(publication))
        is_all = max(mark.offset, offset) >= self.head
        return known if is_all else known + _UNSEEN_PUBLICATIONS


def saved_state(path: Path) -> dict[Name, str] | None:
    """The state of the log in the folder `path` (`state.py`), which may be open; None if it has none. Blocks."""
    files: list[tuple[int, Path]] = []
    with suppress(OSError):
        files = segment_files(path)
    return state_of(files[-1][1]) if files else None


def last_row(path: Path) -> int:
    """The last offset that the folder `path` has on disk; as the mark says where that cannot be read. Blocks.

    Raises `OSError`.
    """
    files = segment_files(path)
    if not files:
        return 0
    first, newest = files[-1]
    try:
        with closing(segment.read(newest, is_sealed=seals.seal_path(newest).exists())) as connection:
            last = connection.execute("select max(offset) from stored").fetchone()[0]
    except sqlite3.Error:
        return read_mark(path / "mark") or 0
    return first - 1 if last is None else int(last)


def _reopened(newest: Segment) -> segment.SegmentWriter | None:
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


def _delete_leftovers(path: Path) -> None:
    """Delete what a crash has left: unfinished files, and files of a segment that was deleted."""
    for file in list(path.iterdir()):
        is_draft = file.name.startswith(checksummed_json.DRAFT)
        owner = file.with_suffix(".db")
        is_orphan = file != owner and first_of(owner) is not None and not owner.exists()
        if is_draft or is_orphan:
            file.unlink()
