"""Alerts: what counts as a spike, a silence, and their end; and that Spark keeps the state."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log import OpenLog
from support.rollups import Heard

from halley.pipeline.jobs.alerts import AlertProcessor, Alerts
from halley.pipeline.jobs.anomaly import (
    LEARNT_WINDOWS,
    WINDOW_US,
    ChannelState,
    Thresholds,
    WindowPart,
    on_events,
    on_silence,
)
from halley.pipeline.lake import tables
from halley.settings import Pipeline

pytestmark = pytest.mark.slow

BOUNDS = Thresholds(5.0, 50, 60_000_000)
DEADLINE_S = 180


def lived(counts, start=0, state=None):
    """Return a channel's state after windows with these counts, and the alerts, each with its window."""
    told = []
    for window, count in enumerate(counts, start):
        if count:
            part = WindowPart(window * WINDOW_US, count, window * WINDOW_US + 5, window + 1)
            state, alerts = on_events(state, part, BOUNDS)
            told += [(window, alert.kind) for alert in alerts]
    return state, told


def test_nothing_is_told_before_there_was_time_to_learn():
    """A new channel has no usual rate yet, so even wild changes cause no alert."""
    assert lived([1, 10_000] * (LEARNT_WINDOWS // 2))[1] == []


def test_a_spike_and_its_end_are_told_once_each():
    """A spike of three windows is alerted once, and so is its end."""
    assert lived([20] * 20 + [120, 150, 130] + [20] * 5)[1] == [(20, "spike"), (23 + 1, "recovered")]


def test_a_spike_is_told_while_its_window_is_under_way():
    """The alert is sent as soon as there are enough events; further parts of that window send no other."""
    state, _ = lived([20] * 20)
    told = []
    for count in (40, 70, 500):
        state, alerts = on_events(state, WindowPart(20 * WINDOW_US, count, 20 * WINDOW_US + count, 99), BOUNDS)
        told.append([(alert.kind, alert.rate) for alert in alerts])
    assert told == [[], [("spike", 11.0)], []]


def test_small_numbers_are_no_spike():
    """Ten times the usual rate is not a spike if it is fewer than `spike_events`."""
    assert lived([4] * 20 + [49])[1] == []


def test_a_lasting_rise_becomes_usual():
    """A rate that stays ten times as high is alerted once, and recovers when it has become the usual rate."""
    told = lived([20] * 20 + [200] * 200)[1]
    assert [kind for _, kind in told] == ["spike", "recovered"]


def test_a_steady_channel_that_says_nothing_is_told_of_once_and_when_it_is_back():
    """Silence is alerted once, with its due time; the next event ends it, and the usual rate is kept."""
    state, _ = lived([20] * 20)
    silent_us = state.newest_us + BOUNDS.silence_us
    assert on_silence(state, silent_us - 1, BOUNDS)[1] == []
    state, alerts = on_silence(state, silent_us + 123_456, BOUNDS)
    assert [(alert.kind, alert.at_us) for alert in alerts] == [("silence", silent_us)]
    assert on_silence(state, silent_us + 10 * WINDOW_US, BOUNDS)[1] == []
    state, told = lived([20], 400, state)
    assert told == [(400, "recovered")]
    assert state.usual == pytest.approx(20)


def test_a_channel_that_was_never_steady_is_not_missed():
    """A channel with events in every third window only is not steady, so it causes no alert."""
    state, told = lived([30, 0, 0] * 30)
    assert told == []
    assert on_silence(state, state.newest_us + 10 * BOUNDS.silence_us, BOUNDS)[1] == []


def test_a_spike_after_which_nothing_comes_ends_too():
    """A spike ends by time alone."""
    state, told = lived([20] * 20 + [200])
    assert told == [(20, "spike")]
    _, alerts = on_silence(state, 22 * WINDOW_US, BOUNDS)
    assert [alert.kind for alert in alerts] == ["recovered"]


def test_a_clock_that_is_set_back_does_not_make_a_channel_deaf():
    """After the clock was set back by an hour, spikes are alerted as before."""
    state, _ = lived([20] * 20, 1_000)
    assert [kind for _, kind in lived([20, 20, 300], 600, state)[1]] == ["spike"]


PARTS = st.builds(
    WindowPart, st.integers(0, 60).map(lambda n: n * WINDOW_US), st.integers(1, 500), st.just(0), st.just(1)
)


@given(st.lists(PARTS | st.integers(0, 70).map(lambda n: n * WINDOW_US), max_size=200))
def test_kinds_alternate_whatever_comes(steps):
    """Only a spike or silence that was alerted recovers, and neither is alerted twice in between."""
    state, under_way = None, set()
    for step in steps:
        alerts = []
        if isinstance(step, WindowPart):
            state, alerts = on_events(state, step._replace(newest_us=step.window_us + 1), BOUNDS)
        elif state is not None:
            state, alerts = on_silence(state, step, BOUNDS)
        for alert in alerts:
            if alert.kind == "recovered":
                assert under_way
                under_way.pop()
            else:
                assert alert.kind not in under_way
                under_way.add(alert.kind)
        assert state is None or isinstance(state, ChannelState)


# With Spark


class Task:
    """What Spark gives a `AlertProcessor`: the stored state of one channel, its timers, and the time of the batch."""

    def __init__(self, state, now_ms):
        self.state, self.now_ms, self.timers_ms = state, now_ms, []

    def getValueState(self, name, schema, ttl_ms):  # noqa: N802
        return self

    def get(self):
        return self.state

    def update(self, state):
        self.state = state

    def registerTimer(self, at_ms):  # noqa: N802
        self.timers_ms.append(at_ms)

    def getCurrentProcessingTimeInMs(self):  # noqa: N802
        return self.now_ms


@pytest.mark.parametrize("later_s", [-86_400, -1, 0, 59])
def test_no_channel_is_silent_before_the_start_nor_soon_after_it(later_s):
    """A batch that Spark repeats after a crash has its old time: no query was there to see events come since."""
    state, _ = lived([20] * 20)
    since_ms = 1_000_000_000
    task = Task((*state, True), since_ms + later_s * 1_000)
    watcher = AlertProcessor(BOUNDS, since_ms)
    watcher.init(task)
    assert list(watcher.handleExpiredTimer(("pulse",), task, None)) == []
    assert task.timers_ms == [since_ms + 60_000]
    task.now_ms = since_ms + 60_000
    assert [row.kind for row in watcher.handleExpiredTimer(("pulse",), task, None)] == ["silence"]


def write(log, clock, counts, topic):
    """Write windows with these numbers of events, and advance the clock."""
    start = clock[0] - clock[0] % 10
    for count in counts:
        start += 10
        for number in range(count):
            clock[0] = start + number * 9 / count
            log.append(number, topic=topic)
    assert log.history.written(30)


def told(lake):
    """Return the rows of the alerts table, oldest first."""
    rows = tables.open_table(lake, "alerts").dataset().to_table().sort_by("at_us").to_pylist()
    return [(row["topic"], row["kind"]) for row in rows]


@pytest.mark.nightly
def test_what_was_learnt_survives_and_each_alert_is_told_once(tmp_path, spark):
    """Three runs over one log, each with a new query: the second one needs the state on disk of the first."""
    lake, heard, clock = tmp_path / "lake", Heard(), [time.time() - 500]
    with OpenLog(tmp_path / "data", clock=lambda: clock[0]) as log:
        runs = []
        for counts in ([20] * 14, [200, 20, 20], [20]):
            write(log, clock, counts, "news/today")
            write(log, [clock[0]], [300], "stats/10s/news")
            job = Alerts(spark, {"path": str(tmp_path / "data")}, lake, Pipeline(silence_s=3_600), publisher=heard)
            progress = list(job.once())
            assert progress[-1].next == progress[-1].head == log.history.head + 1
            runs.append(told(lake))
    assert runs == [[], [("news/today", "spike"), ("news/today", "recovered")], *runs[1:2]]
    messages = list(heard.by_key.values())
    assert [message.channel for message in messages] == ["/alerts/news/today"] * 2
    assert messages[0].data["kind"] == "spike"
    assert messages[0].data["rate"] == pytest.approx(20)


@pytest.mark.nightly
def test_silence_is_told_after_it_has_lasted_and_its_end_too(tmp_path, spark):
    """With a live query a steady channel stops; timers run although no events arrive."""
    lake, heard, clock = tmp_path / "lake", Heard(), [time.time() - 185]
    stop = threading.Event()
    failures = []
    with OpenLog(tmp_path / "data", clock=lambda: clock[0]) as log:
        write(log, clock, [3] * 17, "pulse")
        job = Alerts(spark, {"path": str(tmp_path / "data")}, lake, Pipeline(silence_s=1), publisher=heard)

        def run():
            try:
                list(job.live(stop))
            except Exception as error:  # noqa: BLE001 - the test reports any error
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            until(lambda: failures or len(heard.by_key) == 1)
            clock[0] = time.time() + 3_600  # so that it is not silent again before the job has ended
            log.write("back", topic="pulse")
            until(lambda: failures or len(heard.by_key) == 2)
        finally:
            stop.set()
            thread.join(DEADLINE_S)
        assert not failures
    assert [message.data["kind"] for message in heard.by_key.values()] == ["silence", "recovered"]
    assert told(lake) == [("pulse", "silence"), ("pulse", "recovered")]


def until(condition):
    """Wait until a condition is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
