"""The upkeep of a lake: compaction, which keeps queries fast, and vacuum, which frees disk space.

Ingest commits every few seconds, and each commit makes small files in the order of offsets. Compaction makes large
files of them that are sorted by channel: by their statistics, a query of one channel opens one or two files of a day.
Neither the rows nor the app version change (L10). Vacuum deletes the files that no table names any more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from app.pipeline.lake import locks
from app.pipeline.lake.commit import commit_files, committed, staged, write_file
from app.pipeline.lake.tables import (
    INGEST,
    TABLES,
    File,
    OnProgress,
    Shape,
    files_of,
    folder_of,
    open_table,
    refusal,
    schema,
    shape_of,
    translate_read_errors,
)

FILE_ROWS = 250_000
"""The approximate number of rows of a compacted file."""

_SMALL_ROWS = FILE_ROWS // 4
"""A sorted file with fewer rows is compacted again with new files, or if there are `_MANY` such files."""

_MANY = 8


class Compacted(NamedTuple):
    """The number of files that were replaced, of files that replace them, and of rows in them."""

    before: int = 0
    after: int = 0
    rows: int = 0


def compact(lake: Path, name: str, on_progress: OnProgress = lambda _done, _of: None, *, least: int = 1) -> Compacted:
    """Replace the many small files of a table by few large sorted files, one partition after the other.

    least  partitions of the newest day with fewer small files are left for later
    on_progress  called with the number of rows that are done, and their total

    Jobs may go on meanwhile. Raises `Refused`, `JobFailed`; partitions that are done by then stay done.
    """
    with locks.rewrite(lake):
        table = open_table(lake, name)
        if table is None:
            return Compacted()
        chosen = _chosen(lake, table, least)
        total = sum(file.rows for files in chosen for file in files)
        compacted = Compacted()
        for files in chosen:
            done = compacted.rows
            written = rewrite(lake, table, files, lambda rows: on_progress(min(rows + done, total), total))  # noqa: B023 - called in this turn
            compacted = Compacted(
                compacted.before + len(files), compacted.after + written, done + sum(file.rows for file in files)
            )
        return compacted


def rewrite(lake: Path, table: DeltaTable, files: list[File], on_progress: Callable[[int], None]) -> int:
    """Replace files, all of one partition, by sorted files; return the number of these. Raises `Refused`, `JobFailed`.

    `on_progress` is called with the number of rows of this partition that are done.
    """
    root, shape = folder_of(table), shape_of(table)
    columns = pa.schema([field for field in schema(table) if field.name not in shape.partition_by])
    with staged(lake) as folder:
        place = folder / files[0].path.rpartition("/")[0]
        done = 0

        def further(rows: int) -> None:
            nonlocal done
            done += rows
            on_progress(done)

        with translate_read_errors(root, files):
            try:
                written = Compaction(shape, columns, folder, place, further).run([root / file.path for file in files])
            except OSError as error:
                if error.errno is None:  # an error of Arrow, about a file's content
                    raise
                raise refusal(root, error) from error
        commit_files(table, written, removed=files, is_rewrite=True)
    return len(written)


def _chosen(lake: Path, table: DeltaTable, least: int) -> list[list[File]]:
    """Return the files of each partition that are worth compacting, in the order of their contents."""
    shape = shape_of(table)
    events = open_table(lake, "events")
    settled = (events and committed(events, INGEST)) or 0
    found = defaultdict(list)
    for file in files_of(table):
        is_begun = (
            "last" in shape.columns.names and file.greatest["last"] >= settled
        )  # by a batch that is not committed
        if not is_begun and not (_is_sorted(file) and file.rows >= _SMALL_ROWS):
            found[tuple(file.partition.items())].append(file)
    by = shape.ordered_by
    newest = max((file.partition.get("day") or "" for files in found.values() for file in files), default="")
    return [
        sorted(files, key=lambda file: file.least.get(by, 0))
        for _, files in sorted(found.items(), key=str)
        if (len(files) >= _MANY or not all(_is_sorted(file) for file in files))
        and (len(files) >= least or (files[0].partition.get("day") or "") < newest)
    ]


def _is_sorted(file: File) -> bool:
    return file.path.rpartition("/")[2].startswith(SORTED)


class Vacuumed(NamedTuple):
    """The number of deleted files, and their size in bytes."""

    files: int = 0
    nbytes: int = 0


def vacuum(lake: Path, age_s: float, on_progress: OnProgress = lambda _done, _of: None) -> Vacuumed:
    """Delete the files that no table has named for `age_s` seconds, and those that no table ever named (T6).

    `on_progress` is called with the number of tables that are done, and their total. Raises `Refused`.
    """
    with locks.rewrite(lake):
        return delete_unnamed(lake, age_s, on_progress)


def delete_unnamed(lake: Path, age_s: float, on_progress: OnProgress = lambda _done, _of: None) -> Vacuumed:
    """Do the work of `vacuum`, for a caller that holds the lock `rewrite`.

    Files of a commit in progress are never deleted, regardless of the age (T5): this waits until there is none, and
    prevents new ones.
    """
    hours = math.ceil(age_s / 3_600)
    vacuumed = Vacuumed()
    with locks.files(lake, alone=True):
        for number, name in enumerate(TABLES):
            on_progress(number, len(TABLES))
            table = open_table(lake, name)
            if table is not None:
                found = _vacuum(table, hours)
                vacuumed = Vacuumed(vacuumed.files + found.files, vacuumed.nbytes + found.nbytes)
        on_progress(len(TABLES), len(TABLES))
    return vacuumed


def _vacuum(table: DeltaTable, hours: int) -> Vacuumed:
    """Vacuum one table with delta-rs, and count what it deleted: its own list has duplicates and files already gone."""
    root = folder_of(table)
    before = _sizes(root)
    try:
        table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
    except (DeltaError, OSError) as error:
        raise refusal(root, error) from error
    after = _sizes(root)
    gone = [nbytes for path, nbytes in before.items() if path not in after]
    return Vacuumed(len(gone), sum(gone))


def _sizes(root: Path) -> dict[Path, int]:
    """Return the size of each file of a table, except those of its log."""
    log = root / "_delta_log"
    return {path: path.stat().st_size for path in root.rglob("*") if path.is_file() and log not in path.parents}


_MOST_ROWS, _MOST_BYTES = FILE_ROWS * 5 // 4, 134_217_728
"""The most of a file, plus one batch: its rows, and their bytes in memory."""

SORTED = "sorted-"
"""The beginning of the names of compacted files."""

_BATCH_ROWS = 16_384
_MOST_RANGES = 200
"""The most drafts that are open at a time."""


class Compaction:
    """The compaction of one partition of a table.

    columns  the columns of its files
    drafts   the folder for drafts
    place    the folder for the files that are written
    tell     called with the number of further rows that are done
    """

    def __init__(
        self, shape: Shape, columns: pa.Schema, drafts: Path, place: Path, tell: Callable[[int], None] = lambda _: None
    ) -> None:
        self._shape = shape
        self._columns = columns
        self._drafts = drafts
        self._place = place
        self._tell = tell

    def run(
        self, files: Sequence[Path], keep: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows
    ) -> list[Path]:
        """Write the rows of files as compacted files, without those that `keep` leaves out; return the new paths.

        The files must be in the order of their offsets. Raises `Refused`, `OSError`.
        """
        rows = ds.dataset([str(file) for file in files], schema=self._columns, format="parquet")
        bounds = self._bounds(rows)
        drafts = [_Draft(self._drafts / f"{number}.arrow", self._columns) for number in range(len(bounds) + 1)]
        written = []
        with closing(rows.to_batches(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)) as batches:
            for batch in batches:
                for number, part in self._shared_out(keep(batch), bounds):
                    drafts[number].add(part)
                    if drafts[number].is_full:
                        written.append(self._write(drafts[number]))
                self._tell(batch.num_rows)
        return written + [self._write(draft) for draft in drafts if draft.rows]

    def _bounds(self, rows: ds.Dataset) -> list[str]:
        """Return the first topics of the second and each further range."""
        key = self._shape.sorted_by[0]
        if self._columns.field(key).type != pa.string():
            return []
        counts: Counter[str] = Counter()
        with closing(rows.to_batches(columns=[key], batch_size=_BATCH_ROWS)) as batches:
            for batch in batches:
                for count in pc.value_counts(batch[key]):
                    counts[count["values"].as_py() or ""] += count["counts"].as_py()
        ranges = min(_MOST_RANGES, -(-counts.total() // FILE_ROWS))
        wanted = -(-counts.total() // max(1, ranges)) + FILE_ROWS // 20  # of about the same size
        bounds = []
        here = 0
        for topic, count in sorted(counts.items()):
            if here and here + count > wanted:
                bounds.append(topic)
                here = 0
            here += count
        return bounds

    def _shared_out(self, batch: pa.RecordBatch, bounds: list[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number and the rows of each range that has rows in a batch."""
        if not bounds:
            yield 0, batch
            return
        topics = batch[self._shape.sorted_by[0]].dictionary_encode()
        numbers = pa.array([bisect_right(bounds, topic) for topic in topics.dictionary.to_pylist()], pa.int32())
        numbers = numbers.take(topics.indices)
        order = pc.array_sort_indices(numbers)
        batch = batch.take(order)
        at = 0
        for run in pc.value_counts(numbers.take(order)):  # in the order of their first occurrence
            count = run["counts"].as_py()
            yield run["values"].as_py(), batch.slice(at, count)
            at += count

    def _write(self, draft: _Draft) -> Path:
        return write_file(self._place, self._shape, draft.take(), SORTED)


class _Draft:
    """Rows of one range, collected on disk until there are enough for a file."""

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self._path = path
        self._columns = columns
        self._writer: Any = None
        self.rows = self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return self.rows > _MOST_ROWS or self._nbytes > _MOST_BYTES

    def add(self, part: pa.RecordBatch) -> None:
        if not part.num_rows:
            return
        if self._writer is None:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writer = pa.ipc.new_file(str(self._path), self._columns, options=options)
        self._writer.write_batch(part)
        self.rows += part.num_rows
        self._nbytes += part.nbytes

    def take(self) -> pa.Table:
        """Return all rows that were added, and empty the draft."""
        self._writer.close()
        self._writer = None
        self.rows = self._nbytes = 0
        with pa.OSFile(str(self._path)) as file:
            rows = pa.ipc.open_file(file).read_all()
        self._path.unlink()
        return rows
