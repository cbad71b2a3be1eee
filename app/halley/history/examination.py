"""Looks at every row of a segment, and at the database as a whole: at start, to verify a log, and to salvage it.

`examine` is the only place that decides whether a segment without a valid seal is intact, and `verify` does the same
for all segments of a log. It only reads and takes no lock, so a server may have the log open; segments that the server
deletes or replaces meanwhile are not reported as damage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from halley.history import segment, state
from halley.history.checksummed_json import DocumentDamaged
from halley.history.damage import MOST_DAMAGE, Damage, is_passing, outside
from halley.history.folder import FolderUnusable, Identity, NoLog, read_mark, segment_files
from halley.history.seals import BLOCK_BYTES, Seal, seal_path
from halley.history.stored import COLUMNS, Stored

_BATCH_ROWS = 256
_LEAST_ROW_BYTES = 32  # on disk
_SELECT = f"select {', '.join(COLUMNS)} from events where offset between ? and ? order by offset"  # noqa: S608


def intact_rows(connection: sqlite3.Connection, first: int, last: int) -> Iterator[list[Stored]]:
    """The intact rows from `first` to `last`, in order and in batches.

    An unreadable page, an undecodable text or a wrong checksum costs only the rows concerned: an offset without a row
    is missing or damaged. Raises `sqlite3.Error` where the system is short of a resource.
    """
    for low in range(first, last + 1, _BATCH_ROWS):
        high = min(low + _BATCH_ROWS - 1, last)
        rows: list[Stored] = []
        for row in _readable_rows(connection, low, high):
            if row.is_intact and (rows[-1].offset if rows else low - 1) < row.offset <= high:
                rows.append(row)
        yield rows


def highest_offset(path: Path, first: int) -> int:
    """An offset that no row of a segment is above, by the size of its files; `first` is its first offset.

    In a damaged file, the highest offset that SQLite finds may be any number.
    """
    return first + segment.nbytes_with_wal(path) // _LEAST_ROW_BYTES


def _readable_rows(connection: sqlite3.Connection, first: int, last: int) -> Iterator[Stored]:
    """The readable rows of a range; if it cannot be read as a whole, those of its halves, and so on."""
    try:
        yield from [Stored._make(row) for row in connection.execute(_SELECT, (first, last))]
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite's error text may quote damaged bytes
        if isinstance(error, sqlite3.Error) and is_passing(error):
            raise
        if first < last:
            middle = (first + last) // 2
            yield from _readable_rows(connection, first, middle)
            yield from _readable_rows(connection, middle + 1, last)


@dataclass(slots=True)
class Examination:
    """What was found in a segment.

    rows         the number of intact rows
    last         the offset of the last one; `first - 1` where there is none
    publication  its publication; 0 where there is none
    is_ours      False: the segment belongs to another log, and nothing else was looked at
    is_later     it was written by a later version of Halley
    problems     what is wrong with the database as a whole
    bad          ranges of offsets in which rows are missing or damaged, except missing ones in a known hole
    """

    last: int
    rows: int = 0
    publication: int = 0
    is_ours: bool = True
    is_later: bool = False
    problems: list[str] = field(default_factory=list)
    bad: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        """Whether the segment is this log's, is readable by this version, and has no damage."""
        return self.is_ours and not self.is_later and not self.problems and not self.bad


def examine(
    path: Path, first: int, following: int | None, identity: Identity | None, *, is_sealed: bool = False
) -> Examination:
    """Examine the segment at `path`, which begins with the offset `first`. Blocks.

    `following` is the first offset of the next segment; rows from there on do not count. Without an `identity` it is
    not known which log the segment belongs to, nor which holes the log has.
    """
    found = Examination(first - 1)
    holes = () if identity is None else identity.holes
    limit = highest_offset(path, first)
    if following is not None:
        limit = min(limit, following - 1)
    with _noting_errors(found), closing(segment.read(path, is_sealed=is_sealed)) as connection:
        connection.execute("begin")  # a snapshot, since a server may go on writing
        with _noting_errors(found):
            _check_database(connection, first, identity, found)
        if not found.is_ours:
            return found
        with _noting_errors(found):
            limit = min(limit, connection.execute("select max(offset) from stored").fetchone()[0] or first - 1)
        for rows in intact_rows(connection, first, limit):
            for row in rows:
                found.bad += outside(found.last + 1, row.offset - 1, holes)
                found.last, found.publication = row.offset, row.publication
            found.rows += len(rows)
        found.bad += outside(found.last + 1, limit, holes)
        (count,) = connection.execute("select count(*) from stored where offset <= ?", (limit,)).fetchone()
        if count != found.rows and not found.bad:
            found.problems.append("rows that were given up as lost are still there, and damaged")
    return found


@contextmanager
def _noting_errors(found: Examination) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        found.problems.append(f"cannot be read: {error}")


def _check_database(connection: sqlite3.Connection, first: int, identity: Identity | None, found: Examination) -> None:
    """Check which log the segment belongs to, and whether its indexes match its rows. Raises `sqlite3.Error`."""
    meta = dict(connection.execute("select name, value from meta"))
    if identity is not None:
        found.is_ours = identity.wrote(meta)
        if found.is_ours and not identity.owns(meta.get("log_id")):
            found.problems.append(f"its log_id is {meta.get('log_id')}")
    version = meta.get("format")
    found.is_later = isinstance(version, int) and version > segment.FORMAT
    if version != segment.FORMAT:
        found.problems.append(f"its format is {version}")
    if meta.get("first") != first:
        found.problems.append(f"its first offset is {meta.get('first')}")
    for (problem,) in connection.execute("pragma integrity_check(10)"):
        if problem != "ok":
            found.problems.append(f"the database is damaged: {problem}")


