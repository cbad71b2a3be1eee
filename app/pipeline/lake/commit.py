"""A commit: files become a part of a table, in one step with how far the job that wrote them has come.

Delta keeps a number for each application, its *app version*. Here it is how far a job has read the log: the next
offset. It is the only checkpoint that there is, so it can neither be lost nor disagree with the rows. delta-rs takes
any number (T2), so a `Step` says both where the job was and where it is now, and a commit that does not start from
there is refused, whoever else is at work.

Files are written elsewhere on the same disk (`staging.py`). Here they are seen on disk, moved into the table's folder,
and named in its log. A crash between the last two leaves files that nobody names: vacuum removes them.
"""

from __future__ import annotations

import os
import time
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from app.history.documents import sync_folder
from app.pipeline.errors import Refused
from app.pipeline.lake import lock, staging
from app.pipeline.lake.statistics import statistics
from app.pipeline.lake.tables import (
    NULL_FOLDER,
    File,
    files_of,
    first_line,
    folder_of,
    refresh,
    refusal,
    shape_of,
    unreadable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from app.pipeline.lake.tables import Shape

_TRIES = 20
ROW_GROUP_ROWS = 65_536
"""In which a file can be skipped in part."""


class Step(NamedTuple):
    """A job's progress: its app version `before` a commit (None: it had none), and after it."""

    app: str
    before: int | None
    after: int


class Conflict(Refused):
    """The table is not as it was when the work for this commit was begun."""


def committed(table: DeltaTable, app: str) -> int | None:
    """How far a job has come, by its table; None: it has not begun. Raises `Refused`."""
    try:
        version: int | None = table.transaction_version(app)
    except (DeltaError, OSError) as error:  # it is read from the table's log each time
        raise unreadable(table, error) from error
    return version


def commit_rows(
    table: DeltaTable, rows: pa.Table, *steps: Step, removed: Sequence[File] = (), is_rewrite: bool = False
) -> None:
    """Commit rows that fit into memory; none at all is fine too. As `commit_files`."""
    with staging.staged(folder_of(table).parent) as folder:
        commit_files(table, write(folder, shape_of(table), rows), *steps, removed=removed, is_rewrite=is_rewrite)


def write(folder: Path, shape: Shape, rows: pa.Table) -> list[Path]:
    """Write rows below a folder, one file for each partition, as a table wants them. Raises `Refused`."""
    written = []
    for part, chosen in _parts(rows, shape.partition_by):
        place = folder.joinpath(*(f"{name}={NULL_FOLDER if value is None else value}" for name, value in part.items()))
        written.append(write_file(place, shape, chosen))
    return written


def write_file(place: Path, shape: Shape, rows: pa.Table, prefix: str = "") -> Path:
    """Write rows of one partition, sorted, into a folder. Raises `Refused`."""
    file = place / f"{prefix}{uuid4().hex}.parquet"
    try:
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            rows.sort_by([(name, "ascending") for name in shape.sorted_by]),
            file,
            row_group_size=ROW_GROUP_ROWS,
            **parquet_options(rows.schema),
        )
    except OSError as error:
        raise refusal(place, error) from error
    return file


def parquet_options(columns: pa.Schema) -> dict[str, Any]:
    """How a table's files are written. Numbers are kept as differences: a third of a file that is sorted by topic."""
    longs = [field.name for field in columns if field.type == pa.int64()]
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in columns.names if name not in ("payload", *longs)],
        "column_encoding": dict.fromkeys(longs, "DELTA_BINARY_PACKED"),
        "write_statistics": [name for name in columns.names if name != "payload"],
    }


