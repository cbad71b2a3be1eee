"""Conditions on the rows of a table, as SQL, and the files of the table that can hold such rows.

The same text goes to delta-rs, which compares it with the statistics in the table's log (`file_uris`), and to Spark,
whose reader of Parquet passes over parts of files by it. A condition may be weaker than the query's, never stronger:
too many files may be read, never too few.

Where delta-rs (1.6) does less than it seems to: it takes no LIKE, so a beginning is two bounds. Its time grows with the
square of the number of parts of an AND or OR (a second for 1,000), so a list of values is an IN, of which it takes
thousands at once, and what has more than `MOST_PARTS` parts is made weaker. Its parser takes about 50 nested
parentheses; for what it refuses, all files are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from halley.pipeline.lake.tables import File, LakeTable

Value = int | float | str | bool
"""A constant. Times are represented by microseconds."""

ANYTHING, NOTHING = "true", "false"
"""The conditions that are always and never true; `ANYTHING` also stands for one that cannot be analyzed."""

MOST_PARTS = 100


class ScanPlan(NamedTuple):
    """The files of a table that a query reads, and the number and bytes of all its files (`of`, `of_bytes`)."""

    table: str
    files: list[File]
    of: int
    of_bytes: int

    def __str__(self) -> str:
        nbytes = sum(file.nbytes for file in self.files)
        return f"{self.table}: {len(self.files)} of {self.of} files, {nbytes:,} of {self.of_bytes:,} bytes"


def plan_scan(name: str, table: LakeTable | None, condition: str) -> ScanPlan:
    """Return the files that can hold rows of which the condition is true; none if there is no table."""
    files = [] if table is None else table.data_files()
    chosen = files if table is None or condition == ANYTHING else _chosen(table, files, condition)
    return ScanPlan(name, chosen, len(files), sum(file.nbytes for file in files))


def _chosen(table: LakeTable, files: list[File], condition: str) -> list[File]:
    try:
        uris = table.file_uris(file_pruning_predicate=condition)
    except DeltaError:  # it is nested too deeply
        return files
    root = table.table_uri.removeprefix("file://")
    paths = {unquote(uri.removeprefix(root)) for uri in uris}
    chosen = [file for file in files if file.path in paths]
    return chosen if len(chosen) == len(paths) else files


def between(column: str, least: Value | None = None, greatest: Value | None = None) -> str:
    """The condition that a value is known, and lies between two values, which are included; None: without a bound."""
    bounds = [
        f"`{column}` {relation} {_literal(value)}"
        for relation, value in ((">=", least), ("<=", greatest))
        if value is not None
    ]
    return and_(bounds) if bounds else f"`{column}` is not null"


def is_in(column: str, values: Iterable[Value]) -> str:
    """The condition that a value is one of several."""
    wanted = [*dict.fromkeys(values)]
    if len(wanted) == 1:
        return between(column, wanted[0], wanted[0])
    return f"`{column}` in ({', '.join(map(_literal, wanted))})" if wanted else NOTHING


def and_(parts: Iterable[str]) -> str:
    """The condition that all parts are true; always true without parts."""
    wanted = [*dict.fromkeys(part for part in parts if part != ANYTHING)]
    return NOTHING if NOTHING in wanted else " and ".join(wanted[:MOST_PARTS]) or ANYTHING


def or_(parts: Iterable[str]) -> str:
    """The condition that at least one part is true; never true without parts."""
    wanted = [*dict.fromkeys(part for part in parts if part != NOTHING)]
    if ANYTHING in wanted or len(wanted) > MOST_PARTS:
        return ANYTHING
    return f"({' or '.join(wanted)})" if len(wanted) > 1 else "".join(wanted) or NOTHING


def _literal(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else repr(value)
