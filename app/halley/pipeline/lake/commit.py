"""A commit: files become a part of a table, in one step with the position of the job that wrote them.

Delta keeps a number for each application, its *app version*. Here it is a job's position in the log: the next offset
to read. It is the only checkpoint, so it can neither be lost nor disagree with the rows. delta-rs accepts any number
(T2), so a `Step` has both the old and the new position of a job, and a commit that does not start from the old position
is refused, regardless of which other processes are at work.

Arrow writes the files, and delta-rs makes the commit atomic. What they leave to us is here:

- `write_deltalake` takes rows that are in the driver's memory. A batch of ingest need not fit there: Spark's workers
  write its files, elsewhere on the same disk (`staged`), and their names are committed.
- Neither library syncs to disk. A commit syncs files, moves them into the table's folder, and only then names them in
  its log, so that a power loss never leaves a log that names a torn file. A crash between the last two leaves files
  that no log names: vacuum removes them.
- delta-rs does not notice when two processes replace the same files, nor when a position decreases.
- Its statistics have the bounds of all columns, also of those that a log must not repeat (`files.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from halley.history.checksummed_json import sync_folder
from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import locks
from halley.pipeline.lake.files import staged, statistics, write
from halley.pipeline.lake.tables import NULL_FOLDER, File, LakeTable, first_line, refusal

_TRIES = 20


class Step(NamedTuple):
    """A job's progress: its app version `before` a commit (None: it had none) and `after` it."""

    app: str
    before: int | None
    after: int


class Conflict(JobRejected):
    """The table was changed by another process since the work for this commit was begun."""


def commit_rows(
    table: LakeTable, rows: pa.Table, *steps: Step, removed: Sequence[File] = (), is_rewrite: bool = False
) -> None:
    """Commit rows that fit into memory, possibly none; the other parameters and the errors are `commit_files`'s."""
    with staged(table.folder.parent) as folder:
        commit_files(table, write(folder, table.shape, rows), *steps, removed=removed, is_rewrite=is_rewrite)


def commit_files(
    table: LakeTable,
    files: Iterable[Path],
    *steps: Step,
    removed: Sequence[File] = (),
    is_rewrite: bool = False,
) -> None:
    """Move files into a table and commit them, with the steps of their job, in place of the `removed` files.

    The files must be on the table's disk, in folders named after the values of its partition columns. `is_rewrite`: the
    rows are those of the removed files. `table` is brought up to date. Raises `Conflict`, `JobRejected`, `locks.Busy`,
    and then nothing has changed, except after `Unsure`.
    """
    root = table.folder
    with locks.files(root.parent):
        depth = len(table.shape.partition_by)
        targets = {file: root.joinpath(*file.parts[len(file.parts) - 1 - depth :]) for file in files}
        try:
            for file, target in targets.items():
                _place(root, file, target)
            shape = table.shape
            lifted = {each.name for each in table.schema().fields} - set(shape.columns.names)
            columns = {*shape.statistics, *lifted}
            adds = [_add(root, each, columns, is_change=not is_rewrite) for each in targets.values()]
            now_ms = int(time.time() * 1_000)
            removes = [
                RemoveAction(each.path, not is_rewrite, now_ms, each.nbytes, dict(each.partition)) for each in removed
            ]
            _commit(table, adds, removes, steps)
        except Unsure:
            raise
        except (JobRejected, OSError) as error:
            for each in targets.values():
                each.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise refusal(root, error) from error
            raise
        with suppress(OSError):  # the commit has succeeded nevertheless
            log = root / "_delta_log"
            _sync(log / f"{table.version():020}.json")
            sync_folder(log)


class Unsure(JobRejected):
    """A commit failed and its outcome is unknown, since the table cannot be read any more."""


def _commit(table: LakeTable, adds: list[AddAction], removes: list[RemoveAction], steps: Sequence[Step]) -> None:
    """Commit to the table's current version; try again if another commit was faster and does not conflict."""
    if not (adds or removes or any(step.before != step.after for step in steps)):
        return
    for _ in range(_TRIES):
        table.refresh()
        _check(table, removes, steps)
        try:
            table.create_write_transaction(
                [*removes, *adds],
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    max_commit_retries=0,  # delta-rs would not check what was removed meanwhile
                    app_transactions=[Transaction(step.app, step.after) for step in steps],
                ),
            )
        except (DeltaError, OSError) as error:
            if not _is_committed(table, adds, removes, steps):
                if isinstance(error, CommitFailedError):
                    continue
                raise refusal(table.folder, error) from error
        table.update_incremental()
        return
    raise Conflict(f"{table.folder} is too busy with other commits; try again")


def _check(table: LakeTable, removes: list[RemoveAction], steps: Sequence[Step]) -> None:
    for step in steps:
        found = table.position(step.app)
        if found != step.before:
            raise Conflict(
                f"{table.folder} was written by another job {step.app!r}: it is at {found}, not {step.before}"
            )
        if step.before is not None and step.after < step.before:
            raise Conflict(f"the position of job {step.app!r} would decrease from {step.before} to {step.after}")
    if removes:
        live = {each.path for each in table.data_files()}
        if not all(each.path in live for each in removes):
            raise Conflict(f"files of {table.folder} were replaced by another process meanwhile")


def _is_committed(table: LakeTable, adds: list[AddAction], removes: list[RemoveAction], steps: Sequence[Step]) -> bool:
    """Whether a commit has succeeded although it raised an error, such as that of a checkpoint after it."""
    try:
        now = LakeTable(table.table_uri)
        live = {each.path for each in now.data_files()} if adds or removes else set()
    except (DeltaError, OSError) as error:
        raise Unsure(f"{table.folder} cannot be read after a commit: {first_line(error)}") from error
    if adds or removes:
        return all(each.path in live for each in adds) and not any(each.path in live for each in removes)
    return all(now.position(step.app) == step.after for step in steps)


def _place(root: Path, file: Path, target: Path) -> None:
    """Move a file to its place in a table's folder, and sync it and the folders to disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _sync(file)
    file.rename(target)
    for folder in target.parents:
        sync_folder(folder)
        if folder == root:
            return


def _add(root: Path, file: Path, columns: set[str], *, is_change: bool) -> AddAction:
    path = str(file.relative_to(root))
    found = file.stat()
    values = dict(unquote(part).split("=", 1) for part in path.split("/")[:-1])
    partition = {name: None if value == NULL_FOLDER else value for name, value in values.items()}
    return AddAction(path, found.st_size, partition, int(found.st_mtime * 1_000), is_change, statistics(file, columns))


def _sync(file: Path) -> None:
    """Sync a file to disk. Spark does not, and the log must never name a file that a power loss can truncate."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
