"""Concurrent jobs in one Spark session, each on its own thread, until a signal ends them or one fails.

SIGTERM and SIGINT let each job finish its turn; a second signal is no longer caught. The first failure ends all jobs: a
pipeline of which one part has stopped would look alive.
"""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from halley.pipeline.errors import JobFailed, PipelineError, cause_of
from halley.pipeline.jobs.publishing import Publisher
from halley.pipeline.lake.place import LakePath
from halley.pipeline.lake.tables import LakeTable, create
from halley.settings import Pipeline

CHANNEL = "/halley/pipeline"
_TICK_S = 1.0
_HEADS = 3_600
_END_S = 600.0
"""How long to wait at the end for the batches in progress, whose size is bounded."""


class Progress(NamedTuple):
    """The progress after a turn.

    next    the first offset that is not done yet
    head    the first offset beyond the log's end, when the turn began
    rows    the number of rows that the turn has done
    took_s  how long the turn took, in seconds
    """

    next: int
    head: int
    rows: int
    took_s: float


class Job(ABC):
    """A job that can be run. Its methods raise `PipelineError`."""

    @abstractmethod
    def once(self) -> Iterator[Progress]:
        """Do all that the log has now."""

    @abstractmethod
    def live(self, stop: threading.Event) -> Iterator[Progress]:
        """Do what comes, turn by turn, until `stop` is set."""

    def counters(self) -> dict[str, int]:
        """Return the counts since the job's start, by a name for people."""
        return {}


class TurnJob(Job):
    """A job that calls `step` again and again.

    interval_s  the time from the beginning of a turn to the next one, which begins at once while events are waiting
    """

    interval_s: float

    @abstractmethod
    def step(self) -> Progress:
        """Do one turn, and return how far that has come."""

    def once(self) -> Iterator[Progress]:
        """Do turns until all is done that the log had when the first one began."""
        first = progress = self.step()
        yield first
        while progress.next < first.head:
            progress = self.step()
            yield progress

    def live(self, stop: threading.Event) -> Iterator[Progress]:
        """Do turns until `stop` is set."""
        while not stop.is_set():
            due = time.monotonic() + self.interval_s
            progress = self.step()
            yield progress
            if progress.next >= progress.head:
                stop.wait(max(0, due - time.monotonic()))


class Status(NamedTuple):
    """The status of a job: its next offset, its distance from the log's end, its speed, its counters (`remarks`)."""

    name: str
    next: int
    lag_events: int
    lag_s: float
    rows_per_s: float
    remarks: dict[str, int]

    def __str__(self) -> str:
        behind = f"{self.lag_events:,} events and {self.lag_s:.0f} s behind" if self.lag_events else "up to date"
        counters = "".join(f", {count:,} {what}" for what, count in self.remarks.items() if count)
        return f"{self.name} at {self.next:,}, {behind}, {self.rows_per_s:,.0f} rows/s{counters}"


