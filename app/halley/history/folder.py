"""The data folder: its lock, the identity of its log, its high-water mark, and the list of its segments.

It uses file names only and never reads a segment that is being written: `recovery.py` examines what is in the segments,
and whether they are intact.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sqlite3
import struct
from array import array
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

import orjson

from halley.broker.events import new_key
from halley.history import checksummed_json, segment
from halley.history.checksummed_json import place_of
from halley.history.damage import MOST_DAMAGE, Damage, joined, outside
from halley.history.rules import NEVER

HOLES = "holes"
"""The name in a rewritten segment's table `meta` for the holes in the segment and behind it, as JSON."""

BACKUP_MARKER = "backup"
"""The name of the empty file that marks a folder as a backup (`backup.py`)."""

KEEPERS = "keepers.json"
"""The name of the file of a keeper that has the names of those in service with it (`cluster/continuity.py`)."""

_OF_KEEPERS = KEEPERS, "cluster.json"
_MARK, _MARK_CRC = struct.Struct("<QQ"), struct.Struct("<I")
_PREFIX, _SUFFIX = "seg-", ".db"
_OTHERS = {"log.json", "mark", "lock", BACKUP_MARKER}
"""The files of a log besides its segments."""


class FolderLocked(Exception):
    """Another server has locked the folder; `pid` is its process id, 0 if unknown."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is in use by another server" + f" (process {pid})" * bool(pid))
        self.pid = pid


class FolderUnusable(Exception):
    """The folder cannot be opened; the text is a sentence for the operator who starts the server."""


class NoLog(FolderUnusable):
    """There is no log in the folder."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A segment as the folder lists it. Compared by identity: a changed segment is a new object.

    last         the last offset that counts (rows above it were refused); None: it is being written, up to the head
    is_sealed    it will not change any more, and may be read without locks
    is_intact    False: it is damaged, and so is not read (`damage.py`)
    nbytes       the size of the file in bytes, once the segment is full
    block_times  what readers have seen of its times so far (`segment_reader.py`)
    """

    path: Path
    first: int
    last: int | None
    is_sealed: bool = False
    is_intact: bool = True
    nbytes: int = 0
    block_times: array[int] = field(default_factory=partial(array, "q"), init=False, repr=False)

    @property
    def disk_bytes(self) -> int:
        """Bytes that the segment uses on disk, including its WAL."""
        return self.nbytes if self.is_sealed else segment.nbytes_with_wal(self.path)


@dataclass(frozen=True, slots=True)
class Identity:
    """A log's identity, as it is stored in `log.json`.

    log_id           a random id of this log
    publication_key  the key of its publication ids (`broker/events.py`)
    format           of its segments (`segment.FORMAT`)
    ancestors        ids of the logs it was restored from; their segments belong to it
    holes            ranges of offsets that are lost permanently, both ends included
    first            the first offset that retention has not deleted; 0 where that is unknown
    """

    log_id: str
    publication_key: int
    format: int = segment.FORMAT
    ancestors: tuple[str, ...] = ()
    holes: tuple[tuple[int, int], ...] = ()
    first: int = 0

    @classmethod
    def new(cls) -> Identity:
        """The identity of a new log."""
        return cls(secrets.token_hex(16), new_key(), first=1)

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read the identity from `log.json` at `path`.

        Raises `DocumentDamaged`, `OSError`, and `FolderUnusable` where a later version of Halley has written it.
        """
        content = checksummed_json.load(path)
        if content.get("format", 0) > segment.FORMAT:
            raise FolderUnusable(f"{path} was written by a later version of Halley")
        try:
            holes = tuple((first, last) for first, last in content["holes"])
            key = int(content["publication_key"])  # too long for a JSON number
            first = int(content.get("first", 0))  # earlier versions did not write it
            return cls(content["log_id"], key, content["format"], tuple(content["ancestors"]), holes, first)
        except (KeyError, TypeError, ValueError):
            raise checksummed_json.DocumentDamaged(f"{path.name} is damaged") from None

    def save(self, path: Path) -> None:
        """Write the identity to `path`. Raises `OSError`."""
        checksummed_json.save(path, asdict(self) | {"publication_key": str(self.publication_key)})

    def meta(self, first: int) -> dict[str, str | int]:
        """What a segment from offset `first` on repeats of the identity, in case `log.json` is lost.

        Also the start of the hole right before the segment, if there is one.
        """
        meta: dict[str, str | int] = {"publication_key": str(self.publication_key)}
        meta["ancestors"] = orjson.dumps(self.ancestors).decode()
        begin = begin_of(first, self.holes)
        return meta | {"hole_first": begin} if begin < first else meta

    def owns(self, log_id: object) -> bool:
        """Whether a segment with that id belongs to this log."""
        return log_id == self.log_id or log_id in self.ancestors

    def wrote(self, meta: Mapping[str, object]) -> bool:
        """Whether a segment with this table `meta` belongs to this log.

        Either the id or the key is enough, in case of a flipped bit: two logs have neither in common.
        """
        return self.owns(meta.get("log_id")) or meta.get("publication_key") == str(self.publication_key)


