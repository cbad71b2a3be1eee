"""`verify`: it finds a sound lake sound, and names each kind of damage."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.lake import LOG_ID, NOON_US, ingested, rows_of, stored

from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import shapes, tables
from halley.pipeline.lake.commit import AppTransaction, commit_rows
from halley.pipeline.lake.verify import verify


def wrong(lake, **options):
    return [f"{each.what}: {each.text}" for each in verify(lake, **options) if not each.is_sound]


def told(lake, what):
    return [each.text for each in verify(lake) if each.what == what]


def put(lake, name, *rows):
    columns = shapes.TABLES[name].columns
    empty = dict.fromkeys(columns.names)
    commit_rows(tables.create(lake, name, LOG_ID), pa.Table.from_pylist([empty | row for row in rows], schema=columns))


def rollup(start_s, events, nbytes, window="10s", topic="news"):
    start_us = NOON_US + start_s * 1_000_000
    length_us = {"10s": 10_000_000, "1m": 60_000_000}[window]
    day = dt.date(2025, 11, 22)
    times = {"start_us": start_us, "end_us": start_us + length_us, "day": day}
    return times | {"window": window, "topic": topic, "protocol": "bayeux", "events": events, "bytes": nbytes}


def test_a_sound_lake_is_sound(tmp_path):
    """Offsets in any of the three tables are accounted for, and every finding says what was checked."""
    ingested(tmp_path, [stored(1), stored(2)], [stored(5), stored(9)])
    put(tmp_path, "rejected", {"first": 3, "last": 4, "reason": "damaged"})
    put(tmp_path, "gaps", {"first": 6, "last": 8, "reason": "hole"})
    assert wrong(tmp_path, is_thorough=True) == []
    assert told(tmp_path, "offsets") == ["1 to 9: each is present once"]
    assert "4 rows in 2 files" in told(tmp_path, "events")
    assert told(tmp_path, "checksums") == ["4 rows are as in the log (a sample)"]


def test_an_offset_that_is_not_there_is_named(tmp_path):
    """An offset that is in none of the tables is missing."""
    ingested(tmp_path, [stored(1), stored(4)])
    assert wrong(tmp_path) == ["offsets: offsets 2 to 3 missing"]


def test_an_offset_that_is_there_twice_is_named(tmp_path):
    """An offset that is in two tables, or twice in one, is a duplicate."""
    ingested(tmp_path, [stored(1), stored(2), stored(2), stored(3)])
    put(tmp_path, "rejected", {"first": 3, "last": 3, "reason": "damaged"})
    assert wrong(tmp_path) == ["offsets: offset 2 duplicate", "offsets: offset 3 duplicate"]


@pytest.mark.parametrize("offsets", [1, 2, 4])
def test_parts_that_are_examined_one_after_the_other_meet(tmp_path, monkeypatch, offsets):
    """Nothing is left out or found twice where one part of the offsets ends and the next begins."""
    monkeypatch.setattr("halley.pipeline.lake.verify._WINDOW_OFFSETS", offsets)
    ingested(tmp_path, [stored(number) for number in (1, 2, 2, 3, 4, 5, 9)])
    put(tmp_path, "gaps", {"first": 6, "last": 8, "reason": "hole"})
    assert wrong(tmp_path) == ["offsets: offset 2 duplicate"]


def test_faults_of_a_batch_that_is_not_committed_do_not_count(tmp_path):
    """Faults beyond the offset that ingest has committed are not checked."""
    ingested(tmp_path, [stored(1)])
    put(tmp_path, "rejected", {"first": 2, "last": 2, "reason": "damaged"})
    assert wrong(tmp_path) == []


def test_l4_a_missing_file_is_named(tmp_path):
    """L4: a file that the log names but that does not exist is reported."""
    table = ingested(tmp_path, [stored(1)])
    file = table.data_files()[0].path
    (table.folder / file).unlink()
    assert wrong(tmp_path)[0] == f"events: {file} cannot be read: No such file or directory"


@pytest.mark.parametrize("is_there", [True, False], ids=["cut", "gone"])
def test_l4_all_else_is_looked_at_where_a_file_is_broken(tmp_path, is_there):
    """The broken file's offsets are missing, other files are checked, and nothing is compared with a recount."""
    table = ingested(tmp_path, [stored(1), stored(2)], [stored(3), stored(4)._replace(payload='{"n":5}')])
    put(tmp_path, "rollups", rollup(0, 4, 28))
    broken = next(each for each in table.data_files() if each.least["offset"] == 1)
    path = table.folder / broken.path
    content = path.read_bytes()
    path.unlink()
    if is_there:
        path.write_bytes(content[:-1])
        said = f"has {broken.nbytes - 1} bytes instead of {broken.nbytes}"
    else:
        said = "cannot be read: No such file or directory"
    assert wrong(tmp_path, is_thorough=True) == [
        f"events: {broken.path} {said}",
        "events: 2 rows in 1 files, and 1 files that are not what was committed",
        "offsets: offsets 1 to 2 missing",
        "checksums: 1 of 2 rows differ from the log, such as offset 4",
        "recount: nothing can be compared while files are not what was committed",
    ]


