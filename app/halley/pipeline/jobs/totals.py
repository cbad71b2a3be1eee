"""The sums that Spark computes: events by window, channel and protocol, in rows that can be merged with later ones.

In addition to the figures that people read, a row of totals holds sketches (of the publishers, and of the distribution
of numbers), so that the known totals of a window and those of its new events can be merged. Figures from sketches are
exact while there are few values, and approximate beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from halley.pipeline.lake.shapes import KINDS, SKIPPED, WindowSize

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
EVENT_COLUMNS = ("offset", "time_us", "topic", "protocol", "payload", "authid")
"""The columns of events that are needed, in addition to those with numbers."""

KEY = ("window", "start_us", "end_us", "topic", "protocol")
_BEFORE = "before_"
_LAST_US = 253_402_300_740_000_000
"""The last minute of the year 9999: a time beyond has no date, so an event of such a time is not counted."""


class _Part(NamedTuple):
    """A column of the totals: its expressions over events, over rows of totals, and over a new and a kept row."""

    name: str
    of_events: Column
    of_rows: Column
    of_both: Column


def is_counted() -> Column:
    """Return the condition for an event to be counted: its time has a date, and its topic is not in `SKIPPED`."""
    has_date = (f.col("time_us") >= 0) & (f.col("time_us") < _LAST_US)
    return reduce(and_, (~f.col("topic").startswith(prefix) for prefix in SKIPPED), has_date)


class Totals:
    """The totals, with figures of the lifted columns `numbers`. The plan never changes, so Spark compiles it once."""

    def __init__(self, numbers: Sequence[str]) -> None:
        shortest, *_ = KINDS
        parts = [*_counts(), *(part for at, name in enumerate(numbers) for part in _number(at, name))]
        self._columns = [*KEY, *(part.name for part in parts)]
        # Columns, not names: PySpark would make a column of each name every time, with several messages to the JVM.
        self._key = [f.col(name) for name in KEY]
        self._channel = [f.col("topic"), f.col("protocol")]
        self._before_channel = [f.col(_BEFORE + "topic"), f.col(_BEFORE + "protocol")]
        self._others = [*self._channel, *(f.col(part.name) for part in parts)]
        self._start = _start(f.col("time_us"), shortest.length_us).alias("start_us")
        self._counted = is_counted()
        # Of payloads only the length is moved to other tasks, which may have no room for many large ones.
        self._needed = [
            *map(f.col, ("offset", "time_us", "topic", "protocol", "authid")),
            f.octet_length("payload").cast("long").alias("nbytes"),
            *(f.col(f"`{name}`") for name in numbers),
        ]
        self._of_events = [part.of_events.alias(part.name) for part in parts]
        self._windows = f.inline(f.array(*map(_window, KINDS)))
        self._of_rows = [part.of_rows.alias(part.name) for part in parts]
        self._same = reduce(and_, (f.col(name) == f.col(_BEFORE + name) for name in KEY))
        self._of_both = [part.of_both.alias(part.name) for part in parts]
        self._figures = [f.col("*"), *_figures(len(numbers))]

    def of(self, events: DataFrame, before: pa.Table | None, *, are_few: bool = False) -> DataFrame:
        """Return the totals of all windows that have events, merged with the totals `before` of the same windows.

        One exchange of rows between tasks is enough: everything after it is partitioned by channel. `are_few`: there
        are so few events and kept rows that one task is quicker than an exchange.
        """
        counted = events.where(self._counted).select(self._needed)
        by_channel = counted.coalesce(1) if are_few else counted.repartition(*self._channel)
        by_shortest = by_channel.groupBy(self._start, *self._channel).agg(*self._of_events)
        rows = by_shortest.select(self._windows, *self._others).groupBy(*self._key).agg(*self._of_rows)
        if before is not None:
            before = before.select(self._columns)
            before = before.rename_columns([_BEFORE + name for name in self._columns])
            known = events.sparkSession.createDataFrame(before)
            known = known.coalesce(1) if are_few else known.repartition(*self._before_channel)
            rows = rows.join(known.hint("shuffle_hash"), self._same, "left").select(*self._key, *self._of_both)
        return rows.select(*self._figures)


def _window(kind: WindowSize) -> Column:
    start = _start(f.col("start_us"), kind.length_us)
    return f.struct(
        f.lit(kind.name).alias("window"), start.alias("start_us"), (start + f.lit(kind.length_us)).alias("end_us")
    )


def _start(time: Column, length_us: int) -> Column:
    return time - f.pmod(time, f.lit(length_us))


def _part(name: str, of_events: Column, of_rows: Column, join: Column) -> _Part:
    return _Part(name, of_events, of_rows, f.coalesce(join, f.col(name)))  # NULL where nothing was kept


def _sum(name: str, of_events: Column) -> _Part:
    return _part(name, of_events, f.sum(name), f.col(name) + f.col(_BEFORE + name))


def _least(name: str, of_events: Column) -> _Part:
    return _part(name, of_events, f.min(name), f.least(name, _BEFORE + name))


def _greatest(name: str, of_events: Column) -> _Part:
    return _part(name, of_events, f.max(name), f.greatest(name, _BEFORE + name))


def _counts() -> list[_Part]:
    return [
        _sum("events", f.count(f.lit(1))),
        _sum("bytes", f.coalesce(f.sum("nbytes"), f.lit(0))),
        _part("who", f.hll_sketch_agg("authid"), f.hll_union_agg("who"), f.hll_union("who", _BEFORE + "who")),
        _least("first_offset", f.min("offset")),
        _greatest("newest_us", f.max("time_us")),
    ]


def _number(at: int, column: str) -> list[_Part]:
    own = f.col(f"`{column}`")  # of a long also the least and the greatest value are longs, which is exact
    value = own.cast("double")
    sketch = f"sketch{at}"
    return [
        _sum(f"count{at}", f.count(value)),
        _sum(f"sum{at}", f.coalesce(f.sum(value), f.lit(0.0))),
        _least(f"min{at}", f.min(own)),
        _greatest(f"max{at}", f.max(own)),
        _part(
            sketch,
            f.kll_sketch_agg_double(value),
            f.kll_merge_agg_double(sketch),
            f.kll_sketch_merge_double(sketch, _BEFORE + sketch),
        ),
    ]


def _figures(numbers: int) -> list[Column]:
    """Return the figures that are estimated from the sketches: publishers, and quantiles of numbers."""
    ranks = f.array(*map(f.lit, QUANTILES.values()))
    return [
        f.hll_sketch_estimate("who").alias("publishers"),
        *(
            f.when(f.col(f"count{at}") > 0, f.kll_sketch_get_quantile_double(f"sketch{at}", ranks)).alias(f"ranks{at}")
            for at in range(numbers)
        ),
    ]
