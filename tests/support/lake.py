"""Tables of a lake, made without Spark: events as ingest would have written them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from halley.history.stored import Stored, checksum
from halley.pipeline.lake import tables
from halley.pipeline.lake.commit import AppTransaction, commit_rows
from halley.pipeline.lake.shapes import STORED
from halley.pipeline.lake.tables import INGEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


LOG_ID = "11" * 16
NOON_US = 1_763_812_800_000_000
"""2025-11-22 12:00 UTC."""


def stored(offset: int, topic: str = "news", payload: Any = None, **fields: Any) -> Stored:
    """Return one event as it is stored in the log; its time is a millisecond after that of the offset before."""
    values = {
        "offset": offset,
        "time_us": NOON_US + offset * 1_000,
        "topic": topic,
        "publication": 7 * offset,
        "protocol": "bayeux",
        "shape": "bare",
        "payload": orjson.dumps({"n": offset} if payload is None else payload).decode(),
        **fields,
    }
    row: list[Any] = [values.get(name) for name in STORED.names[:-1]]
    return Stored._make([*row, checksum(row)])


def rows_of(events: Iterable[Stored], **lifted: Sequence[Any]) -> pa.Table:
    """Return events as rows of the table `events`."""
    rows = list(events)
    columns = {
        name: pa.array([row[place] for row in rows], STORED.field(name).type) for place, name in enumerate(STORED.names)
    }
    days = pa.array([row.time_us // 86_400_000_000 for row in rows], pa.int32()).cast(pa.date32())
    return pa.table({**columns, "day": days, **lifted})


def ingested(lake: Path, *batches: Iterable[Stored], log_id: str = LOG_ID) -> tables.LakeTable:
    """Add batches of events to the table `events`, each as a separate commit, and return the table.

    It has no rows for offsets without an event.
    """
    table = tables.create(lake, "events", log_id)
    for batch in batches:
        rows = list(batch)
        before = table.position(INGEST)
        commit_rows(table, rows_of(rows), AppTransaction(INGEST, before, rows[-1].offset + 1))
    return table


def offsets(table: tables.LakeTable) -> list[int]:
    """Return the offsets in a table, sorted."""
    found: list[int] = table.dataset().to_table(columns=["offset"])["offset"].to_pylist()
    return sorted(found)
