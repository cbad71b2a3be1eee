"""What the writer reports to its broker: order, limits and refusals; and the resources that a log takes."""

import os
import sqlite3
import sys
import threading
import time
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.log import SMALL, WRITTEN_S, ClockedLog, OpenLog
from support.traced import traced_bytes

from halley.broker.commits import IdempotencyKeys, PublishResult
from halley.broker.errors import DiskFull, HistoryUnavailable, InboxFull
from halley.broker.events import Audience
from halley.broker.pending import Entry
from halley.history import segment, writer
from halley.history.examination import intact_rows

PAYLOAD = "x" * 1_500


def awaited(condition, timeout_s=20):
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.005)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities for threads")
@pytest.mark.parametrize("nicer", [0, 6])
def test_the_writer_gives_way_to_the_event_loop(tmp_path, nicer):
    """Its thread has a lower priority than the one that opened the log, also where that one's is lowered."""

    def opened():
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + nicer)
        before = {*threading.enumerate()}
        with OpenLog(tmp_path) as log:
            log.write("a")
            (thread,) = (each for each in {*threading.enumerate()} - before if each.name == "history-writer")
            return os.getpriority(os.PRIO_PROCESS, own), os.getpriority(os.PRIO_PROCESS, thread.native_id)

    with ThreadPoolExecutor(1) as apart:  # a priority that was lowered cannot be raised again
        opener, writing = apart.submit(opened).result()
    assert writing > opener


def test_an_event_that_has_its_offset_is_written_there_or_not_at_all(tmp_path):
    """In a cluster offsets are given: while one is missing, those above it are refused, and may be given again."""
    with OpenLog(tmp_path) as log:
        given = [log.event(number) for number in (1, 2, 3)]
        for position, event in enumerate(given, 1):
            event.position = position
        for event in (given[0], given[2], given[1], given[2], given[2]):
            log.history.append(Entry(event))
        assert log.history.written(WRITTEN_S)
        assert (log.reports.committed, log.reports.refused) == ({1: 1, 2: 2, 3: 3}, [3, 3])


def test_events_that_are_not_recorded_are_passed_on_in_their_place(tmp_path):
    """P2: events that are not recorded are reported in order with the others, take no offset, and are not stored."""
    with OpenLog(tmp_path) as log:
        passing = [Entry(log.event(name)) for name in ("b", "d")]
        for entry in passing:
            entry.is_recorded = False
        log.append("a")
        log.history.append(passing[0])
        log.append("c")
        log.history.append(passing[1])
        assert log.history.written(30)
        assert log.reports.order == ["a", "b", "c", "d"]
        assert log.reports.committed == log.stored() == {1: "a", 2: "c"}
        log.history.append(passing[0])
        assert log.history.written(30)
        assert log.reports.order[4:] == ["b"]
        assert log.history.head == 2


def test_all_that_an_event_says_is_stored_and_comes_back(tmp_path):
    """Every column is stored, including strings that are difficult for a database."""
    with OpenLog(tmp_path) as log:
        event = log.event(
            {"n": 1, "s": "\0\u2028\U0001f600'\""},
            "a/!00b",
            protocol="wamp",
            authid="a\0b",
            role="\U0001f600",
            idempotency_key="k\0'\"",
            audience=Audience(("x",), None, (), ("y",)),
        )
        event.shape, event.details, event.nt4_type, event.nt4_time_us = "args", '{"\0":1}', "int", -(2**62)
        log.history.append(Entry(event))
        assert log.history.written(30)
        (row,) = log.rows()
        assert (row.topic, row.protocol, row.authid, row.role) == ("a/!00b", "wamp", "a\0b", "\U0001f600")
        assert (row.idempotency_key, row.shape, row.details) == ("k\0'\"", "args", '{"\0":1}')
        assert (row.nt4_type, row.nt4_time_us, row.audience) == ("int", -(2**62), '[["x"],null,[],["y"]]')
        assert row.payload.encode() == event.payload
        assert (row.time_us, row.publication) == (event.time_us, event.publication)


def test_an_event_that_cannot_be_stored_is_refused_alone(tmp_path):
    """An event that cannot be stored neither makes the others of its group fail nor stops the writer."""
    with OpenLog(tmp_path) as log:
        poison = log.event("poison")
        poison.topic = "\ud800"
        log.append("before")
        log.history.append(Entry(poison))
        log.write("after")
        assert log.reports.refused == ["poison"]
        assert log.stored() == {1: "before", 2: "after"}


