"""The files of tables: written by Arrow, elsewhere on the tables' disk, with the statistics that go into a table's log.

Files that are not yet a part of a table are in a folder of `staging_folder`, which is deleted when the work is done.
The folder of a killed process is recognized by its lock, which is not held, and is deleted when the next work begins.
For a lake in an object store it is a folder for temporary files of this machine.

Statistics are taken from a file's footer: rows, least and greatest values, nulls. They are those that delta-rs would
write itself for the columns that the table's property names (`bounded_columns`), but it makes them of the files that it
writes only, not of those that Spark's workers have written.

A row group ends by its bytes as well as by its rows, so that writing it, and reading it, takes bounded memory however
large the payloads are.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from halley.pipeline.lake.place import LakePath
from halley.pipeline.lake.shapes import TableSchema, bounded_columns
from halley.pipeline.lake.tables import NULL_FOLDER, UNBOUNDED, refusal
from halley.pipeline.portions import cut

ROW_GROUP_ROWS, ROW_GROUP_BYTES = 65_536, 33_554_432
"""The maximum of rows and of bytes in a row group, the part of a file that a reader can skip; the one that is reached
first counts. The bytes are those in memory."""

_MOST_OPEN = 128
"""Files that are written at a time: after a long pause, a batch may have the events of years."""


@contextmanager
def staging_folder(lake: LakePath) -> Iterator[Path]:
    """Make a new folder on the disk of the tables, and delete it at the end of the block. Raises `JobRejected`."""
    if not isinstance(lake, Path):
        with tempfile.TemporaryDirectory(prefix="halley-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    staging = lake / ".staging"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        _sweep(staging)
        folder = staging / uuid4().hex
        number = _lock(folder.with_suffix(".lock"))
    except OSError as error:
        raise refusal(lake, error) from error
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.with_suffix(".lock").unlink()
        os.close(number)


def _lock(path: Path) -> int:
    """Make a locked file, which gets its name only then, so that a sweep does not take it for a dead process's."""
    draft = path.with_suffix(".draft")
    number = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        draft.rename(path)
    except BaseException:
        os.close(number)
        raise
    return number


def _sweep(staging: Path) -> None:
    """Delete the folders of processes that have ended."""
    for folder in staging.iterdir():
        if folder.suffix == ".lock":
            with suppress(OSError):
                _remove_if_dead(folder)
        elif not folder.suffix and not folder.with_suffix(".lock").exists():
            shutil.rmtree(folder, ignore_errors=True)  # made again by a worker that outlived its master


def _remove_if_dead(lock: Path) -> None:
    number = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink()
    finally:
        os.close(number)


class Written(NamedTuple):
    """A file that is not yet a part of a table, and the number of its rows; `add` if it is in its place in a store."""

    path: Path
    rows: int
    add: AddAction | None = None


def write(
    folder: Path,
    shape: TableSchema,
    rows: pa.Table,
    *,
    is_one_partition: bool = False,
    prefix: str = "",
    file_rows: int = 0,
) -> list[Path]:
    """Write rows, sorted, below a folder as files for a table; the other parameters are those of `write_in_order`.

    The rows must fit into memory twice. Raises `JobRejected`.
    """
    ordered = rows.sort_by([(name, "ascending") for name in shape.sorted_by])
    return write_in_order(
        folder, shape, ordered.to_batches(), is_one_partition=is_one_partition, prefix=prefix, file_rows=file_rows
    )


def write_in_order(
    folder: Path,
    shape: TableSchema,
    rows: Iterable[pa.RecordBatch],
    *,
    is_one_partition: bool = False,
    prefix: str = "",
    file_rows: int = 0,
) -> list[Path]:
    """Write rows in their order below a folder as files for a table, one for each partition; return their paths.

    `is_one_partition`: `folder` is that of the rows' partition; `prefix` and `file_rows` are those of `write_files`.
    Raises `JobRejected`, and what `rows` raises.
    """
    partition_by = () if is_one_partition else shape.partition_by
    try:
        return [each.path for each in write_files(folder, rows, partition_by, prefix=prefix, file_rows=file_rows)]
    except OSError as error:
        raise refusal(folder, error) from error


