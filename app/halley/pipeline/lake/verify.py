"""The verification of a lake against the log that it was read from: its files, offsets, rows and rollups.

Verification only reads, and takes no lock. It examines each table as it was at the beginning, so jobs may go on
meanwhile; vacuum and erasure may not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from halley.history.stored import COLUMNS, checksum
from halley.pipeline.errors import no_lake
from halley.pipeline.lake.place import LakePath, at_once
from halley.pipeline.lake.shapes import DAY_US, KINDS, SKIPPED, WindowSize
from halley.pipeline.lake.tables import INGEST, File, LakeTable, OnProgress, fault_of, first_line, open_all, select
from halley.pipeline.portions import PORTION_ROWS, read
from halley.pipeline.source.log import offsets

_WINDOW_OFFSETS = 4_194_304
"""The number of offsets that are examined together."""

_MOST_LISTED = 5
_SAMPLE_ROWS = 1_000
"""The rows of each file whose checksums are compared if not all are."""


class Finding(NamedTuple):
    """One result: the name of what was examined, a sentence for people, and whether nothing is wrong with it."""

    what: str
    text: str
    is_sound: bool = True


def verify(
    lake: LakePath, *, is_thorough: bool = False, on_progress: OnProgress = lambda _done, _of: None
) -> Iterator[Finding]:
    """Verify a lake; yield one finding after the other.

    is_thorough  compare the checksums of all rows, not only of some rows of each file
    on_progress  called with the number of rows whose checksums are done, and their total

    Raises `JobRejected` if there is no lake.
    """
    tables = open_all(lake)
    if "events" not in tables:
        raise no_lake(lake)
    events = tables["events"]
    broken = {}
    for name, table in tables.items():
        other = f", and events of log {events.log_id}" * (table.log_id != events.log_id)
        yield Finding(name, f"of log {table.log_id}{other}", not other)
        broken[name] = _broken(table)
        yield from _files(name, table, broken[name])
    sources = events.sources
    for origin in sources.origins:
        of = "" if sources.is_plain else f" of {origin.source or 'the log without a name'}"
        of += f", log {origin.log_id}" * (len(sources.logs[origin.source]) > 1)
        yield _versions(f"ingest{of}", events, origin.log_id)
        yield from _checked(f"offsets{of}", partial(_offsets, f"offsets{of}", tables, broken, origin.log_id))
    yield from _checksums(events, broken["events"], is_thorough=is_thorough, on_progress=on_progress)
    if "rollups" in tables and (broken["events"] or broken["rollups"]):
        yield Finding("recount", "nothing can be compared while files are not what was committed", is_sound=False)
    elif "rollups" in tables:
        yield from _checked("recount", lambda: iter([_recount(events, tables["rollups"])]))


def _checked(what: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; if files cannot be read, that is a finding too."""
    try:
        yield from check()
    except (OSError, pa.ArrowException, DeltaError) as error:
        yield Finding(what, f"cannot be examined: {first_line(error)}", is_sound=False)


def _broken(table: LakeTable) -> dict[str, str]:
    """L4: return the files that are missing, or whose size or rows are not what the table's log says, and why."""
    files = table.data_files()
    faults = at_once(table.folder, lambda file: fault_of(table.folder, file) or _miscounted(table, file), files)
    return {file.path: text for file, text in zip(files, faults, strict=True) if text is not None}


def _files(name: str, table: LakeTable, broken: dict[str, str]) -> Iterator[Finding]:
    """Yield the numbers of files and rows, after some of the files that are damaged or missing."""
    for path, text in islice(broken.items(), _MOST_LISTED):
        yield Finding(name, f"{path} {text}", is_sound=False)
    files = table.data_files()
    rows = sum(file.rows for file in files if file.path not in broken)
    but = f", and {len(broken):,} files that are not what was committed" * bool(broken)
    yield Finding(name, f"{rows:,} rows in {len(files) - len(broken):,} files{but}", is_sound=not broken)


def _miscounted(table: LakeTable, file: File) -> str | None:
    """Return the difference between a file's footer and the table's log, in words; None if there is none."""
    try:
        found = pq.read_metadata(file.path, filesystem=table.files).num_rows
    except (OSError, pa.ArrowException) as error:
        return f"cannot be read: {first_line(error)}"
    return None if found == file.rows else f"has {found} rows instead of {file.rows}"


