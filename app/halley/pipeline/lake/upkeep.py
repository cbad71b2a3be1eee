"""The upkeep of a lake: compaction, which keeps queries fast, and vacuum, which frees disk space.

Ingest commits every few seconds, and each commit makes small files in the order of offsets. Compaction makes large
files of them: it takes as many rows as fit into memory, sorts them by channel, and writes them as a few files, so that
by their statistics a query of one channel opens few of a day's files, and one of an hour too. Neither the rows nor the
app version change (L10). Vacuum deletes the files that no table names any more.

Delta's own `optimize.z_order` was measured (deltalake 1.6.6) and does not do that. Of 40 channels whose names have the
first 29 characters in common, each of its 13 files had rows of all; with short names a channel was in 1.3 files. A
second run replaced all files again. It is also one call, which cannot be stopped between files.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake.exceptions import DeltaError

from halley.pipeline.lake import locks
from halley.pipeline.lake.commit import begin_deletion, commit_files
from halley.pipeline.lake.files import staging_folder, write
from halley.pipeline.lake.place import LakePath, ObjectPath, delete, sizes
from halley.pipeline.lake.shapes import TABLES
from halley.pipeline.lake.tables import INGEST, File, LakeTable, OnProgress, open_table, refusal, translate_read_errors
from halley.pipeline.portions import PORTION_ROWS, read

FILE_ROWS = 250_000
"""The most rows of a compacted file."""

_MOST_ROWS, _MOST_BYTES = FILE_ROWS * 4, 134_217_728
"""The most that is sorted at a time, plus one portion of a file: rows, and their bytes, which are in memory twice."""

_SMALL_ROWS, _SMALL_BYTES = FILE_ROWS // 4, 8_388_608
"""A sorted file with fewer rows and bytes is compacted again with new files, or if there are `_MANY` such files."""

_MANY = 8
_BATCH_ROWS = PORTION_ROWS

SORTED = "sorted-"
"""The beginning of the names of compacted files."""

_FULL = f"{SORTED}full-"
"""The same for files that got all bytes that are sorted at a time; on disk they can be small, as text is compressed."""


class Compacted(NamedTuple):
    """The number of files that were replaced, of files that replace them, and of rows in them."""

    before: int = 0
    after: int = 0
    rows: int = 0


def compact(
    lake: LakePath, name: str, on_progress: OnProgress = lambda _done, _of: None, *, least: int = 1
) -> Compacted:
    """Replace the many small files of a table by few large sorted files, one partition after the other.

    least  partitions of the newest day with fewer small files are left for later
    on_progress  called with the number of rows that are done, and their total

    Jobs may go on meanwhile. Raises `JobRejected`, `JobFailed`; partitions that are done by then stay done.
    """
    with locks.rewrite(lake):
        table = open_table(lake, name)
        if table is None:
            return Compacted()
        chosen = _chosen(lake, table, least)
        total = sum(file.rows for files in chosen for file in files)
        after = done = 0
        for files in chosen:
            after += rewrite(lake, table, files, lambda rows: on_progress(min(rows + done, total), total))  # noqa: B023 - called in this turn
            done += sum(file.rows for file in files)
        return Compacted(sum(map(len, chosen)), after, done)


def rewrite(lake: LakePath, table: LakeTable, files: list[File], on_progress: Callable[[int], None]) -> int:
    """Replace files, all of one partition and one log, by sorted files; return their number.

    `on_progress` is called with the number of these rows that are done. Raises `JobRejected`, `JobFailed`.
    """
    root, shape = table.folder, table.shape
    columns = pa.schema([field for field in table.columns() if field.name not in shape.partition_by])
    written: list[Path] = []
    done = 0
    with staging_folder(lake) as folder:
        place = folder / files[0].path.rpartition("/")[0]
        with translate_read_errors(root, files):
            for rows in _portions(table, [file.path for file in files], columns):
                file_rows = -(-rows.num_rows // -(-rows.num_rows // FILE_ROWS))
                prefix = _FULL if rows.nbytes >= _MOST_BYTES else SORTED
                written += write(place, shape, rows, is_one_partition=True, prefix=prefix, file_rows=file_rows)
                done += rows.num_rows
                on_progress(done)
                del rows  # before the next ones are read
        commit_files(table, written, removed=files, is_rewrite=True)
    return len(written)


def _portions(table: LakeTable, files: Sequence[str], columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files in their order, in portions that are small enough to be sorted in memory."""
    portion: list[pa.RecordBatch] = []
    count = nbytes = 0
    stored = table.files
    for file in files:
        for rows in read(file, most_rows=_BATCH_ROWS, filesystem=stored):
            portion.append(_completed(rows, columns))
            count += rows.num_rows
            nbytes += rows.nbytes
            if count >= _MOST_ROWS or nbytes >= _MOST_BYTES:
                yield pa.Table.from_batches(portion, columns)
                portion, count, nbytes = [], 0, 0
    if count:
        yield pa.Table.from_batches(portion, columns)


