"""Copies a log while a server continues to write it; the copy has all events up to the moment when it was begun.

Sealed segments never change, so they are copied as files. The segment that is being written is copied by SQLite, as a
snapshot, and before the others. The copy is marked as a backup: a server that opens it gives it a new `log_id`, because
from then on the copy and the original are different logs. Consumers are not copied for the same reason: they read the
original, so retention of the copy must not wait for them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from app.history import consumers, segment
from app.history.checksummed_json import DocumentDamaged, sync_folder
from app.history.folder import Folder, FolderUnusable, Identity, segment_files
from app.history.seals import Seal, digests_of

BACKUP_MARKER = "backup"
"""The name of the empty file that marks a folder as a backup."""

_TRIES = 3


class Copied(NamedTuple):
    """What a backup has copied.

    segments  how many segments
    nbytes    their size in bytes
    damaged   names of the segments whose bytes do not match their seals; they were copied as they are
    """

    segments: int
    nbytes: int
    damaged: list[str]


def backup(source: Path, target: Path, on_progress: Callable[[int, int], None] = lambda _done, _of: None) -> Copied:
    """Copy the log in the folder `source` to `target`, which must be empty or not exist. Blocks.

    `on_progress(done, total)` is called with bytes after each segment, as progress.

    Raises `FolderUnusable`, `OSError`, `sqlite3.Error`. After an error `target` has no `log.json`, so no server takes
    the incomplete copy for a log.
    """
    try:
        identity = Identity.load(source / "log.json")
    except (OSError, DocumentDamaged) as error:
        raise FolderUnusable(f"there is no log in {source} to copy: {error}") from None
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FolderUnusable(f"{target} is not empty")
    files = segment_files(source)
    total = sum(segment.nbytes_of(file) for _, file in files)
    done, damaged, copied = 0, [], 0
    for _, file in reversed(files):  # the newest first: the copy ends at this moment
        try:
            is_as_sealed = _copy(file, target / file.name)
        except FileNotFoundError:
            break  # retention has deleted it, and so all older segments
        copied += 1
        done += segment.nbytes_of(target / file.name)
        if not is_as_sealed:
            damaged.append(file.name)
        on_progress(min(done, total), total)
    (target / BACKUP_MARKER).touch(mode=0o600)
    sync_folder(target)
    firsts = [first for first, _ in segment_files(target)]
    if firsts:  # retention may have deleted others meanwhile
        identity = replace(identity, first=max(identity.first, min(firsts)))
    identity.save(target / "log.json")  # last: only now the folder is a log
    sync_folder(target.parent)
    on_progress(total, total)
    return Copied(copied, done, damaged)


def begin_anew(folder: Folder) -> None:
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


def _copy(file: Path, target: Path) -> bool:
    """Copy a segment and its seal, if it has one; False if its bytes do not match the seal.

    Raises `FileNotFoundError` where the segment was deleted meanwhile.
    """
    for _ in range(_TRIES):
        try:
            seal = Seal.load(file)
        except FileNotFoundError:
            _copy_open(file, target)
            return True
        except DocumentDamaged:
            _copy_bytes(file, target)
            return False
        _copy_bytes(file, target)
        if tuple(digests_of(target)) == seal.digests:
            seal.save(target)
            return True
        # perhaps a purge replaced the segment at this moment: try again
    return False  # without a seal: recovery of the copy looks at each row


def _copy_bytes(file: Path, target: Path) -> None:
    """Copy a file that is not being changed, and sync the copy to disk."""
    with file.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing)
        writing.flush()
        os.fsync(writing.fileno())


def _copy_open(file: Path, target: Path) -> None:
    """Copy a snapshot of a segment that may be written meanwhile."""
    if not file.exists():
        raise FileNotFoundError(str(file))
    try:
        with closing(segment.read(file, is_sealed=False)) as reading, closing(sqlite3.connect(target)) as writing:
            reading.backup(writing)  # in one step: between several steps, each write would restart the backup
    except sqlite3.OperationalError:
        if file.exists():
            raise
        raise FileNotFoundError(str(file)) from None
    with target.open("rb") as written:
        os.fsync(written.fileno())
