"""The columns and the layout of the lake's tables, the lengths of windows, and times as the tables have them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa

from halley.pipeline.errors import JobRejected
from halley.pipeline.source.columns import ColumnExtraction, arrow_schema, types_of

SKIPPED = ("stats/", "alerts/", "halley/", "replay/")
"""The beginnings of topics that the server and the pipeline publish to: rolling those up would never end."""

DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

STORED = arrow_schema(types_of(ColumnExtraction(""), with_faults=False))
"""The columns of a stored event, with Arrow's types."""

_FIGURES_BEFORE = pa.struct(
    [("count", pa.int64()), *((name, pa.float64()) for name in ("min", "mean", "max", "p50", "p95", "p99"))]
)
_FIGURES = pa.struct([*_FIGURES_BEFORE, ("min_long", pa.int64()), ("max_long", pa.int64())])
_TYPES: Mapping[str, pa.DataType] = {
    "double": pa.float64(),
    "long": pa.int64(),
    "string": pa.string(),
    "date": pa.date32(),
    "figures": pa.map_(pa.string(), _FIGURES),
}


def _columns(text: str) -> pa.Schema:
    """Return columns that are given as in SQL: "offset long, topic string"."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in (each.split() for each in text.split(", "))])


class TableSchema(NamedTuple):
    """The columns and the layout of a table.

    columns       the columns of all rows; events also have lifted columns
    partition_by  the columns whose values are in the names of folders instead of in files
    sorted_by     the order within a file, chosen so that statistics distinguish most files
    statistics    the text columns with statistics of each file; numbers and lifted texts always have some
    ordered_by    the column by which files are ordered
    """

    columns: pa.Schema
    partition_by: tuple[str, ...]
    sorted_by: tuple[str, ...]
    statistics: tuple[str, ...]
    ordered_by: str


class WindowSize(NamedTuple):
    """Windows of one length, aligned to 1970; `name` stands for the length in channels and tables."""

    name: str
    length_us: int

    def start_us(self, time_us: int) -> int:
        """Return the start of the window in which a time lies, both in microseconds since 1970."""
        return time_us - time_us % self.length_us


ALERT = "at_us long, topic string, protocol string, kind string, rate double, usual double, offset long"
"""The columns of the table `alerts`, for Spark too."""

KINDS = (WindowSize("10s", 10_000_000), WindowSize("1m", 60_000_000))
"""The kinds of windows; each length is a multiple of the one before, so that long windows are made of short ones."""


TABLES: Mapping[str, TableSchema] = {
    # Every stored event that the lake can hold. `day` is the day of `time_us` in UTC.
    "events": TableSchema(
        STORED.append(pa.field("day", pa.date32())),
        ("day", "protocol"),
        ("topic", "offset"),
        ("topic", "shape"),  # publishers' bounds would stay in the table's log after an erasure
        "offset",
    ),
    # Offsets `first` to `last` that the log has and the lake does not, and why. `row` is the row as JSON, where it is
    # known and sound.
    "rejected": TableSchema(
        _columns("first long, last long, reason string, time_us long, publication long, protocol string, row string"),
        (),
        ("first",),
        ("reason", "protocol"),
        "first",
    ),
    # Offsets that the log has lost: `reason` is "hole" where it has recorded that itself, else "missing".
    "gaps": TableSchema(
        _columns("first long, last long, reason string, found_us long"), (), ("first",), ("reason",), "first"
    ),
    # In how many `events` of the offsets `first` to `last`, a batch of ingest, a lifted column could take nothing,
    # although there was a value, which was of the `kind` string, long, double, boolean, array or object.
    "mismatches": TableSchema(
        _columns(
            "first long, last long, column_name string, column_type string, kind string, events long, found_us long"
        ),
        (),
        ("first",),
        ("column_name", "kind"),
        "first",
    ),
    # One row for each window ("10s" or "1m"), channel and protocol; `numbers` by the name of the lifted column, of
    # which a long also has its exact bounds, `min_long` and `max_long`.
    "rollups": TableSchema(
        _columns(
            "window string, start_us long, end_us long, topic string, protocol string, events long, bytes long, "
            "publishers long, numbers figures, day date"
        ),
        ("day",),
        ("topic", "window", "start_us"),
        ("window", "topic", "protocol"),
        "start_us",
    ),
    # One row for each session that has ended; the key is `session` and `opened_us`.
    "sessions": TableSchema(
        _columns(
            "session string, protocol string, authid string, role string, address string, opened_us long, "
            "closed_us long, length_s double, reason string, reconnects long, first_offset long, last_offset long"
        ),
        (),
        ("opened_us",),
        ("protocol", "reason"),
        "opened_us",
    ),
    # `kind` is "spike", "silence" or "recovered"; rates are events a second.
    "alerts": TableSchema(_columns(ALERT), (), ("at_us",), ("topic", "protocol", "kind"), "at_us"),
}


BEFORE = {("rollups", "numbers"): str(pa.map_(pa.string(), _FIGURES_BEFORE))}
"""Types that columns had in tables of earlier versions: `create` adds the fields that they lack."""


def lifted_columns(types: Mapping[str, str]) -> pa.Schema:
    """Return the lifted columns of the settings, given by name and type (`source/columns.py`), as a schema.

    Raises `JobRejected` if one has the name of a column of a stored event.
    """
    for name in types:
        if name in TABLES["events"].columns.names:
            raise JobRejected(f"[[lift]] column {name}: the table events has a column of that name; choose another")
    return arrow_schema(types)


def bounded_columns(shape: TableSchema, columns: pa.Schema) -> list[str]:
    """Return those of a table's or file's columns that have statistics.

    Delta takes no columns of partitions, and no booleans. Payloads and publishers are left out, since what was erased
    would stay in the table's log.
    """

    def is_bounded(column: pa.Field) -> bool:
        if pa.types.is_string(column.type):
            is_text = column.name in shape.statistics or column.name not in shape.columns.names
            return is_text and column.name not in shape.partition_by
        return bool(pa.types.is_integer(column.type) or pa.types.is_floating(column.type))

    return [each.name for each in columns if is_bounded(each)]


def to_us(text: str) -> int:
    """Return the microseconds since 1970 of a time in UTC, or of a day's start, in ISO 8601. Raises `ValueError`."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
