"""The mark: the last committed offset, kept outside of the segments.

A WAL whose end is torn off looks like one that has ended there. The mark tells after a crash that something is missing.
It is written for each group but never waited for: after a power loss it may say too little, never too much.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from pathlib import Path

_NUMBERS = struct.Struct("<QQ")
_CRC = struct.Struct("<I")


class Mark:
    """`offset` was the last one, `number` that of its publication (`broker/publications.py`); 0 and 0 if unknown."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError`."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.offset = self.number = 0
        found = os.pread(self._file, _NUMBERS.size + _CRC.size, 0)
        if found[_NUMBERS.size :] == _CRC.pack(crc32(found[: _NUMBERS.size])):
            self.offset, self.number = _NUMBERS.unpack_from(found)

    def write(self, offset: int, number: int) -> None:
        """Move it. Raises `OSError`."""
        self.offset, self.number = offset, number
        numbers = _NUMBERS.pack(offset, number)
        os.pwrite(self._file, numbers + _CRC.pack(crc32(numbers)), 0)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read(path: Path) -> int | None:
    """The last committed offset, for whoever does not write; None where that cannot be told. Raises `OSError`."""
    found = path.read_bytes()
    if found[_NUMBERS.size :] != _CRC.pack(crc32(found[: _NUMBERS.size])):
        return None
    offset: int = _NUMBERS.unpack_from(found)[0]
    return offset
