"""The files of tables: written by Arrow, elsewhere on the tables' disk, with the statistics that go into a table's log.

Files that are not yet a part of a table are in a folder of `staged`, which is deleted when the work is done. The folder
of a killed process is recognized by its lock, which is not held, and is deleted when the next work begins. For a lake
in an object store it is a folder for temporary files of this machine.

Statistics are taken from a file's footer: rows, least and greatest values, nulls. The log repeats no payloads and no
publishers, since erased data would stay in it. Text columns without bounds have the widest: without any, pyarrow's
reader of delta-rs assumes that all values are null.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from halley.pipeline.lake.place import Where
from halley.pipeline.lake.tables import NULL_FOLDER, UNBOUNDED, Shape, refusal

ROW_GROUP_ROWS = 65_536
"""The rows of a row group, the part of a file that a reader can skip."""

_PARQUET = ds.ParquetFileFormat()
_MOST_PARTITIONS = 100_000
"""Of one batch: after a long pause it may have the events of years."""


@contextmanager
def staged(lake: Where) -> Iterator[Path]:
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
    folder: Path, shape: Shape, rows: pa.Table, *, is_one_partition: bool = False, prefix: str = "", file_rows: int = 0
) -> list[Path]:
    """Write rows, sorted, below a folder as files for a table, one for each partition; return their paths.

    `is_one_partition`: `folder` is that of the rows' partition; `prefix` and `file_rows` are those of `write_files`.
    Raises `JobRejected`.
    """
    if not rows.num_rows:
        return []
    ordered = rows.sort_by([(name, "ascending") for name in shape.sorted_by])
    partition_by = () if is_one_partition else shape.partition_by
    try:
        return [each.path for each in write_files(folder, ordered, partition_by, prefix=prefix, file_rows=file_rows)]
    except OSError as error:
        raise refusal(folder, error) from error


def write_files(
    folder: Path,
    rows: pa.Table | pa.RecordBatchReader,
    partition_by: Sequence[str] = (),
    *,
    prefix: str = "",
    file_rows: int = 0,
) -> list[Written]:
    """Write rows in their order below a folder, in files of `file_rows` rows (0: any) for each partition.

    prefix  the beginning of the files' names

    In memory is one row group of each file. Integers are stored as differences, which makes a file that is sorted by
    topic a third smaller. The files are found by their names, and not by Arrow's `file_visitor`: one of its threads may
    let go of such a function after this has returned, which aborts an interpreter that is ending (T20). Raises
    `OSError`.
    """
    names, written = rows.schema.names, f"{prefix}{uuid4().hex}"
    longs = [field.name for field in rows.schema if field.type == pa.int64()]
    options = _PARQUET.make_write_options(
        compression="zstd",
        use_dictionary=[name for name in names if name not in ("payload", *longs)],
        column_encoding=dict.fromkeys(longs, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in names if name != "payload"],
    )
    group_rows = min(ROW_GROUP_ROWS, file_rows or ROW_GROUP_ROWS)
    ds.write_dataset(
        rows,
        folder,
        basename_template=f"{written}-{{i}}.parquet",
        format=_PARQUET,
        partitioning=ds.partitioning(pa.schema([rows.schema.field(name) for name in partition_by]), flavor="hive"),
        file_options=options,
        use_threads=False,
        max_partitions=_MOST_PARTITIONS,
        min_rows_per_group=group_rows,
        max_rows_per_group=group_rows,
        max_rows_per_file=file_rows,
        existing_data_behavior="overwrite_or_ignore",
    )
    return [Written(path, pq.read_metadata(path).num_rows) for path in sorted(folder.rglob(f"{written}-*.parquet"))]


def add_of(file: Path, path: str, shape: Shape, *, is_change: bool = True) -> AddAction:
    """Return what a commit says of a file whose place below the table's folder is `path`.

    `is_change`: its rows are new in the table. Lifted columns have bounds, as the shape's columns that it names.
    """
    values = dict(unquote(part).split("=", 1) for part in path.split("/")[:-1])
    partition = {name: None if value == NULL_FOLDER else value for name, value in values.items()}
    lifted = set(pq.read_schema(file).names) - set(shape.columns.names)
    found = file.stat()
    bounds = statistics(file, {*shape.statistics, *lifted})
    return AddAction(path, found.st_size, partition, int(found.st_mtime * 1_000), is_change, bounds)


_LONG_CHARS = 32
"""Longer texts are cut, so that the least may be too small and the greatest too great."""


def statistics(file: Path, bounded: Collection[str]) -> str:
    """Return Delta's statistics of a Parquet file, from its footer; text columns have bounds only if in `bounded`.

    Raises `OSError`, `pa.ArrowException`.
    """
    footer = pq.read_metadata(file)
    flat = {field.name for field in footer.schema.to_arrow_schema() if not pa.types.is_nested(field.type)}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(footer.num_columns if footer.num_row_groups else 0):
        column = footer.schema.column(place)
        name = column.path
        if name not in flat:
            continue
        parts = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[name] = sum(part.null_count for part in parts)
            if nulls[name] == footer.num_rows:
                continue  # there is nothing to bound
            parts = [part for part in parts if part.num_values]
        if column.physical_type == "BYTE_ARRAY" and name not in bounded:
            least[name], greatest[name] = "", UNBOUNDED
        elif all(
            part is not None and part.has_min_max and _is_plain(part.min) and _is_plain(part.max) for part in parts
        ):
            low = min(part.min for part in parts)
            least[name] = low[:_LONG_CHARS] if isinstance(low, str) else low
            greatest[name] = _cut_above(max(part.max for part in parts))
    content = {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return orjson.dumps(content).decode()


def _is_plain(value: Any) -> bool:
    """Whether a value can be expressed in JSON."""
    return isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))


def _cut_above(greatest: Any) -> Any:
    """Return an upper bound of a text: if it is long, one that is greater than all texts with the same beginning."""
    if not isinstance(greatest, str) or len(greatest) <= _LONG_CHARS:
        return greatest
    return greatest[:_LONG_CHARS] + UNBOUNDED if greatest[_LONG_CHARS] != UNBOUNDED else UNBOUNDED