def test_what_waits_to_be_written_is_bounded(tmp_path):
    """Beyond `inbox_bytes` publishes are refused immediately, and accepted again once the writer has caught up."""
    gate = threading.Event()
    with OpenLog(tmp_path, inbox_bytes=65_536) as log:
        reports = log.reports
        log.history.writer._report = lambda report: (gate.wait(20), reports(report))
        taken = 0
        with suppress(InboxFull):
            while taken < 1_000:
                log.append(f"{taken} {PAYLOAD}")
                taken += 1
        assert 10 < taken < 40
        gate.set()
        assert log.history.written(30)
        log.write("again")
        assert len(log.stored()) == taken + 1


def test_below_the_floor_of_free_space_publishes_are_refused_and_reads_go_on(tmp_path, monkeypatch):
    """H4: the refusal names `free_bytes`; events that need no space pass, and the log recovers when space is free."""
    monkeypatch.setattr(writer, "_CHECK_S", 0.01)
    real = os.statvfs
    is_full = False

    def statvfs(path):  # a test cannot fill the disk
        found = list(real(path))
        return os.statvfs_result([*found[:4], 0, *found[5:]]) if is_full else os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", statvfs)
    with OpenLog(tmp_path, free_bytes=1) as log:
        log.write("before")
        is_full = True
        awaited(lambda: log.history.refusal is not None)
        with pytest.raises(DiskFull) as refused:
            log.append("refused")
        assert refused.value.limit == "free_bytes"
        assert isinstance(refused.value, HistoryUnavailable)
        passing = Entry(log.event("passing"))
        passing.is_recorded = False
        log.history.append(passing)
        assert log.history.written(30)
        assert log.reports.order == ["before", "passing"]
        assert log.stored() == {1: "before"}
        is_full = False
        awaited(lambda: log.history.refusal is None)
        log.write("after")
        assert log.stored() == {1: "before", 2: "after"}


def test_a_segment_is_sealed_under_its_readers(tmp_path):
    """A reader in the middle of a segment can read on while the segment is rolled over; it only delays the seal."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write("first", PAYLOAD)
        (listed,) = log.history.folder.segments
        with (
            closing(segment.read(listed.path, is_sealed=False)) as idle,
            closing(segment.read(listed.path, is_sealed=False)) as reader,
        ):
            idle.execute("select 1 from meta").fetchall()
            cursor = reader.execute("select offset from stored order by offset")
            assert cursor.fetchone() == (1,)
            for _ in range(20):
                log.write(*[PAYLOAD] * 20)
            assert len(log.history.folder.segments) > 2
            assert not log.history.folder.segments[0].is_sealed
            assert cursor.fetchall() == [(2,)]
            cursor.close()
            awaited(lambda: log.history.folder.segments[0].is_sealed)
            sealed = log.history.folder.segments[0]
            found = [row.offset for batch in intact_rows(idle, 1, sealed.last) for row in batch]
            assert found == list(range(1, sealed.last + 1))
        awaited(lambda: sealed.path.stat().st_mode & 0o777 == 0o400)  # the last step of sealing
        assert not [each for each in segment.companions(sealed.path) if each.exists()]
        assert list(log.stored()) == list(range(1, log.history.head + 1))


@pytest.mark.slow
def test_a_log_takes_no_more_memory_or_files_for_having_more_segments(tmp_path):
    """A hundred segments later, the number of open files and the memory in use are nearly the same."""

    def open_files():
        found = 0
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the file is being closed
                found += str(tmp_path) in str(link.readlink())
        return found

    with OpenLog(tmp_path, **SMALL) as log:
        tracemalloc.start()
        measured = []
        for segments in (10, 110):
            while len(log.history.folder.segments) < segments:
                log.write(*[PAYLOAD] * 50)
                log.reports.committed.clear()
                log.reports.order.clear()
            log.until_sealed()
            measured.append(traced_bytes())
        tracemalloc.stop()
        assert measured[1] - measured[0] < 300_000
        awaited(lambda: open_files() < 30)  # the last file is still being closed


def test_a_log_leaves_the_interpreters_switch_interval_alone(tmp_path):
    """A program that embeds Halley decides itself how often its threads switch; only the server's process sets it."""
    before = sys.getswitchinterval()
    with OpenLog(tmp_path / "a"):
        assert sys.getswitchinterval() == before
    assert sys.getswitchinterval() == before


