"""The files of a table with their statistics from the Delta log, and the files that a query needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from app.pipeline.lake import tables
from app.pipeline.lake.tables import DAY_US, to_us
from app.pipeline.queries.conditions import Condition, Contents, Extent

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LAST_CHAR = "\U0010ffff"


class File(NamedTuple):
    """One file of a table: its path, its size, the partition columns that its folders encode, and its statistics."""

    path: str
    nbytes: int
    partition: Mapping[str, str | None]
    contents: Contents


class Reading(NamedTuple):
    """The files of a table that a query reads, and the number and bytes of all its files (`of`, `of_bytes`)."""

    table: str
    files: list[File]
    of: int
    of_bytes: int

    def __str__(self) -> str:
        nbytes = sum(file.nbytes for file in self.files)
        return f"{self.table}: {len(self.files)} of {self.of} files, {nbytes:,} of {self.of_bytes:,} bytes"


def files_of(folder: Path, table: DeltaTable, days: Mapping[str, str]) -> list[File]:
    """Return all files of a table, whose folder is `folder`.

    `days` maps a partition column that is a day to the column with the time.
    """
    return [_file(folder, file, days) for file in tables.files_of(table)]


def needed(name: str, files: list[File], condition: Condition) -> Reading:
    """Return the files that can hold rows of which the condition is true."""
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
    """The greatest value; None if it is only the last character, which is written if there is no real bound."""
    return None if greatest == _LAST_CHAR else greatest