def _parts(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The rows of each partition, without the partition's columns, which stand in its folder's name."""
    if not columns:
        if rows.num_rows:
            yield {}, rows
        return
    for part in rows.group_by(list(columns)).aggregate([]).to_pylist():
        are_in = [
            pc.is_null(rows[name]) if value is None else pc.equal(rows[name], value) for name, value in part.items()
        ]
        mask = reduce(lambda one, other: pc.and_(pc.fill_null(one, fill_value=False), other), are_in)
        yield part, rows.filter(mask).drop_columns(list(columns))


def commit_files(
    table: DeltaTable,
    files: Iterable[Path],
    *steps: Step,
    removed: Sequence[File] = (),
    is_rewrite: bool = False,
) -> None:
    """Move files into a table and commit them, with the steps of their job, instead of the `removed` ones.

    The files lie on the table's disk, in folders named after the values of its partition columns. `is_rewrite`: the
    rows are those of the removed files. Raises `Conflict`, `Refused`, `lock.Busy`, and then nothing has changed.
    `table` is brought up to date.
    """
    root = folder_of(table)
    with lock.files(root.parent):
        depth = len(shape_of(table).partition_by)
        targets = {file: root.joinpath(*file.parts[len(file.parts) - 1 - depth :]) for file in files}
        try:
            for file, target in targets.items():
                _place(root, file, target)
            columns = _with_statistics(table)
            adds = [_add(root, each, columns, is_change=not is_rewrite) for each in targets.values()]
            removes = [_remove(each, is_change=not is_rewrite) for each in removed]
            _commit(table, adds, removes, steps)
        except Unsure:
            raise
        except (Refused, OSError) as error:
            for each in targets.values():
                each.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise refusal(root, error) from error
            raise
        _sync_log(table)


class Unsure(Refused):
    """The commit failed, and whether it counts cannot be told: the table cannot be read any more."""


def _commit(table: DeltaTable, adds: list[AddAction], removes: list[RemoveAction], steps: Sequence[Step]) -> None:
    """Commit from the table as it is now; anew if another commit was faster, and has done no harm."""
    if not (adds or removes or any(step.before != step.after for step in steps)):
        return
    for _ in range(_TRIES):
        refresh(table)
        _check(table, removes, steps)
        try:
            table.create_write_transaction(
                [*removes, *adds],
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    max_commit_retries=0,  # it would not look at what was removed meanwhile
                    app_transactions=[Transaction(step.app, step.after) for step in steps],
                ),
            )
        except (DeltaError, OSError) as error:
            if not _is_committed(table, adds, removes, steps):
                if isinstance(error, CommitFailedError):
                    continue
                raise refusal(folder_of(table), error) from error
        table.update_incremental()
        return
    raise Conflict(f"others commit to {folder_of(table)} all the time; try again")


def _check(table: DeltaTable, removes: list[RemoveAction], steps: Sequence[Step]) -> None:
    for step in steps:
        found = committed(table, step.app)
        if found != step.before:
            raise Conflict(
                f"{folder_of(table)} has been written by another job {step.app!r}: it is at {found}, not {step.before}"
            )
        if step.before is not None and step.after < step.before:
            raise Conflict(f"job {step.app!r} would go back from {step.before} to {step.after} (T2)")
    if removes:
        live = {each.path for each in files_of(table)}
        if not all(each.path in live for each in removes):
            raise Conflict(f"files of {folder_of(table)} were replaced by others meanwhile")


def _is_committed(table: DeltaTable, adds: list[AddAction], removes: list[RemoveAction], steps: Sequence[Step]) -> bool:
    """Whether a commit counts although it was answered with an error, such as that of a checkpoint after it."""
    try:
        now = DeltaTable(table.table_uri)
        live = {each.path for each in files_of(now)} if adds or removes else set()
    except (DeltaError, OSError) as error:
        raise Unsure(f"{folder_of(table)} cannot be read after a commit: {first_line(error)}") from error
    if adds or removes:
        return all(each.path in live for each in adds) and not any(each.path in live for each in removes)
    return all(committed(now, step.app) == step.after for step in steps)


def _place(root: Path, file: Path, target: Path) -> None:
    """Move a file to where the table wants it, and see it on disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _sync(file)
    file.rename(target)
    folder = target.parent
    sync_folder(folder)
    while folder != root:
        folder = folder.parent
        sync_folder(folder)


def _with_statistics(table: DeltaTable) -> set[str]:
    """The texts whose bounds are told: those that the table's shape says, and lifted ones."""
    shape = shape_of(table)
    lifted = {each.name for each in table.schema().fields} - set(shape.columns.names)
    return {*shape.statistics, *lifted}


def _add(root: Path, file: Path, columns: set[str], *, is_change: bool) -> AddAction:
    path = str(file.relative_to(root))
    found = file.stat()
    values = dict(unquote(part).split("=", 1) for part in path.split("/")[:-1])
    partition = {name: None if value == NULL_FOLDER else value for name, value in values.items()}
    return AddAction(path, found.st_size, partition, int(found.st_mtime * 1_000), is_change, statistics(file, columns))


def _remove(file: File, *, is_change: bool) -> RemoveAction:
    return RemoveAction(file.path, is_change, int(time.time() * 1_000), file.nbytes, dict(file.partition))


def _sync(file: Path) -> None:
    """Spark does not do it, and the log must never name a file of which a power loss takes a part."""
    number = os.open(file, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _sync_log(table: DeltaTable) -> None:
    log = folder_of(table) / "_delta_log"
    try:
        _sync(log / f"{table.version():020}.json")
        sync_folder(log)
    except OSError:  # it is committed all the same
        return