def test_keys_that_were_used_lately_are_found_again(tmp_path):
    """After a restart, keys are known with identity and publication, oldest first."""
    with OpenLog(tmp_path, **SMALL) as log:
        for number in range(150):
            authid = "bob" if number % 2 else "ann"
            log.append_to("news", f"{number} {PAYLOAD}", authid=authid, idempotency_key=f"k{number}")
            log.write("without a key")
        published = {row.idempotency_key: row for row in log.rows() if row.idempotency_key}
        assert len(log.history.folder.segments) > 2
    with OpenLog(tmp_path, keys=100, **SMALL) as log:
        found = log.history.recent_keys()
        assert [each.key for each in found] == [f"k{number}" for number in range(50, 150)]
        for each in found:
            row = published[each.key]
            assert (each.authid, each.published) == (row.authid, ("news", row.offset, row.publication, None))
            assert 0 <= each.age_s < 60
        assert [each.age_s for each in found] == sorted((each.age_s for each in found), reverse=True)


@pytest.mark.parametrize(
    "publishers",
    ["m" * 40 + "a" * 150, "a" * 150, "a" * 60 + "m" * 97 + "a" * 3, "ma" * 75, ("m" * 30 + "a" * 5) * 5, "maaaa" * 40],
)
def test_the_keys_that_are_found_are_those_that_were_known(tmp_path, publishers):
    """Also where a stranger's are the newest: those that the server knew when it was stopped, and no other."""
    known, names = IdempotencyKeys(100, 600, Counter()), []
    with OpenLog(tmp_path, **SMALL) as log:
        for number, publisher in enumerate(publishers):
            authid = None if publisher == "a" else "ann"
            log.append_to("news", f"{number} {PAYLOAD}", authid=authid, idempotency_key=f"k{number}")
            known.remember(authid, f"k{number}", PublishResult("news", 0, 0), number / 1_000)
            names.append((authid, f"k{number}"))
        assert log.history.written(WRITTEN_S)
    with OpenLog(tmp_path, keys=100, **SMALL) as log:
        found = [(each.authid, each.key) for each in log.history.recent_keys()]
        assert found == [name for name in names if known.has(*name, 1)]
        assert len(found) == 100


def keyed_every(log, step_s, *keys):
    """Write an event for each key, with `step_s` seconds between their times."""
    for key in keys:
        log.append_to("news", time_us=int(log.clock.wall * 1_000_000), idempotency_key=key)
        log.clock.pass_(step_s)
    assert log.history.written(WRITTEN_S)


def ages(log):
    return {each.key: each.age_s for each in log.history.recent_keys()}


def test_keys_age_by_the_times_in_the_log(tmp_path):
    """What a busy log has recorded since makes a key older, and in the end it is forgotten."""
    with ClockedLog(tmp_path, key_age_s=10) as log:
        keyed_every(log, 0.75, *(f"k{number}" for number in range(20)))
    with ClockedLog(tmp_path, key_age_s=10) as log:
        assert ages(log) == {f"k{number}": 0.75 * (19 - number) for number in range(6, 20)}


@pytest.mark.parametrize("step_s", [3_600, -3_600, 86_400 * 365])
def test_a_clock_that_was_set_makes_no_key_much_older(tmp_path, step_s):
    """Neither a step of the clock while the log was written nor one before the restart lets a key be forgotten."""
    with ClockedLog(tmp_path) as log:
        keyed_every(log, 0.5, "before", "then")
        log.clock.wall += step_s
        keyed_every(log, 0.5, "after")
        wall = log.clock.wall
    with ClockedLog(tmp_path, wall=wall + step_s) as log:
        found = ages(log)
    assert list(found) == ["before", "then", "after"]
    assert found["after"] == 0
    assert found["before"] <= 1.5


def test_damage_among_the_newest_events_costs_only_their_keys(tmp_path):
    """A damaged row has no key any more, those of others are found, in its segment and in older ones."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many(count=300)
        newest = log.history.folder.segments[-1]
        assert newest.first > 1
    with closing(sqlite3.connect(newest.path)) as file:
        file.execute("update stored set payload = 'x' where offset = 299")
        file.commit()
    with OpenLog(tmp_path, **SMALL) as log:
        found = {each.published.position for each in log.history.recent_keys()}
    assert found == set(range(1, 301)) - {299}