class JobProgress:
    """The progress of all jobs, reported by their turns on any thread; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heads: deque[tuple[float, int]] = deque(maxlen=_HEADS)
        self._latest: dict[str, Progress] = {}
        self._rows: dict[str, int] = {}
        self._counters: dict[str, dict[str, int]] = {}
        self._since = clock()

    def on_head(self, head: int) -> None:
        """Record that the log now ends before the offset `head`."""
        with self._lock:
            if not self._heads or head > self._heads[-1][1]:
                self._heads.append((self._clock(), head))

    def on_turn(self, name: str, progress: Progress, counters: dict[str, int] | None = None) -> None:
        """Record that a turn of the job `name` has ended."""
        self.on_head(progress.head)
        with self._lock:
            self._latest[name] = progress
            self._counters[name] = counters or {}
            self._rows[name] = self._rows.get(name, 0) + progress.rows

    def status(self) -> list[Status]:
        """Return the status of each job now; rates are since the last call."""
        with self._lock:
            now = self._clock()
            elapsed = max(now - self._since, 1e-3)
            self._since = now
            rows, self._rows = self._rows, {}
            head = self._heads[-1][1] if self._heads else 0
            return [
                Status(
                    name,
                    latest.next,
                    max(0, head - latest.next),
                    next((now - at for at, ended in self._heads if ended > latest.next), 0.0),
                    rows.get(name, 0) / elapsed,
                    self._counters[name],
                )
                for name, latest in self._latest.items()
            ]


def run(
    spark: SparkSession,
    jobs: Mapping[str, Job],
    show: Callable[[list[Status]], None],
    *,
    is_once: bool = False,
    publisher: Publisher | None = None,
    head: Callable[[], int] | None = None,
) -> int | None:
    """Run jobs by name; `show` is called with their status every second and at the end.

    is_once    end when all is done that the log had at the start
    publisher  publishes the status on `/halley/pipeline`
    head       returns where the log ends now; without it that is known from the jobs' turns only, which may be long

    Return the number of the signal that ended the jobs, or None if they have done all. Raises the `PipelineError` of
    the first job that failed. It must be called on the main thread, as it catches signals.
    """
    running = _Running(spark, jobs, is_once=is_once)
    with _signals(running.stop) as received:
        try:
            running.start(head)
            while running.is_busy():
                running.stop.wait(_TICK_S)
                status = running.progress.status()
                show(status)
                if publisher is not None:
                    publisher.publish_status(CHANNEL, _payload(status))
                if running.stop.is_set():
                    break
        finally:
            running.stop.set()
            if publisher is not None:
                publisher.stop_retrying()
            running.join()
    show(running.progress.status())
    if running.failure is not None:
        raise running.failure
    return received[0] if received else None


class _Running:
    """The jobs, each on a thread of its own; `failure` is the first error of any, and ends all of them."""

    def __init__(self, spark: SparkSession, jobs: Mapping[str, Job], *, is_once: bool) -> None:
        self.stop = threading.Event()
        self.progress = JobProgress()
        self.failure: PipelineError | None = None
        self._spark = spark
        self._is_once = is_once
        self._threads = [
            threading.Thread(target=self._run, args=(name, job), name=name, daemon=True) for name, job in jobs.items()
        ]

    def start(self, head: Callable[[], int] | None) -> None:
        if head is not None:  # it may have to wait for a server, so it runs on a separate thread
            threading.Thread(target=self._watch, args=(head,), name="watching", daemon=True).start()
        for thread in self._threads:
            thread.start()

    def _watch(self, head: Callable[[], int]) -> None:
        while not self.stop.wait(_TICK_S):
            with suppress(PipelineError):  # the jobs raise the same error
                self.progress.on_head(head())

    def is_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait until all threads have ended; set `failure` if one does not end in time."""
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))
        if self.is_busy() and self.failure is None:
            self.failure = JobFailed(f"a job has not ended within {_END_S:g} s; what it had not committed is not done")

    def _run(self, name: str, job: Job) -> None:
        try:
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)  # no job waits for another's tasks
            for progress in job.once() if self._is_once else job.live(self.stop):
                self.progress.on_turn(name, progress, job.counters())
        except Exception as error:  # noqa: BLE001 - any error of a job is raised by `run`
            if self.failure is None:
                self.failure = cause_of(error)
            self.stop.set()


@contextmanager
def _signals(stop: threading.Event) -> Iterator[list[int]]:
    """During the block, the first SIGTERM or SIGINT sets `stop` and is added to the list."""
    received: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def caught(number: int, _: object) -> None:
        received.append(number)
        stop.set()
        restore()

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, caught)
    try:
        yield received
    finally:
        restore()


def _payload(status: list[Status]) -> dict[str, Any]:
    """Return the payload of an event on `/halley/pipeline`."""
    return {each.name: {name: value for name, value in each._asdict().items() if name != "name"} for each in status}


@dataclass(eq=False)
class LogJob(Job):
    """A job that reads a log for a lake. Making one raises `JobRejected`, `JobFailed`.

    log_options  the source's options that say which log it is: path, or url with token or token_file
    lift         the columns to lift, as `source.columns.lifts_of(settings)` returns them
    accept_gap   go on although offsets are missing in the log for no known reason, or are in a damaged segment
    accept_new_log   the log may replace another one of the same source, which is lost
    publisher    publishes what the job finds; None: it is written to the lake only
    """

    spark: SparkSession
    log_options: Mapping[str, str]
    lake: LakePath
    options: Pipeline
    lift: str = field(default="", kw_only=True)
    accept_gap: bool = field(default=False, kw_only=True)
    accept_new_log: bool = field(default=False, kw_only=True)
    publisher: Publisher | None = field(default=None, kw_only=True)

    @abstractmethod
    def __post_init__(self) -> None:
        """Prepare the job, from where the lake says."""

    def table(self, name: str, log_id: str, lifted: pa.Schema | None = None) -> LakeTable:
        """Open a table for the rows of the log, which is made if it does not exist. Raises `JobRejected`."""
        source = self.options.source
        return create(self.lake, name, log_id, lifted, source=source, accepts_new_log=self.accept_new_log)

    def source_options(self, **more: str) -> dict[str, str]:
        """Return the source's options for this job: those of the log, of the settings, and `more`."""
        return {
            **self.log_options,
            "accept_gap": str(self.accept_gap),
            "partition_rows": str(self.options.partition_rows),
            "behind_s": str(self.options.behind_s),
            **more,
        }


def consumer(job: str, lake: LakePath) -> str:
    """Return the consumer name of a job on a lake, unique by lake: several lakes may be made from one log."""
    return f"{job}-{blake2b(str(lake.absolute()).encode(), digest_size=4).hexdigest()}"