def write_files(
    folder: Path,
    rows: Iterable[pa.RecordBatch],
    partition_by: Sequence[str] = (),
    *,
    prefix: str = "",
    file_rows: int = 0,
    group_bytes: int = ROW_GROUP_BYTES,
) -> list[Written]:
    """Write rows in their order below a folder, in files of at most `file_rows` rows (0: any) for each partition.

    prefix       the beginning of the files' names
    group_bytes  the most bytes of a row group, except one with a single row

    In memory are rows of at most `group_bytes` bytes, of all files together, and the batch that is being written. No
    thread of Arrow is at work when this has returned (T20). Raises `OSError`, and what `rows` raises.
    """
    writing = _Writing(folder, f"{prefix}{uuid4().hex}", file_rows, group_bytes)
    try:
        for batch in rows:
            for place, part in _by_partition(batch, partition_by):
                for piece in cut(part, ROW_GROUP_ROWS, group_bytes // 4):
                    writing.add(place, piece)
        return writing.end()
    except BaseException:
        writing.abort()
        raise


class _Writing:
    """The files that are being written, by the folder of their partition; the one used longest ago is the first."""

    def __init__(self, folder: Path, name: str, file_rows: int, group_bytes: int) -> None:
        self._folder, self._name = folder, name
        self._file_rows, self._group_bytes = file_rows, group_bytes
        self._open: dict[PurePath, _File] = {}
        self._done: list[Written] = []
        self._count = 0

    def add(self, place: PurePath, rows: pa.RecordBatch) -> None:
        """Add rows to the file of a partition, and begin another one where that is full."""
        while rows.num_rows:
            file = self._open.pop(place, None) or self._begin(place, rows.schema)
            self._open[place] = file  # now the last one
            if file.waiting_bytes + rows.nbytes > self._group_bytes:
                file.end_group()
            fitting = rows.slice(0, min(ROW_GROUP_ROWS - file.waiting_rows, (self._file_rows or 1 << 62) - file.rows))
            file.add(fitting)
            rows = rows.slice(fitting.num_rows)
            if file.waiting_rows == ROW_GROUP_ROWS:
                file.end_group()
            if file.rows == self._file_rows:
                self._close(place)
        while sum(each.waiting_bytes for each in self._open.values()) > self._group_bytes:
            max(self._open.values(), key=lambda each: each.waiting_bytes).end_group()

    def _begin(self, place: PurePath, schema: pa.Schema) -> _File:
        if len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open)))
        folder = self._folder / place
        folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        return _File(folder / f"{self._name}-{self._count - 1}.parquet", schema)

    def _close(self, place: PurePath) -> None:
        file = self._open[place]
        file.close()
        del self._open[place]
        self._done.append(Written(file.path, file.rows))

    def end(self) -> list[Written]:
        """Complete all files, and return them in the order of their paths."""
        for place in [*self._open]:
            self._close(place)
        return sorted(self._done)

    def abort(self) -> None:
        """Close all files as they are."""
        for file in self._open.values():
            file.abort()


class _File:
    """A file that is being written, and the rows that wait for the end of their row group."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.rows = self.waiting_rows = self.waiting_bytes = 0
        self._waiting: list[pa.RecordBatch] = []
        self._sink = pa.OSFile(str(path), "wb")
        longs = [field.name for field in schema if field.type == pa.int64()]
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            use_dictionary=[name for name in schema.names if name not in ("payload", *longs)],
            # Stored as differences, longs make a file that is sorted by topic a third smaller.
            column_encoding=dict.fromkeys(longs, "DELTA_BINARY_PACKED"),
            write_statistics=[name for name in schema.names if name != "payload"],
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self.rows += rows.num_rows
        self.waiting_rows += rows.num_rows
        self.waiting_bytes += rows.nbytes

    def end_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0

    def close(self) -> None:
        self.end_group()
        self._writer.close()
        self._sink.close()

    def abort(self) -> None:
        self._writer.is_open = False  # else it would write its footer when it is deleted, and report that this fails
        with suppress(OSError):
            self._sink.close()


def _by_partition(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[PurePath, pa.RecordBatch]]:
    """Yield the rows of each partition, without its columns, after the name of its folder."""
    if not names:
        yield PurePath(), rows
        return
    keys = pa.Table.from_batches([rows]).group_by([*names], use_threads=False).aggregate([]).to_pylist()
    rest = rows.drop_columns([*names])
    for key in keys:
        place = PurePath(
            *(f"{name}={NULL_FOLDER if key[name] is None else quote(str(key[name]), '')}" for name in names)
        )
        if len(keys) == 1:
            yield place, rest
        else:
            yield place, rest.filter(reduce(pc.and_, (_has(rows[name], key[name]) for name in names)))


def _has(column: pa.Array, value: Any) -> pa.Array:
    """Which of a column's values are equal to one, which may be null."""
    if value is None:
        return pc.is_null(column)
    return pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), fill_value=False)


def add_of(file: Path, path: str, shape: TableSchema, *, is_change: bool = True) -> AddAction:
    """Return what a commit says of a file whose place below the table's folder is `path`.

    `is_change`: its rows are new in the table.
    """
    values = dict(unquote(part).split("=", 1) for part in path.split("/")[:-1])
    partition = {name: None if value == NULL_FOLDER else value for name, value in values.items()}
    found = file.stat()
    return AddAction(path, found.st_size, partition, int(found.st_mtime * 1_000), is_change, statistics(file, shape))


_LONG_CHARS = 32
"""Longer texts are cut, so that the least may be too small and the greatest too great."""


def statistics(file: Path, shape: TableSchema) -> str:
    """Return Delta's statistics of a Parquet file, from its footer. Raises `OSError`, `pa.ArrowException`."""
    footer = pq.read_metadata(file)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    places = {footer.schema.column(place).path: place for place in range(footer.num_columns)}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in bounded_columns(shape, footer.schema.to_arrow_schema()) if groups else ():
        parts = [group.column(places[name]).statistics for group in groups]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[name] = sum(part.null_count for part in parts)
            if nulls[name] == footer.num_rows:
                continue  # there is nothing to bound
            parts = [part for part in parts if part.num_values]
        if all(part is not None and part.has_min_max and _is_plain(part.min) and _is_plain(part.max) for part in parts):
            low = min(part.min for part in parts)
            least[name] = low[:_LONG_CHARS] if isinstance(low, str) else low
            greatest[name] = _cut_above(max(part.max for part in parts))
    content = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return orjson.dumps(content).decode()


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))


def _cut_above(greatest: Any) -> Any:
    """Return an upper bound of a text: if it is long, one that is greater than all texts with the same beginning."""
    if not isinstance(greatest, str) or len(greatest) <= _LONG_CHARS:
        return greatest
    return greatest[:_LONG_CHARS] + UNBOUNDED if greatest[_LONG_CHARS] != UNBOUNDED else UNBOUNDED
