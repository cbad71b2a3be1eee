"""Whether a table's files are still what was committed, looked at before they are read.

Something else than Halley has taken them away then, or the disk has. Spark and Arrow have each their own words for
that; here it is one sentence, whoever reads.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from app.pipeline.errors import JobFailed
from app.pipeline.lake.tables import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class File(Protocol):
    """One that a table's log names."""

    @property
    def path(self) -> str:
        """Below the table's folder, or absolute."""

    @property
    def nbytes(self) -> int:
        """As the log has it."""


def amiss(root: Path, file: File) -> str | None:
    """What is wrong with a file of the table in that folder at first sight, in words; None where nothing is."""
    try:
        nbytes = (root / file.path).stat().st_size
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if nbytes == file.nbytes else f"has {nbytes} bytes, and should have {file.nbytes}"


def see(root: Path, files: Iterable[File]) -> None:
    """Raises `JobFailed` where one of these is not what was committed."""
    for file in files:
        told = amiss(root, file)
        if told is not None:
            raise _unsound(f"{root / file.path} {told}")


@contextmanager
def reading(root: Path, files: Iterable[File] = ()) -> Iterator[None]:
    """Around what reads a table's files. Raises `JobFailed` where they cannot be read."""
    see(root, files)
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise _unsound(f"{root} cannot be read: {first_line(error)}") from error


def _unsound(told: str) -> JobFailed:
    return JobFailed(f"{told}; halley pipeline verify names all that is wrong with the lake")
