"""The tables of the lake as queries see them: the stored columns, and computed ones that are easier to read.

channel   the topic's Bayeux name
time ...  for each column that ends in `_us` a timestamp, named without that ending
day       the tables' column `day`, which is computed, since it is only in the names of folders
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from app.pipeline.errors import no_lake
from app.pipeline.lake.tables import TABLES, open_table, path, schema
from app.pipeline.queries.conditions import Begins, Both, Compared, Condition, Either, Known, Unknown
from app.pipeline.queries.skipping import File, files_of

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DAY_OF = {"events": "time_us", "rollups": "start_us"}
_PLAIN_IN_CHANNELS = {"!7e": "~", "!28": "(", "!29": ")", "!24": "$", "!40": "@"}


class View(NamedTuple):
    """The view of one table.

    name       the table's name
    folder     the table's folder
    table      the Delta table; None if it does not exist
    stored     the table's columns, with Spark's types
    moments    computed timestamps: the column of microseconds, by the name of the timestamp
    channels   computed channel names: the column of topics, by the name of the computed column
    days       computed days: the column of microseconds, by the name of the computed column
    """

    name: str
    folder: Path
    table: DeltaTable | None
    stored: StructType
    moments: Mapping[str, str]
    channels: Mapping[str, str]
    days: Mapping[str, str]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in order."""
        return [*self.stored.names, *self.channels, *self.moments]

    def source_of(self, column: str) -> str:
        """The column from which a column is computed; the column itself if it is stored."""
        return {**self.moments, **self.channels, **self.days}.get(column, column)

    def files(self) -> list[File]:
        """The files of the table; empty if it does not exist."""
        return [] if self.table is None else files_of(self.folder, self.table, self.days)

    def empty(self, spark: SparkSession, folder: Path) -> DataFrame:
        """A frame with the same columns, none of them computed, over a folder without files."""
        from pyspark.sql import types

        columns = types.StructType(list(self.stored.fields))
        for name in self.channels:
            columns.add(name, types.StringType())
        for name in self.moments:
            columns.add(name, types.TimestampType())
        return spark.read.schema(columns).parquet(folder.as_uri())

    def rows(self, spark: SparkSession, files: Sequence[File], condition: Condition) -> DataFrame:
        """The rows of these files of which the condition is true."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        apart = [name for name in (TABLES[self.name].partition_by) if name not in self.days]
        outside = {*apart, *self.days}
        inside = StructType([field for field in self.stored.fields if field.name not in outside])
        groups: dict[tuple[object, ...], list[str]] = {}
        for file in files:
            groups.setdefault(tuple(file.partition[name] for name in apart), []).append(file.path)
        parts = []
        for values, paths in groups.items():
            frame = spark.read.schema(inside).option("__globPaths__", "false").parquet(*paths)
            for name, value in zip(apart, values, strict=True):
                frame = frame.withColumn(name, f.lit(value).cast(self.stored[name].dataType))
            parts.append(frame)
        if not parts:
            nothing = [f.lit(None).cast(field.dataType).alias(field.name) for field in self.stored.fields]
            parts.append(spark.range(0).select(nothing))
        whole = reduce(lambda one, other: one.unionByName(other), parts)
        asked = _filter(condition)
        whole = whole if asked is None else whole.filter(asked)
        computed = {name: f.timestamp_micros(f.col(source)) for name, source in self.moments.items()}
        computed |= {name: _channel(f.col(source)) for name, source in self.channels.items()}
        computed |= {name: f.timestamp_micros(f.col(source)).cast("date") for name, source in self.days.items()}
        return whole.select([computed[name].alias(name) if name in computed else f.col(name) for name in self.columns])


def views_of(lake: Path, names: Iterable[str]) -> dict[str, View]:
    """Return views of these tables, by name; a table that does not exist yet has no rows.

    Raises `Refused`, also if there is no lake.
    """
    views = {name: _view(lake, name) for name in names}
    if views and not any(path(lake, name).is_dir() for name in TABLES):
        raise no_lake(lake)
    return views


def _view(lake: Path, name: str) -> View:
    from deltalake import Schema
    from pyspark.sql.types import StructType

    table = open_table(lake, name)
    columns = TABLES[name].columns if table is None else schema(table)
    stored = StructType.fromJson(json.loads(Schema.from_arrow(columns).to_json()))
    names = columns.names
    moments = {each.removesuffix("_us"): each for each in names if each.endswith("_us")}
    return View(
        name,
        path(lake, name),
        table,
        stored,
        {short: each for short, each in moments.items() if short not in names},
        {"channel": "topic"} if "topic" in names and "channel" not in names else {},
        {"day": _DAY_OF[name]} if name in _DAY_OF else {},
    )


def _channel(topic: Column) -> Column:
    """The same conversion as `protocols.bayeux.names.to_channel`, in Spark."""
    from pyspark.sql import functions as f

    shown = topic
    for escape, char in _PLAIN_IN_CHANNELS.items():
        shown = f.replace(shown, f.lit(escape), f.lit(char))
    shown = f.regexp_replace(shown, "!21(?![0-9a-f]{2})", "!")
    return f.concat(f.lit("/"), f.when(topic.contains("!"), shown).otherwise(topic))


def _filter(condition: Condition) -> Column | None:
    """A condition as a Spark column, by which Parquet's reader skips parts of files; None if it excludes nothing."""
    from pyspark.sql import functions as f

    match condition:
        case Compared(column, relation, value):
            asked: Any = Compared.RELATIONS[relation](f.col(column), f.lit(value))
        case Begins(column, prefix):
            asked = f.col(column).startswith(prefix)
        case Known(column) | Unknown(column):
            asked = f.col(column).isNotNull() if isinstance(condition, Known) else f.col(column).isNull()
        case Both(parts):
            known = [each for each in map(_filter, parts) if each is not None]
            asked = reduce(operator.and_, known) if known else None
        case Either(parts):
            each_one = [_filter(part) for part in parts]
            is_asked = all(each is not None for each in each_one)
            asked = reduce(operator.or_, each_one, f.lit(False)) if is_asked else None  # noqa: FBT003 - a value
        case _:
            asked = None
    return cast("Column | None", asked)
