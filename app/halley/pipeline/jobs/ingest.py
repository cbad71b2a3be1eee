"""Ingest: the log's events into the table `events`, each exactly once, even if processes are killed.

A batch is a range of offsets. Spark's workers read it and write Parquet files, in one job (`write_range`): a worker's
rows go from the log to Parquet in one process, since through Spark's own source and writer they would go to Java, and
there from columns to rows and back, which took twice the time. A task that is run twice writes two sets of files; only
the files that its result names count.

The driver checks that the files account for every offset, and commits. Offsets without an event are committed first: to
`rejected` those that the log has and the lake cannot hold, to `gaps` those that the log has lost. Then the events are
committed, with the offset up to which the batch reaches: this commit alone decides. A crash between the two leaves rows
in `rejected` and `gaps` above that offset; the next batch has the same end, and replaces them.

Files that are written belong to no table until the commit, so a killed job is started again with the same command.

In an object store the workers put the files where the commit will name them; those of offsets without an event are put
below the table `rejected`, for the driver to read. A batch is done again if unnamed files were deleted meanwhile, as
these may be its own (`lake/commit.py`). So an erasure lets no batch be committed that was read before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from urllib.parse import unquote
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from halley.history.stored import COLUMNS
from halley.pipeline.errors import JobFailed, JobRejected, PipelineError, cause_of
from halley.pipeline.jobs.run import LogJob, Progress, TurnJob, consumer
from halley.pipeline.lake import locks, tables, upkeep
from halley.pipeline.lake.commit import (
    OWNER,
    VACUUM,
    Conflict,
    Step,
    Unsure,
    claim,
    commit_files,
    commit_rows,
    unchanged,
)
from halley.pipeline.lake.files import Written, add_of, staged, write_files
from halley.pipeline.lake.place import StorePath, Where, delete, fetch, put, reason
from halley.pipeline.lake.tables import INGEST, LakeTable
from halley.pipeline.source import open_log
from halley.pipeline.source.columns import FAULT_COLUMNS, Lifting
from halley.pipeline.source.log import Head, caught_up, offsets, split
from halley.pipeline.source.source import Options, Table
from halley.settings import Pipeline

_LOST = ("hole", "missing")
_GAP_COLUMNS = tables.TABLES["gaps"].columns.names


class Ingest(LogJob, TurnJob):
    """The job `ingest` of one log and one lake."""

    def __post_init__(self) -> None:
        """Prepare the job; nothing is read or written yet."""
        self.interval_s = self.options.ingest_s
        self._log = open_log(self.log_options)
        self._consumer = consumer("lake", self.lake)
        self._compaction = LiveCompaction(self.lake, self.options)
        self._lifted = tables.lifted_columns(Lifting(self.lift).columns)
        self._source_options = self.source_options(faults="true", lift=self.lift)
        self._tables: tuple[LakeTable, LakeTable, LakeTable] | None = None
        self._number = 0  # of this ingest among those into a lake in a store

    def once(self) -> Iterator[Progress]:
        """Do all that the log has now, as the lake's only ingest."""
        with locks.ingest(self.lake):
            yield from super().once()

    def live(self, stop: Event) -> Iterator[Progress]:
        """Work until `stop` is set, as the lake's only ingest, and compact small files meanwhile."""
        with locks.ingest(self.lake), self._compaction.running():
            yield from super().live(stop)

    def counters(self) -> dict[str, int]:
        """Return the counters of compaction, for the progress line."""
        return {"files fewer": self._compaction.compacted, "compactions failed": self._compaction.failed}

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

    def _range(self, head: Head) -> tuple[int, int]:
        """Return the next batch, [first, until): from the end of the events, up to the end of a batch already begun."""
        at, *begun = [table.position(INGEST) for table in self._opened(head.log_id)]
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

    def _opened(self, log_id: str) -> tuple[LakeTable, LakeTable, LakeTable]:
        """Return the tables events, rejected and gaps, brought up to date."""
        if self._tables is None or self._tables[0].log_id != log_id:
            self._tables = (
                tables.create(self.lake, "events", log_id, self._lifted),
                tables.create(self.lake, "rejected", log_id),
                tables.create(self.lake, "gaps", log_id),
            )
            if isinstance(self.lake, StorePath):
                self._number = claim(self._tables)
        for table in self._tables:
            table.refresh()
        return self._tables

    def _ingest(self, first: int, until: int) -> None:
        assert self._tables is not None
        events, rejected, gaps = self._tables
        of_events, of_rejected, of_gaps = map(self._conditions, self._tables)
        with self._written(first, until) as written:
            events_in = [each for each in written if kind_of(each.path) == EVENT]
            others = [_faults(each.path, kind) for each in written if (kind := kind_of(each.path)) != EVENT]
            count = sum(each.rows for each in events_in)
            count += sum(pc.sum(pc.subtract(each["last"], each["first"])).as_py() + each.num_rows for each in others)
            if count != until - first:
                raise JobFailed(f"of {offsets(first, until - 1)} {count} were read: nothing of this batch is committed")
            faults = pa.concat_tables([tables.TABLES["rejected"].columns.empty_table(), *others])
            is_lost = pc.is_in(faults["reason"], pa.array(_LOST))
            found_us = pa.repeat(pa.scalar(time.time_ns() // 1_000), faults.num_rows)
            lost = faults.append_column("found_us", found_us).filter(is_lost).select(_GAP_COLUMNS)
            _commit_faults(gaps, lost, first, until, of_gaps)
            _commit_faults(rejected, faults.filter(pc.invert(is_lost)), first, until, of_rejected)
            step = Step(INGEST, events.position(INGEST), until)
            commit_files(events, [each.add or each.path for each in events_in], step, *of_events)

    def _conditions(self, table: LakeTable) -> list[Step]:
        """Return on what a batch that is begun now can be committed to a table in a store."""
        if isinstance(self.lake, Path):
            return []
        return [Step(OWNER, self._number, self._number), unchanged(table, VACUUM)]

    @contextmanager
    def _written(self, first: int, until: int) -> Iterator[list[Written]]:
        """Have the workers write a range; for the block its files are there. Raises `JobRejected`, `JobFailed`."""
        write = partial(write_range, self._source_options | self._log.options)
        with staged(self.lake) as folder:
            if isinstance(self.lake, Path):
                yield self._write(partial(write, folder.absolute()), first, until)
                return
            batch = uuid4().hex
            written = self._write(partial(put_range, write, self.lake, batch), first, until)
            others = [str(each.path) for each in written if each.add is None]
            try:
                fetch(self.lake / "rejected" / batch, others, folder)
                yield [each if each.add else each._replace(path=folder / each.path) for each in written]
            except Unsure:
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

    def _write(self, write: Callable[[int, int], list[Written]], first: int, until: int) -> list[Written]:
        """Have the workers write a range, in at most one task per core. Raises `JobRejected`, `JobFailed`."""
        tasks = min(self.spark.sparkContext.defaultParallelism, -(-(until - first) // self.options.partition_rows))
        ranges = split(first, until, -(-(until - first) // tasks))
        try:
            return self.spark.sparkContext.parallelize(ranges, len(ranges)).flatMap(lambda each: write(*each)).collect()
        except Exception as error:
            if "No space left on device" in str(error):
                raise tables.refusal(self.lake, error) from error
            raise cause_of(error) from error


def _faults(file: Path, reason: str) -> pa.Table:
    """Return the rows of a file that are not events, as rows of `rejected`."""
    rows = pq.read_table(file, partitioning=None)
    named = unquote(file.parent.name.removeprefix("protocol="))
    protocol = None if named == tables.NULL_FOLDER else named
    is_known = reason not in ("purged", "damaged", *_LOST)
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
    return pa.table(columns, schema=tables.TABLES["rejected"].columns)


def _commit_faults(table: LakeTable, rows: pa.Table, first: int, until: int, conditions: list[Step]) -> None:
    """Commit the rows of offsets without an event in [first, until), in place of those that a killed batch left."""
    left = [file for file in table.data_files() if file.least["first"] >= first]
    if rows.num_rows or left:
        commit_rows(table, rows, Step(INGEST, table.position(INGEST), until), *conditions, removed=left)


_TABLES = ("events", "rollups")
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

    def __init__(self, lake: Where, options: Pipeline) -> None:
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


def write_range(options: Mapping[str, str], folder: Path, first: int, until: int) -> list[Written]:
    """Write the offsets [first, until) as files below `folder`, by kind, day and protocol, in the order of offsets.

    In files of another kind than `EVENT`, `crc` is the last offset. `options` are the source's, with faults. Raises
    `JobRejected`, `JobFailed`, `OSError`.
    """
    table = Table(Options(options))
    rows = pa.RecordBatchReader.from_batches(
        _columns(pa.RecordBatch.from_pylist([], table.schema)).schema,
        map(_columns, table.batches(first, until)),
    )
    return write_files(folder, rows, ("kind", "day", "protocol"))


def kind_of(file: Path) -> str:
    """Return the kind of the rows of a file that `write_range` has written."""
    return file.parts[-4].removeprefix("kind=")


def put_range(
    write: Callable[[Path, int, int], list[Written]], lake: StorePath, batch: str, first: int, until: int
) -> list[Written]:
    """Write the offsets [first, until) by `write_range`, and put the files of events to their places in a store.

    The others are put below `rejected/BATCH`. The paths that are returned are below such a folder. Raises
    `JobRejected`, `JobFailed`, `OSError`; then no files are left.
    """
    done: list[Written] = []
    with staged(lake) as folder:
        try:
            for each in write(folder, first, until):
                path = each.path.relative_to(folder)
                if kind_of(each.path) == EVENT:
                    add = add_of(each.path, path.relative_to(path.parts[0]).as_posix(), tables.TABLES["events"])
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
    return done


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
