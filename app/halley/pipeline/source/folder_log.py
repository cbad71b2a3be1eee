"""The log in a data folder of this machine, also while a server writes it.

The reader takes no lock, and writes nothing except the position of a consumer.

Only the mark defines how far the log reaches: above it there may be rows that are not committed yet, or were refused. A
segment ends where the next one begins. Every row's checksum is checked. A segment that is being written is opened for
one batch at a time, since it can be sealed only while no process reads it.

A damaged segment is one range of damage, as it is for the server (`halley/history/damage.py`). Before that is reported
the segment is looked at twice, the second time with a new connection: what a server does to it meanwhile (sealing,
purging) must not be taken for damage.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from halley.history import checksummed_json, consumers, segment
from halley.history.checksummed_json import DocumentDamaged
from halley.history.damage import Corrupt, is_passing
from halley.history.folder import FolderUnusable, Identity, Segment, begin_of, read_mark, segment_files
from halley.history.query import Budget, SegmentScan
from halley.history.row_filter import EVERY_ROW, RowFilter
from halley.history.rules import NEVER
from halley.history.seals import Seal
from halley.history.segment_reader import SegmentReader
from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.source.log import BATCH_BYTES, BATCH_ROWS, Fault, LogHead, Row, are_sound, explained

_SELECT = f"select {', '.join(COLUMNS)} from events where offset >= ? and offset < ? order by offset"  # noqa: S608
_PAYLOAD, _DETAILS, _AUDIENCE = map(COLUMNS.index, ("payload", "details", "audience"))
_MARK_TRIES, _MARK_WAIT_S = 50, 0.01


class FolderLog:
    """The `Log` in a data folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # a worker has another working folder
        self.options: dict[str, str] = {}

    def head(self) -> LogHead:
        """Return the log's present extent. Raises `JobRejected`."""
        identity = self.identity()
        files = self._files()
        marked = self._marked(has_segments=bool(files))
        first = min(files[0][0], marked + 1) if files else marked + 1
        return LogHead(identity.log_id, begin_of(first, identity.holes), marked + 1, identity.holes)

    def read(self, first: int, until: int, wanted: RowFilter = EVERY_ROW) -> Iterator[list[Row] | Fault]:
        """Yield every offset of a range below `head().next`, in rows or faults. Raises `JobRejected`, `JobFailed`.

        With a filter only the wanted rows are yielded, and only these are read where an index finds them.
        """
        identity = self.identity()
        at = first
        is_second_try = False
        while at < until:
            path, segment_until = self._segment(at, until)  # each time: segments are added and deleted meanwhile
            # Looked up after the files: the server records a hole before it removes the rows that are left.
            holes = self.identity().holes
            hole_last = next((high for low, high in holes if low <= at <= high), 0)
            end = min([segment_until, *(low for low, _ in holes if low > at)])
            ends = at if path is None else _end_of(path)
            if hole_last or at >= ends:
                fault = Fault(at, min(hole_last, until - 1), "hole") if hole_last else Fault(at, end - 1, "missing")
                yield fault
                at = fault.last + 1
                continue
            assert path is not None
            end = min(end, ends)
            before = at
            for rows, reached in self._rows(path, at, end, identity, wanted, is_second_try=is_second_try):
                if rows:
                    yield rows
                at = reached
            if at == before and is_second_try:
                is_there = path.exists()  # else retention has just deleted the segment
                end = min(segment_until, ends)
                yield from explained(at, end - 1, holes, "hole", "damaged" if is_there else "missing")
                at = end
            is_second_try = at == before

    def commit(self, consumer: str, offset: int) -> None:
        """Record that a consumer needs nothing below an offset any more. Raises `JobFailed`."""
        folder = self.path / consumers.FOLDER
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):  # another process of that name has just done the same
                checksummed_json.save(folder / f"{consumer}.json", {"offset": offset}, is_private=False)
        except OSError as error:
            raise JobFailed(f"the position cannot be written in {folder}: {error.strerror}") from None

    # The state of the folder

    def identity(self) -> Identity:
        """Return the log's identity, with the holes recorded so far. Raises `JobRejected`."""
        document = self.path / "log.json"
        try:
            return Identity.load(document)
        except FileNotFoundError:
            what = "holds no log: no server was ever started on it" if self.path.is_dir() else "does not exist"
            raise JobRejected(f"the data folder {self.path} {what}") from None
        except NotADirectoryError:
            raise JobRejected(f"{self.path} is not a data folder") from None
        except FolderUnusable as error:
            raise JobRejected(str(error)) from None
        except DocumentDamaged:
            raise JobRejected(f"{document} is damaged: start the server on this folder, which restores it") from None
        except OSError as error:
            raise self._unreadable(document, error.strerror) from None

    def _files(self) -> list[tuple[int, Path]]:
        try:
            return segment_files(self.path)
        except OSError as error:
            raise self._unreadable(self.path, error.strerror) from None

    def _marked(self, *, has_segments: bool) -> int:
        """Return the last committed offset. It is read repeatedly, as the server may just be writing it."""
        file = self.path / "mark"
        for _ in range(_MARK_TRIES if has_segments else 1):
            try:
                found = read_mark(file)
            except FileNotFoundError:
                break
            except OSError as error:
                raise self._unreadable(file, error.strerror) from None
            if found is not None:
                return found
            time.sleep(_MARK_WAIT_S)
        if not has_segments:
            return 0
        raise JobRejected(
            f"{file} is missing or damaged, and nothing else records how far the log is committed: "
            "start the server on this folder, which writes it again"
        )

    def _segment(self, at: int, until: int) -> tuple[Path | None, int]:
        """Return the segment of an offset, None if there is none, and where the range up to `until` leaves it."""
        files = self._files()
        bounds = [*files, (max(until, files[-1][0] if files else 0), None)]
        for (first, path), (following, _) in pairwise(bounds):
            if at < first:
                return None, min(until, first)
            if at < following:
                return path, min(until, following)
        return None, until

    def _unreadable(self, file: Path, why: str | None) -> JobRejected:
        return JobRejected(
            f"{file} cannot be read ({why}): run this as the user who runs the server, or read the log with --from URL"
        )

    # Rows

    def _rows(
        self, path: Path, first: int, until: int, identity: Identity, wanted: RowFilter, *, is_second_try: bool
    ) -> Iterator[tuple[list[Row], int]]:
        """Yield the wanted rows of a range of one segment, in batches with the offset behind what was read for each.

        It ends with the last batch before one in which a row is missing or damaged.
        """
        connection = None
        at, unsealed = first, Segment(path, first, until - 1)
        try:
            while at < until:
                if connection is None:
                    sealed = _sealed(path)
                    connection = segment.read(path, is_sealed=sealed is not None)
                    self._check(path, connection, identity)
                if wanted == EVERY_ROW:
                    rows, reached = _fetch(connection, at, min(until, at + BATCH_ROWS))
                    if not are_sound(rows, at, reached):
                        return
                else:
                    rows, reached = _wanted_rows(SegmentReader(connection, sealed or unsealed), at, until, wanted)
                if sealed is None:
                    connection.close()
                    connection = None
                yield rows, reached
                at = reached
        except Corrupt:
            return
        except sqlite3.Error as error:
            if is_second_try and path.exists():
                self._check_readable(path, error)
        finally:
            if connection is not None:
                connection.close()

    def _check(self, path: Path, connection: sqlite3.Connection, identity: Identity) -> None:
        """Raise `JobRejected` if a segment belongs to another log, or was written by a later version."""
        meta = dict(connection.execute("select name, value from meta"))
        if isinstance(meta.get("format"), int) and meta["format"] > segment.FORMAT:
            raise JobRejected(f"{path} was written by a later version of Halley")
        if "log_id" in meta and not identity.wrote(meta):
            raise JobRejected(f"{path} belongs to another log: move it out of the folder")

    def _check_readable(self, path: Path, error: sqlite3.Error) -> None:
        """Raise `JobRejected` or `JobFailed` if an error is not about a file's content, as for lack of permission."""
        try:
            path.open("rb").close()
        except OSError as denied:
            raise self._unreadable(path, denied.strerror) from None
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise self._unreadable(path, str(error)) from None
        if is_passing(error):
            raise JobFailed(f"{path} cannot be read at the moment: {error}") from None


