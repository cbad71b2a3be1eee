"""The part of ingest that Spark's workers do: read a range of the log and write it as files for the table `events`.

A worker's rows go from the log to Parquet in one process; through Spark's own source and writer they would go to Java,
and there from columns to rows and back, which took twice the time. A task that is run twice writes two sets of files;
only the files that its result names count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from app.pipeline.lake.files import Written, write_files
from app.pipeline.lake.tables import DAY_US
from app.pipeline.source.columns import FAULT_COLUMNS
from app.pipeline.source.source import Options, Table

EVENT = "event"
"""The kind of rows that the table `events` can hold; any other kind is the reason why a row is not an event."""

_END_US = 253_402_300_800_000_000
"""The first microsecond of the year 10000, which a date cannot express."""

_FOLDER_NAME = "^[A-Za-z0-9_-]+$"
"""The names of protocols that can name a partition's folder."""


def write_range(options: Mapping[str, str], folder: Path, first: int, until: int) -> list[Written]:
    """Write the offsets [first, until) as files below `folder`, by kind, day and protocol, in the order of offsets.

    In files of another kind than `EVENT`, `crc` is the last offset. `options` are the source's, with faults. Raises
    `Refused`, `JobFailed`, `OSError`.
    """
    table = Table(Options(options))
    rows = pa.RecordBatchReader.from_batches(
        _columns(pa.RecordBatch.from_pylist([], table.schema)).schema,
        map(_columns, table.batches(first, until)),
    )
    return write_files(folder, rows, ("kind", "day", "protocol"))


def kind_of(file: Path) -> str:
    """Return the kind of the rows of a file that `write_range` has written."""
    return file.parts[-4].removeprefix("kind=")


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
    """Return the columns of a batch as the table's files have them, with the columns that name their folders."""
    lasts = pc.coalesce(batch["fault_last"], batch["crc"])
    kinds, days = _kinds(batch), _days(batch["time_us"])
    batch = batch.set_column(batch.schema.get_field_index("crc"), "crc", lasts).drop_columns([*FAULT_COLUMNS])
    return batch.append_column("kind", kinds).append_column("day", days)
