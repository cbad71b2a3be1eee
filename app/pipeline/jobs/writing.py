"""The part of ingest that Spark's workers do: read a range of the log and write it as files for the table `events`.

A worker's rows go from the log to Parquet in one process; through Spark's own source and writer they would go to Java,
and there from columns to rows and back, which took twice the time. A task that is run twice writes two sets of files;
only the files that its result names count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.pipeline.lake.commit import ROW_GROUP_ROWS, parquet_options
from app.pipeline.lake.tables import DAY_US, NULL_FOLDER
from app.pipeline.source.columns import FAULT_COLUMNS
from app.pipeline.source.source import Options, Table

EVENT = "event"
"""The kind of rows that the table `events` can hold; any other kind is the reason why a row is not an event."""

_END_US = 253_402_300_800_000_000
"""The first microsecond of the year 10000, which a date cannot express."""

_FOLDER_NAME = "^[A-Za-z0-9_-]+$"
"""The names of protocols that can name a partition's folder."""


class Written(NamedTuple):
    """A file, and the kind and number of its rows. In files of another kind than `EVENT`, `crc` is the last offset."""

    path: Path
    kind: str
    rows: int


class _Part(NamedTuple):
    """What the rows of one file have in common."""

    kind: str
    day: date | None
    protocol: str | None


def write_range(options: Mapping[str, str], folder: Path, first: int, until: int) -> list[Written]:
    """Write the offsets [first, until) as files below `folder`, by kind, day and protocol, in the order of offsets.

    `options` are the source's, with faults. The files are deleted again if that fails. Raises `Refused`, `JobFailed`,
    `OSError`.
    """
    files: dict[_Part, _File] = {}
    try:
        for batch in Table(Options(options)).batches(first, until):
            for part, rows in _parts(batch):
                if part not in files:
                    files[part] = _File(folder, part, rows.schema)
                files[part].add(rows)
        return [file.finished() for file in files.values()]
    except BaseException:
        for file in files.values():
            file.abandon()
        raise


class _File:
    """A Parquet file that is being written, one row group at a time."""

    def __init__(self, folder: Path, part: _Part, schema: pa.Schema) -> None:
        day = NULL_FOLDER if part.day is None else part.day.isoformat()
        place = folder / f"kind={part.kind}" / f"day={day}" / f"protocol={part.protocol or NULL_FOLDER}"
        place.mkdir(parents=True, exist_ok=True)
        self._path = place / f"{uuid4().hex}.parquet"
        self._kind = part.kind
        self._writer = pq.ParquetWriter(self._path, schema, **parquet_options(schema))
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows = [], 0

    def finished(self) -> Written:
        if self._waiting:
            self._flush()
        self._writer.close()
        return Written(self._path, self._kind, self._rows)

    def abandon(self) -> None:
        self._path.unlink(missing_ok=True)


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[_Part, pa.RecordBatch]]:
    """Split a batch into the rows of each kind, day and protocol, with the columns of the table's files."""
    keys = pa.table([_kinds(batch), _days(batch["time_us"]), batch["protocol"]], names=_Part._fields)
    found = keys.group_by(list(_Part._fields)).aggregate([]).to_pylist()
    rows = _columns(batch)
    for part in found:
        if len(found) == 1:
            chosen = rows
        else:
            same = [_is(keys[name].combine_chunks(), value) for name, value in part.items()]
            chosen = rows.filter(pc.and_(pc.and_(same[0], same[1]), same[2]))
        yield _Part(**part), chosen


def _is(values: pa.Array, value: Any) -> pa.Array:
    return pc.is_null(values) if value is None else pc.fill_null(pc.equal(values, value), fill_value=False)


def _kinds(batch: pa.RecordBatch) -> pa.Array:
    """Return the kind of each row: `EVENT`, or the reason why it is not an event."""
    times = batch["time_us"]
    is_untimely = pc.or_(pc.less(times, 0), pc.greater_equal(times, _END_US))
    is_nameless = pc.invert(pc.match_substring_regex(pc.fill_null(batch["protocol"], ""), _FOLDER_NAME))
    own = pc.if_else(is_untimely, "time", pc.if_else(is_nameless, "protocol", EVENT))
    return pc.coalesce(batch["fault"], own)


def _days(times: pa.Array) -> pa.Array:
    """Return the days of times, in UTC; null for times outside the calendar."""
    numbers = pc.divide(times, DAY_US)
    is_date = pc.and_(pc.greater_equal(times, 0), pc.less(times, _END_US))
    return pc.if_else(is_date, numbers, pa.scalar(None, pa.int64())).cast(pa.int32()).cast(pa.date32())


def _columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    lasts = pc.coalesce(batch["fault_last"], batch["crc"])
    batch = batch.set_column(batch.schema.get_field_index("crc"), "crc", lasts)
    return batch.drop_columns([*FAULT_COLUMNS, "protocol"])