def _versions(what: str, events: LakeTable, log_id: str) -> Finding:
    """Compare the recorded position of ingest with the events of a log."""
    until = events.position(events.app(INGEST, log_id))
    greatest = max((file.greatest["offset"] for file in events.files_of(log_id)), default=None)
    if until is None or (greatest is not None and greatest >= until):
        text = f"there are events up to offset {greatest}, but the recorded position of ingest is {until}"
        return Finding(what, text, is_sound=greatest is None)
    return Finding(what, f"all offsets below {until:,} are done")


def _offsets(
    what: str, tables: dict[str, LakeTable], broken: dict[str, dict[str, str]], log_id: str
) -> Iterator[Finding]:
    """Check that every offset of a log is in exactly one of events, rejected and gaps.

    Rows of broken files do not count.
    """
    keys = {"events": "offset", "rejected": "first", "gaps": "first"}
    files = {name: tables[name].files_of(log_id) for name in keys if name in tables}
    sound = {
        name: tables[name].dataset([file for file in own if file.path not in broken[name]])
        for name, own in files.items()
    }
    until = tables["events"].position(tables["events"].app(INGEST, log_id)) or 0
    first = min((file.least[keys[name]] for name, own in files.items() for file in own), default=until)
    is_sound = True
    for low in range(first, until, _WINDOW_OFFSETS):
        high = min(low + _WINDOW_OFFSETS, until)
        for text in _faults(_spans(sound, low, high), low, high):
            is_sound = False
            yield Finding(what, text, is_sound=False)
    if is_sound:
        yield Finding(what, f"{first:,} to {until - 1:,}: each is present once" if until > first else "none yet")


def _spans(tables: dict[str, ds.Dataset], low: int, high: int) -> pa.Table:
    """Return what the tables have of the offsets [low, high), as columns first and last, in order."""
    column = ds.field("offset")
    rows = tables["events"].to_table(columns=["offset"], filter=(column >= low) & (column < high))
    spans = [pa.table({"first": rows["offset"], "last": rows["offset"]})]
    for name in ("rejected", "gaps"):
        if name in tables:
            meets = (ds.field("first") < high) & (ds.field("last") >= low)
            found = tables[name].to_table(columns=["first", "last"], filter=meets)
            clipped = {
                "first": pc.max_element_wise(found["first"], low),
                "last": pc.min_element_wise(found["last"], high - 1),
            }
            spans.append(pa.table(clipped))
    return pa.concat_tables(spans).sort_by("first")


def _faults(spans: pa.Table, low: int, high: int) -> Iterator[str]:
    """Yield the offsets that are missing and those that are duplicate, at most a few of each window."""
    firsts = pa.concat_arrays([*spans["first"].chunks, pa.array([high])])
    lasts = pa.concat_arrays([pa.array([low - 1]), *spans["last"].chunks])
    step = pc.subtract(firsts, lasts)  # 1 where a span begins right after the one before
    for place in pc.indices_nonzero(pc.not_equal(step, 1))[:_MOST_LISTED].to_pylist():
        first, last = firsts[place].as_py(), lasts[place].as_py()
        yield f"{offsets(last + 1, first - 1)} missing" if first > last else f"{offsets(first, last)} duplicate"


def _checksums(
    events: LakeTable, broken: Collection[str], *, is_thorough: bool, on_progress: OnProgress
) -> Iterator[Finding]:
    """Compare rows with the checksums from the log; of each readable file some rows, or all."""
    files = [file for file in events.data_files() if file.path not in broken]
    total = sum(file.rows if is_thorough else min(file.rows, _SAMPLE_ROWS) for file in files)
    done = 0
    wrong: list[int] = []
    for file in files:
        try:
            for rows in _some(events, file, file.rows if is_thorough else _SAMPLE_ROWS):
                protocol = pa.repeat(file.partition["protocol"], rows.num_rows)
                stored = rows.append_column("protocol", protocol).select([*COLUMNS])
                wrong += _changed(stored)
                done += rows.num_rows
                on_progress(done, total)
        except (OSError, pa.ArrowException) as error:
            yield Finding("checksums", f"{file.path} cannot be read: {first_line(error)}", is_sound=False)
    if wrong:
        text = f"{len(wrong):,} of {done:,} rows differ from the log, such as offset {wrong[0]}"
        yield Finding("checksums", text, is_sound=False)
    else:
        yield Finding("checksums", f"{done:,} rows are as in the log" + " (a sample)" * (not is_thorough))


