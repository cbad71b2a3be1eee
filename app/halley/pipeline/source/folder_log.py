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
from halley.history.damage import is_passing
from halley.history.folder import FolderUnusable, Identity, begin_of, read_mark, segment_files
from halley.history.rules import NEVER
from halley.history.seals import Seal
from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.source.log import BATCH_BYTES, BATCH_ROWS, Fault, Head, Row, are_sound, explained

_SELECT = f"select {', '.join(COLUMNS)} from events where offset >= ? and offset < ? order by offset"  # noqa: S608
_PAYLOAD, _DETAILS, _AUDIENCE = map(COLUMNS.index, ("payload", "details", "audience"))
_MARK_TRIES, _MARK_WAIT_S = 50, 0.01


class FolderLog:
    """The `Log` in a data folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()  # a worker has another working folder
        self.options: dict[str, str] = {}

    def head(self) -> Head:
        """Return the log's present extent. Raises `JobRejected`."""
        identity = self.identity()
        files = self._files()
        marked = self._marked(has_segments=bool(files))
        first = min(files[0][0], marked + 1) if files else marked + 1
        return Head(identity.log_id, begin_of(first, identity.holes), marked + 1, identity.holes)

    def read(self, first: int, until: int) -> Iterator[list[Row] | Fault]:
        """Yield every offset of a range below `head().next`, in rows or faults. Raises `JobRejected`, `JobFailed`."""
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
            for rows in self._rows(path, at, end, identity, is_second_try=is_second_try):
                yield rows
                at = rows[-1][0] + 1
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
        self, path: Path, first: int, until: int, identity: Identity, *, is_second_try: bool
    ) -> Iterator[list[Row]]:
        """Yield the rows of a range of one segment, up to the first batch in which one is missing or damaged."""
        connection = None
        at = first
        try:
            while at < until:
                if connection is None:
                    is_sealed = _is_sealed(path)
                    connection = segment.read(path, is_sealed=is_sealed)
                    self._check(path, connection, identity)
                rows, reached = _fetch(connection, at, min(until, at + BATCH_ROWS))
                if not are_sound(rows, at, reached):
                    return
                if not is_sealed:
                    connection.close()
                    connection = None
                yield rows
                at = reached
        except _Damaged:
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


class _Damaged(Exception):
    """A sealed segment does not match its digests."""


def _is_sealed(path: Path) -> bool:
    """Whether a segment is sealed, so that it is not changed any more. Raises `_Damaged`."""
    try:
        seal, found = Seal.load(path), path.stat()
        if seal.nbytes != found.st_size:
            return False
        _compare(path, found.st_ino, found.st_mtime_ns)
    except (OSError, DocumentDamaged):
        return False
    return True


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
def _compare(path: Path, _inode: int, _mtime_ns: int) -> None:
    """Compare a segment with its digests, once in this process. Raises `_Damaged`, `OSError`, `DocumentDamaged`."""
    if not Seal.load(path).matches(path):
        raise _Damaged
