"""Folders for files that are not yet a part of a table, next to the tables' folders.

A folder is deleted when its work is done. The folder of a killed process is recognized by its lock, which is not held,
and is deleted when the next work begins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from app.pipeline.lake.tables import refusal


@contextmanager
def staged(lake: Path) -> Iterator[Path]:
    """Make a new folder on the disk of the tables, and delete it at the end of the block. Raises `Refused`."""
    staging = lake / ".staging"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        _sweep(staging)
        folder = staging / uuid4().hex
        number = _lock(folder.with_suffix(".lock"))
    except OSError as error:
        raise refusal(lake, error) from error
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.with_suffix(".lock").unlink()
        os.close(number)


def _lock(path: Path) -> int:
    """Make a locked file, which gets its name only then, so that a sweep does not take it for a dead process's."""
    draft = path.with_suffix(".draft")
    number = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        draft.rename(path)
    except BaseException:
        os.close(number)
        raise
    return number


def _sweep(staging: Path) -> None:
    """Delete the folders of processes that have ended."""
    for folder in staging.iterdir():
        if folder.suffix == ".lock":
            with suppress(OSError):
                _remove_if_dead(folder)
        elif not folder.suffix and not folder.with_suffix(".lock").exists():
            shutil.rmtree(folder, ignore_errors=True)  # made again by a worker that outlived its master


def _remove_if_dead(lock: Path) -> None:
    number = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink()
    finally:
        os.close(number)
