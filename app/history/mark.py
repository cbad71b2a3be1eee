"""The mark: a small file with the last committed offset, outside of the segments.

A WAL whose end is torn off looks like one that ended there. By the mark recovery sees after a crash that rows are
missing. It is written for each group but not synced: after a power loss it may be too low, never too high.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from zlib import crc32

_NUMBERS = struct.Struct("<QQ")
_CRC = struct.Struct("<I")


class Mark:
    """The open mark: `offset`, the last committed one, and `number`, of its publication; both are 0 if unknown.

    For the number of a publication see `broker/publications.py`.
    """

    def __init__(self, path: Path) -> None:
        """Open the mark at `path`, or create it. Raises `OSError`."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.offset = self.number = 0
        found = os.pread(self._file, _NUMBERS.size + _CRC.size, 0)
        if found[_NUMBERS.size :] == _CRC.pack(crc32(found[: _NUMBERS.size])):
            self.offset, self.number = _NUMBERS.unpack_from(found)

    def write(self, offset: int, number: int) -> None:
        """Set the mark, without fsync. Raises `OSError`."""
        self.offset, self.number = offset, number
        numbers = _NUMBERS.pack(offset, number)
        os.pwrite(self._file, numbers + _CRC.pack(crc32(numbers)), 0)

    def move_to(self, path: Path) -> None:
        """Go on in another file, and write the numbers to it. Raises `OSError`."""
        before, self._file = self._file, os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.close(before)
        self.write(self.offset, self.number)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> int | None:
    """The last committed offset, for a reader that does not open the log; None if damaged. Raises `OSError`."""
    found = path.read_bytes()
    if found[_NUMBERS.size :] != _CRC.pack(crc32(found[: _NUMBERS.size])):
        return None
    offset: int = _NUMBERS.unpack_from(found)[0]
    return offset
