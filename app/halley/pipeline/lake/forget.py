"""Erasing a channel's or a publisher's data from the lake: from every table, and from the disk immediately.

One file after the other is rewritten without the rows concerned. The offsets of erased events are first put into
`rejected` as `forgotten`, so that each stays accounted for; a crash between the two leaves some offsets in both tables,
which the next erasure corrects. Then every file that no table names any more is deleted, regardless of its age.

In an object store nobody waits for an erasure. A batch of an ingest that was begun before it is refused and read again.
The work begins again if another process replaces files meanwhile.

If the log itself still has the events, they must be purged there first (`halley history purge`). Counts are not
changed: a publisher's events stay counted in the rollups of channels that others use too. Names of topics can be read
in the tables' own logs for another day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from halley.broker.names import RESERVED, matches, span
from halley.broker.ports import Erasure
from halley.history.damage import joined, outside
from halley.history.rewriting import is_concerned
from halley.history.stored import Stored
from halley.pipeline.errors import JobRejected, no_lake
from halley.pipeline.lake import locks
from halley.pipeline.lake.commit import Conflict, begin_deletion, commit_files, commit_rows
from halley.pipeline.lake.files import staging_folder, write_in_order
from halley.pipeline.lake.place import LakePath
from halley.pipeline.lake.shapes import TABLES
from halley.pipeline.lake.sources import labelled
from halley.pipeline.lake.tables import (
    File,
    LakeTable,
    OnProgress,
    check_files,
    create_next_to,
    open_all,
    sources_of,
    translate_read_errors,
)
from halley.pipeline.lake.upkeep import SORTED, delete_unnamed
from halley.pipeline.portions import read

_TRIES = 20

FORGOTTEN = "forgotten"
"""The reason that `rejected` gives for an event that was erased."""


def forget(
    lake: LakePath,
    erasure: Erasure,
    on_progress: OnProgress = lambda _done, _of: None,
    *,
    source: str | None = None,
) -> dict[str, int]:
    """Erase the data that an `Erasure` selects from all tables; return the number of rows by table.

    source  only what is from the logs of this source; None: from all

    `on_progress` is called with the number of files that are done, and their total. Jobs wait meanwhile, and the
    erasure waits for the batch of an ingest in progress. It may be killed and run again. Raises `JobRejected`,
    `JobFailed`; rows that are erased by then stay erased.
    """
    with locks.batch(lake, alone=True), locks.rewrite(lake):
        sources = sources_of(lake)
        if sources is None:
            raise no_lake(lake)
        tables = [*open_all(lake, sources.first).values()]
        log_ids = [each.log_id for each in (sources.origins if source is None else sources.of(source))]
        erased = dict.fromkeys((table.folder.name for table in tables), 0)
        if not isinstance(lake, Path):
            for table in tables:
                begin_deletion(table)
        for _ in range(_TRIES):
            with suppress(Conflict):
                for name, rows in _erased(lake, tables, log_ids, erasure, on_progress):
                    erased[name] += rows
                break
            for table in tables:
                table.refresh()
        else:
            raise JobRejected(f"files of {lake} are replaced again and again by others; try again")
        delete_unnamed(lake, 0)
        return erased


def _erased(
    lake: LakePath, tables: list[LakeTable], log_ids: list[str], erasure: Erasure, on_progress: OnProgress
) -> Iterator[tuple[str, int]]:
    """Rewrite the files that may have rows to be erased; yield the table's name and the number of rows of each."""
    work = [
        (table, file, log_id)
        for table in tables
        for log_id in log_ids
        for file in table.files_of(log_id)
        if _may_concern(erasure, table, file)
    ]
    for table in tables:
        check_files(table.folder, [file for of, file, _ in work if of is table])
    for done, (table, file, log_id) in enumerate(work):
        on_progress(done, len(work))
        yield table.folder.name, _erase(lake, table, file, log_id, erasure)
    on_progress(len(work), len(work))


def _may_concern(erasure: Erasure, table: LakeTable, file: File) -> bool:
    """Whether a file may have rows to be erased, by its statistics."""
    name = table.folder.name
    if erasure.pattern is None:
        return name in ("events", "sessions", "rejected")
    if name not in ("events", "rollups", "alerts", "rejected"):
        return False
    first, end = span(erasure.pattern)
    return bool(file.least.get("topic", first) < end and file.greatest.get("topic", end) >= first)


