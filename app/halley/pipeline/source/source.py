"""The PySpark data source `halley`: a log as a table and as a stream.

spark.read.format("halley").load("halley-data")
spark.read.format("halley").option("url", "https://example.org").option("token_file", "token").load()

path, or url with token or token_file    the log; several URLs, separated by commas: the first server that answers
log_id            the log that it must be
from_offset, until_offset                the range to read, half-open; by default the whole log
channel           only events of a channel, of a pattern such as /prices/**, or of a name as its publisher writes it,
                  such as com.shop.order; found by the log's own index
protocol          only events of a protocol, such as wamp
from_time, until_time                    only events of a time, both ends included: 2026-07-01T12:00:00Z
faults=true       rows with `fault` and `fault_last` also for the offsets without an event
accept_gap=true   go on where offsets are missing for no known reason, or are in a damaged segment
lift              the columns to lift from payloads: `columns.lifts_of(settings)`
partition_rows    the most rows that one task reads
max_rows          for a stream: the most rows in one micro-batch
behind_s          for a stream: how long to wait for a log that does not reach its checkpoint; 0 unless given
consumer          for a stream: the consumer name under which it reports its position to the log

Where only some events are read, the offsets of the others are passed over: a stream's position is behind them, and what
is missing or damaged among them is found as without these options. An erased event has no channel any more, so that
`channel` leaves it out.

With a schema, `.schema("offset long, topic string")`, only its columns are made, which is faster: Spark does not say
which columns a query needs.

A query's own conditions are not pushed down. PySpark has an interface for that (`DataSourceReader.pushFilters`), but
with PySpark 4.3 a condition that was pushed stays with the DataFrame or view, and its next query without conditions
gets wrong rows, without an error (`tests/pipeline/test_pushed_filters.py` shows it).
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from halley.history.row_filter import EVERY_ROW
from halley.history.stored import COLUMNS, PURGED
from halley.pipeline.errors import JobRejected
from halley.pipeline.source import open_log
from halley.pipeline.source.columns import FAULT_COLUMNS, ColumnExtraction, arrow_schema, computed, types_of
from halley.pipeline.source.log import Fault, GapFound, Gone, LogHead, Row, caught_up, split
from halley.pipeline.source.options import SourceOptions, chosen

_SHAPE = COLUMNS.index("shape")
_PURGED_COLUMNS = frozenset({"offset", "time_us", "publication", "protocol"})
"""The columns that keep their values in a purged event's row."""


@dataclass(frozen=True)
class Range(InputPartition):
    """The offsets that one task reads, [first, until)."""

    first: int
    until: int


