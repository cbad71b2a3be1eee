"""The files of a table, what its Delta log knows of each, and which of them a query needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from app.pipeline.lake import tables
from app.pipeline.lake.days import DAY_US, to_us
from app.pipeline.questions.conditions import Contents, Extent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from deltalake import DeltaTable

    from app.pipeline.questions.conditions import Condition

_LAST_CHAR = "\U0010ffff"


class File(NamedTuple):
    """One file of a table: where it is, its size, the values that its folders stand for, and what is in it."""

    path: str
    nbytes: int
    partition: Mapping[str, str | None]
    contents: Contents


class Reading(NamedTuple):
    """The files of a table that are read, out of all that it has."""

    table: str
    files: list[File]
    of: int
    of_bytes: int

    def __str__(self) -> str:
        nbytes = sum(file.nbytes for file in self.files)
        return f"{self.table}: {len(self.files)} of {self.of} files, {nbytes:,} of {self.of_bytes:,} bytes"


def files_of(folder: Path, table: DeltaTable, days: Mapping[str, str]) -> list[File]:
    """All files of a table in a folder, as it is now. `days`: of which moments a column of the partition is the day."""
    return [_file(folder, file, days) for file in tables.files_of(table)]


def needed(name: str, files: list[File], condition: Condition) -> Reading:
    """Those that can hold rows of which the condition is true."""
    chosen = [file for file in files if condition.may_hold(file.contents)]
    return Reading(name, chosen, len(files), sum(file.nbytes for file in files))


def _file(folder: Path, file: tables.File, days: Mapping[str, str]) -> File:
    names = {*file.least, *file.greatest, *file.nulls}
    columns = {
        name: Extent(file.least.get(name), _bound(file.greatest.get(name)), file.nulls.get(name)) for name in names
    }
    for name, value in file.partition.items():
        if name not in days:
            columns[name] = Extent(value, value, file.rows if value is None else 0)
        elif value is not None and columns.get(days[name], Extent()).least is None:
            start_us = to_us(value)
            columns[days[name]] = Extent(start_us, start_us + DAY_US - 1)
    return File(str(folder / file.path), file.nbytes, file.partition, Contents(file.rows, columns))


def _bound(greatest: Any) -> Any:
    """What no text is greater than, if that is so: the last character alone is all that could be said of some."""
    return None if greatest == _LAST_CHAR else greatest
