"""Ingest: every event of a log is stored in exactly one place, for any state of the log and after any kill."""

import os
import resource
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from support.damage import append_rows, files, flip, move_mark
from support.lake import INGEST, offsets
from support.log import OpenLog

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.history import checksummed_json
from halley.history.folder import delete
from halley.history.stored import COLUMNS, Stored, checksum
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.jobs import ingest as ingesting
from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.jobs.run import consumer
from halley.pipeline.lake import locks, shapes, tables
from halley.pipeline.lake.verify import verify
from halley.pipeline.source.columns import lifts_of
from halley.pipeline.source.log import GapFound
from halley.settings import Pipeline, Settings
from halley.settings.history import Lift

OPTIONS = Pipeline(batch_rows=120, partition_rows=50, ingest_s=0.1, behind_s=0)
CHAT = Erasure(Pattern(Match.DESCENDANTS, "chat"), None)


def write(folder, first, last, topic="news", **options):
    """Write events with the numbers `first` to `last` in their payloads."""
    with OpenLog(folder, **{"segment_bytes": 8_192} | options) as log:
        for at in range(first, last + 1, 10):  # a segment ends between two groups
            log.write(
                *({"number": n, "price": n / 2, "padding": "x" * 200} for n in range(at, min(at + 10, last + 1))),
                topic=topic,
            )


def remove_segment(folder):
    """Delete the second segment without a trace; return its first and last offset."""
    _, first, following, *_ = sorted(files(folder))
    delete(files(folder)[first])
    return first, following - 1


@pytest.fixture
def data(tmp_path):
    """A log of 200 events."""
    write(tmp_path / "data", 1, 200)
    return tmp_path / "data"


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


@pytest.fixture
def ingest(spark, data, lake):
    """Return a function that makes an ingest of that log."""

    def make(options=OPTIONS, **more):
        return Ingest(spark, {"path": str(data)}, lake, options, **more)

    return make


def table(lake, name="events"):
    return tables.open_table(lake, name)


def rows(lake, name):
    found = table(lake, name).dataset().to_table().to_pylist()
    return sorted(found, key=lambda row: row["first"])


def is_sound(lake):
    return [each for each in verify(lake, is_thorough=True) if not each.is_sound] == []


def spans(lake, name):
    return [(row["first"], row["last"], row["reason"]) for row in rows(lake, name)]


def versions(lake):
    """Return the version of each table; it changes with every commit."""
    return {name: found.version() for name in shapes.TABLES if (found := table(lake, name)) is not None}


def test_every_event_comes_as_it_was_stored(data, lake, ingest):
    """Every column of every row is stored; the app version is the next offset, and the log learns the position."""
    done = list(ingest().once())
    assert [(each.next, each.head, each.rows) for each in done] == [(121, 201, 120), (201, 201, 80)]
    with OpenLog(data) as log:
        expected = log.rows()
    found = table(lake).dataset().to_table(columns=[*COLUMNS]).sort_by("offset").to_pylist()
    assert [Stored(**row) for row in found] == expected
    assert table(lake).position(INGEST) == 201
    assert checksummed_json.load(data / "consumers" / f"{consumer('lake', lake)}.json")["offset"] == 201
    assert is_sound(lake)


def test_a_batch_is_one_commit_of_few_files_in_order(lake, ingest):
    """A batch makes a file for each core, day and protocol, and each file is in the order of offsets."""
    list(ingest().once())
    found = table(lake)
    assert found.version() == 2
    ranges = sorted((file.least["offset"], file.greatest["offset"]) for file in found.data_files())
    assert ranges == [(1, 60), (61, 120), (121, 160), (161, 200)]


def test_the_next_run_goes_on_where_the_last_one_ended(data, lake, ingest):
    """L3: the table is the only checkpoint; without new events its version does not change."""
    list(ingest().once())
    before = versions(lake)
    assert [each.rows for each in ingest().once()] == [0]
    assert versions(lake) == before
    write(data, 201, 230)
    assert [each.rows for each in ingest().once()] == [30]
    assert offsets(table(lake)) == list(range(1, 231))
    assert is_sound(lake)


def test_an_empty_log_makes_an_empty_lake(tmp_path, spark, lake):
    """An empty log can be ingested too."""
    with OpenLog(tmp_path / "empty"):
        assert [each.rows for each in Ingest(spark, {"path": str(tmp_path / "empty")}, lake, OPTIONS).once()] == [0]
    assert offsets(table(lake)) == []