class HalleySource(DataSource):
    """The data source `halley`, whose options the module describes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, for `spark.read.format`."""
        return "halley"

    def schema(self) -> str:
        """Return the columns, which follow from the options, as SQL declares them."""
        return ", ".join(f"`{name}` {kind}" for name, kind in SourceOptions(self.options).types.items())

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query, for the columns of a schema, in its order. Raises `JobRejected`."""
        options = SourceOptions(self.options)
        return BatchReader(options, chosen(schema, options.types))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query, for the columns of a schema, in its order. Raises `JobRejected`."""
        options = SourceOptions(self.options)
        return StreamReader(options, chosen(schema, options.types))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return the writer of a batch (`sink/writer.py`)."""
        from halley.pipeline.sink.writer import batch_writer

        return batch_writer(schema, self.options, overwrites=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, FBT001, N802
        """Return the writer of a stream (`sink/writer.py`); in complete mode it publishes all rows again."""
        from halley.pipeline.sink.writer import stream_writer

        return stream_writer(schema, self.options)


class Table:
    """Reads a range of a log as Arrow batches; the part that workers do."""

    def __init__(self, options: SourceOptions, types: Mapping[str, str] | None = None) -> None:
        """Set which columns are read, with their types; None: all except the computed ones, as the lake stores them."""
        self.log = open_log(options.log_options)
        self._has_faults = options.has_faults
        self._accepts_gaps = options.accepts_gaps
        self._wanted = options.wanted
        types = types_of(options.extraction, with_faults=options.has_faults) if types is None else types
        self._extraction = (
            options.extraction if types.keys() & options.extraction.columns.keys() else ColumnExtraction("")
        )
        self.schema = arrow_schema(types)

    def batches(self, first: int, until: int) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a range. Raises `Gone`, `GapFound`, and the errors of `Log.read`."""
        return _without_gc(self._batches(first, until))

    def _batches(self, first: int, until: int) -> Iterator[pa.RecordBatch]:
        names = (*COLUMNS, *(FAULT_COLUMNS if self._has_faults else ()))
        for found in self.log.read(first, until, self._wanted):
            values = self._events(found) if isinstance(found, list) else self._fault(found)
            if values:
                columns = dict(zip(names, values, strict=True))
                if self._extraction:
                    lifted = self._extraction.values(columns["topic"], columns["payload"])
                    columns |= zip(self._extraction.columns, lifted, strict=True)
                arrays = [
                    pa.array(columns[each.name] if each.name in columns else computed(each.name, columns), each.type)
                    for each in self.schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def table(self, first: int, until: int, most_bytes: int) -> pa.Table | None:
        """Return a range as one table, for a job's own process; None if it has more than `most_bytes` bytes.

        Raises the errors of `batches`.
        """
        batches: list[pa.RecordBatch] = []
        nbytes = 0
        for batch in self.batches(first, until):
            batches.append(batch)
            nbytes += batch.nbytes
            if nbytes > most_bytes:
                return None
        return pa.Table.from_batches(batches, self.schema)

    @property
    def mismatches(self) -> Counter[tuple[str, str]]:
        """How many values lifted columns could not take, of what was read, by column and kind."""
        return self._extraction.mismatches

    def _events(self, rows: list[Row]) -> list[Sequence[Any]]:
        """Return the stored columns of rows, and with the option `faults` those of a fault; none without rows."""
        if not self._has_faults:
            return list(zip(*(row for row in rows if row[_SHAPE] != PURGED), strict=True))
        faults = [PURGED if row[_SHAPE] == PURGED else None for row in rows]
        lasts = [row[0] if fault else None for row, fault in zip(rows, faults, strict=True)]
        if PURGED in faults:  # without the constant values that every tombstone has
            rows = [
                tuple([row[at] if name in _PURGED_COLUMNS or not fault else None for at, name in enumerate(COLUMNS)])
                for row, fault in zip(rows, faults, strict=True)
            ]
        return [*zip(*rows, strict=True), faults, lasts]

    def _fault(self, fault: Fault) -> list[Sequence[Any]]:
        """Return the columns of a fault; none without the option `faults`. Raises `Gone`, `GapFound`."""
        if fault.why in ("missing", "damaged") and not self._accepts_gaps:
            begins = self.log.head().first
            if fault.first < begins:
                raise Gone.of(fault.first, min(fault.last, begins - 1), begins)
            raise GapFound.of(fault)
        if not self._has_faults:
            return []
        return [*([fault.first if name == "offset" else None] for name in COLUMNS), [fault.why], [fault.last]]


def _without_gc(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Disable the garbage collection while a batch is made.

    A batch's many small objects are not part of any cycle, and collecting them would make it a third slower.
    """
    while True:
        is_enabled = gc.isenabled()
        gc.disable()
        try:
            batch = next(batches, None)
        finally:
            if is_enabled:
                gc.enable()
        if batch is None:
            return
        yield batch


class _Planned:
    """The common part of both readers: divide a range among tasks, and read a task's part."""

    def __init__(self, options: SourceOptions, types: Mapping[str, str]) -> None:
        self._options = options
        self._table = Table(options, types)

    def _ranges(self, first: int, until: int, head: LogHead) -> list[Range]:
        """Divide a range into ranges of about the same size. Raises `Gone`."""
        if first < min(head.first, until) and not self._options.accepts_gaps:
            raise Gone.of(first, min(head.first, until) - 1, head.first)
        return [Range(*bounds) for bounds in split(first, until, self._options.partition_rows)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task. If there are no partitions, Spark passes one that is not a `Range`."""
        return self._table.batches(partition.first, partition.until) if isinstance(partition, Range) else iter(())


class BatchReader(_Planned, DataSourceReader):
    """The reader of a batch query, over the log in the state in which it is when the query is planned."""

    def partitions(self) -> Sequence[Range]:
        """Return the ranges of the tasks. Raises `JobRejected`, `Gone`."""
        options, head = self._options, self._table.log.head()
        first = head.first if options.first is None else options.first
        until = head.next if options.until is None else options.until
        for name, offset in (("from_offset", first), ("until_offset", until)):
            if offset > head.next:
                raise JobRejected(f"{name} is {offset}, but the log ends before {head.next}")
        return self._ranges(first, until, head)


class StreamReader(_Planned, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query; its checkpoint has the log and next offset: `{"log_id": ..., "offset": 1}`."""

    _target: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the position at which a new query begins."""
        head = self._table.log.head()
        return {"log_id": head.log_id, "offset": head.first if self._options.first is None else self._options.first}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most rows of one micro-batch."""
        return ReadMaxRows(self._options.max_rows) if self._options.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record the log's end, at which a query with the trigger availableNow stops."""
        self._target = self._table.log.head().next

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch. Raises `JobRejected` if the checkpoint is not of this log."""
        head = self._head(start)
        bounds = (head.next, self._target, self._options.until)
        until = min(bound for bound in bounds if bound is not None)
        if isinstance(limit, ReadMaxRows):
            until = self._bounded(start["offset"], until, limit.max_rows)
        return {"log_id": head.log_id, "offset": max(until, start["offset"])}

    def _bounded(self, first: int, until: int, rows: int) -> int:
        """Return where the first `rows` wanted rows of a range end.

        They are looked for here, so that many offsets with few wanted rows are one micro-batch and not many empty ones.
        """
        if until - first <= rows:
            return until
        if self._options.wanted == EVERY_ROW:
            return first + rows
        for found in self._table.log.read(first, until, self._options.wanted):
            if isinstance(found, list):
                if len(found) >= rows:
                    return int(found[rows - 1][0]) + 1
                rows -= len(found)
        return until

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the log's end, for the query's progress."""
        head = self._table.log.head()
        return {"log_id": head.log_id, "offset": head.next}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Range]:
        """Return the ranges of a micro-batch's tasks. Raises `JobRejected`, `Gone`."""
        return self._ranges(start["offset"], end["offset"], self._head(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Report the position to the log, if the query has a consumer name."""
        if self._options.consumer:
            self._table.log.commit(self._options.consumer, end["offset"])

    def _head(self, reached: dict[str, Any]) -> LogHead:
        head = caught_up(self._table.log, reached["offset"], self._options.behind_s)
        if reached["log_id"] != head.log_id:
            raise JobRejected(
                f"the checkpoint belongs to the log {reached['log_id']}, and this is the log {head.log_id}"
            )
        if reached["offset"] > head.next:
            raise JobRejected(f"the checkpoint is at offset {reached['offset']}, but the log ends before {head.next}")
        return head
