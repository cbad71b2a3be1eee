"""Rollups of a real log, by Spark: equal to a recount (L13), and each final one published exactly once."""

import random
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import orjson
import pytest
from support.log import OpenLog
from support.rollups import Heard, recount, rolled_up

from halley.broker.pending import Entry
from halley.pipeline.errors import JobRejected
from halley.pipeline.jobs.rollup import Rollup
from halley.pipeline.lake.shapes import KINDS
from halley.settings import Pipeline

S = 1_000_000
START_S = 1_800_000_000  # 2027-01-15 08:00 UTC
LATE_S = 10.0
LIFT = orjson.dumps([{"pattern": "descendants:", "pointer": "/price", "column": "price", "type": "double"}]).decode()
NUMBERS = ("count", "min", "mean", "max", "p50", "p95", "p99")


class Clock:
    """A clock that a test sets, for the broker and for the wall."""

    def __init__(self):
        self.s = START_S - 100.0

    def __call__(self):
        return self.s

    def us(self):
        return int(self.s * S)


@pytest.fixture
def place(tmp_path, spark):
    """Yield a log with its clock, a lake, a subscriber, and a function that starts a rollup from the lake's state."""
    clock, heard = Clock(), Heard()
    with OpenLog(tmp_path / "data", clock=clock) as log:
        log.write("the first", topic="halley/sessions")
        clock.s += 100
        make = partial(Rollup, spark, {"path": str(tmp_path / "data")}, tmp_path / "lake", wall_us=clock.us)
        yield SimpleNamespace(
            log=log,
            clock=clock,
            heard=heard,
            lake=tmp_path / "lake",
            rollup=lambda publisher=heard, lift=LIFT, **options: make(
                Pipeline(**{"late_s": LATE_S, **options}), publisher=publisher, lift=lift
            ),
        )


def assert_same(found, wanted):
    """Assert that rollups are equal; means can differ by rounding, as they are sums in another order."""
    assert found.keys() == wanted.keys()
    for key, figures in wanted.items():
        numbers = figures["numbers"]
        assert found[key] == figures | {"numbers": {name: pytest.approx(each) for name, each in numbers.items()}}, key


def assert_told(place, found):
    """Assert that each rollup of the table was published once, with the same figures."""
    starts = {(data["window"], data["start"], data["channel"], data["protocol"]) for data in place.heard.finals()}
    assert len(starts) == len(place.heard.finals()) == len(found)
    told = sorted((data["window"], data["events"], data["bytes"]) for data in place.heard.finals())
    assert told == sorted((key[0], figures["events"], figures["bytes"]) for key, figures in found.items())


def write(place, rng, count):
    """Append events of random channels, by a clock that is sometimes set back, by less than `LATE_S`."""
    for _ in range(count):
        place.clock.s += rng.choice([0, 0.2, 1.5, 3])
        payload = rng.choice([{"price": rng.randrange(1000) / 10}, {"price": "none"}, {"price": 7}, {"text": "äöü"}])
        topic = rng.choice(["news", "news/sport", "a!21b", "stats/10s/news", "alerts/x", "halley/sessions", "statsman"])
        event = place.log.event(payload, topic, authid=rng.choice([None, "ann", "bob"]))
        event.time_us -= rng.choice([0, 0, 3 * S, 9 * S])
        place.log.history.append(Entry(event))
    assert place.log.history.written(30)


def settle(place, rollup):
    """Let all windows become final."""
    place.clock.s += 60 + LATE_S
    rollup.step()


def test_rollups_equal_a_recount_whenever_the_job_begins_anew(place):
    """L13: at any time a new job, which has only the table, can replace the old one."""
    rng = random.Random(1)
    rollup = place.rollup()
    for _ in range(7):
        write(place, rng, rng.choice([0, 5, 40]))
        rollup.step()
        if rng.random() < 0.4:
            rollup = place.rollup(batch_rows=rng.choice([1_000, 15]))
    for _ in range(200):
        if rollup.step().next > place.log.history.head:
            break
    settle(place, rollup)
    found = rolled_up(place.lake)
    assert_same(found, recount(place.log.rows(), "price"))
    assert_told(place, found)


def test_windows_become_final_though_nothing_comes_any_more(place):
    """In an idle log windows become final by the wall clock, without Spark."""
    place.log.write({"price": 1}, topic="news")
    rollup = place.rollup()
    rollup.step()
    assert rolled_up(place.lake) == {}
    [*_] = place.heard.partial()
    assert {data["events"] for data in place.heard.partial()} == {1}
    place.clock.s = START_S + 10 + LATE_S
    rollup.step()
    assert {key[0] for key in rolled_up(place.lake)} == {"10s"}
    settle(place, rollup)
    assert {key[0] for key in rolled_up(place.lake)} == {"10s", "1m"}
    calls = place.heard.calls
    settle(place, rollup)
    assert place.heard.calls == calls
    assert_told(place, rolled_up(place.lake))


