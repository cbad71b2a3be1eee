"""The file of `halley history export`. It ends with a whole row, so that the next export can continue it.

A write that fails, on a full disk for example, may have written a part of its rows. What follows the last batch that
was written as a whole is cut off, also where standard output is a file.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import mmap
import os
import stat
from contextlib import suppress

from halley.cli.terminal import STDOUT, write_all
from halley.client import ClientError


class ExportFile:
    """The file `target`, or standard output if that is `-`.

    With `first`, an offset, rows are appended from it on; else there must be no file yet.
    """

    def __init__(self, target: str, first: int | None) -> None:
        """Open the file. Raises `OSError`, and `ClientError` where `first` does not follow what it has."""
        self._name = None if target == "-" else target
        how = os.O_EXCL if first is None else os.O_APPEND
        self._number = STDOUT if self._name is None else os.open(self._name, os.O_RDWR | os.O_CREAT | how, 0o600)
        self._is_torn = False
        self._end = 0  # of what was written as a whole
        try:
            self._is_regular = stat.S_ISREG(os.fstat(self._number).st_mode)
            if self._is_regular and self._name is not None and first is not None:
                self._continue(self._name, first)
            if self._is_regular:
                is_appended = fcntl.fcntl(self._number, fcntl.F_GETFL) & os.O_APPEND
                self._end = os.lseek(self._number, 0, os.SEEK_END if is_appended else os.SEEK_CUR)
        except BaseException:
            self._close()
            raise

    def _continue(self, name: str, first: int) -> None:
        """Cut off a row in which an earlier export was killed, and check that `first` follows what is left."""
        if not os.fstat(self._number).st_size:
            return
        with mmap.mmap(self._number, 0, access=mmap.ACCESS_READ) as text:
            end = text.rfind(b"\n") + 1
            line = text[text.rfind(b"\n", 0, max(end - 1, 0)) + 1 : end]
        try:
            last = json.loads(line)["offset"] if line else 0
            is_behind = first > last
        except (ValueError, TypeError, KeyError):
            raise ClientError(f"{name} is not an export: its last line is not a row") from None
        if not is_behind:
            raise ClientError(f"{name} has the rows up to {last} already: continue with --from-offset {last + 1}")
        os.ftruncate(self._number, end)

    async def write(self, lines: list[str]) -> None:
        """Write rows. Raises `OSError`."""
        self._is_torn = True
        writing = asyncio.create_task(write_all(self._number, "".join(f"{line}\n" for line in lines).encode()))
        try:
            await asyncio.shield(writing)
        except OSError as error:
            error.filename = self._name
            raise
        except asyncio.CancelledError:
            if self._is_regular:  # nothing may be written behind what is cut off; a pipe's reader may never read again
                with suppress(OSError):
                    await writing
            raise
        if self._is_regular:
            self._end = os.lseek(self._number, 0, os.SEEK_CUR)
        self._is_torn = False

    def close(self) -> None:
        """Cut off what was not written as a whole, and wait until the rest is on disk.

        Raises `OSError`; then it is unknown which rows the file has.
        """
        try:
            if self._is_regular:
                if self._is_torn:
                    os.ftruncate(self._number, self._end)
                    os.lseek(self._number, self._end, os.SEEK_SET)
                os.fsync(self._number)
        except OSError as error:
            error.filename = self._name
            raise
        finally:
            self._close()

    def _close(self) -> None:
        if self._name is not None:
            os.close(self._number)
