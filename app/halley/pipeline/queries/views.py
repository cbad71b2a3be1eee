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
from pathlib import Path
from typing import Literal, NamedTuple

from deltalake import Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from halley.broker.traceparent import IN_BAYEUX, IN_WAMP
from halley.pipeline import session
from halley.pipeline.errors import JobFailed, no_lake
from halley.pipeline.lake.dictionary import meaning
from halley.pipeline.lake.place import LakePath, fetch
from halley.pipeline.lake.shapes import TABLES
from halley.pipeline.lake.sources import LABELS
from halley.pipeline.lake.tables import File, LakeTable, first_line, open_all, open_table, path
from halley.pipeline.queries import names
from halley.pipeline.queries.conditions import ScanPlan, plan_scan

_DAY_OF = {"events": "time_us", "rollups": "start_us"}
_NAMES: tuple[Literal["channel", "name"], ...] = ("channel", "name")


class Computed(NamedTuple):
    """How a column is computed from the stored column `source`; a name depends on the column `protocol`, too."""

    kind: Literal["channel", "name", "traceparent", "time", "day"]
    source: str

    def of_row(self) -> str:
        """Return the value as an expression in SQL."""
        if self.kind == "channel":
            return names.channel(self.source)
        if self.kind == "name":
            return names.name_of(self.source, "protocol")
        if self.kind == "traceparent":
            found = (f"get_json_object({self.source}, '$.{name}')" for name in (IN_BAYEUX, IN_WAMP))
            return f"coalesce({', '.join(found)})"
        time = f"timestamp_micros({self.source})"
        return f"date({time})" if self.kind == "day" else time


class View(NamedTuple):
    """The view of one table.

    name      the table's name
    folder    the table's folder
    table     the Delta table; None if it does not exist
    stored    the table's columns, with Spark's types
    computed  the computed columns, by name
    """

    name: str
    folder: LakePath
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

    def needed(self, condition: str) -> ScanPlan:
        """The files that can hold rows of which a condition is true."""
        return plan_scan(self.name, self.table, condition)

    def empty(self, spark: SparkSession, folder: Path) -> DataFrame:
        """A frame with the same columns, none of them computed, over a folder without files."""
        return spark.read.schema(self.schema).parquet(folder.as_uri())

    def rows(self, spark: SparkSession, files: Sequence[File], condition: str) -> DataFrame:
        """The rows of these files of which the condition is true, by which Parquet's reader skips parts of files."""
        if files:
            folder = _on_disk(self.folder, files)
            # With `basePath` Spark takes the partition's columns from the folders' names.
            reader = spark.read.schema(self.stored).options(basePath=str(folder), __globPaths__="false")
            whole = reader.parquet(*(str(folder / file.path) for file in files))
        else:
            nulls = (f"cast(null as {field.dataType.simpleString()}) `{field.name}`" for field in self.stored.fields)
            whole = spark.range(0).selectExpr(*nulls)
        # Each function of PySpark is some calls of Java; a text is one.
        return whole.filter(in_spark(condition)).selectExpr(
            *(
                f"{self.computed[name].of_row()} `{name}`" if name in self.computed else f"`{name}`"
                for name in self.columns
            )
        )


def views_of(lake: LakePath, tables: Iterable[str]) -> dict[str, View]:
    """Return views of these tables, by name; a table that does not exist yet has no rows.

    Raises `JobRejected`, also if there is no lake.
    """
    views = {name: view_of(path(lake, name), open_table(lake, name)) for name in tables}
    if views and all(each.table is None for each in views.values()) and not open_all(lake):
        raise no_lake(lake)
    return views


def _on_disk(folder: LakePath, files: Sequence[File]) -> Path:
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


def in_spark(condition: str) -> str:
    """Return a condition as Spark's SQL, where a backslash in a text begins an escape."""
    return condition.replace("\\", r"\\")


def view_of(folder: LakePath, table: LakeTable | None) -> View:
    """Return the view of a table, by its folder; `table` is None if the table does not exist."""
    name = folder.name
    columns = TABLES[name].columns if table is None else table.columns()
    for label in LABELS:  # null in a table of one log, which does not have it
        columns = columns if label.name in columns.names else columns.append(label)
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