def test_protocols_and_days_are_partitions(data, lake, ingest):
    """Days are in UTC; the rows of two days in one batch are separated."""
    tail = max(files(data))
    day_us = 86_400_000_000
    append_rows(files(data)[tail], [_row(201, time_us=5 * day_us - 1), _row(202, time_us=5 * day_us, protocol="wamp")])
    move_mark(data, 202)
    list(ingest().once())
    found = {(file.partition["day"], file.partition["protocol"], file.rows) for file in table(lake).data_files()}
    assert {("1970-01-05", "bayeux", 1), ("1970-01-06", "wamp", 1)} < found
    assert is_sound(lake)


def _row(offset, **fields):
    values = dict.fromkeys(COLUMNS) | {"time_us": 1, "topic": "odd", "publication": offset, "protocol": "bayeux"}
    values |= {"offset": offset, "shape": "bare", "payload": "1"} | fields
    values["crc"] = checksum([*values.values()][:-1])
    return Stored(**values)


def test_what_the_lake_cannot_hold_is_rejected_with_its_row(data, lake, ingest):
    """Rows with a time that is not a date or an invalid protocol are kept as JSON in `rejected`."""
    odd = [_row(201, time_us=-1), _row(202, time_us=1 << 62), _row(203, protocol="../x"), _row(204)]
    append_rows(files(data)[max(files(data))], odd)
    move_mark(data, 204)
    list(ingest().once())
    assert spans(lake, "rejected") == [(201, 201, "time"), (202, 202, "time"), (203, 203, "protocol")]
    told = [orjson.loads(row["row"]) for row in rows(lake, "rejected")]
    assert [Stored(**row) for row in told[:2]] == odd[:2]
    assert offsets(table(lake)) == [*range(1, 201), 204]
    assert is_sound(lake)


def test_what_was_purged_or_is_damaged_is_rejected_with_its_reason(data, lake, ingest):
    """Each offset is in exactly one table, even if the log has no row for it."""
    write(data, 201, 210, topic="chat/a")
    write(data, 211, 220)
    with OpenLog(data) as log:
        log.history.purge(CHAT, lambda *_: None)
    flip(files(data)[1], b'{"number":7,')
    list(ingest(accept_gap=True).once())
    damaged = (1, sorted(files(data))[1] - 1, "damaged")  # the segment of number 7
    assert spans(lake, "rejected") == [damaged, *((n, n, "purged") for n in range(201, 211))]
    purged = rows(lake, "rejected")[1]
    assert purged["time_us"] > 0
    assert purged["protocol"] == "bayeux"
    assert is_sound(lake)


def test_l9_a_damaged_segment_ends_ingest_until_it_is_salvaged(data, lake, ingest):
    """L9: what is intact of it is not missing in the lake; what is not, is recorded as lost."""
    flip(files(data)[1], b'{"number":7,')
    last = sorted(files(data))[1] - 1
    with pytest.raises(GapFound, match=f"^offsets 1 to {last} are in a damaged segment .*`halley history salvage`"):
        list(ingest().once())
    assert table(lake).position(INGEST) is None
    with OpenLog(data) as log:
        assert log.history.salvage(lambda *_: None) == (1, [(7, 7)])
    list(ingest().once())
    assert offsets(table(lake)) == [*range(1, 7), *range(8, 201)]
    assert spans(lake, "gaps") == [(7, 7, "hole")]
    assert spans(lake, "rejected") == []
    assert is_sound(lake)


def test_l9_a_gap_nobody_knows_of_ends_ingest_and_is_named(data, lake, ingest):
    """L9: a gap without a known reason ends ingest with its range, and nothing of that batch is committed."""
    first, last = remove_segment(data)
    with pytest.raises(GapFound, match=f"offsets {first} to {last} are missing in the log"):
        list(ingest().once())
    assert offsets(table(lake)) == []
    assert table(lake).position(INGEST) is None


def test_a_gap_that_is_accepted_is_written_down(data, lake, ingest):
    """With --accept-gap the range is stored in `gaps`, once, and all other events are ingested."""
    first, last = remove_segment(data)
    list(ingest(accept_gap=True).once())
    assert spans(lake, "gaps") == [(first, last, "missing")]
    assert rows(lake, "gaps")[0]["found_us"] > 1_700_000_000_000_000
    assert is_sound(lake)


