"""A commit: files become a part of a table, in one step with the position of the job that wrote them.

Delta keeps a number for each application, its *app version*. Here it is a job's position in the log: the next offset to
read. It is the only checkpoint, so it can neither be lost nor disagree with the rows. delta-rs accepts any number (T2),
so a `AppTransaction` has both the old and the new position of a job, and a commit that does not start from the old
position is refused, regardless of which other processes are at work.

Arrow writes the files, and delta-rs makes the commit atomic. What they leave to us is here:

- `write_deltalake` writes in one process. A batch of ingest is written by Spark's workers, on all cores and machines,
  elsewhere on the same disk (`staged`), and the names of its files are committed.
- Neither library syncs to disk. A commit syncs files, moves them into the table's folder, and only then names them in
  its log, so that a power loss never leaves a log that names a torn file. A crash between the last two leaves files
  that no log names: vacuum removes them.
- delta-rs 1.6 does not notice when two processes replace the same files: of two `optimize.compact` of one version it
  refuses none, and all rows are there twice. `test_commit.py` has a test that fails when that is mended. Here what is
  removed is compared with the newest version before each try. Nor does it notice that a position decreases.

In an object store a commit is a put of the next entry of the table's log on the condition that there is none yet, and
files are put to their places instead of moved. There are no locks. What these are for in a folder is done by app
versions that a commit does not change and only compares (`unchanged`), so that one that comes too late is refused:

    vacuum        how often unnamed files were deleted (`begin_deletion`). Such files may be those of a commit in
                  progress, so one whose files were put before the latest deletion began is refused; they are put again
    ingest/owner  which ingest of a source writes, the one that was started last (`acquire_epoch`). A batch is
                  committed to four tables, and another ingest would take a batch in progress for that of a killed one.
                  Of a source with a name it is ingest/owner/NAME
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import randbelow
from typing import NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from halley.history.checksummed_json import sync_folder
from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import locks
from halley.pipeline.lake.files import add_of, staging_folder, write
from halley.pipeline.lake.place import LakePath, ObjectPath, delete, put
from halley.pipeline.lake.tables import File, LakeTable, first_line, refusal

VACUUM, FENCE = "vacuum", "ingest/owner"

_TRIES = 20
_MANY = 1 << 40


class AppTransaction(NamedTuple):
    """A job's progress: its app version `before` a commit (None: it had none) and `after` it."""

    app: str
    before: int | None
    after: int | None


class Conflict(JobRejected):
    """The table was changed by another process since the work for this commit was begun.

    `app` is the app version that was changed; empty: none was.
    """

    def __init__(self, text: str, app: str = "") -> None:
        super().__init__(text)
        self.app = app


def commit_rows(
    table: LakeTable, rows: pa.Table, *steps: AppTransaction, removed: Sequence[File] = (), is_rewrite: bool = False
) -> None:
    """Commit rows that fit into memory, possibly none; the other parameters and the errors are `commit_files`'s."""
    with staging_folder(table.folder.parent) as folder:
        commit_files(table, write(folder, table.shape, rows), *steps, removed=removed, is_rewrite=is_rewrite)


def commit_files(
    table: LakeTable,
    files: Iterable[Path | AddAction],
    *steps: AppTransaction,
    removed: Sequence[File] = (),
    is_rewrite: bool = False,
) -> None:
    """Move files into a table and commit them, with the steps of their job, in place of the `removed` files.

    The files must be on the table's disk, in folders named after the values of its partition columns; those of a table
    in a store on any disk of this machine, or in their places already, and then the steps have what was `unchanged`
    since before. Without such a step, files that a deletion may have taken are put again. `is_rewrite`: the rows are
    those of the removed files. `table` is brought up to date. Raises `Conflict`, `JobRejected`, `locks.Busy`, and then
    nothing has changed, except after `CommitOutcomeUnknown`.
    """
    given = list(files)
    is_put = (
        isinstance(table.folder, ObjectPath)
        and any(isinstance(each, Path) for each in given)
        and all(step.app != VACUUM for step in steps)
    )
    with locks.files(table.folder.parent):
        if given:
            table.keep_statistics()
        for _ in range(_TRIES):
            try:
                guard = [_latest(table, VACUUM)] if is_put else []
                _place_and_commit(table, given, [*steps, *guard], removed, is_rewrite=is_rewrite)
            except Conflict as conflict:
                if not is_put or conflict.app != VACUUM:
                    raise
            else:
                return
    raise _too_busy(table)


def unchanged(table: LakeTable, app: str) -> AppTransaction:
    """Return the condition that an app version is still what it is now, as a step. Raises `JobRejected`."""
    now = table.position(app)
    return AppTransaction(app, now, now)


def _latest(table: LakeTable, app: str) -> AppTransaction:
    table.refresh()
    return unchanged(table, app)


def begin_deletion(table: LakeTable) -> None:
    """Refuse all commits to a table in a store whose files were put before now. Raises `JobRejected`."""
    for _ in range(_TRIES):
        before = _latest(table, VACUUM).before
        with suppress(Conflict):
            commit_files(table, [], AppTransaction(VACUUM, before, (before or 0) + 1))
            return
    raise _too_busy(table)


def owner(source: str) -> str:
    """Return the app version that says which ingest of a source writes."""
    return f"{FENCE}/{source}" if source else FENCE