def _changed(rows: pa.RecordBatch) -> list[int]:
    found = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return [row[0] for row in found if row[-1] != checksum(row[:-1])]


def _some(events: LakeTable, file: File, count: int) -> Iterator[pa.RecordBatch]:
    """Yield the first `count` rows of a file, in batches."""
    names = [name for name in COLUMNS if name != "protocol"]
    for rows in read(file.path, names, min(PORTION_ROWS, count), filesystem=events.files):
        yield rows.slice(0, count)
        count -= rows.num_rows
        if count <= 0:
            return


_SETTLED_US = 60_000_000
"""Windows that ended less than this before the newest event are not compared: rollup may be ahead of the lake."""


def _recount(events: LakeTable, rollups: LakeTable) -> Finding:
    """L13: compare the rollups of settled windows with the events, of each log by itself.

    Late events are reported, but are not a fault.
    """
    windows = late = wrong = 0
    example = ""
    for both, window in _both(events, rollups):
        missing = pc.subtract(both["found"], both["events"])
        is_changed = pc.and_(pc.equal(missing, 0), pc.not_equal(both["bytes"], both["found_bytes"]))
        faults = both.filter(pc.or_(pc.less(missing, 0), is_changed))
        windows, wrong = windows + both.num_rows, wrong + faults.num_rows
        late += pc.sum(missing.filter(pc.greater(missing, 0))).as_py() or 0
        if faults.num_rows and not example:
            example = _described(faults.slice(0, 1).to_pylist()[0], window)
    if wrong:
        return Finding("recount", f"{wrong:,} windows disagree with the events, such as {example}", is_sound=False)
    exception = f", except for {late:,} late events" if late else ""
    return Finding("recount", f"{windows:,} windows agree with a recount{exception}")


def _both(events: LakeTable, rollups: LakeTable) -> Iterator[tuple[pa.Table, str]]:
    """Yield the settled windows of each log, kind and day, as `_counts` returns them, and the kind's name."""
    for log_id in [each.log_id for each in events.sources.origins]:
        newest_us = max((file.greatest.get("time_us", 0) for file in events.files_of(log_id)), default=0)
        rollups_of_log = rollups.dataset(rollups.files_of(log_id))
        for kind in KINDS:
            rows = rollups_of_log.to_table(columns=["start_us"], filter=ds.field("window") == kind.name)["start_us"]
            for day in pc.unique(pc.divide(rows, DAY_US)).sort().to_pylist():
                low = max(day * DAY_US, pc.min(rows).as_py())
                high = min((day + 1) * DAY_US, kind.start_us(newest_us - _SETTLED_US))
                if low < high:
                    yield _counts(events, rollups, log_id, kind, low, high), kind.name


def _counts(events: LakeTable, rollups: LakeTable, log_id: str, kind: WindowSize, low: int, high: int) -> pa.Table:
    """Return the events and bytes of a log's windows in [low, high), in microseconds, by rollups and by a recount."""
    skipped = "".join(f" and not starts_with(topic, '{each}')" for each in SKIPPED)
    of_events, of_rollups = (
        f" and coalesce(log_id, '{table.log_id}') = '{log_id}'" * table.has_labels for table in (events, rollups)
    )
    return select(
        f"""
        with counted as (
            select time_us - time_us % {kind.length_us} as start_us, topic, protocol,
                   count(*) as events, sum(octet_length(payload)) as bytes
            from events where time_us >= {low} and time_us < {high}{skipped}{of_events} group by 1, 2, 3
        ), kept as (
            select start_us, topic, protocol, events, bytes from rollups
            where "window" = '{kind.name}' and start_us >= {low} and start_us < {high}{of_rollups}
        )
        select start_us, topic, protocol, coalesce(kept.events, 0) as events, coalesce(kept.bytes, 0) as bytes,
               coalesce(counted.events, 0) as found, coalesce(counted.bytes, 0) as found_bytes
        from kept full join counted using (start_us, topic, protocol)
        """,  # noqa: S608 - our own numbers, names and ids
        events=events,
        rollups=rollups,
    )


def _described(row: dict[str, Any], window: str) -> str:
    return (
        f"{window} from {row['start_us']} us on of {row['topic']} ({row['protocol']}): {row['events']} events "
        f"of {row['bytes']} bytes, but the lake has {row['found']} of {row['found_bytes']}"
    )
