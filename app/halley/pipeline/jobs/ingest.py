"""Ingest: the log's events into the table `events`, each exactly once, even if processes are killed.

A batch is a range of offsets. Spark's workers read it and write Parquet files, in one job (`write_range`): a worker's
rows go from the log to Parquet in one process, since through Spark's own source and writer they would go to Java, and
there from columns to rows and back, which took twice the time. A task that is run twice writes two sets of files; only
the files that its result names count.

The driver checks that the files account for every offset, and commits. Offsets without an event are committed first: to
`rejected` those that the log has and the lake cannot hold, to `gaps` those that the log has lost; and so is to
`mismatches` how many values the lifted columns could not take. Then the events are committed, with the offset up to
which the batch reaches: this commit alone decides. A crash between the two leaves rows in the other tables above that
offset; the next batch has the same end, and replaces them.

Files that are written belong to no table until the commit, so a killed job is started again with the same command.

In an object store the workers put the files where the commit will name them; those of offsets without an event are put
below the table `rejected`, for the driver to read. A batch is done again if unnamed files were deleted meanwhile, as
these may be its own (`lake/commit.py`). So an erasure lets no batch be committed that was read before it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Event
from typing import NamedTuple
from urllib.parse import unquote
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobFailed, JobRejected, PipelineError, cause_of
from halley.pipeline.jobs.run import LogJob, Progress, TurnJob, consumer
from halley.pipeline.lake import locks, shapes, tables, upkeep
from halley.pipeline.lake.commit import (
    VACUUM,
    AppTransaction,
    CommitOutcomeUnknown,
    Conflict,
    acquire_epoch,
    commit_files,
    owner,
    unchanged,
)
from halley.pipeline.lake.files import Written, add_of, staging_folder, write_files, write_in_order
from halley.pipeline.lake.place import LakePath, ObjectPath, delete, fetch, put, reason
from halley.pipeline.lake.sources import LogSource, labelled
from halley.pipeline.lake.tables import INGEST, LakeTable
from halley.pipeline.portions import read
from halley.pipeline.source import open_log
from halley.pipeline.source.columns import FAULT_COLUMNS, ColumnExtraction
from halley.pipeline.source.log import LogHead, caught_up, offsets, split
from halley.pipeline.source.options import SourceOptions
from halley.pipeline.source.source import Table
from halley.settings import Pipeline

_LOST = ("hole", "missing")
_RANGES = ("purged", "damaged", *_LOST)
"""The kinds of rows that are offsets without an event; all others have an event that the lake cannot hold."""


class Ingest(LogJob, TurnJob):
    """The job `ingest` of one log and one lake, which may have other logs."""

    def __post_init__(self) -> None:
        """Prepare the job; nothing is read or written yet."""
        self.interval_s = self.options.ingest_s
        self._log = open_log(self.log_options)
        self._consumer = consumer("lake", self.lake)
        self._compaction = LiveCompaction(self.lake, self.options)
        self._types = ColumnExtraction(self.lift).columns
        self._lifted = shapes.lifted_columns(self._types)
        self._source_options = self.source_options(faults="true", lift=self.lift)
        self._tables: tuple[LakeTable, LakeTable, LakeTable, LakeTable] | None = None
        self._log_id = ""
        self._labels: Mapping[str, str | None] = {}
        self._number = 0  # of this ingest among those into a lake in a store
        self._mismatches: Counter[tuple[str, str]] = Counter()

    def once(self) -> Iterator[Progress]:
        """Do all that the log has now, as the only ingest of its source."""
        with locks.ingest(self.lake, self.options.source):
            yield from super().once()

    def live(self, stop: Event) -> Iterator[Progress]:
        """Work until `stop` is set, as the only ingest of its source, and compact small files meanwhile."""
        with locks.ingest(self.lake, self.options.source), self._compaction.running():
            yield from super().live(stop)

    def counters(self) -> dict[str, int]:
        """Return the counters of compaction, and of what lifted columns could not take, for the progress line."""
        refused = {f"{kind} values for column {name}": count for (name, kind), count in self._mismatches.items()}
        return {"files fewer": self._compaction.compacted, "compactions failed": self._compaction.failed} | refused

    def step(self) -> Progress:
        """Do one turn: a batch, if there is anything new. Raises `JobRejected`, `JobFailed`."""
        began = time.monotonic()
        with locks.batch(self.lake):
            head = self._log.head()
            first, until = self._range(head)
            if until > first:
                try:
                    self._ingest(first, until)
                except Conflict as conflict:
                    if conflict.app != VACUUM:
                        raise
                    until = first  # the next turn reads the batch again
            self._log.commit(self._consumer, until)  # also if nothing is new: a silent consumer counts as dead
        return Progress(until, head.next, until - first, time.monotonic() - began)

    def _range(self, head: LogHead) -> tuple[int, int]:
        """Return the next batch, [first, until): from the end of the events, up to the end of a batch already begun."""
        at, *begun = [table.position(table.app(INGEST, head.log_id)) for table in self._opened(head.log_id)]
        first = head.first if at is None else at
        until = max(first, *(each or 0 for each in begun))
        if until > head.next:
            head = caught_up(self._log, until, self.options.behind_s)
        if until > head.next:
            raise JobRejected(
                f"the log ends before offset {head.next}, and {self.lake} has read it up to {until}: it has lost its "
                "end, or is an older copy; choose another --lake"
            )
        return first, until if until > first else min(first + self.options.batch_rows, head.next)

    def _opened(self, log_id: str) -> tuple[LakeTable, LakeTable, LakeTable, LakeTable]:
        """Return the tables events, rejected, gaps and mismatches, brought up to date."""
        if self._tables is None or self._log_id != log_id:
            self._tables = (
                self.table("events", log_id, self._lifted),
                self.table("rejected", log_id),
                self.table("gaps", log_id),
                self.table("mismatches", log_id),
            )
            self._log_id = log_id
            self._labels = self._tables[0].labels(LogSource(self.options.source, log_id))
            if isinstance(self.lake, ObjectPath):
                self._number = acquire_epoch(self._tables, self.options.source)
        for table in self._tables:
            table.refresh()
        return self._tables

    def _ingest(self, first: int, until: int) -> None:
        assert self._tables is not None
        events, rejected, gaps, mismatches = self._tables
        of_events, of_rejected, of_gaps, of_mismatches = (self._steps(table, until) for table in self._tables)
        with staging_folder(self.lake) as folder, self._written(folder, first, until) as (written, refused):
            ranges = pa.Table.from_batches(_rejected(written, _RANGES), shapes.TABLES["rejected"].columns)
            count = sum(each.rows for each in written if kind_of(each.path) not in _RANGES)
            count += (pc.sum(pc.subtract(ranges["last"], ranges["first"])).as_py() or 0) + ranges.num_rows
            if count != until - first:
                raise JobFailed(f"of {offsets(first, until - 1)} {count} were read: nothing of this batch is committed")
            now_us = time.time_ns() // 1_000
            is_lost = pc.is_in(ranges["reason"], pa.array(_LOST))
            lost = ranges.append_column("found_us", pa.repeat(now_us, ranges.num_rows)).filter(is_lost)
            reasons = {kind_of(each.path) for each in written}.difference(_RANGES, [EVENT])
            unfit = chain(ranges.filter(pc.invert(is_lost)).to_batches(), _rejected(written, reasons))
            counts = self._as_rows(refused, {"first": first, "last": until - 1, "found_us": now_us})
            self._commit_rest(gaps, folder, lost.select(gaps.shape.columns.names).to_batches(), first, of_gaps)
            self._commit_rest(rejected, folder, unfit, first, of_rejected)
            self._commit_rest(mismatches, folder, counts, first, of_mismatches)
            commit_files(events, [each.add or each.path for each in written if kind_of(each.path) == EVENT], *of_events)
            self._mismatches += refused

    def _steps(self, table: LakeTable, until: int) -> list[AppTransaction]:
        """Return the step of a table to the end of a batch that is begun now; in a store, also its conditions."""
        app = table.app(INGEST, self._log_id)
        step = AppTransaction(app, table.position(app), until)
        if isinstance(self.lake, Path):
            return [step]
        return [AppTransaction(owner(self.options.source), self._number, self._number), unchanged(table, VACUUM), step]

    def _commit_rest(
        self,
        table: LakeTable,
        folder: Path,
        rows: Iterable[pa.RecordBatch],
        first: int,
        steps: Sequence[AppTransaction],
    ) -> None:
        """Commit the rows that a table other than `events` gets of a batch, instead of those of a killed batch."""
        left = [file for file in table.files_of(self._log_id) if file.least["first"] >= first]
        named = (labelled(each, self._labels) for each in rows)
        written = write_in_order(folder / table.folder.name, table.shape, named)
        if written or left:
            commit_files(table, written, *steps, removed=left)

    def _as_rows(self, refused: Counter[tuple[str, str]], known: Mapping[str, int]) -> list[pa.RecordBatch]:
        """Return what lifted columns could not take as rows of `mismatches`; `known` are the columns of each row."""
        rows = [
            {**known, "column_name": name, "column_type": self._types[name], "kind": kind, "events": count}
            for (name, kind), count in sorted(refused.items())
        ]
        columns = shapes.TABLES["mismatches"].columns
        return [pa.RecordBatch.from_pylist(rows, columns)]

    @contextmanager
    def _written(self, folder: Path, first: int, until: int) -> Iterator[TaskResult]:
        """Have the workers write a range; for the block its files are there. Raises `JobRejected`, `JobFailed`.

        All files are in `folder`, except those of events in a store.
        """
        write = partial(write_range, self._source_options | self._log.options, self._labels)
        if isinstance(self.lake, Path):
            yield self._write(partial(write, folder.absolute()), first, until)
            return
        batch = uuid4().hex
        written, mismatches = self._write(partial(put_range, write, self.lake, batch), first, until)
        others = [str(each.path) for each in written if each.add is None]
        try:
            fetch(self.lake / "rejected" / batch, others, folder)
            yield TaskResult(
                [each if each.add else each._replace(path=folder / each.path) for each in written], mismatches
            )
        except CommitOutcomeUnknown:
            raise
        except (PipelineError, OSError) as error:
            with suppress(OSError):  # vacuum deletes them
                delete(self.lake / "events", [each.add.path for each in written if each.add])
            if isinstance(error, FileNotFoundError):
                raise Conflict(f"files of a batch into {self.lake} were deleted", VACUUM) from error
            if isinstance(error, OSError):
                raise JobFailed(f"{self.lake} cannot be read: {tables.first_line(error)}") from error
            raise
        finally:
            with suppress(OSError):
                delete(self.lake / "rejected" / batch, others)

    def _write(self, write: Callable[[int, int], TaskResult], first: int, until: int) -> TaskResult:
        """Have the workers write a range, in at most one task per core. Raises `JobRejected`, `JobFailed`."""
        tasks = min(self.spark.sparkContext.defaultParallelism, -(-(until - first) // self.options.partition_rows))
        ranges = split(first, until, -(-(until - first) // tasks))
        try:
            parts = self.spark.sparkContext.parallelize(ranges, len(ranges)).map(lambda each: write(*each)).collect()
        except Exception as error:
            if "No space left on device" in str(error):
                raise tables.refusal(self.lake, error) from error
            raise cause_of(error) from error
        written = [each for part in parts for each in part.files]
        return TaskResult(written, sum((part.mismatches for part in parts), Counter[tuple[str, str]]()))


def _rejected(written: Iterable[Written], kinds: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files of these kinds, which are not `EVENT`, as rows of `rejected`."""
    for each in written:
        kind = kind_of(each.path)
        if kind in kinds:
            named = unquote(each.path.parent.name.removeprefix("protocol="))
            for rows in read(each.path):
                yield _faults(rows, kind, None if named == tables.NULL_FOLDER else named)