def test_lifted_columns_have_their_types(lake, ingest):
    """Lifted numbers have their column's type; L12: a column that is declared later is null in earlier rows."""
    price = Lift("/news", "/price", "price", "double")
    list(ingest(replace(OPTIONS, batch_rows=150), lift=lifts_of(Settings(lift=(price,)))).once())
    number = Lift("/**", "/number", "number", "long")
    found = table(lake).columns()
    assert found.field("price").type == pa.float64()
    job = ingest(lift=lifts_of(Settings(lift=(price, number))))
    write(job._log.path, 201, 210)
    list(job.once())
    found = table(lake).dataset().to_table(columns=["offset", "price", "number"]).sort_by("offset").to_pylist()
    assert found[199] == {"offset": 200, "price": 100.0, "number": None}
    assert found[200] == {"offset": 201, "price": 100.5, "number": 201}


MIXED = (1, 1.5, "1", None, True, [1], {"a": 1}, 1 << 63, 2.0, "x")
LIFTS = lifts_of(Settings(lift=(Lift("/mixed", "/v", "v", "long"), Lift("/mixed", "/v", "text", "string"))))


def counted(lake):
    """Return the sums of the table `mismatches`, by column, type and kind."""
    found = table(lake, "mismatches").dataset().to_table()
    sums = found.group_by(["column_name", "column_type", "kind"]).aggregate([("events", "sum")]).to_pylist()
    return {(each["column_name"], each["column_type"], each["kind"]): each["events_sum"] for each in sums}


def test_what_a_column_could_not_take_is_counted(data, lake, ingest):
    """By column and kind, in a table and in the job's counters; a null or a missing value is not of another type."""
    with OpenLog(data) as log:
        log.write(*({"v": each} for each in MIXED * 3), {}, 5, topic="mixed")
    job = ingest(replace(OPTIONS, batch_rows=60), lift=LIFTS)
    list(job.once())
    kinds = {"string": 6, "double": 6, "boolean": 3, "array": 3, "object": 3}
    assert counted(lake) == {
        **{("v", "long", kind): count for kind, count in kinds.items()},
        **{("text", "string", kind): count for kind, count in kinds.items() if kind != "string"},
        ("text", "string", "long"): 3,
        ("text", "string", "double"): 9,
    }
    counters = job.counters()
    assert (counters["string values for column v"], counters["double values for column text"]) == (6, 9)
    found = [(row["first"], row["last"]) for row in rows(lake, "mismatches")]
    assert {*found} == {(181, 233)} or all(first <= 231 <= last or first <= 201 <= last for first, last in found)
    assert is_sound(lake)


@pytest.mark.parametrize("nth", [1, 2])
def test_l1_what_a_killed_batch_counted_is_not_counted_twice(data, lake, ingest, monkeypatch, nth):
    """L1: a batch that died before its events were committed is counted once, when it is made again."""
    with OpenLog(data) as log:
        log.write(*({"v": each} for each in ("a", "b", 1, [])), topic="mixed")
    whole = replace(OPTIONS, batch_rows=1_000)
    with monkeypatch.context() as patched:
        dies_at(patched, nth)
        with pytest.raises(KeyboardInterrupt):
            list(ingest(whole, lift=LIFTS).once())
    list(ingest(replace(OPTIONS, batch_rows=60), lift=LIFTS).once())
    list(ingest(whole, lift=LIFTS).once())
    assert counted(lake) == {
        ("v", "long", "string"): 2,
        ("v", "long", "array"): 1,
        ("text", "string", "long"): 1,
        ("text", "string", "array"): 1,
    }
    assert is_sound(lake)


def test_a_lifted_column_of_another_type_is_refused(lake, ingest):
    """A lifted column of another type is refused with one sentence, and nothing is changed."""
    list(ingest(lift=lifts_of(Settings(lift=(Lift("/news", "/price", "price", "double"),)))).once())
    before = versions(lake)
    with pytest.raises(JobRejected, match=r"column price of .* is double, but the settings say string"):
        list(ingest(lift=lifts_of(Settings(lift=(Lift("/news", "/price", "price", "string"),)))).once())
    assert versions(lake) == before


