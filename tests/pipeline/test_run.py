"""Jobs that run together, until a signal, the first failure or the end of the log; and their status."""

import os
import signal
import threading

import pytest

from halley.pipeline.errors import JobFailed, PipelineError
from halley.pipeline.jobs.run import CHANNEL, Job, JobProgress, Progress, run


class Turning(Job):
    """A job whose turns are only counted."""

    def __init__(self, failure=None, until=3):
        self.turns = 0
        self.has_ended = False
        self._failure = failure
        self._until = until

    def once(self):
        while self.turns < self._until:
            yield self._turn()

    def live(self, stop):
        while not stop.is_set():
            yield self._turn()
            stop.wait(0.01)
        self.has_ended = True

    def _turn(self):
        self.turns += 1
        if self._failure is not None and self.turns == self._until:
            raise self._failure
        return Progress(self.turns, 10, 1, 0.01)


class Told:
    """Imitates the publisher, and records the status."""

    def __init__(self):
        self.told = []
        self.is_hurried = False

    def publish_status(self, channel, data):
        self.told.append((channel, data))

    def stop_retrying(self):
        self.is_hurried = True


def test_a_signal_ends_all_after_the_turn_under_way(spark):
    """SIGTERM ends all jobs after their current turn, and the previous handler is restored."""
    jobs, before = {"one": Turning(), "two": Turning()}, signal.getsignal(signal.SIGTERM)
    publisher = Told()
    shown = []

    def show(status):
        shown.append(status)
        if len(shown) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    assert run(spark, jobs, show, publisher=publisher) == signal.SIGTERM
    assert all(job.has_ended for job in jobs.values())
    assert signal.getsignal(signal.SIGTERM) == before
    assert publisher.is_hurried
    assert {channel for channel, _ in publisher.told} == {CHANNEL}
    assert publisher.told[-1][1]["one"].keys() == {"next", "lag_events", "lag_s", "rows_per_s", "remarks"}


@pytest.mark.parametrize("failure", [JobFailed("the disk is full"), ValueError("the disk is full")])
def test_the_first_failure_ends_all_and_is_told(failure, spark):
    """Any failure is reported as a sentence, and the other jobs end as if they had been stopped."""
    jobs = {"good": Turning(), "bad": Turning(failure)}
    with pytest.raises(PipelineError, match="the disk is full"):
        run(spark, jobs, lambda status: None)
    assert jobs["good"].has_ended


def test_the_end_of_the_log_is_looked_at_while_turns_are_long(spark):
    """A job within a long batch falls behind with every new event; an unreachable log changes nothing."""
    job, heads, shown = Turning(), iter([50, 60]), []

    def head():
        found = next(heads, None)
        if found is None:
            raise JobFailed("the server is away")
        return found

    def show(status):
        shown.append([each.lag_events for each in status])
        if shown.count([59]) == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    job._turn = lambda: Progress(1, 10, 0, 0.01)
    assert run(spark, {"slow": job}, show, head=head) == signal.SIGTERM
    assert shown[-1] == [59]


def test_once_ends_by_itself(spark):
    """With `is_once` the run ends when each job has done what there was."""
    jobs = {"short": Turning(), "long": Turning(until=7)}
    shown = []
    assert run(spark, jobs, shown.append, is_once=True) is None
    assert [job.turns for job in jobs.values()] == [3, 7]
    assert sorted((status.name, status.next) for status in shown[-1]) == [("long", 7), ("short", 3)]
    assert threading.active_count() < 50


def test_lag_is_told_in_events_and_in_seconds():
    """A job's lag is the age of its oldest unprocessed event, counted from when any job saw it first."""
    now = [100.0]
    progress = JobProgress(lambda: now[0])
    progress.on_turn("fast", Progress(11, 11, 10, 0.1))
    progress.on_turn("slow", Progress(11, 11, 10, 0.1))
    now[0] = 105.0
    progress.on_turn("fast", Progress(31, 31, 20, 0.1))
    now[0] = 110.0
    progress.on_turn("fast", Progress(41, 41, 10, 0.1))
    now[0] = 112.0
    fast, slow = progress.status()
    assert (fast.lag_events, fast.lag_s, slow.lag_events, slow.lag_s) == (0, 0.0, 30, 7.0)
    assert fast.rows_per_s == pytest.approx(40 / 12)
    assert str(fast) == "fast at 41, up to date, 3 rows/s"
    assert str(slow) == "slow at 11, 30 events and 7 s behind, 1 rows/s"
    progress.on_head(41)
    progress.on_turn("slow", Progress(31, 41, 20, 0.1), {"late": 1_234, "not published": 0})
    now[0] = 113.0
    _, slow = progress.status()
    assert (slow.lag_events, slow.lag_s, slow.rows_per_s) == (10, 3.0, 20.0)
    assert str(slow).endswith("20 rows/s, 1,234 late")
