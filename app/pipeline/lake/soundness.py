"""The check that a table's files are still what was committed, before they are read.

Another program or the disk may have lost or changed them. Spark and Arrow each report that in their own way; with this
check the message is the same for every reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from app.pipeline.errors import JobFailed
from app.pipeline.lake.tables import first_line


class File(Protocol):
    """A file that a table's log names."""

    @property
    def path(self) -> str:
        """The path, absolute or below the table's folder."""

    @property
    def nbytes(self) -> int:
        """The size in bytes that the log says."""


def fault_of(root: Path, file: File) -> str | None:
    """Return what is wrong with a file of the table in the folder `root`, in words; None if it exists with its size."""
    try:
        nbytes = (root / file.path).stat().st_size
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if nbytes == file.nbytes else f"has {nbytes} bytes instead of {file.nbytes}"


def check_files(root: Path, files: Iterable[File]) -> None:
    """Raise `JobFailed` if one of these files is missing or has another size than was committed."""
    for file in files:
        told = fault_of(root, file)
        if told is not None:
            raise _unsound(f"{root / file.path} {told}")


@contextmanager
def translate_read_errors(root: Path, files: Iterable[File] = ()) -> Iterator[None]:
    """Check files, and raise `JobFailed` if they, or those that the block reads, cannot be read."""
    check_files(root, files)
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise _unsound(f"{root} cannot be read: {first_line(error)}") from error


def _unsound(told: str) -> JobFailed:
    return JobFailed(f"{told}; halley pipeline verify reports everything that is wrong with the lake")