def test_a_clock_that_steps_makes_late_what_is_missing_in_the_rollups(place):
    """L13: after steps of the clock, events for final windows are counted as late, and no others are missing."""
    rollup = place.rollup()
    for step_s in (0, 600, -590, 40, 7200, -7000):
        place.clock.s += step_s
        place.log.write({"price": 1}, {"price": 2}, topic="news")
        rollup.step()
    place.clock.s = START_S + 20_000
    rollup.step()
    found, wanted = rolled_up(place.lake), recount(place.log.rows(), "price")
    missing = sum(
        figures["events"] - found.get(key, {"events": 0})["events"]
        for key, figures in wanted.items()
        if key[0] == "10s"
    )
    assert missing == rollup.late > 0
    assert_told(place, found)


class Dies(Exception):
    """Imitates a SIGKILL."""


def test_a_job_that_dies_between_commit_and_publish_says_each_final_once(place, monkeypatch):
    """Finals that are in the table but were not published are published by the next job, with the table's figures."""
    place.log.write({"price": 1}, topic="news")
    rollup = place.rollup()
    rollup.step()
    place.clock.s += 200

    def die(messages):
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(place.heard, "publish", die)
        with pytest.raises(Dies):
            rollup.step()
    assert len(rolled_up(place.lake)) == 2
    assert place.heard.finals() == []
    place.log.write({"price": 5}, topic="news")
    rollup = place.rollup()
    assert_told(place, rolled_up(place.lake))
    settle(place, rollup)
    assert_same(rolled_up(place.lake), recount(place.log.rows(), "price"))
    assert_told(place, rolled_up(place.lake))


def test_a_job_that_dies_before_it_has_noted_what_it_said_says_it_under_the_same_keys(place, monkeypatch):
    """If a publish was not noted as done, the next job repeats it with the same keys, which the server recognizes."""
    place.log.write({"price": 1}, topic="news")
    rollup = place.rollup()
    rollup.step()
    place.clock.s += 200
    original = place.heard.publish

    def die_after(messages):
        original(messages)
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(place.heard, "publish", die_after)
        with pytest.raises(Dies):
            rollup.step()
    calls = place.heard.calls
    place.rollup()
    assert place.heard.calls == calls + 1
    assert_told(place, rolled_up(place.lake))
    place.rollup()
    assert place.heard.calls == calls + 1


def test_a_result_that_was_published_with_other_figures_is_counted(place, monkeypatch):
    """What was heard stays; each of them is counted by the job that publishes it again, and by no later one."""
    place.log.write({"price": 1}, topic="news")
    rollup = place.rollup()
    rollup.step()
    place.clock.s += 200
    original = place.heard.publish

    def die_after(messages):
        original([replace(message, data={**message.data, "events": 99}) for message in messages])
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(place.heard, "publish", die_after)
        with pytest.raises(Dies):
            rollup.step()
    finals = len(place.heard.finals())
    assert finals > 0
    counted = [place.rollup().counters()["published before with other figures"] for _ in range(2)]
    assert counted == [finals, 0]
    assert {data["events"] for data in place.heard.finals()} == {99}


def test_after_an_outage_old_windows_are_told_once_and_never_as_partial(place):
    """A backlog of an hour takes some turns; only windows that are still open are published before they are final."""
    for _ in range(60):
        place.log.append({"price": 1}, topic="news")
        place.clock.s += 60
    assert place.log.history.written(30)
    rollup = place.rollup(batch_rows=25)
    turns = [rollup.step() for _ in range(3)]
    assert [turn.next for turn in turns] == [26, 51, 62]
    assert [(data["window"], data["start"][11:19]) for data in place.heard.partial()] == [("1m", "08:59:00")]
    assert len(place.heard.finals()) == 120 - 1
    settle(place, rollup)
    assert_told(place, rolled_up(place.lake))
    assert_same(rolled_up(place.lake), recount(place.log.rows(), "price"))


