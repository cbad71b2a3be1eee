"""What keeps a lake quick and small: compaction, and vacuum.

Ingest commits every few seconds, and each commit makes small files in the order of offsets. Compaction makes large ones
of them that are sorted by channel: whoever asks for one channel opens one or two files of a day, by their statistics.
The rows stay what they were, and so does the app version (L10). Vacuum deletes what no table names any more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from deltalake.exceptions import DeltaError

from app.pipeline.lake import lock, staging
from app.pipeline.lake.commit import commit_files, committed
from app.pipeline.lake.compaction import FILE_ROWS, SORTED, Compaction
from app.pipeline.lake.soundness import reading
from app.pipeline.lake.tables import INGEST, TABLES, File, files_of, folder_of, open_table, refusal, schema, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltalake import DeltaTable

    Tell = Callable[[int, int], None]

_SMALL_ROWS = FILE_ROWS // 4
"""A sorted file with fewer is taken up again together with what is new; and without, if there are many."""

_MANY = 8


class Compacted(NamedTuple):
    """How many files were replaced, by how many, and the rows in them."""

    before: int = 0
    after: int = 0
    rows: int = 0


def compact(lake: Path, name: str, tell: Tell = lambda _done, _of: None, *, least: int = 1) -> Compacted:
    """Make few large sorted files of the many small ones of a table, one partition after the other.

    `least`: partitions of the newest day with fewer small files are left for later. Jobs may go on meanwhile. `tell`
    hears how many rows are done, and of how many. Raises `Refused`, `JobFailed`; what is done by then stays done.
    """
    with lock.rewrite(lake):
        table = open_table(lake, name)
        if table is None:
            return Compacted()
        chosen = _chosen(lake, table, least)
        total = sum(file.rows for files in chosen for file in files)
        compacted = Compacted()
        for files in chosen:
            done = compacted.rows
            written = rewrite(lake, table, files, lambda rows: tell(min(rows + done, total), total))  # noqa: B023 - called in this turn
            compacted = Compacted(
                compacted.before + len(files), compacted.after + written, done + sum(file.rows for file in files)
            )
        return compacted


def rewrite(lake: Path, table: DeltaTable, files: list[File], tell: Callable[[int], None]) -> int:
    """Put sorted files in the place of these, all of one partition; how many. Raises `Refused`, `JobFailed`."""
    root, shape = folder_of(table), shape_of(table)
    columns = pa.schema([field for field in schema(table) if field.name not in shape.partition_by])
    with staging.staged(lake) as folder:
        place = folder / files[0].path.rpartition("/")[0]
        done = 0

        def further(rows: int) -> None:
            nonlocal done
            done += rows
            tell(done)

        with reading(root, files):
            try:
                written = Compaction(shape, columns, folder, place, further).run([root / file.path for file in files])
            except OSError as error:
                if error.errno is None:  # of Arrow, about what is in a file
                    raise
                raise refusal(root, error) from error
        commit_files(table, written, removed=files, is_rewrite=True)
    return len(written)


def _chosen(lake: Path, table: DeltaTable, least: int) -> list[list[File]]:
    """The files of each partition that are worth it, in the order of what is in them."""
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
    """How many files went, and what they took of the disk."""

    files: int = 0
    nbytes: int = 0


def vacuum(lake: Path, age_s: float, tell: Tell = lambda _done, _of: None) -> Vacuumed:
    """Delete the files of all tables that none has named for so long, and those that never came into one (T6).

    Raises `Refused`.
    """
    with lock.rewrite(lake):
        return delete_unnamed(lake, age_s, tell)


def delete_unnamed(lake: Path, age_s: float, tell: Tell = lambda _done, _of: None) -> Vacuumed:
    """The work of vacuum, for whoever rewrites the lake.

    Files of a commit under way are never among them, whatever the age (T5): this waits until none is, and lets none
    begin.
    """
    hours = math.ceil(age_s / 3_600)
    vacuumed = Vacuumed()
    with lock.files(lake, alone=True):
        for number, name in enumerate(TABLES):
            tell(number, len(TABLES))
            table = open_table(lake, name)
            if table is not None:
                found = _vacuum(table, hours)
                vacuumed = Vacuumed(vacuumed.files + found.files, vacuumed.nbytes + found.nbytes)
        tell(len(TABLES), len(TABLES))
    return vacuumed


def _vacuum(table: DeltaTable, hours: int) -> Vacuumed:
    """What delta-rs does when asked for all of it; its own list names some files more than once, or gone ones."""
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
    """Of all files but the log's."""
    log = root / "_delta_log"
    return {path: path.stat().st_size for path in root.rglob("*") if path.is_file() and log not in path.parents}