def test_another_log_is_refused(tmp_path, spark, lake, ingest):
    """A lake has one log; another one is refused with the ids of both, and nothing is changed."""
    list(ingest().once())
    before = versions(lake)
    write(tmp_path / "other", 1, 500)
    with pytest.raises(JobRejected, match=r"was made from log .*, but this is log .*: choose another --lake"):
        list(Ingest(spark, {"path": str(tmp_path / "other")}, lake, OPTIONS).once())
    assert versions(lake) == before


def test_a_log_that_ends_below_the_lake_is_refused(data, lake, ingest):
    """An older copy of the log is refused: its next events would have offsets that the lake already has."""
    list(ingest().once())
    before = versions(lake)
    move_mark(data, 150)
    with pytest.raises(JobRejected, match=r"the log ends before offset 151, and .* has read it up to 201"):
        list(ingest().once())
    assert versions(lake) == before


def test_a_keeper_that_is_behind_is_waited_for(data, lake, ingest):
    """A log that ends below the lake, and soon does not any more, loses nothing, and nothing is read twice."""
    list(ingest().once())
    move_mark(data, 150)
    catching_up = threading.Timer(0.3, move_mark, (data, 200))
    catching_up.start()
    assert [progress.next for progress in ingest(replace(OPTIONS, behind_s=30)).once()] == [201]
    catching_up.join()
    assert is_sound(lake)


def test_l6_a_second_ingest_is_refused(lake, ingest):
    """L6: a second ingest is refused with the process id of the running one."""
    with locks.ingest(lake), pytest.raises(locks.Busy, match=rf"is already running \(process {os.getpid()}\)"):
        list(ingest().once())


def test_a_lake_that_has_gone_is_told(lake, ingest):
    """A table that is removed between two batches is reported in one sentence."""
    job = ingest()
    job.step()
    table(lake)
    (lake / "events" / "_delta_log").rename(lake / "elsewhere")
    with pytest.raises(JobRejected, match="events"):
        job.step()


def test_a_log_that_has_gone_is_told(tmp_path, spark, lake):
    """A data folder that does not exist is refused."""
    with pytest.raises(JobRejected, match="does not exist"):
        list(Ingest(spark, {"path": str(tmp_path / "nothing")}, lake, OPTIONS).once())


