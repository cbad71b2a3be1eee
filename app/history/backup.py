"""A copy of a log, made while a server goes on writing it: everything up to the moment when it was begun.

Sealed segments never change, so they are copied as files; the one that is being written is copied by SQLite, as it is
at one moment, and before the others. The copy is marked: a server that opens it begins a log of its own, with a new
`log_id`, since what happens to it from then on is not what happens to the original. For the same reason consumers stay
behind: they read the original, and the copy waits for nobody.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from app.history import consumers, segment
from app.history.documents import DocumentDamaged, sync_folder
from app.history.folder import FolderUnusable, Identity, segment_files
from app.history.seals import Seal, digests_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from app.history.folder import Folder

MARK = "backup"
"""The empty file by which a copy is known for one."""

_TRIES = 3


class Copied(NamedTuple):
    """How much was copied, and which files were copied as they are although they are not what was sealed."""

    segments: int
    nbytes: int
    damaged: list[str]


def backup(source: Path, target: Path, tell: Callable[[int, int], None] = lambda _done, _of: None) -> Copied:
    """Copy the log in a folder into an empty or new one; `tell` hears how many bytes are done, and of how many.

    Raises `FolderUnusable`, `OSError`, `sqlite3.Error`; what was copied until then has no `log.json`, so no server
    takes it for a log.
    """
    try:
        identity = Identity.load(source / "log.json")
    except (OSError, DocumentDamaged) as error:
        raise FolderUnusable(f"there is no log in {source} that could be copied: {error}") from None
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise FolderUnusable(f"{target} is not empty")
    files = segment_files(source)
    total = sum(_size(file) for _, file in files)
    done, damaged, copied = 0, [], 0
    for _, file in reversed(files):  # the newest first: it ends here and now
        try:
            is_as_sealed = _copy(file, target / file.name)
        except FileNotFoundError:
            break  # retention has taken it, and so all that is older
        copied += 1
        done += _size(target / file.name)
        if not is_as_sealed:
            damaged.append(file.name)
        tell(min(done, total), total)
    (target / MARK).touch(mode=0o600)
    sync_folder(target)
    identity.save(target / "log.json")  # last: now it is a log
    sync_folder(target.parent)
    tell(total, total)
    return Copied(copied, done, damaged)


def begin_anew(folder: Folder) -> None:
    """Give the log in a folder that is a backup an identity of its own. Raises `OSError`.

    A crash before the mark is gone leads to one more identity that nobody has seen.
    """
    mark = folder.path / MARK
    if mark.exists():
        old = folder.identity
        folder.identity = replace(old, log_id=secrets.token_hex(16), ancestors=(*old.ancestors, old.log_id))
        folder.identity.save(folder.path / "log.json")
        consumers.forget_all(folder.path)  # of a log that was in this folder before, or if somebody has copied it all
        mark.unlink()
        sync_folder(folder.path)


def _copy(file: Path, target: Path) -> bool:
    """Copy a segment, with its seal if it has one; False if it is not what was sealed. Raises `FileNotFoundError`."""
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
        # perhaps a purge has replaced it in this moment
    return False  # without a seal: whoever opens the copy looks at each row


def _copy_bytes(file: Path, target: Path) -> None:
    """Copy a file that nobody changes, and see it on disk."""
    with file.open("rb") as reading, target.open("wb") as writing:
        shutil.copyfileobj(reading, writing)
        writing.flush()
        os.fsync(writing.fileno())


def _copy_open(file: Path, target: Path) -> None:
    """Copy a segment that may be written meanwhile, as it is at one moment."""
    if not file.exists():
        raise FileNotFoundError(str(file))
    try:
        with closing(segment.read(file, is_sealed=False)) as reading, closing(sqlite3.connect(target)) as writing:
            reading.backup(writing)  # in one step: in several, whatever is written between begins it anew
    except sqlite3.OperationalError:
        if file.exists():
            raise
        raise FileNotFoundError(str(file)) from None
    with target.open("rb") as written:
        os.fsync(written.fileno())


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
