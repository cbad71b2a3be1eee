"""Conditions on rows, and the files of a table that can hold such rows, by the statistics in the Delta log.

A condition may be weaker than the query's, never stronger: too many files may be read, never too few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from halley.pipeline.lake.tables import DAY_US, UNBOUNDED, File, to_us

Value = int | float | str | bool
"""A constant. Times and days are represented by microseconds."""

_TIMES_OF_DAY = ("time_us", "start_us")
"""The columns whose day is in the names of folders, where a table is partitioned by day."""


@dataclass(frozen=True, slots=True)
class Within:
    """A column's value is known, and lies between two values, which are included; None: without that bound."""

    column: str
    least: Value | None = None
    greatest: Value | None = None


@dataclass(frozen=True, slots=True)
class Null:
    """A column's value is null; a file is left out only if its statistics count no nulls there."""

    column: str


@dataclass(frozen=True, slots=True)
class Every:
    """All parts are true; always true without parts."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one part is true; never true without parts."""

    parts: tuple[Condition, ...]


Condition = Within | Null | Every | Some
ANYTHING = Every(())
"""The condition that is always true; also stands for one that cannot be analyzed."""


class Reading(NamedTuple):
    """The files of a table that a query reads, and the number and bytes of all its files (`of`, `of_bytes`)."""

    table: str
    files: list[File]
    of: int
    of_bytes: int

    def __str__(self) -> str:
        nbytes = sum(file.nbytes for file in self.files)
        return f"{self.table}: {len(self.files)} of {self.of} files, {nbytes:,} of {self.of_bytes:,} bytes"


def needed(name: str, files: Sequence[File], condition: Condition) -> Reading:
    """Return the files that can hold rows of which the condition is true."""
    chosen = [file for file in files if may_hold(file, condition)]
    return Reading(name, chosen, len(files), sum(file.nbytes for file in files))


def may_hold(file: File, condition: Condition) -> bool:
    """Whether a condition may be true of a row of a file; False only if that is certain."""
    match condition:
        case Every(parts):
            return all(may_hold(file, part) for part in parts)
        case Some(parts):
            return any(may_hold(file, part) for part in parts)
        case Null(column):
            return file.partition[column] is None if column in file.partition else file.nulls.get(column) != 0
        case Within(column, low, high):
            if column in file.partition and file.partition[column] is None:
                return False
            least, greatest = extent(file, column)
            return not (
                file.nulls.get(column) == file.rows
                or (low is not None and greatest is not None and greatest < low)
                or (high is not None and least is not None and least > high)
            )


def extent(file: File, column: str) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column in a file, each None if it is not known."""
    if column in file.partition:
        return file.partition[column], file.partition[column]
    least, greatest = file.least.get(column), file.greatest.get(column)
    day = file.partition.get("day")
    if least is None and column in _TIMES_OF_DAY and day is not None:
        return to_us(day), to_us(day) + DAY_US - 1
    return least, None if greatest == UNBOUNDED else greatest


def widened(condition: Condition, slack_us: int) -> Condition:
    """Return a condition that is also true of rows whose times are outside its bounds by up to `slack_us`."""
    match condition:
        case Within(column, low, high) if column.endswith("_us"):
            return Within(
                column,
                low - slack_us if isinstance(low, int) else low,
                high + slack_us if isinstance(high, int) else high,
            )
        case Every(parts) | Some(parts):
            return type(condition)(tuple(widened(part, slack_us) for part in parts))
        case _:
            return condition