def test_l4_what_cannot_be_read_in_the_middle_of_a_file_is_named(tmp_path):
    """Bytes that changed without a change of length are found by Arrow when it reads them."""
    table = ingested(tmp_path, [stored(1), stored(2)])
    path = table.folder / table.data_files()[0].path
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    content[4:-footer] = b"\xff" * (len(content) - footer - 4)
    path.write_bytes(content)
    found = wrong(tmp_path)
    assert [each.partition(":")[0] for each in found] == ["offsets", "checksums"]
    assert "cannot be read" in found[1]


def test_l4_a_file_with_other_rows_than_its_log_says_is_named(tmp_path):
    """L4: a file with other rows than the log states is found by its size."""
    table = ingested(tmp_path, [stored(1), stored(2)])
    file = table.data_files()[0].path
    path = table.folder / file
    nbytes = path.stat().st_size
    pq.write_table(pq.read_table(path, partitioning=None).slice(1), path)
    assert f"events: {file} has {path.stat().st_size} bytes instead of {nbytes}" in wrong(tmp_path)


def test_a_row_that_is_not_what_was_logged_is_named(tmp_path):
    """A changed row is found by the log's checksum over all columns, including those in folders' names."""
    row = stored(2)._replace(payload='{"n":3}')
    ingested(tmp_path, [stored(1), row])
    assert wrong(tmp_path) == ["checksums: 1 of 2 rows differ from the log, such as offset 2"]


def test_events_beyond_what_ingest_says_are_named(tmp_path):
    """L5: an app version that was set back is found by the events beyond it."""
    table = ingested(tmp_path, [stored(1)])
    commit_rows(table, rows_of([stored(7)]), AppTransaction("other", None, 1))
    assert wrong(tmp_path)[0] == "ingest: there are events up to offset 7, but the recorded position of ingest is 2"


def test_l13_rollups_are_counted_again(tmp_path):
    """L13: windows that equal the events are sound; windows that might not be settled are not checked."""
    events = [stored(n, time_us=NOON_US + n * 1_000_000) for n in range(100)]
    ingested(tmp_path, events)
    nbytes = [sum(len(event.payload) for event in events[at : at + 10]) for at in range(0, 100, 10)]
    put(tmp_path, "rollups", *(rollup(at * 10, 10, nbytes[at]) for at in range(10)))
    assert wrong(tmp_path) == []
    assert told(tmp_path, "recount") == ["3 windows agree with a recount"]


def test_l13_late_events_are_told_and_are_no_fault(tmp_path):
    """L13: a final window without late events is not a fault; these are reported."""
    ingested(tmp_path, [stored(n, time_us=NOON_US + n * 1_000_000) for n in range(100)])
    put(tmp_path, "rollups", rollup(0, 8, 40), rollup(10, 10, 80), rollup(20, 10, 80))
    assert wrong(tmp_path) == []
    assert "except for 2 late events" in told(tmp_path, "recount")[0]


def test_l13_a_window_that_holds_more_than_the_lake_is_named(tmp_path):
    """L13: a window with more events than the lake was counted twice, or is of another log."""
    ingested(tmp_path, [stored(n, time_us=NOON_US + n * 1_000_000) for n in range(100)])
    put(tmp_path, "rollups", rollup(0, 11, 99))
    assert any("windows disagree with the events" in each and "11 events" in each for each in wrong(tmp_path))


@pytest.mark.parametrize("topic", ["stats/10s/a", "alerts/a", "halley/sessions", "replay/a"])
def test_l13_topics_of_the_pipelines_own_are_not_counted(tmp_path, topic):
    """Topics that are never rolled up are not missing from the rollups."""
    ingested(tmp_path, [stored(n, ("news", topic)[n % 2], time_us=NOON_US + n * 1_000_000) for n in range(100)])
    put(
        tmp_path,
        "rollups",
        *(rollup(at, 5, sum(len(stored(n).payload) for n in range(at, at + 10, 2))) for at in (0, 10, 20)),
    )
    assert told(tmp_path, "recount") == ["3 windows agree with a recount"]


def test_no_lake_is_refused(tmp_path):
    """Without a lake the error names the command that makes one."""
    with pytest.raises(JobRejected, match=r"there is no lake at .*: `halley pipeline ingest` makes one"):
        list(verify(tmp_path))