def test_only_the_busiest_channels_are_told_and_the_table_has_all(place):
    """Beyond `channels` channels, those with the most events are published; the others are counted."""
    for number in range(30):
        place.log.append(*[{"price": 1}] * (1 + number // 10), topic=f"c/{number}")
    assert place.log.history.written(30)
    rollup = place.rollup(channels=10)
    rollup.step()
    assert {data["channel"] for data in place.heard.partial()} == {f"/c/{number}" for number in range(20, 30)}
    settle(place, rollup)
    assert len(rolled_up(place.lake)) == 60
    assert len(place.heard.finals()) == 20
    assert rollup.left_out == 2 * 2 * 20


def test_nobody_is_told_of_another_realms_topics(place):
    """Topics of other realms are not published, as no other protocol sees them; the operator's lake has them."""
    place.log.append({"price": 1}, topic=":lab/secret")
    place.log.append({"price": 1}, topic="news")
    assert place.log.history.written(30)
    settle(place, place.rollup())
    assert {message.channel for message in place.heard.by_key.values()} == {"/stats/10s/news", "/stats/1m/news"}
    assert {topic for _, _, topic, _ in rolled_up(place.lake)} == {":lab/secret", "news"}


def test_what_a_rollup_says(place):
    """A rollup has its channel in Bayeux' form, the window's bounds and the numbers that were lifted."""
    place.log.history.append(Entry(place.log.event({"price": 1.5}, "a!21b/x!3ay", authid="ann")))
    place.log.history.append(Entry(place.log.event({"price": 2.5}, "a!21b/x!3ay", authid="ann")))
    assert place.log.history.written(30)
    place.rollup().step()
    message = next(iter(place.heard.by_key.values()))
    assert message.channel == "/stats/10s/a!b/x!3ay"
    assert message.data == {
        "channel": "/a!b/x!3ay",
        "name": "/a!b/x!3ay",
        "protocol": "bayeux",
        "window": "10s",
        "start": "2027-01-15T08:00:00.000000Z",
        "end": "2027-01-15T08:00:10.000000Z",
        "events": 2,
        "bytes": 26,
        "publishers": 1,
        "numbers": {"price": dict(zip(NUMBERS, (2, 1.5, 2.0, 2.5, 1.5, 2.5, 2.5), strict=True))},
        "final": False,
    }


def test_a_long_stays_a_long(place):
    """The least and the greatest value of a lifted long are exact, in the table and where they are published."""
    low, high = -(1 << 63), (1 << 63) - 1
    place.log.write({"price": high}, {"price": high - 1}, {"price": "9"}, topic="news")
    rollup = place.rollup(lift=LIFT.replace("double", "long"))
    rollup.step()
    place.log.write({"price": low}, {"price": 7.0}, topic="news")  # merged with what is known of the window
    settle(place, rollup)
    found = {key[0]: figures["numbers"]["price"] for key, figures in rolled_up(place.lake).items()}
    assert found.keys() == {"10s", "1m"}
    for figures in found.values():
        assert (figures["min_long"], figures["max_long"], figures["count"]) == (low, high, 4)
        assert (type(figures["min"]), figures["max"]) == (float, float(high))
    for heard, bounds in ((place.heard.partial(), (high - 1, high)), (place.heard.finals(), (low, high))):
        told = [data["numbers"]["price"] for data in heard]
        assert {(each["min"], each["max"]) for each in told} == {bounds}
        assert all(tuple(each) == NUMBERS for each in told)


def test_a_log_that_was_set_back_is_refused(place, tmp_path, spark):
    """A log that ends before the table's position lacks events that are in the rollups, so it is refused."""
    place.log.write(*range(3))
    shutil.copytree(tmp_path / "data", tmp_path / "old")
    place.log.write(*range(3))
    rollup = place.rollup()
    rollup.step()
    settle(place, rollup)
    with pytest.raises(JobRejected, match="rollups up to offset 7, and the log ends at 4"):
        Rollup(spark, {"path": str(tmp_path / "old")}, place.lake, Pipeline(behind_s=0))


@pytest.mark.nightly
def test_thousands_of_channels(place):
    """Two thousand channels each have their rollups in one turn, and further events are added in the next."""
    rng, rollup = random.Random(3), place.rollup(channels=5)
    for step in (1, 4):
        for number in range(0, 2_000, step):
            place.log.history.append(Entry(place.log.event({"price": number % 7}, f"t/{number}")))
        assert place.log.history.written(60)
        rollup.step()
    settle(place, rollup)
    found = rolled_up(place.lake)
    assert len(found) == 4_000
    key = (KINDS[0].name, START_S * S, f"t/{rng.randrange(0, 2_000, 4)}", "bayeux")
    assert found[key]["events"] == 2
    assert_same(found, recount(place.log.rows(), "price"))