def _completed(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return rows of a file with the table's present columns: those that were added since are null."""
    known = {*rows.schema.names}
    arrays = [
        rows[each.name].cast(each.type) if each.name in known else pa.nulls(rows.num_rows, each.type)
        for each in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _chosen(lake: LakePath, table: LakeTable, least: int) -> list[list[File]]:
    """Return the files of each partition and log that are worth compacting, in the order of their contents."""
    shape = table.shape
    events = open_table(lake, "events")
    found = defaultdict(list)
    for log_id in [each.log_id for each in events.sources.origins] if events else [table.log_id]:
        settled = (events and events.position(events.app(INGEST, log_id))) or 0
        for file in table.files_of(log_id):
            is_uncommitted = "last" in shape.columns.names and file.greatest["last"] >= settled
            is_large = file.rows >= _SMALL_ROWS or file.nbytes >= _SMALL_BYTES or _is_named(file, _FULL)
            if not is_uncommitted and not (_is_named(file, SORTED) and is_large):
                found[(*file.partition.items(), log_id)].append(file)
    by = shape.ordered_by
    newest = max((file.partition.get("day") or "" for files in found.values() for file in files), default="")
    return [
        sorted(files, key=lambda file: file.least.get(by, 0))
        for _, files in sorted(found.items(), key=str)
        if (len(files) >= _MANY or not all(_is_named(file, SORTED) for file in files))
        and (len(files) >= least or (files[0].partition.get("day") or "") < newest)
    ]


def _is_named(file: File, beginning: str) -> bool:
    return file.path.rpartition("/")[2].startswith(beginning)


class Vacuumed(NamedTuple):
    """The number of deleted files, and their size in bytes."""

    files: int = 0
    nbytes: int = 0


def vacuum(lake: LakePath, age_s: float, on_progress: OnProgress = lambda _done, _of: None) -> Vacuumed:
    """Delete the files that no table has named for `age_s` seconds, and those that no table ever named (T6).

    `on_progress` is called with the number of tables that are done, and their total. Raises `JobRejected`.
    """
    with locks.rewrite(lake):
        return delete_unnamed(lake, age_s, on_progress)


def delete_unnamed(lake: LakePath, age_s: float, on_progress: OnProgress = lambda _done, _of: None) -> Vacuumed:
    """Do the work of `vacuum`, for a caller that holds the lock `rewrite`.

    Files of a commit in progress are never deleted, regardless of the age (T5): this waits until there is none, and
    prevents new ones. In a store, such a commit is refused instead, and its files are put again.
    """
    hours = math.ceil(age_s / 3_600)
    deleted: list[int] = []
    with locks.files(lake, alone=True):
        for number, name in enumerate(TABLES):
            on_progress(number, len(TABLES))
            table = open_table(lake, name)
            if table is not None:
                deleted += _vacuum(table, hours)
        on_progress(len(TABLES), len(TABLES))
    return Vacuumed(len(deleted), sum(deleted))


def _vacuum(table: LakeTable, hours: int) -> list[int]:
    """Vacuum a table with delta-rs; return the sizes of what it deleted, as its list has files that were gone."""
    root = table.folder
    if isinstance(root, ObjectPath):
        return _vacuum_store(table, root, hours)
    before = _sizes(root)
    try:
        table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
    except (DeltaError, OSError) as error:
        raise refusal(root, error) from error
    after = _sizes(root)
    return [nbytes for path, nbytes in before.items() if path not in after]


def _vacuum_store(table: LakeTable, root: ObjectPath, hours: int) -> list[int]:
    """Do as `_vacuum` in a store: what has no name, and cannot get one since `begin_deletion`, is deleted."""
    try:
        found = sizes(root)
        unnamed = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True)
        if not found.keys() & unnamed:
            return []
        begin_deletion(table)
        left_over = (found.keys() & unnamed) - {file.path for file in table.data_files()}
        delete(root, left_over)
    except (DeltaError, OSError) as error:
        raise refusal(root, error) from error
    return [found[path] for path in left_over]


def _sizes(root: Path) -> dict[Path, int]:
    log = root / "_delta_log"
    return {path: path.stat().st_size for path in root.rglob("*") if path.is_file() and log not in path.parents}