def acquire_epoch(tables: Sequence[LakeTable], source: str = "") -> int:
    """Refuse all commits to tables in a store by ingests that were started before; return the number of this one.

    The first table decides if two are started at the same time. Their numbers differ, as a number is all by which a
    commit without rows is known. Raises `JobRejected`.
    """
    first, *others = tables
    for _ in range(_TRIES):
        before = _latest(first, owner(source)).before
        number = (before or 0) + 1 + randbelow(_MANY)
        with suppress(Conflict):
            commit_files(first, [], AppTransaction(owner(source), before, number))
            break
    else:
        raise _too_busy(first)
    for table in others:
        commit_files(table, [], AppTransaction(owner(source), _latest(table, owner(source)).before, number))
    return number


def _too_busy(table: LakeTable) -> Conflict:
    return Conflict(f"{table.folder} is too busy with other commits; try again")


class CommitOutcomeUnknown(JobRejected):
    """A commit failed and its outcome is unknown, since the table cannot be read any more."""


def _place_and_commit(
    table: LakeTable,
    files: list[Path | AddAction],
    steps: Sequence[AppTransaction],
    removed: Sequence[File],
    *,
    is_rewrite: bool,
) -> None:
    root = table.folder
    depth = len(table.shape.partition_by)
    targets = [
        file.path if isinstance(file, AddAction) else "/".join(file.parts[len(file.parts) - 1 - depth :])
        for file in files
    ]
    try:
        adds = [
            file if isinstance(file, AddAction) else _placed(table, file, target, is_change=not is_rewrite)
            for file, target in zip(files, targets, strict=True)
        ]
        now_ms = int(time.time() * 1_000)
        removes = [
            RemoveAction(each.path, not is_rewrite, now_ms, each.nbytes, dict(each.partition)) for each in removed
        ]
        _commit(table, adds, removes, steps)
    except CommitOutcomeUnknown:
        raise
    except (JobRejected, OSError) as error:
        _take_back(root, targets)
        if isinstance(error, OSError):
            raise refusal(root, error) from error
        raise
    if isinstance(root, Path):
        with suppress(OSError):  # the commit has succeeded nevertheless
            log = root / "_delta_log"
            _sync(log / f"{table.version():020}.json")
            sync_folder(log)


def _take_back(root: LakePath, paths: list[str]) -> None:
    if isinstance(root, ObjectPath):
        with suppress(OSError):  # vacuum deletes them
            delete(root, paths)
        return
    for path in paths:
        (root / path).unlink(missing_ok=True)


def _commit(
    table: LakeTable, adds: list[AddAction], removes: list[RemoveAction], steps: Sequence[AppTransaction]
) -> None:
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
                    app_transactions=[
                        Transaction(step.app, step.after) for step in steps if step.after not in (None, step.before)
                    ],
                ),
            )
        except (DeltaError, OSError) as error:
            if not _is_committed(table, adds, removes, steps):
                if isinstance(error, CommitFailedError):
                    continue
                if isinstance(table.folder, ObjectPath):  # what was sent may still arrive
                    raise CommitOutcomeUnknown(f"{table.folder} cannot be written: {first_line(error)}") from error
                raise refusal(table.folder, error) from error
        try:
            table.update_incremental()
        except (DeltaError, OSError) as error:
            raise CommitOutcomeUnknown(f"{table.folder} cannot be read after a commit: {first_line(error)}") from error
        return
    raise _too_busy(table)


def _check(table: LakeTable, removes: list[RemoveAction], steps: Sequence[AppTransaction]) -> None:
    for step in steps:
        found = table.position(step.app)
        is_back = step.before is not None and (step.after or 0) < step.before
        if step.app.startswith(FENCE) and (found != step.before or is_back):
            text = f"another ingest into {table.folder.parent} was started later, and goes on in place of this one"
            raise Conflict(text, step.app)
        if found != step.before:
            raise Conflict(
                f"{table.folder} was written by another job {step.app!r}: it is at {found}, not {step.before}", step.app
            )
        if is_back:
            text = f"the position of job {step.app!r} would decrease from {step.before} to {step.after}"
            raise Conflict(text, step.app)
    if removes:
        live = {each.path for each in table.data_files()}
        if not all(each.path in live for each in removes):
            raise Conflict(f"files of {table.folder} were replaced by another process meanwhile")


def _is_committed(
    table: LakeTable, adds: list[AddAction], removes: list[RemoveAction], steps: Sequence[AppTransaction]
) -> bool:
    """Whether a commit has succeeded although it raised an error, such as that of a checkpoint after it."""
    try:
        now = LakeTable(table.table_uri)
        live = {each.path for each in now.data_files()} if adds or removes else set()
    except (DeltaError, OSError) as error:
        raise CommitOutcomeUnknown(f"{table.folder} cannot be read after a commit: {first_line(error)}") from error
    if adds or removes:
        return all(each.path in live for each in adds) and not any(each.path in live for each in removes)
    return all(now.position(step.app) == step.after for step in steps)


def _placed(table: LakeTable, file: Path, path: str, *, is_change: bool) -> AddAction:
    """Bring a file to its place `path` below a table's folder; sync it and the folders to disk, if there are any."""
    root = table.folder
    if isinstance(root, ObjectPath):
        add = add_of(file, path, table.shape, is_change=is_change)
        put(file, root / path)
        return add
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    _sync(file)
    file.rename(target)
    for folder in target.parents:
        sync_folder(folder)
        if folder == root:
            break
    return add_of(target, path, table.shape, is_change=is_change)


def _sync(file: Path) -> None:
    """Sync a file to disk. Spark does not, and the log must never name a file that a power loss can truncate."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