class HighWaterMark:
    """The open mark: a small file with the last committed offset, outside of the segments.

    `offset` is that offset and `number` the one of its publication (`broker/events.py`); both are 0 if unknown. A
    WAL whose end is torn off looks like one that ended there; by the mark recovery sees after a crash that rows are
    missing. It is written for each group but not synced: after a power loss it may be too low, never too high.
    """

    def __init__(self, path: Path) -> None:
        """Open the mark at `path`, or create it. Raises `OSError`."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.offset, self.number = _numbers_of(os.pread(self._file, _MARK.size + _MARK_CRC.size, 0)) or (0, 0)

    def write(self, offset: int, number: int) -> None:
        """Set the mark, without fsync. Raises `OSError`."""
        self.offset, self.number = offset, number
        numbers = _MARK.pack(offset, number)
        os.pwrite(self._file, numbers + _MARK_CRC.pack(crc32(numbers)), 0)

    def close(self) -> None:
        """Close the file without fsync; the mark keeps the numbers written last."""
        os.close(self._file)


def read_mark(path: Path) -> int | None:
    """The last committed offset, for a reader that does not open the log; None if damaged. Raises `OSError`."""
    numbers = _numbers_of(path.read_bytes())
    return None if numbers is None else numbers[0]


def _numbers_of(mark: bytes) -> tuple[int, int] | None:
    is_intact = mark[_MARK.size :] == _MARK_CRC.pack(crc32(mark[: _MARK.size]))
    return _MARK.unpack_from(mark) if is_intact else None


def first_of(path: Path) -> int | None:
    """The first offset of the segment at `path`, from its file name; None for other files."""
    digits = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    is_segment = path.name == f"{_PREFIX}{digits}{_SUFFIX}" and len(digits) == 20 and digits.isdecimal()
    return int(digits) if is_segment else None


def is_of_log(file: Path) -> bool:
    """Whether a file of a data folder belongs to its log, by its name; without the consumers' files."""
    stem = file.name.removeprefix(checksummed_json.DRAFT).partition(".")[0]
    return first_of(Path(stem + _SUFFIX)) is not None or file.name.removeprefix(checksummed_json.DRAFT) in _OTHERS


def is_unfinished_backup(path: Path) -> bool:
    """Whether the folder is one into which a backup was not copied to its end."""
    return (path / BACKUP_MARKER).exists() and not (path / "log.json").exists()


def begin_of(first: int, holes: Iterable[tuple[int, int]]) -> int:
    """The offset with which a log begins whose first segment begins with `first`.

    `holes` are ranges of offsets that are lost; one that begins before the first segment and reaches up to it, or into
    it, still belongs to the log, so that its readers learn of it.
    """
    return next((low for low, high in holes if low < first <= high + 1), first)


def segment_files(path: Path) -> list[tuple[int, Path]]:
    """The segments' files in a folder, each with its first offset, in that order. Raises `OSError`."""
    return sorted((first, file) for file in path.iterdir() if (first := first_of(file)) is not None)


