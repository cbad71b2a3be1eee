"""A recount of the rollups from the events, one day at a time."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from app.pipeline.jobs.windows import KINDS, Kind
from app.pipeline.lake.days import DAY_US
from app.pipeline.lake.tables import SKIPPED, dataset, files_of

if TYPE_CHECKING:
    from deltalake import DeltaTable

_KEYS = ["start_us", "topic", "protocol"]
_SETTLED_US = 60_000_000
"""Windows that ended less than this before the newest event are not compared: rollup may be ahead of the lake."""

_BATCH_ROWS = 65_536
_MOST_GROUPS = 1_000_000


class Recount(NamedTuple):
    """The result of a recount.

    windows  the windows that were compared, of one channel and protocol each
    late     the events that are not in their windows, because these were final when the events were read
    wrong    the windows with events or bytes that the lake does not have
    example  one of the wrong windows, in words
    """

    windows: int = 0
    late: int = 0
    wrong: int = 0
    example: str = ""


def recounted(events: DeltaTable, rollups: DeltaTable) -> Recount:
    """Compare the rollups of all settled windows with the events."""
    newest_us = max((file.greatest.get("time_us", 0) for file in files_of(events)), default=0)
    until_us = newest_us - _SETTLED_US
    total = Recount()
    for kind in KINDS:
        rows = dataset(rollups).to_table(columns=["start_us"], filter=ds.field("window") == kind.name)["start_us"]
        if not len(rows):
            continue
        first_us = pc.min(rows).as_py()
        for day in pc.unique(pc.divide(rows, DAY_US)).sort().to_pylist():
            low, high = max(day * DAY_US, first_us), min((day + 1) * DAY_US, kind.start_us(until_us))
            if low < high:
                total = _added(total, _compared(events, rollups, kind, low, high))
    return total


def _added(one: Recount, other: Recount) -> Recount:
    return Recount(
        one.windows + other.windows, one.late + other.late, one.wrong + other.wrong, one.example or other.example
    )


def _compared(events: DeltaTable, rollups: DeltaTable, kind: Kind, low: int, high: int) -> Recount:
    """Compare the windows that begin at `low` or later and before `high`, in microseconds since 1970."""
    start = ds.field("start_us")
    rows = dataset(rollups).to_table(
        columns=[*_KEYS, "events", "bytes"], filter=(ds.field("window") == kind.name) & (start >= low) & (start < high)
    )
    counted = _counted(events, low, high, kind.length_us)
    both = rows.join(counted, _KEYS, join_type="full outer")
    told, found = (pc.fill_null(both[name], 0) for name in ("events", "found"))
    is_wrong = pc.or_(
        pc.greater(told, found), pc.and_(pc.equal(told, found), pc.not_equal(both["bytes"], both["found_bytes"]))
    )
    wrong = both.filter(is_wrong)
    late = pc.sum(pc.subtract(found, told).filter(pc.greater(found, told))).as_py() or 0
    return Recount(both.num_rows, late, wrong.num_rows, _described(wrong, kind.name) if wrong.num_rows else "")


def _described(wrong: pa.Table, window: str) -> str:
    row = wrong.slice(0, 1).to_pylist()[0]
    return (
        f"{window} from {row['start_us']} us on of {row['topic']} ({row['protocol']}): {row['events']} events "
        f"of {row['bytes']} bytes, but the lake has {row['found'] or 0} of {row['found_bytes'] or 0}"
    )


def _counted(events: DeltaTable, low: int, high: int, length_us: int) -> pa.Table:
    """Count events and bytes by window, topic and protocol. Only the groups of a day are in memory, not its events."""
    time_us = ds.field("time_us")
    wanted = dataset(events).to_batches(
        columns=["time_us", "topic", "protocol", "payload"],
        filter=(time_us >= low) & (time_us < high),
        batch_size=_BATCH_ROWS,
    )
    groups = [_empty()]
    waiting = 0
    with closing(wanted):
        for batch in wanted:
            groups.append(_grouped(_rows(batch, length_us)))
            waiting += groups[-1].num_rows
            if waiting > _MOST_GROUPS:
                groups = [_grouped(pa.concat_tables(groups))]
                waiting = 0
    return _grouped(pa.concat_tables(groups))


def _rows(batch: pa.RecordBatch, length_us: int) -> pa.Table:
    for start in SKIPPED:
        batch = batch.filter(pc.invert(pc.starts_with(batch["topic"], start)))
    starts = pc.multiply(pc.divide(batch["time_us"], length_us), length_us)
    return pa.table(
        {
            "start_us": starts,
            "topic": batch["topic"],
            "protocol": batch["protocol"].cast(pa.string()),
            "found": pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows),
            "found_bytes": pc.binary_length(batch["payload"]).cast(pa.int64()),
        }
    )


def _grouped(rows: pa.Table) -> pa.Table:
    grouped = rows.group_by(_KEYS).aggregate([("found", "sum"), ("found_bytes", "sum")])
    return grouped.rename_columns({"found_sum": "found", "found_bytes_sum": "found_bytes"})


def _empty() -> pa.Table:
    columns = {"start_us": pa.int64(), "topic": pa.string(), "protocol": pa.string()}
    return pa.schema([*columns.items(), ("found", pa.int64()), ("found_bytes", pa.int64())]).empty_table()