@contextmanager
def small_disk(spark):
    """Limit the files that Spark's Python workers write to 4 kB: those that run, and all that these fork."""
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    for _ in range(2):  # the second time those that were forked during the first
        assert _limit_workers(java, (4_096, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        _limit_workers(java, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _limit_workers(java, limit):
    workers = 0
    for pid in list(_descendants(java)):
        with suppress(ProcessLookupError, FileNotFoundError):
            if b"pyspark" in Path(f"/proc/{pid}/cmdline").read_bytes():
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
                workers += 1
    return workers


def _descendants(pid):
    children = Path(f"/proc/{pid}/task").glob("*/children")
    for child in [int(each) for file in children for each in file.read_text().split()]:
        yield child
        yield from _descendants(child)


def test_a_worker_that_cannot_write_changes_nothing(data, lake, ingest, spark):
    """A batch whose files cannot be written fails with one sentence and leaves nothing behind."""
    job = ingest(replace(OPTIONS, batch_rows=10_000, partition_rows=10_000))
    job.step()  # starts the workers: only a running process can be limited
    before = offsets(table(lake))
    write(data, 201, 2_000)
    with small_disk(spark), pytest.raises(JobFailed, match=r"^Spark failed: OSError: .*File too large$"):
        job.step()
    assert offsets(table(lake)) == before == [*range(1, 201)]
    assert list((lake / ".staging").iterdir()) == []


@pytest.fixture
def spoiled(data):
    """Return a log with a purged event, a damaged one and some that are missing, and the missing range."""
    write(data, 201, 201, topic="chat/a")
    write(data, 202, 230)
    with OpenLog(data) as log:
        log.history.purge(CHAT, lambda *_: None)
    damaged = max(first for first in files(data) if first <= 150)  # not next to the segment that is removed
    flip(files(data)[damaged], b'{"number":150,')
    return data, *remove_segment(data)


def dies_at(monkeypatch, nth):
    """Let the nth commit of a batch, and all later ones, raise KeyboardInterrupt."""
    calls = []

    def dying(function):
        def call(*arguments, **named):
            calls.append(function)
            if len(calls) >= nth:
                raise KeyboardInterrupt
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(ingesting, "commit_files", dying(ingesting.commit_files))


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_l1_a_batch_that_died_between_two_commits_is_made_again(spoiled, lake, ingest, monkeypatch, nth):
    """L1: after a kill at any of a batch's commits, each offset is in one table at the end, and once."""
    whole = replace(OPTIONS, batch_rows=1_000)
    data, first, last = spoiled
    damaged = max(each for each in files(data) if each <= 150)
    following = min(each for each in files(data) if each > 150)
    with monkeypatch.context() as patched:
        dies_at(patched, nth)
        with pytest.raises(KeyboardInterrupt):
            list(ingest(whole, accept_gap=True).once())
    assert offsets(table(lake)) == []
    list(ingest(whole, accept_gap=True).once())
    assert offsets(table(lake)) == sorted({*range(1, 231)} - {201, *range(damaged, following), *range(first, last + 1)})
    assert spans(lake, "gaps") == [(first, last, "missing")]
    assert spans(lake, "rejected") == [(damaged, following - 1, "damaged"), (201, 201, "purged")]
    assert is_sound(lake)


def test_l1_what_is_purged_between_two_attempts_is_in_one_table(data, lake, ingest, monkeypatch):
    """L1: the second attempt has the same end and replaces what the first one left, so no offset is lost in between."""
    write(data, 201, 205, topic="chat/a")
    write(data, 206, 206, topic="chat/b")
    with OpenLog(data) as log:
        log.history.purge(Erasure(Pattern(Match.EXACT, "chat/b"), None), lambda *_: None)
    with monkeypatch.context() as patched:
        dies_at(patched, 2)
        with pytest.raises(KeyboardInterrupt):
            list(ingest(replace(OPTIONS, batch_rows=1_000)).once())
    assert spans(lake, "rejected") == [(206, 206, "purged")]
    with OpenLog(data) as log:
        log.history.purge(CHAT, lambda *_: None)
    list(ingest(replace(OPTIONS, batch_rows=100)).once())
    assert spans(lake, "rejected") == [(n, n, "purged") for n in range(201, 207)]
    assert is_sound(lake)


def test_live_ingest_follows_a_writer_until_it_is_stopped(data, lake, ingest):
    """While a log is written, every event is ingested once; when stopped, ingest ends after a whole batch."""
    stop = threading.Event()
    job = ingest()
    done = []
    thread = threading.Thread(target=lambda: done.extend(job.live(stop)))
    with OpenLog(data, segment_bytes=4_096) as log:
        thread.start()
        for n in range(201, 501):
            log.write({"number": n})
        deadline = threading.Event()
        for _ in range(600):
            if done and done[-1].next == 501:
                break
            deadline.wait(0.1)
        stop.set()
        thread.join(60)
    assert done[-1].next == 501
    assert offsets(table(lake)) == list(range(1, 501))
    assert is_sound(lake)


def test_two_lakes_of_one_log_are_two_consumers(tmp_path, spark, data):
    """Each lake is its own consumer and reports its position at every step, even without new events."""
    lakes = tmp_path / "one", tmp_path / "two"
    one, two = (Ingest(spark, {"path": str(data)}, lake, OPTIONS) for lake in lakes)
    list(one.once())
    two.step()
    files = [data / "consumers" / f"{consumer('lake', lake)}.json" for lake in lakes]
    assert [checksummed_json.load(file)["offset"] for file in files] == [201, 121]
    assert len(list((data / "consumers").iterdir())) == 2
    before = files[0].stat()
    one.step()
    after = files[0].stat()
    assert (after.st_ino, after.st_mtime_ns) != (before.st_ino, before.st_mtime_ns)


def test_a_live_ingest_keeps_its_files_few(data, lake, ingest):
    """A live ingest also compacts small files: no row is lost or duplicated, and progress is unchanged."""
    stop = threading.Event()
    job = ingest(replace(OPTIONS, batch_rows=20, ingest_s=0.05, compact_s=0.1, compact_files=6))
    seen = []
    for progress in job.live(stop):
        seen.append(progress.next)
        if (progress.next == 201 and job.counters()["files fewer"]) or len(seen) > 1_000:
            stop.set()
    assert len(seen) < 1_000
    assert job.counters()["compactions failed"] == 0
    assert table(lake).position(INGEST) == 201
    assert offsets(table(lake)) == list(range(1, 201))
    assert is_sound(lake)
