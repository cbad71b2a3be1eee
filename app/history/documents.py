"""A small JSON file with a checksum, replaced as a whole: after a crash there is the old one or the new one.

For what a log knows about itself: its identity and its seals. Events are not kept so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DRAFT = "draft-"
"""How the names begin of files that are not finished; whoever opens the folder removes what a crash has left."""


class DocumentDamaged(Exception):
    """What the file says is not what was written."""


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Put `content` on disk under that name, whatever was there. Raises `OSError`, and then the old one may stay."""
    document = {"crc": crc32(orjson.dumps(content)), "content": content}
    draft = path.with_name(DRAFT + path.name)
    with draft.open("wb") as file:
        file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def load(path: Path) -> dict[str, Any]:
    """What was saved. Raises `DocumentDamaged`, `OSError`."""
    try:
        document = orjson.loads(path.read_bytes())
        content = document["content"]
        if document["crc"] == crc32(orjson.dumps(content)) and isinstance(content, dict):
            return content
    except (ValueError, TypeError, KeyError):  # no JSON, or other JSON
        pass
    raise DocumentDamaged(f"{path.name} is damaged")


def sync_folder(path: Path) -> None:
    """See on disk which files are in a folder; fsync of a file does not say so (fsync(2)). Raises `OSError`."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