def _fetch(connection: sqlite3.Connection, at: int, until: int) -> tuple[list[Row], int]:
    """Return the rows from `at` on that make up a batch, and the offset after them. Raises `sqlite3.Error`."""
    rows: list[Row] = []
    chars = 0
    try:
        with closing(connection.execute(_SELECT, (at, until))) as cursor:
            for row in cursor:  # not many at a time: each may have megabytes
                rows.append(row)
                chars += len(row[_PAYLOAD] or "") + len(row[_DETAILS] or "") + len(row[_AUDIENCE] or "")
                if chars > BATCH_BYTES:
                    return rows, row[0] + 1
    except (UnicodeDecodeError, TypeError) as error:  # damaged text, which the error quotes; a number for a text
        raise sqlite3.DatabaseError("malformed") from error
    return rows, until


def _wanted_rows(reader: SegmentReader, first: int, until: int, wanted: RowFilter) -> tuple[list[Row], int]:
    """Return the wanted rows of a range that make up a batch, and the offset behind what was read for it.

    Rows that are missing in a sealed segment are seen by its digests, and in another one they are counted. Raises
    `Corrupt`, `sqlite3.Error`.
    """
    rows: list[Row] = []
    nbytes, reached = 0, until
    for batch in SegmentScan(reader, wanted, Budget(BATCH_ROWS), is_reverse=False).run(first, until - 1):
        found = [row for row in batch.rows if wanted.matches(row)]
        rows += found
        nbytes += sum([len(row.payload or "") for row in found])
        if len(rows) >= BATCH_ROWS or nbytes > BATCH_BYTES:
            reached = batch.reached + 1
            break
    if not reader.segment.is_sealed and reader.count(first, reached - 1) != reached - first:
        raise Corrupt(reader.segment.path)
    return rows, reached


def _sealed(path: Path) -> Segment | None:
    """Return a segment if it is sealed, so that it is not changed any more, else None. Raises `Corrupt`."""
    try:
        seal, found = Seal.load(path), path.stat()
        return _compared(path, found.st_ino, found.st_mtime_ns) if seal.nbytes == found.st_size else None
    except (OSError, DocumentDamaged):
        return None


def _end_of(path: Path) -> int:
    """The offset after the last one of a segment; a very high one where it cannot be read."""
    try:
        return Seal.load(path).last + 1
    except (OSError, DocumentDamaged):
        pass
    try:
        with closing(segment.read(path, is_sealed=False)) as connection:
            found = connection.execute("select max(offset) from stored").fetchone()[0]
    except sqlite3.Error:
        return NEVER
    return found + 1 if isinstance(found, int) else NEVER


@lru_cache(1_000)
def _compared(path: Path, _inode: int, _mtime_ns: int) -> Segment:
    """Compare a segment with its digests, once in this process; what readers see of its times is kept with it.

    Raises `Corrupt`, `OSError`, `DocumentDamaged`.
    """
    seal = Seal.load(path)
    if not seal.matches(path):
        raise Corrupt(path)
    return Segment(path, seal.first, seal.last, is_sealed=True)
