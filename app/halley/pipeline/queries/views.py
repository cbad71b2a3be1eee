"""The tables of the lake as queries see them: the stored columns, and computed ones that are easier to read.

channel   the topic's Bayeux name
time ...  for each column that ends in `_us` a timestamp, named without that ending
day       the tables' column `day`, which is computed, since it is only in the names of folders
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Literal, NamedTuple

from deltalake import Schema
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from halley.pipeline import session
from halley.pipeline.errors import JobFailed, no_lake
from halley.pipeline.lake.place import Where, fetch
from halley.pipeline.lake.tables import TABLES, File, LakeTable, first_line, open_all, open_table, path
from halley.pipeline.queries.skipping import Condition, Every, Null, Some, Within

_DAY_OF = {"events": "time_us", "rollups": "start_us"}
_PLAIN_IN_CHANNELS = {"!7e": "~", "!28": "(", "!29": ")", "!24": "$", "!40": "@"}
_ESCAPED_IN_CHANNELS = "|".join(f"{code:02x}" for code in range(128) if not re.match(r"[\w!~()$@-]", chr(code)))
_NEXT = "!21[89ab][0-9a-f]"
_BEYOND_ASCII = (
    f"(?:c[2-9a-f]|d[0-9a-f]){_NEXT}|e0!21[ab][0-9a-f]{_NEXT}|ed!21[89][0-9a-f]{_NEXT}|e[1-9a-cef](?:{_NEXT}){{2}}"
    f"|f0!21[9ab][0-9a-f](?:{_NEXT}){{2}}|f[1-3](?:{_NEXT}){{3}}|f4!218[0-9a-f](?:{_NEXT}){{2}}"
)
_PLAIN_MARK = f"!21(?!(?:21)*(?:{_ESCAPED_IN_CHANNELS}|{_BEYOND_ASCII}))"
"""A `!` of the name itself, in a topic, that begins no escape in the channel: what follows spells no character that
Bayeux escapes (`broker/names.py`)."""


class Computed(NamedTuple):
    """How a column is computed from the stored column `source`."""

    kind: Literal["channel", "time", "day"]
    source: str

    def of_row(self) -> Column:
        """Return the value as an expression."""
        if self.kind == "channel":
            return _channel(f.col(self.source))
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
    def columns(self) -> list[str]:
        """The names of all columns, in order."""
        return [*dict.fromkeys([*self.stored.names, *self.computed])]

    def files(self) -> list[File]:
        """The files of the table; empty if it does not exist."""
        return [] if self.table is None else self.table.data_files()

    def empty(self, spark: SparkSession, folder: Path) -> DataFrame:
        """A frame with the same columns, none of them computed, over a folder without files."""
        types = {"channel": StringType(), "time": TimestampType()}
        more = [
            StructField(name, types[each.kind]) for name, each in self.computed.items() if name not in self.stored.names
        ]
        return spark.read.schema(StructType([*self.stored.fields, *more])).parquet(folder.as_uri())

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


def views_of(lake: Where, names: Iterable[str]) -> dict[str, View]:
    """Return views of these tables, by name; a table that does not exist yet has no rows.

    Raises `JobRejected`, also if there is no lake.
    """
    views = {name: _view(lake, name) for name in names}
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


def _view(lake: Where, name: str) -> View:
    table = open_table(lake, name)
    columns = TABLES[name].columns if table is None else table.columns()
    computed = {"day": Computed("day", _DAY_OF[name])} if name in _DAY_OF else {}
    if "topic" in columns.names and "channel" not in columns.names:
        computed["channel"] = Computed("channel", "topic")
    for each in columns.names:
        if each.endswith("_us") and each.removesuffix("_us") not in columns.names:
            computed[each.removesuffix("_us")] = Computed("time", each)
    stored = StructType.fromJson(json.loads(Schema.from_arrow(columns).to_json()))
    return View(name, path(lake, name), table, stored, computed)


def _channel(topic: Column) -> Column:
    """The same conversion as `protocols.bayeux.names.to_channel`, in Spark."""
    name = topic
    for escape, char in _PLAIN_IN_CHANNELS.items():
        name = f.replace(name, f.lit(escape), f.lit(char))
    name = f.regexp_replace(name, _PLAIN_MARK, "!")
    return f.concat(f.lit("/"), f.when(topic.contains("!"), name).otherwise(topic))