def _erase(lake: LakePath, table: LakeTable, file: File, log_id: str, erasure: Erasure) -> int:
    """Rewrite a file of a log if it has rows to be erased; return the number of these."""
    root, name = table.folder, table.folder.name
    count = 0
    offsets: list[int] = []
    with translate_read_errors(root, [file]):
        for rows in read(file.path, _needed(table, file, erasure), filesystem=table.files):
            concerned = rows.filter(_CONCERNED[name](rows, erasure))
            count += concerned.num_rows
            offsets += concerned["offset"].to_pylist() if name == "events" else []
    if not count:
        return 0
    if offsets:
        _account(table, log_id, offsets)
    folder, _, base = file.path.rpartition("/")
    with staging_folder(lake) as drafts:
        prefix = SORTED if base.startswith(SORTED) else ""
        left = _left(table, file, erasure)
        written = write_in_order(drafts / folder, table.shape, left, is_one_partition=True, prefix=prefix)
        commit_files(table, written, removed=[file])
    return count


def _needed(table: LakeTable, file: File, erasure: Erasure) -> list[str]:
    """Return the columns of a file by which its rows are selected: large ones only if these are."""
    stored = pq.read_schema(file.path, filesystem=table.files).names
    return [name for name in stored if name != "payload" or erasure.pattern is None]


def _left(table: LakeTable, file: File, erasure: Erasure) -> Iterator[pa.RecordBatch]:
    """Yield what is left of a file's rows, in their order. Raises `JobFailed`."""
    name = table.folder.name
    with translate_read_errors(table.folder):
        for rows in read(file.path, filesystem=table.files):
            concerned = _CONCERNED[name](rows, erasure)
            if name == "rejected":
                unknown = pc.if_else(concerned, pa.scalar(None, pa.string()), rows["row"])
                yield rows.set_column(rows.schema.get_field_index("row"), "row", unknown)
            else:
                yield rows.filter(pc.invert(concerned))


def _account(events: LakeTable, log_id: str, offsets: list[int]) -> None:
    """Put offsets of a log into `rejected`, except those that a killed erasure has put there."""
    rejected = create_next_to(events, "rejected")
    own = rejected.files_of(log_id)
    meets = (ds.field("reason") == FORGOTTEN) & (ds.field("first") <= max(offsets)) & (ds.field("last") >= min(offsets))
    with translate_read_errors(rejected.folder, own):
        found = rejected.dataset(own).to_table(columns=["first", "last"], filter=meets)
    known = joined(zip(found["first"].to_pylist(), found["last"].to_pylist(), strict=True), min(offsets), max(offsets))
    erased = joined(((each, each) for each in offsets), min(offsets), max(offsets))
    ranges = [part for first, last in erased for part in outside(first, last, known)]
    if ranges:
        rows = [{"first": first, "last": last, "reason": FORGOTTEN} for first, last in ranges]
        labels = rejected.labels(events.sources.origin(log_id))
        commit_rows(rejected, labelled(pa.Table.from_pylist(rows, TABLES["rejected"].columns), labels))


def _in_events(rows: pa.RecordBatch, erasure: Erasure) -> pa.Array:
    """Which events are to be erased; for a publisher also the server's own events about it."""
    if erasure.pattern is not None:
        return _by_topic(rows, erasure)
    own = pc.and_(
        pc.starts_with(rows["topic"], f"{RESERVED}/"),
        pc.fill_null(pc.match_substring(rows["payload"], orjson.dumps(erasure.publisher).decode()), fill_value=False),
    )
    about = []
    for each in rows.select(["offset", "payload"]).filter(own).to_pylist():
        event = orjson.loads(each["payload"])
        if isinstance(event, dict) and event.get("authid") == erasure.publisher:
            about.append(each["offset"])
    return pc.or_(_by_authid(rows, erasure), pc.is_in(rows["offset"], pa.array(about, pa.int64())))


def _by_topic(rows: pa.RecordBatch, erasure: Erasure) -> pa.Array:
    pattern = erasure.pattern
    if pattern is None:
        return pa.array([False] * rows.num_rows)
    found = [topic for topic in pc.unique(rows["topic"]).to_pylist() if topic is not None and matches(pattern, topic)]
    return pc.is_in(rows["topic"], pa.array(found, pa.string()))


def _by_authid(rows: pa.RecordBatch, erasure: Erasure) -> pa.Array:
    return pc.fill_null(pc.equal(rows["authid"], pa.scalar(erasure.publisher, pa.string())), fill_value=False)


def _in_rejected(rows: pa.RecordBatch, erasure: Erasure) -> pa.Array:
    known = [None if text is None else Stored(**orjson.loads(text)) for text in rows["row"].to_pylist()]
    return pa.array([event is not None and is_concerned(event, erasure) for event in known], pa.bool_())


_CONCERNED = {
    "events": _in_events,
    "rejected": _in_rejected,
    "rollups": _by_topic,
    "alerts": _by_topic,
    "sessions": _by_authid,
}
