"""Copies a log while a server continues to write it; the copy has all events up to the moment when it was begun.

Sealed segments never change, so they are copied as files. The segment that is being written is copied by SQLite, as a
snapshot, and before the others. Each copy is checked: against the digests of its seal, or row by row.

The copy is marked as a backup: a server that opens it gives it a new `log_id`, because from then on the copy and the
original are different logs. Consumers are not copied for the same reason: they read the original, so retention of the
copy must not wait for them. In a cluster the copy can also go on as one of several of the same log (`adopt_copy`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from halley.history import consumers, segment
from halley.history.checksummed_json import DocumentDamaged, private, sync_folder
from halley.history.damage import outside
from halley.history.examination import examine
from halley.history.folder import (
    BACKUP_MARKER,
    Folder,
    FolderUnusable,
    Identity,
    NoLog,
    is_of_log,
    is_unfinished_backup,
    read_mark,
    segment_files,
)
from halley.history.seals import Seal

_TRIES = 3


class Copied(NamedTuple):
    """What a backup has copied.

    segments  how many segments
    nbytes    their size in bytes
    damaged   names of the segments in which bytes, rows or the last committed events are not as they were written; they
              were copied as they are
    """

    segments: int
    nbytes: int
    damaged: list[str]


def backup(
    source: Path,
    target: Path,
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
    *,
    also: Iterable[str] = (),
) -> Copied:
    """Copy the log in the folder `source` to `target`, and check the copy. Blocks.

    `target` must be empty, not exist, or have what an earlier backup has left that did not come to its end. `also`
    are names of other files in `source`, which are copied too where they exist; they are always replaced as a whole.
    `on_progress(done, total)` is called with bytes after each segment, as progress.

    Raises `FolderUnusable`, `OSError`, `sqlite3.Error`. After an error `target` has no `log.json`, so no server takes
    the incomplete copy for a log.
    """
    _identity(source)
    also = list(also)
    _begin(target, also)
    for name in also:
        with suppress(FileNotFoundError):
            _copy_bytes(source / name, target / name)
    marked = 0
    with suppress(FileNotFoundError):
        marked = read_mark(source / "mark") or 0  # before the rows: later commits are above the mark
    files = segment_files(source)
    parts = [*zip(files, [*(first for first, _ in files[1:]), None], strict=False)]  # each with the next one's first
    total = sum(segment.nbytes_of(file) for _, file in files)
    done, damaged, copied = 0, [], 0
    for (first, file), following in reversed(parts):  # the newest first: the copy ends at this moment
        try:
            last = _copy(file, target / file.name, first, following)
        except FileNotFoundError:
            break  # retention has deleted it, and so all older segments
        copied += 1
        done += segment.nbytes_of(target / file.name)
        if last is None or (following is None and any(outside(last + 1, marked, _identity(source).holes))):
            damaged.append(file.name)
        on_progress(min(done, total), total)
    sync_folder(target)
    identity = _identity(source)  # after the rows: a hole is recorded before rows are removed
    firsts = [first for first, _ in segment_files(target)]
    if firsts:  # retention may have deleted others meanwhile
        identity = replace(identity, first=max(identity.first, min(firsts)))
    identity.save(target / "log.json")  # last: only now the folder is a log
    sync_folder(target.parent)
    on_progress(total, total)
    return Copied(copied, done, damaged)


def _begin(target: Path, also: list[str]) -> None:
    """Mark a folder as an unfinished backup, and delete what an earlier one has left. Raises `FolderUnusable`."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_unfinished = is_unfinished_backup(target)
    for file in list(target.iterdir()):
        if is_unfinished and file.name == BACKUP_MARKER:
            continue
        if not is_unfinished or not (is_of_log(file) or file.name in also):
            raise FolderUnusable(f"{target} is not empty")
        file.unlink()  # the folder was empty when it got its marker
    (target / BACKUP_MARKER).touch(mode=0o600)
    sync_folder(target)


def _identity(source: Path) -> Identity:
    try:
        return Identity.load(source / "log.json")
    except (OSError, DocumentDamaged) as error:
        raise NoLog(f"there is no log in {source} to copy: {error}") from None


def identify_copy(folder: Folder) -> None:
    """Give the log in a folder that is marked as a backup a new `log_id`; do nothing elsewhere. Raises `OSError`.

    After a crash before the marker is deleted, the next start makes another new `log_id`; the first was not used.
    """
    marker = folder.path / BACKUP_MARKER
    if marker.exists():
        old = folder.identity
        folder.identity = replace(old, log_id=secrets.token_hex(16), ancestors=(*old.ancestors, old.log_id))
        folder.identity.save(folder.path / "log.json")
        consumers.forget_all(folder.path)  # of an earlier log in this folder, or copied by hand
        marker.unlink()
        sync_folder(folder.path)


def adopt_copy(folder: Path) -> None:
    """Leave a backup the `log_id` of the log that it was made from, since it goes on as one of several copies of that.

    Nothing is done in a folder that is not marked as a backup. Raises `OSError`.
    """
    marker = folder / BACKUP_MARKER
    if marker.exists():
        consumers.forget_all(folder)
        marker.unlink()
        sync_folder(folder)


def _copy(file: Path, target: Path, first: int, following: int | None) -> int | None:
    """Copy a segment and its seal, if it has one; returns its last offset, or None where the copy is damaged.

    The segment begins with the offset `first`, and the next one with `following`. Raises `FileNotFoundError` where the
    segment was deleted meanwhile.
    """
    for _ in range(_TRIES):
        try:
            seal = Seal.load(file)
        except FileNotFoundError:
            _copy_open(file, target)
            found = examine(target, first, following, _identity(file.parent), is_sealed=True)  # nobody else has it open
            if found.is_intact:
                return found.last
        except DocumentDamaged:
            _copy_bytes(file, target)
            return None
        else:
            _copy_bytes(file, target)
            if seal.matches(target):
                seal.save(target)
                return seal.last
        # perhaps a purge replaced the segment at this moment: try again
    return None  # without a seal: recovery of the copy looks at each row


def _copy_bytes(file: Path, target: Path) -> None:
    """Copy a file that is not being changed, and sync the copy to disk."""
    with file.open("rb") as reading, private(target) as writing:
        shutil.copyfileobj(reading, writing)
        writing.flush()
        os.fsync(writing.fileno())


def _copy_open(file: Path, target: Path) -> None:
    """Copy a snapshot of a segment that may be written meanwhile."""
    if not file.exists():
        raise FileNotFoundError(str(file))
    with private(target) as written:
        try:
            with closing(segment.read(file, is_sealed=False)) as reading, closing(sqlite3.connect(target)) as writing:
                reading.backup(writing)  # in one step: between several steps, each write would restart the backup
        except sqlite3.OperationalError:
            if file.exists():
                raise
            raise FileNotFoundError(str(file)) from None
        os.fsync(written.fileno())