class Folder:
    """A data folder locked by this process. `segments` and `damage` are replaced and never changed in place."""

    def __init__(self, path: Path) -> None:
        """Open and lock the folder at `path`, and create it if it does not exist.

        Raises `FolderLocked`, `FolderUnusable`.
        """
        self.path = path
        self.segments: tuple[Segment, ...] = ()
        self.damage: tuple[Damage, ...] = ()
        self._changing = Lock()
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file = lock_folder(path)
        except OSError as error:
            raise FolderUnusable(f"{path} cannot be used as data folder: {error.strerror}") from error
        self._place = place_of(self._lock_file)
        self._is_deleted = False
        try:
            checksummed_json.make_private(file for file in path.iterdir() if is_of_log(file))
            self.identity = self._identify()
            self.mark = HighWaterMark(path / "mark")
        except OSError as error:
            os.close(self._lock_file)
            raise FolderUnusable(f"{path} cannot be used as data folder: {error.strerror}") from error
        except BaseException:
            os.close(self._lock_file)
            raise

    @property
    def log_id(self) -> str:
        """The random id of this log."""
        return self.identity.log_id

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to the folder that was opened. Raises `OSError`."""
        return place_of(self.path / "lock") == self._place

    @property
    def free_bytes(self) -> float:
        """Free bytes of the disk; infinite where that is unknown."""
        try:
            disk = os.statvfs(self.path)
        except OSError:
            return inf
        return disk.f_bavail * disk.f_frsize

    def segment_path(self, first: int) -> Path:
        """The path of the segment that begins with the offset `first`."""
        return self.path / f"{_PREFIX}{first:020}{_SUFFIX}"

    def add(self, new: Segment) -> None:
        """List a segment: the newest one, or one between others, where a hole was."""
        with self._changing:
            self.segments = tuple(sorted((*self.segments, new), key=lambda each: each.first))

    def replace(self, old: Segment, **fields: Any) -> Segment | None:
        """Change fields of a listed segment; returns it as it is then, or None where `old` is not listed any more.

        Damage is forgotten where the segment is intact again.
        """
        with self._changing:
            if old not in self.segments:
                return None
            new = replace(old, **fields)
            self.segments = tuple(new if each is old else each for each in self.segments)
            if new.is_intact and not old.is_intact:  # it was rewritten
                self.damage = tuple(
                    each for each in self.damage if each.file != new.path.name or each.first < new.first
                )
            return new

    def change(self, first: int, **fields: Any) -> Segment:
        """`replace` the segment that begins with the offset `first`. The caller alone may remove segments meanwhile."""
        while True:  # another thread may replace it, too
            old = next(each for each in self.segments if each.first == first)
            if (new := self.replace(old, **fields)) is not None:
                return new

    def mark_corrupt(self, segment: Segment, what: str) -> None:
        """List a segment as damaged, and note why; nothing is done where it is not listed any more."""
        if self.replace(segment, is_intact=False) is not None:
            last = segment.first if segment.last is None else segment.last
            self.note(Damage(segment.first, last, segment.path.name, f"{what}; see halley history salvage"))

    def remove(self, old: Iterable[Segment]) -> None:
        """Delete the oldest segments; a reader that has one open can read it to its end. Raises `OSError`."""
        if not self.is_in_place:
            raise OSError(errno.ESTALE, "another folder has taken its place", str(self.path))
        gone = set(old)
        if not gone:
            return
        with self._changing:
            self.segments = tuple(each for each in self.segments if each not in gone)
        following = max((each.last or each.first) for each in gone) + 1
        is_noted = False
        with suppress(OSError):  # a full disk; deleting makes room
            self._begin_with(following)
            is_noted = True
        for each in sorted(gone, key=lambda each: each.first):  # the oldest first: no hole after a crash
            delete(each.path)
        checksummed_json.sync_folder(self.path)
        if not is_noted:
            self._begin_with(following)

    def drop(self, lost: Segment) -> None:
        """Delete a segment in which nothing is intact; its offsets are in a hole already. Raises `OSError`."""
        with self._changing:
            self.segments = tuple(each for each in self.segments if each is not lost)
            self.damage = tuple(each for each in self.damage if each.file != lost.path.name)
        delete(lost.path)
        checksummed_json.sync_folder(self.path)

    def note(self, damage: Damage) -> None:
        """Add damage to the list unless it is there already; for any thread."""
        with self._changing:
            if damage not in self.damage and len(self.damage) < MOST_DAMAGE:
                self.damage = (*self.damage, damage)

    def add_holes(self, lost: Iterable[tuple[int, int]]) -> None:
        """Record ranges of offsets as lost permanently; they are never used again. Raises `OSError`."""
        holes = tuple(joined((*self.identity.holes, *lost), 1, NEVER))
        if holes != self.identity.holes:
            self._identify_as(replace(self.identity, holes=holes))

    def fill_holes(self, filled: list[tuple[int, int]]) -> None:
        """Record that ranges of offsets are not lost any more. Raises `OSError`."""
        holes = tuple(part for hole in self.identity.holes for part in outside(*hole, filled))
        if holes != self.identity.holes:
            self._identify_as(replace(self.identity, holes=holes))
        with self._changing:
            self.damage = tuple(
                replace(each, first=first, last=last)
                for each in self.damage
                for first, last in outside(each.first, each.last, filled)
            )

    def put_back_identity(self) -> None:
        """Where the folder's files were deleted, restore what the next start needs to report the lost events.

        That is the log's identity and its mark. Nothing is done where the folder was moved, since it may be moved back,
        or where another log is in its place. It may be repeated.
        """
        self._is_deleted = self._is_deleted or os.fstat(self._lock_file).st_nlink == 0
        if not self._is_deleted:
            return
        document, mark = self.path / "log.json", self.path / "mark"
        with suppress(OSError, FolderLocked, FolderUnusable, checksummed_json.DocumentDamaged):
            if document.exists() and Identity.load(document).log_id != self.log_id:
                return
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if place_of(self.path / "lock") != place_of(self._lock_file):
                before, self._lock_file = self._lock_file, lock_folder(self.path)
                os.close(before)
            if not mark.exists():
                deleted, self.mark = self.mark, HighWaterMark(mark)
                self.mark.write(deleted.offset, deleted.number)
                deleted.close()
            if not document.exists():
                self.identity.save(document)

    def _begin_with(self, first: int) -> None:
        """Record that everything before `first` may be deleted, so that it does not count as lost."""
        self._identify_as(replace(self.identity, first=max(self.identity.first, first)))

    def _identify_as(self, identity: Identity) -> None:
        self.identity = identity
        identity.save(self.path / "log.json")

    def close(self) -> None:
        """Unlock the folder, so that another server can open it."""
        self.mark.close()
        os.close(self._lock_file)

    def _identify(self) -> Identity:
        document = self.path / "log.json"
        with suppress(FileNotFoundError, checksummed_json.DocumentDamaged):
            return Identity.load(document)
        restored = identity_of(self.path)
        identity = restored or Identity.new()
        identity.save(document)
        if restored is not None:
            self.note(Damage(0, 0, document.name, "was missing or damaged; restored from the segments"))
        return identity


def identity_of(path: Path) -> Identity | None:
    """The identity of the log in a folder, from its segments where `log.json` is missing or damaged; None for no log.

    Raises `FolderUnusable`, `OSError`.
    """
    if is_unfinished_backup(path):
        raise FolderUnusable(f"{path} is a backup that was not finished: run halley history backup again")
    document = path / "log.json"
    try:
        return Identity.load(document)
    except FileNotFoundError:
        files = [file for _, file in segment_files(path)] if path.exists() else []
        if not files:
            return None
    except checksummed_json.DocumentDamaged:
        files = [file for _, file in segment_files(path)]
    identity = _from_segments(files)
    if identity is None:
        raise FolderUnusable(f"{document} is missing or damaged, and no segment next to it has the log's identity")
    return identity


def has_events(path: Path) -> bool:
    """Whether the log in a folder has or had events; True where that cannot be seen. Raises `OSError`.

    The mark alone does not say so: a backup has none.
    """
    with suppress(FileNotFoundError):
        if read_mark(path / "mark") != 0:
            return True
    files = segment_files(path) if path.exists() else []
    return any(first > 1 or not _is_empty(file) for first, file in files)


def _is_empty(file: Path) -> bool:
    try:
        with closing(segment.read(file, is_sealed=False)) as connection:
            return connection.execute("select 1 from stored limit 1").fetchone() is None
    except sqlite3.Error:
        return False


def is_of_keeper(path: Path) -> bool:
    """Whether the folder is that of a keeper of a cluster, whose log is also that of other nodes."""
    return any((path / name).exists() for name in _OF_KEEPERS)


def lock_folder(path: Path) -> int:
    """Lock the folder until the process ends; returns the lock's file descriptor.

    Raises `FolderLocked`, `OSError`.
    """
    number = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(number, 0)
        os.pwrite(number, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        text = os.pread(number, 20, 0)
        os.close(number)
        raise FolderLocked(path, int(text) if text.isdigit() else 0) from None
    except BaseException:
        os.close(number)
        raise
    return number


def _from_segments(files: list[Path]) -> Identity | None:
    """The identity stored in the newest readable segment, with the holes of all; None if no segment is readable."""
    identity = None
    holes = []
    for file in reversed(files):
        try:
            with closing(segment.read(file, is_sealed=False)) as connection:
                meta = dict(connection.execute("select name, value from meta"))
            if identity is None:
                key, ancestors = int(meta["publication_key"]), tuple(orjson.loads(meta["ancestors"]))
                identity = Identity(str(meta["log_id"]), key, ancestors=ancestors)
            if "hole_first" in meta and identity.owns(meta["log_id"]):
                holes.append((meta["hole_first"], meta["first"] - 1))
            if identity.owns(meta["log_id"]):
                holes += [(int(first), int(last)) for first, last in orjson.loads(meta.get(HOLES, "[]"))]
        except (sqlite3.Error, OSError, KeyError, TypeError, ValueError):
            continue  # damaged too; `recovery.py` reports it
    if identity is None:
        return None
    first = first_of(files[0]) or 0  # whether anything was deleted before it is not known
    return replace(identity, holes=tuple(joined(holes, 1, NEVER)), first=first)


def delete(path: Path) -> None:
    """Delete a segment's files. Raises `OSError`."""
    path.unlink(missing_ok=True)  # first: without the database the other files are ignored
    path.with_suffix(".seal").unlink(missing_ok=True)
    segment.delete_companions(path)
