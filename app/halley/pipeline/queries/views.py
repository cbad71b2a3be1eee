"""The tables of the lake as queries see them: the stored columns, and computed ones that are easier to read.

channel   the topic's channel, as Bayeux writes it
name      the topic's name as the publisher's protocol writes it
time ...  for each column that ends in `_us` a timestamp, named without that ending
day       the tables' column `day`, which is computed, since it is only in the names of folders
traceparent  the trace in which an event was published, which is one of its details
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Literal, NamedTuple

from deltalake import Schema
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from halley.broker.traceparent import IN_BAYEUX, IN_WAMP
from halley.pipeline import session
from halley.pipeline.errors import JobFailed, no_lake
from halley.pipeline.lake.dictionary import meaning
from halley.pipeline.lake.place import Where, fetch
from halley.pipeline.lake.tables import TABLES, File, LakeTable, first_line, open_all, open_table, path
from halley.pipeline.queries import names
from halley.pipeline.queries.skipping import Condition, Every, Null, Some, Within

_DAY_OF = {"events": "time_us", "rollups": "start_us"}
_NAMES: tuple[Literal["channel", "name"], ...] = ("channel", "name")


class Computed(NamedTuple):
    """How a column is computed from the stored column `source`; a name depends on the column `protocol`, too."""

    kind: Literal["channel", "name", "traceparent", "time", "day"]
    source: str

    def of_row(self) -> Column:
        """Return the value as an expression."""
        if self.kind == "channel":
            return names.channel(f.col(self.source))
        if self.kind == "name":
            return names.name_of(f.col(self.source), f.col("protocol"))
        if self.kind == "traceparent":
            return f.coalesce(*(f.get_json_object(f.col(self.source), f"$.{name}") for name in (IN_BAYEUX, IN_WAMP)))
        time = f.timestamp_micros(f.col(self.source))
        return time.cast("date") if self.kind == "day" else time


class View(NamedTuple):
    """The view of one table.

    name      the table's name
    folder    the table's folder
    table     the Delta table; None if it does not exist
    stored    the table's columns, with Spark's types
    computed  the computed columns, by name
    """

    name: str
    folder: Where
    table: LakeTable | None
    stored: StructType
    computed: Mapping[str, Computed]

    @property
    def schema(self) -> StructType:
        """All columns in order, each with its meaning as a comment."""
        computed = [
            StructField(name, TimestampType() if each.kind == "time" else StringType())
            for name, each in self.computed.items()
            if name not in self.stored.names
        ]
        return StructType(
            [
                StructField(field.name, field.dataType, metadata={"comment": meaning(self.name, field.name)})
                for field in (*self.stored.fields, *computed)
            ]
        )

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order."""
        return [*dict.fromkeys([*self.stored.names, *self.computed])]

    def files(self) -> list[File]:
        """The files of the table; empty if it does not exist."""
        return [] if self.table is None else self.table.data_files()

    def empty(self, spark: SparkSession, folder: Path) -> DataFrame:
        """A frame with the same columns, none of them computed, over a folder without files."""
        return spark.read.schema(self.schema).parquet(folder.as_uri())

    def rows(self, spark: SparkSession, files: Sequence[File], condition: Condition) -> DataFrame:
        """The rows of these files of which the condition is true, by which Parquet's reader skips parts of files."""
        if files:
            folder = _on_disk(self.folder, files)
            # With `basePath` Spark takes the partition's columns from the folders' names.
            reader = spark.read.schema(self.stored).options(basePath=str(folder), __globPaths__="false")
            whole = reader.parquet(*(str(folder / file.path) for file in files))
        else:
            whole = spark.range(0).select(
                [f.lit(None).cast(field.dataType).alias(field.name) for field in self.stored.fields]
            )
        return whole.filter(as_column(condition)).select(
            [
                self.computed[name].of_row().alias(name) if name in self.computed else f.col(name)
                for name in self.columns
            ]
        )


def views_of(lake: Where, tables: Iterable[str]) -> dict[str, View]:
    """Return views of these tables, by name; a table that does not exist yet has no rows.

    Raises `JobRejected`, also if there is no lake.
    """
    views = {name: view_of(path(lake, name), open_table(lake, name)) for name in tables}
    if views and all(each.table is None for each in views.values()) and not open_all(lake):
        raise no_lake(lake)
    return views


def _on_disk(folder: Where, files: Sequence[File]) -> Path:
    """Return a folder of this machine with these files: Spark has no reader for a store, so they are copied from there.

    The copies are deleted when this process ends. Raises `JobFailed`.
    """
    if isinstance(folder, Path):
        return folder
    copies = session.temporary_folder() / "lake" / folder.key
    try:
        fetch(folder, [file.path for file in files], copies)
    except OSError as error:
        raise JobFailed(f"{folder} cannot be copied to {copies}: {first_line(error)}") from error
    return copies


def as_column(condition: Condition) -> Column:
    """Return a condition as an expression."""
    match condition:
        case Within(column, low, high):
            bounds = [f.col(column).isNotNull()]
            if low is not None:
                bounds.append(f.col(column) >= low)
            if high is not None:
                bounds.append(f.col(column) <= high)
            return reduce(and_, bounds)
        case Null(column):
            return f.col(column).isNull()
        case Every(parts):
            return reduce(and_, map(as_column, parts), f.lit(True))  # noqa: FBT003 - a value
        case Some(parts):
            return reduce(or_, map(as_column, parts), f.lit(False))  # noqa: FBT003 - a value


def view_of(folder: Where, table: LakeTable | None) -> View:
    """Return the view of a table, by its folder; `table` is None if the table does not exist."""
    name = folder.name
    columns = TABLES[name].columns if table is None else table.columns()
    computed = {"day": Computed("day", _DAY_OF[name])} if name in _DAY_OF else {}
    if "topic" in columns.names:
        for kind in _NAMES:
            if kind not in columns.names:
                computed[kind] = Computed(kind, "topic")
    for each in columns.names:
        if each.endswith("_us") and each.removesuffix("_us") not in columns.names:
            computed[each.removesuffix("_us")] = Computed("time", each)
    if "details" in columns.names and "traceparent" not in columns.names:
        computed["traceparent"] = Computed("traceparent", "details")
    stored = StructType.fromJson(json.loads(Schema.from_arrow(columns).to_json()))
    return View(name, folder, table, stored, computed)
