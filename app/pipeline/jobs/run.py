"""Jobs side by side in one Spark session, each on a thread of its own, until they are told to end or one fails.

SIGTERM and SIGINT let each job finish what is under way; a second one is no longer caught. The first failure ends all:
a pipeline of which a part has stopped would look alive.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from app.pipeline.errors import JobFailed, PipelineError, cause_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from app.pipeline.jobs.progress import Progress
    from app.pipeline.jobs.publishing import Publisher

CHANNEL = "/halley/pipeline"
_TICK_S = 1.0
_HEADS = 3_600
_END_S = 600.0
"""For the batches under way when all is to end; they are of bounded size."""


class Job(Protocol):
    """What can be run: turns until all is done, or until it is told to stop."""

    def once(self) -> Iterator[Progress]:
        """All that the log has now. Raises `PipelineError`."""

    def live(self, stop: threading.Event) -> Iterator[Progress]:
        """Until `stop` is set. Raises `PipelineError`."""


@runtime_checkable
class Remarking(Protocol):
    """A job that has more to tell than how far it is."""

    def remarks(self) -> dict[str, int]:
        """What it has counted since its start, in words for people."""


class Status(NamedTuple):
    """Where a job is: the next offset, how far that is behind the log's end, how fast it goes, and its remarks."""

    name: str
    next: int
    lag_events: int
    lag_s: float
    rows_per_s: float
    remarks: dict[str, int]

    def __str__(self) -> str:
        behind = f"{self.lag_events:,} events and {self.lag_s:.0f} s behind" if self.lag_events else "up to date"
        remarks = "".join(f", {count:,} {what}" for what, count in self.remarks.items() if count)
        return f"{self.name} at {self.next:,}, {behind}, {self.rows_per_s:,.0f} rows/s{remarks}"


class Course:
    """How far jobs have come, told by their turns on any thread; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._heads: deque[tuple[float, int]] = deque(maxlen=_HEADS)
        self._latest: dict[str, Progress] = {}
        self._rows: dict[str, int] = {}
        self._remarks: dict[str, dict[str, int]] = {}
        self._since = clock()

    def see(self, head: int) -> None:
        """The log has been looked at, and ends there."""
        with self._lock:
            if not self._heads or head > self._heads[-1][1]:
                self._heads.append((self._clock(), head))

    def note(self, name: str, progress: Progress, remarks: dict[str, int] | None = None) -> None:
        """A turn has ended."""
        self.see(progress.head)
        with self._lock:
            self._latest[name] = progress
            self._remarks[name] = remarks or {}
            self._rows[name] = self._rows.get(name, 0) + progress.rows

    def look(self) -> list[Status]:
        """Where all are now; rates are since the look before."""
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
                    self._remarks[name],
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
    """Run jobs by name; `show` is called every second with how far they are, and at the end.

    `head` says where the log ends now; without it that is known from the jobs' turns only, which may be long.
    Returns the signal that has ended it, or None: with `is_once`, when all is done that the log had at the start.
    Raises the `PipelineError` of the first job that failed. Call it on the main thread.
    """
    running = _Running(spark, jobs, is_once=is_once)
    with _signals(running.stop) as received:
        try:
            running.start(head)
            while running.is_busy():
                running.stop.wait(_TICK_S)
                status = running.course.look()
                show(status)
                if publisher is not None:
                    publisher.tell(CHANNEL, _told(status))
                if running.stop.is_set():
                    break
        finally:
            running.stop.set()
            if publisher is not None:
                publisher.hurry()
            running.join()
    show(running.course.look())
    if running.failure is not None:
        raise running.failure
    return received[0] if received else None


class _Running:
    """The threads of jobs."""

    def __init__(self, spark: SparkSession, jobs: Mapping[str, Job], *, is_once: bool) -> None:
        self.stop = threading.Event()
        self.course = Course()
        self.failure: PipelineError | None = None
        self._spark = spark
        self._is_once = is_once
        self._threads = [
            threading.Thread(target=self._run, args=(name, job), name=name, daemon=True) for name, job in jobs.items()
        ]

    def start(self, head: Callable[[], int] | None) -> None:
        if head is not None:  # it may have to wait for a server, so nobody waits for it
            threading.Thread(target=self._watch, args=(head,), name="watching", daemon=True).start()
        for thread in self._threads:
            thread.start()

    def _watch(self, head: Callable[[], int]) -> None:
        while not self.stop.wait(_TICK_S):
            with suppress(PipelineError):  # the jobs say so too
                self.course.see(head())

    def is_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait for the ends. Sets `failure` where one does not come."""
        deadline = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))
        if self.is_busy() and self.failure is None:
            self.failure = JobFailed(f"a job has not ended within {_END_S:g} s; what it had not committed is not done")

    def _run(self, name: str, job: Job) -> None:
        try:
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", name)  # none waits for another's tasks
            for progress in job.once() if self._is_once else job.live(self.stop):
                self.course.note(name, progress, job.remarks() if isinstance(job, Remarking) else None)
        except Exception as error:  # noqa: BLE001 - whatever ends a job is told by whoever runs them all
            if self.failure is None:
                self.failure = cause_of(error)
            self.stop.set()


@contextmanager
def _signals(stop: threading.Event) -> Iterator[list[int]]:
    """Within the block the first SIGTERM or SIGINT sets `stop`, and is put into the list."""
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


def _told(status: list[Status]) -> dict[str, Any]:
    """What subscribers of `/halley/pipeline` get."""
    return {each.name: {name: value for name, value in each._asdict().items() if name != "name"} for each in status}
