"""Which file a path leads to: an open file can be deleted or moved, and what is written to it then is soon lost."""

from __future__ import annotations

import os
from pathlib import Path

Place = tuple[int, int]
"""A file's device and inode; no other file has the same as long as it is open."""


def place_of(file: Path | int) -> Place | None:
    """The place of the file at a path, or of an open one; None where there is no such path. Raises `OSError`."""
    try:
        found = file.stat() if isinstance(file, Path) else os.fstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
