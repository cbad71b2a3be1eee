"""Small JSON files with a checksum, replaced as a whole: after a crash either the old or the new one is there.

Used for a log's identity, its seals and its consumers; events are stored in segments. Here is also what all files of a
log have in common: drafts, who may read them, the sync of a folder, and the place that a path leads to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import orjson

DRAFT = "draft-"
"""The prefix of unfinished files' names; opening the folder (`recovery.py`) removes those that a crash has left."""


class DocumentDamaged(Exception):
    """The content of a document is not what was written."""


def save(path: Path, content: Mapping[str, Any], *, is_private: bool = True) -> None:
    """Replace the document at `path` by `content`, and sync it to disk. Raises `OSError`; the old one may stay then.

    Unless it `is_private`, the umask says who may read it.
    """
    document = {"crc": crc32(orjson.dumps(content)), "content": content}
    text = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    synced(path.with_name(DRAFT + path.name), text, is_private=is_private).replace(path)
    sync_folder(path.parent)


def load(path: Path) -> dict[str, Any]:
    """The content of the document at `path`. Raises `DocumentDamaged`, `OSError`."""
    try:
        document = orjson.loads(path.read_bytes())
        content = document["content"]
        if document["crc"] == crc32(orjson.dumps(content)) and isinstance(content, dict):
            return content
    except (ValueError, TypeError, KeyError):  # not JSON, or not a document
        pass
    raise DocumentDamaged(f"{path.name} is damaged")


_PRIVATE = 0o600


def private(path: Path) -> BinaryIO:
    """Open a file, new or emptied, to be written; only its owner may read it, also in an open folder.

    Raises `OSError`.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    os.fchmod(number, _PRIVATE)  # of a file that was there
    return os.fdopen(number, "wb")


def make_private(files: Iterable[Path]) -> None:
    """Take away everybody's rights to these files except the owner's, where this process may and they exist.

    Earlier versions left it to the umask who may read them, and files may be copied from elsewhere.
    """
    for file in files:
        with suppress(OSError):  # another user's file, or a file system without modes
            mode = file.stat().st_mode
            if mode & 0o077:
                file.chmod(mode & 0o700)


def synced(path: Path, content: bytes, *, is_private: bool = True) -> Path:
    """Write a whole file, and sync it to disk; returns its path. Raises `OSError`."""
    with private(path) if is_private else path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def sync_folder(path: Path) -> None:
    """Sync a folder's entries to disk; fsync of a file does not include them (fsync(2)). Raises `OSError`."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


Place = tuple[int, int]
"""A file's device and inode; no other file has the same as long as it is open."""


def place_of(file: Path | int) -> Place | None:
    """The place of the file at a path, or of an open one; None where there is no such path. Raises `OSError`.

    An open file can be deleted or moved, and what is written to it then is soon lost.
    """
    try:
        found = file.stat() if isinstance(file, Path) else os.fstat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