def _faults(rows: pa.RecordBatch, reason: str, protocol: str | None) -> pa.RecordBatch:
    is_known = reason not in _RANGES
    stored = rows.append_column("protocol", pa.repeat(pa.scalar(protocol, pa.string()), rows.num_rows)).select(
        [*COLUMNS]
    )
    texts = [orjson.dumps(row).decode() for row in stored.to_pylist()] if is_known else None
    columns = {
        "first": rows["offset"],
        "last": rows["offset"] if is_known else rows["crc"],
        "reason": pa.repeat(reason, rows.num_rows),
        "time_us": rows["time_us"],
        "publication": rows["publication"],
        "protocol": stored["protocol"],
        "row": pa.array(texts, pa.string()) if is_known else pa.nulls(rows.num_rows, pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns, schema=shapes.TABLES["rejected"].columns)


_TABLES = ("events", "rollups", "mismatches")
"""The tables that grow with every commit; the others are small."""

_END_S = 60.0
"""How long to wait at the end for the batch of rows, or the file, that is being written."""


class _Ended(Exception):
    """The compaction is to be aborted."""


class LiveCompaction:
    """The repeated compaction of one lake.

    compacted  by how many files the tables have become fewer
    failed     the number of compactions that failed
    """

    def __init__(self, lake: LakePath, options: Pipeline) -> None:
        self.compacted = self.failed = 0
        self._lake = lake
        self._options = options
        self._end = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Compact every `compact_s` seconds during the block; never if that setting is 0."""
        self._end.clear()
        thread = threading.Thread(target=self._run, name="compaction", daemon=True)
        if self._options.compact_s:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            if thread.is_alive():
                thread.join(_END_S)

    def _run(self) -> None:
        while not self._end.wait(self._options.compact_s):
            for name in _TABLES:
                try:
                    done = upkeep.compact(self._lake, name, self._go_on, least=self._options.compact_files)
                    self.compacted += done.before - done.after
                except _Ended:
                    return
                except (locks.Busy, Conflict):
                    continue  # another process compacts or erases
                except (PipelineError, OSError):
                    self.failed += 1  # if the disk is full, ingest fails too, with a better message

    def _go_on(self, _done: int, _of: int) -> None:
        if self._end.is_set():
            raise _Ended


EVENT = "event"
"""The kind of rows that the table `events` can hold; any other kind is the reason why a row is not an event."""

_END_US = 253_402_300_800_000_000
"""The first microsecond of the year 10000, which a date cannot express."""

_FOLDER_NAME = "^[A-Za-z0-9_-]+$"
"""The names of protocols that can name a partition's folder."""


class TaskResult(NamedTuple):
    """What a task has written, and how many values lifted columns could not take, by column and kind."""

    files: list[Written]
    mismatches: Counter[tuple[str, str]]


def write_range(
    options: Mapping[str, str], labels: Mapping[str, str | None], folder: Path, first: int, until: int
) -> TaskResult:
    """Write the offsets [first, until) as files below `folder`, by kind, day and protocol, in the order of offsets.

    In files of another kind than `EVENT`, `crc` is the last offset. `options` are the source's, with faults; `labels`
    are the values of `lake.sources.LABELS` in all rows. Raises `JobRejected`, `JobFailed`, `OSError`.
    """
    table = Table(SourceOptions(options))
    rows = (labelled(_columns(each), labels) for each in table.batches(first, until))
    files = write_files(folder, rows, ("kind", "day", "protocol"))
    return TaskResult(files, table.mismatches)


def kind_of(file: Path) -> str:
    """Return the kind of the rows of a file that `write_range` has written."""
    return file.parts[-4].removeprefix("kind=")


def put_range(
    write: Callable[[Path, int, int], TaskResult], lake: ObjectPath, batch: str, first: int, until: int
) -> TaskResult:
    """Write the offsets [first, until) by `write_range`, and put the files of events to their places in a store.

    The others are put below `rejected/BATCH`. The paths that are returned are below such a folder. Raises
    `JobRejected`, `JobFailed`, `OSError`; then no files are left.
    """
    done: list[Written] = []
    with staging_folder(lake) as folder:
        try:
            part = write(folder, first, until)
            for each in part.files:
                path = each.path.relative_to(folder)
                if kind_of(each.path) == EVENT:
                    add = add_of(each.path, path.relative_to(path.parts[0]).as_posix(), shapes.TABLES["events"])
                    done.append(Written(path, each.rows, add))
                    put(each.path, lake / "events" / add.path)
                else:
                    done.append(Written(path, each.rows))
                    put(each.path, lake / "rejected" / batch / path.as_posix())
        except BaseException as error:
            with suppress(OSError):  # vacuum deletes them
                delete(lake / "events", [each.add.path for each in done if each.add])
                delete(lake / "rejected" / batch, [each.path.as_posix() for each in done if not each.add])
            if isinstance(error, OSError) and (text := reason(error)):
                raise JobFailed(f"{lake} cannot be written: {text}") from error
            raise
    return part._replace(files=done)


def _kinds(batch: pa.RecordBatch) -> pa.Array:
    """Return the kind of each row: `EVENT`, or the reason why it is not an event."""
    times = batch["time_us"]
    is_untimely = pc.or_(pc.less(times, 0), pc.greater_equal(times, _END_US))
    is_nameless = pc.invert(pc.match_substring_regex(pc.fill_null(batch["protocol"], ""), _FOLDER_NAME))
    own = pc.if_else(is_untimely, "time", pc.if_else(is_nameless, "protocol", EVENT))
    return pc.coalesce(batch["fault"], own)


def _days(times: pa.Array) -> pa.Array:
    """Return the days of times, in UTC; null for times outside the calendar."""
    is_date = pc.and_(pc.greater_equal(times, 0), pc.less(times, _END_US))
    return pc.if_else(is_date, times, None).cast(pa.timestamp("us")).cast(pa.date32())


def _columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a batch as the table's files have them, with the columns that name their folders."""
    lasts = pc.coalesce(batch["fault_last"], batch["crc"])
    kinds, days = _kinds(batch), _days(batch["time_us"])
    batch = batch.set_column(batch.schema.get_field_index("crc"), "crc", lasts).drop_columns([*FAULT_COLUMNS])
    return batch.append_column("kind", kinds).append_column("day", days)