@dataclass(slots=True)
class VerifyResult:
    """The result of `verify`.

    segments, rows  how many were checked
    last            the last offset found
    damage          what is damaged or missing, the first 1,000 faults
    holes           ranges of offsets known to be lost permanently, both ends included; every reader gets them as gaps
    """

    segments: int = 0
    rows: int = 0
    last: int = 0
    damage: list[Damage] = field(default_factory=list)
    holes: tuple[tuple[int, int], ...] = ()

    def add(self, first: int, last: int, file: str, what: str) -> None:
        """Add a fault to `damage`, unless it has very many already."""
        if len(self.damage) < MOST_DAMAGE:
            self.damage.append(Damage(first, last, file, what))

    def add_missing(self, last: int, file: str, what: str) -> None:
        """Add that what follows the last offset is missing up to `last`, except for holes."""
        for missing in outside(self.last + 1, last, self.holes):
            self.add(*missing, file, what)


def verify(path: Path, on_progress: Callable[[int, int], None] = lambda _done, _of: None) -> VerifyResult:
    """Check all of the log in the folder `path`: rows, offsets, seals, indexes and the mark. Blocks.

    `on_progress(done, total)` is called with bytes, after each segment.

    Raises `FolderUnusable` where the folder has no log, or one of a later version of Halley, and `OSError`.
    """
    verdict = VerifyResult()
    marked = 0
    with suppress(FileNotFoundError, NotADirectoryError):
        marked = read_mark(path / "mark") or 0  # before the rows: later commits are above the mark
    files = segment_files(path) if path.is_dir() else []
    identity = _identity(path, verdict)  # after the files: what retention deletes meanwhile is not missing
    sizes = [segment.nbytes_of(file) for _, file in files]
    followings = [*(first for first, _ in files[1:]), None]
    is_begin_known = identity is not None and identity.first > 0
    if identity is not None and is_begin_known:
        verdict.last = identity.first - 1
    for number, ((first, file), following) in enumerate(zip(files, followings, strict=False), 1):
        if verdict.segments or is_begin_known:
            verdict.add_missing(first - 1, file.name, "missing before this segment")
        _verify_segment(verdict, file, first, following, identity)
        on_progress(sum(sizes[:number]), sum(sizes))
    verdict.add_missing(marked, "mark", "was committed but is missing")
    return verdict


def _identity(path: Path, verdict: VerifyResult) -> Identity | None:
    try:
        identity = Identity.load(path / "log.json")
    except FileNotFoundError:
        raise NoLog(f"there is no log in {path}") from None
    except NotADirectoryError:
        raise FolderUnusable(f"{path} is not a folder") from None
    except DocumentDamaged as damaged:
        verdict.add(0, 0, "log.json", str(damaged))
        return None
    verdict.holes = identity.holes
    return identity


def _verify_segment(
    verdict: VerifyResult, file: Path, first: int, following: int | None, identity: Identity | None
) -> None:
    """Check one segment, and add its faults to the verdict."""
    seal = None
    try:
        seal = Seal.load(file)
        for block in seal.damaged_blocks(file):
            begin = block * BLOCK_BYTES
            verdict.add(0, 0, file.name, f"bytes {begin} to {begin + BLOCK_BYTES - 1} are not what was sealed")
    except FileNotFoundError:
        pass  # not sealed yet, or deleted meanwhile
    except DocumentDamaged as damaged:
        verdict.add(0, 0, seal_path(file).name, str(damaged))
    found = examine(file, first, following, identity, is_sealed=seal is not None)
    if not file.exists():  # retention has deleted it meanwhile: the log begins behind it
        verdict.last = verdict.last if following is None else following - 1
        return
    if found.is_later:
        raise FolderUnusable(f"{file} was written by a later version of Halley")
    if not found.is_ours:
        verdict.add(0, 0, file.name, "belongs to another log")
    for problem in found.problems:
        verdict.add(0, 0, file.name, problem)
    _verify_state(verdict, file, is_sealed=seal is not None)
    for bad in found.bad:
        verdict.add(*bad, file.name, "rows are missing or damaged")
    last = max([found.last, *(high for _, high in found.bad)])
    if last < first and not found.is_intact:  # nothing in it can be read
        last = first if following is None else following - 1
    elif seal is not None:
        ends = seal.last if following is None else min(seal.last, following - 1)
        if seal.first != first or ends < last or any(outside(last + 1, ends, verdict.holes)):
            verdict.add(first, last, file.name, f"its seal is for offsets {seal.first} to {seal.last}")
    verdict.segments += 1
    verdict.rows += found.rows
    verdict.last = max(verdict.last, last)


def _verify_state(verdict: VerifyResult, file: Path, *, is_sealed: bool) -> None:
    """Check what a segment has of the log's state, which no seal covers."""
    try:
        with closing(segment.read(file, is_sealed=is_sealed)) as connection:
            state.read(connection)
    except sqlite3.Error as error:
        verdict.add(0, 0, file.name, f"what a cluster has saved in it cannot be read: {error}")
