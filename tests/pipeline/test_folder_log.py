"""A data folder as the pipeline reads it: all committed rows, and for all other offsets the reason."""

import os
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import orjson
import pytest
from support.damage import append_rows, files, flip, move_mark, remove_rows, seal_again
from support.log import SMALL, OpenLog

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.history import checksummed_json, segment
from halley.history.folder import Identity
from halley.history.row_filter import RowFilter
from halley.history.stored import Stored, checksum
from halley.pipeline.errors import JobFailed, JobRejected
from halley.pipeline.source import folder_log
from halley.pipeline.source.folder_log import FolderLog
from halley.pipeline.source.log import Fault

PADDING = "x" * 400


def payloads(first, last):
    """Return the payloads of events with the numbers `first` to `last`."""
    return [{"number": number, "padding": PADDING} for number in range(first, last + 1)]


def filled(folder, count, **options):
    """Write a log of `count` events, close it, and return its reader."""
    with OpenLog(folder, **SMALL | options) as log:
        for begin in range(1, count + 1, 50):  # a segment ends with a group
            log.write(*payloads(begin, min(begin + 49, count)))
    return FolderLog(folder)


def told(log, first, until):
    """Return the sound offsets and the faults of a range; assert that they cover every offset once, in order."""
    sound, faults, at = [], [], first
    for found in log.read(first, until):
        if isinstance(found, Fault):
            assert found.first == at
            faults.append(found)
            at = found.last + 1
        else:
            assert [row[0] for row in found] == list(range(at, at + len(found)))
            assert all(row[-1] == checksum(row[:-1]) for row in found)
            sound += [row[0] for row in found]
            at += len(found)
    assert at == until
    return sound, faults


def rows_of(log, first, until):
    """Return the rows of a range."""
    return [Stored._make(row) for rows in log.read(first, until) for row in rows]


def numbers(log, first, until):
    """Return the numbers in the payloads of a range."""
    return [orjson.loads(row.payload)["number"] for row in rows_of(log, first, until)]


def changed(row, **fields):
    """Return a row with other fields, and the checksum that matches them."""
    row = row._replace(**fields)
    return row._replace(crc=checksum(row[:-1]))


def wait_until(is_so, seconds=20):
    """Wait until a condition becomes true, which another thread causes."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Committed rows, and nothing else


def test_every_row_comes_once_and_in_order(tmp_path):
    """L7: the rows of sealed segments and of the newest one are read as they were written, for any range."""
    log = filled(tmp_path, 700)
    assert len(files(tmp_path)) > 3
    head = log.head()
    assert (head.first, head.next, head.holes) == (1, 701, ())
    assert numbers(log, 1, 701) == list(range(1, 701))
    boundary = sorted(files(tmp_path))[1]
    for first, until in ((boundary, boundary + 1), (boundary - 1, boundary + 1), (5, 5), (700, 701), (3, 690)):
        assert numbers(log, first, until) == list(range(first, until))


def test_what_is_above_the_mark_is_not_there_yet(tmp_path):
    """L7: rows that SQLite has but the log has not committed are beyond its head."""
    log = filled(tmp_path, 20)
    assert log.head().next == 21
    move_mark(tmp_path, 15)
    assert log.head().next == 16


def test_what_was_refused_is_nobodys(tmp_path):
    """L7: the offsets of a commit that failed are in the next segment; the rows that were left over are not read."""
    log = filled(tmp_path, 20, segment_bytes=10_000_000)
    path = files(tmp_path)[1]
    (row,) = rows_of(log, 20, 21)
    append_rows(path, [changed(row, offset=offset, payload='"refused"') for offset in (21, 22, 23)])
    assert log.head().next == 21
    identity = Identity.load(tmp_path / "log.json")
    following = segment.create(path.with_name(f"seg-{21:020}.db"), identity.log_id, 21, **identity.meta(21))
    following.write([changed(row, offset=offset, payload=f'{{"number":{offset}}}') for offset in (21, 22)])
    following.close()
    move_mark(tmp_path, 22)
    assert numbers(log, 19, 23) == [19, 20, 21, 22]


def test_the_newest_segment_is_read_with_its_wal(tmp_path):
    """T9: from a segment that is being written all committed rows are read, even if they are only in the WAL."""
    with OpenLog(tmp_path, segment_bytes=100_000_000) as opened:
        for number in range(1, 301):
            opened.write({"number": number})
        log = FolderLog(tmp_path)
        assert log.head().next == 301
        assert numbers(log, 1, 301) == list(range(1, 301))


def test_a_log_of_nothing(tmp_path):
    """A log in which nothing was recorded yet can be read, and is empty."""
    with OpenLog(tmp_path):
        log = FolderLog(tmp_path)
        assert log.head()[1:3] == (1, 1)
        assert told(log, 1, 1) == ([], [])


def test_reading_beside_a_writer(tmp_path):
    """L7, L8: a reader that follows a log under full load gets every row up to each head, and no fault."""
    with OpenLog(tmp_path, **SMALL) as opened:

        def write():
            for begin in range(1, 3_001, 100):
                opened.write(*payloads(begin, begin + 99))

        writer = threading.Thread(target=write)
        writer.start()
        log, at, looks = FolderLog(tmp_path), 1, 0
        deadline = time.monotonic() + 60
        while at < 3_001 and time.monotonic() < deadline:
            until = log.head().next
            assert numbers(log, at, until) == list(range(at, until))
            looks += until > at
            at = until
        writer.join(60)
        assert at == 3_001
        assert looks > 1


def test_sealing_does_not_wait_for_a_reader(tmp_path, monkeypatch):
    """L8, T8: between two batches a reader holds nothing open of the segment that is written, so it can be sealed."""
    monkeypatch.setattr(folder_log, "BATCH_ROWS", 10)
    with OpenLog(tmp_path, **SMALL) as opened:
        opened.write(*payloads(1, 50))
        reading = FolderLog(tmp_path).read(1, 51)
        assert len(next(reading)) == 10
        opened.write(*payloads(51, 400))
        wait_until((tmp_path / f"seg-{1:020}.seal").exists)
        assert [row[0] for rows in reading for row in rows] == list(range(11, 51))


def test_no_more_than_a_batch_is_held(tmp_path, monkeypatch):
    """Batches of rows are bounded by bytes too, so that few large payloads are held at a time."""
    with OpenLog(tmp_path, segment_bytes=100_000_000) as opened:
        opened.write(*(["y" * 100_000] for _ in range(200)))
    monkeypatch.setattr(folder_log, "BATCH_BYTES", 1_000_000)
    batches = [len(rows) for rows in FolderLog(tmp_path).read(1, 201)]
    assert sum(batches) == 200
    assert max(batches) == 10


# Faults


def test_a_damaged_row_makes_its_segment_damage_and_no_other(tmp_path):
    """A segment that does not match its digests is one range of damage, and all other rows are read."""
    log = filled(tmp_path, 400)
    flip(files(tmp_path)[1], b'"number":7,')
    _, following, *_ = sorted(files(tmp_path))
    assert told(log, 1, 401) == (list(range(following, 401)), [Fault(1, following - 1, "damaged")])
    assert told(log, 8, 10) == ([], [Fault(8, 9, "damaged")])


def test_rows_that_vanished_from_the_newest_segment_are_damage(tmp_path):
    """L9: rows that do not exist, for no reason that the log has recorded, make a segment a range of damage."""
    log = filled(tmp_path, 50, segment_bytes=10_000_000)
    remove_rows(files(tmp_path)[1], 10, 19)
    assert told(log, 1, 51) == ([], [Fault(1, 50, "damaged")])
    assert told(log, 12, 15) == ([], [Fault(12, 14, "damaged")])


def test_a_salvaged_segment_is_read_again(tmp_path):
    """What a salvage has lost is a hole, and everything else is read."""
    log = filled(tmp_path, 400)
    flip(files(tmp_path)[1], b'"number":7,')
    with OpenLog(tmp_path, **SMALL) as opened:
        opened.history.salvage(lambda _done, _of: None)
    assert told(log, 1, 401) == ([*range(1, 7), *range(8, 401)], [Fault(7, 7, "hole")])


def test_a_segment_that_is_gone_from_the_middle_is_missing(tmp_path):
    """L9: all offsets of a deleted segment in the middle are missing."""
    log = filled(tmp_path, 700)
    firsts = sorted(files(tmp_path))
    files(tmp_path)[firsts[1]].unlink()
    _, faults = told(log, 1, 701)
    assert faults == [Fault(firsts[1], firsts[2] - 1, "missing")]


def test_a_recorded_hole_is_a_hole(tmp_path):
    """A loss that the log has recorded is a hole, within a segment or between two."""
    log = filled(tmp_path, 700)
    firsts = sorted(files(tmp_path))
    files(tmp_path)[firsts[1]].unlink()
    inside = firsts[2] + 5
    remove_rows(files(tmp_path)[firsts[2]], inside, inside)
    seal_again(files(tmp_path)[firsts[2]])
    holes = ((firsts[1], firsts[2] - 3), (inside, inside))
    document = checksummed_json.load(tmp_path / "log.json")
    checksummed_json.save(tmp_path / "log.json", document | {"holes": holes})
    assert log.head().holes == holes
    _, faults = told(log, 1, 701)
    assert faults == [
        Fault(firsts[1], firsts[2] - 3, "hole"),
        Fault(firsts[2] - 2, firsts[2] - 1, "missing"),
        Fault(inside, inside, "hole"),
    ]


def test_a_hole_that_is_recorded_while_the_log_is_read_is_a_hole(tmp_path, monkeypatch):
    """L9: a hole that a server records while a read is running is not reported as missing."""
    monkeypatch.setattr(folder_log, "BATCH_ROWS", 10)
    log = filled(tmp_path, 700)
    reading = log.read(1, 701)
    next(reading)
    firsts = sorted(files(tmp_path))
    inside = firsts[2] + 5
    holes = ((firsts[1], firsts[2] - 1), (inside, inside))
    document = checksummed_json.load(tmp_path / "log.json")
    checksummed_json.save(tmp_path / "log.json", document | {"holes": holes})
    files(tmp_path)[firsts[1]].unlink()
    remove_rows(files(tmp_path)[firsts[2]], inside, inside)
    seal_again(files(tmp_path)[firsts[2]])
    faults = [each for each in reading if isinstance(each, Fault)]
    assert {each.why for each in faults} == {"hole"}
    assert sum(each.last - each.first + 1 for each in faults) == firsts[2] - firsts[1] + 1


def test_a_hole_that_is_recorded_before_the_first_segment_is_reached_is_a_hole(tmp_path):
    """L9: a hole that is recorded while a read begins is not missing, even if no segment has its offsets."""
    log = filled(tmp_path, 700)
    reading = log.read(1, 701)
    first, second, *_ = sorted(files(tmp_path))
    files(tmp_path)[first].unlink()
    identity = log.identity
    log.identity = lambda: _record(log, identity, first, second - 1)
    assert next(reading) == Fault(1, second - 1, "hole")


def _record(log, identity, first, last):
    """Return the log's identity, and then record a loss, as a server could at that time."""
    found = identity()
    document = checksummed_json.load(log.path / "log.json")
    checksummed_json.save(log.path / "log.json", document | {"holes": [(first, last)]})
    return found


def test_a_purged_row_is_there_without_its_text(tmp_path):
    """A purged row is still a row, so its offset is accounted for."""
    with OpenLog(tmp_path, **SMALL) as opened:
        opened.write({"number": 1}, topic="private")
        opened.write({"number": 2})
        opened.history.purge(Erasure(Pattern(Match.EXACT, "private"), None), lambda _done, _of: None)
    assert [(row.shape, row.topic) for row in rows_of(FolderLog(tmp_path), 1, 3)] == [("purged", ""), ("bare", "news")]


def test_what_retention_deletes_under_a_reader_is_missing(tmp_path, monkeypatch):
    """Segments that retention deletes during a read are missing, not damaged; an open segment is read to its end."""
    monkeypatch.setattr(folder_log, "BATCH_ROWS", 10)
    log = filled(tmp_path, 700)
    reading = log.read(1, 701)
    next(reading)
    firsts = sorted(files(tmp_path))
    for first in firsts[:3]:
        files(tmp_path)[first].unlink()
    found = list(reading)
    assert [each for each in found if isinstance(each, Fault)] == [Fault(firsts[1], firsts[3] - 1, "missing")]
    assert found[-1][-1][0] == 700
    assert log.head().first == firsts[3]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_offset_is_told_once(tmp_path, seed):
    """With removed rows, flipped bits and deleted segments, each offset is either a row or a fault, never both."""
    chance = random.Random(seed)
    log = filled(tmp_path, 600)
    for first, path in files(tmp_path).items():
        match chance.randrange(4):
            case 0:
                path.chmod(0o644)
                content = bytearray(path.read_bytes())
                for _ in range(chance.randrange(1, 30)):
                    content[chance.randrange(8_192, len(content))] ^= 1 << chance.randrange(8)
                path.write_bytes(content)
            case 1:
                low = first + chance.randrange(100)
                remove_rows(path, low, low + chance.randrange(40))
            case 2 if first > 1:
                path.unlink()
    sound, faults = told(log, 1, 601)
    assert len(sound) + sum(fault.last - fault.first + 1 for fault in faults) == 600
    begin = chance.randrange(1, 300)
    again, _ = told(log, begin, 601)
    assert again == [offset for offset in sound if offset >= begin]


# Only some rows


def chosen(log, first, until, wanted):
    """Return the offsets of the wanted rows of a range, and its faults; assert that each offset comes once."""
    rows, faults = [], []
    for found in log.read(first, until, wanted):
        if isinstance(found, Fault):
            faults.append(found)
        else:
            assert all(wanted.matches(Stored._make(row)) and row[-1] == checksum(row[:-1]) for row in found)
            rows += [row[0] for row in found]
    assert rows == sorted(rows)
    seen = [*rows, *(offset for fault in faults for offset in range(fault.first, fault.last + 1))]
    assert len(seen) == len(set(seen))
    assert all(first <= offset < until for offset in seen)
    return rows, faults


def mixed(folder, count=600):
    """Write events of three channels and two protocols, one a millisecond, and return a reader of the log."""
    with OpenLog(folder, **SMALL) as opened:
        for number in range(1, count + 1):
            topic, protocol = ("a/one", "a/two", "b")[number % 3], ("bayeux", "wamp")[number % 2]
            opened.append_to(topic, {"number": number, "padding": PADDING}, time_us=number * 1_000, protocol=protocol)
            if number % 50 == 0:
                assert opened.history.written(20)
    return FolderLog(folder)


A_ONE, ALL_OF_A = Pattern(Match.EXACT, "a/one"), Pattern(Match.DESCENDANTS, "a")
WANTED = {
    "channel": RowFilter(A_ONE),
    "pattern": RowFilter(ALL_OF_A),
    "protocol": RowFilter(protocol="wamp"),
    "time": RowFilter(from_time_us=100_000, until_time_us=432_000),
    "all": RowFilter(ALL_OF_A, "wamp", 100_000, 432_000),
    "nothing": RowFilter(Pattern(Match.EXACT, "none")),
    "never": RowFilter(from_time_us=10_000_000),
}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("is_open", [False, True])
def test_the_wanted_rows_of_any_range(tmp_path, wanted, is_open, monkeypatch):
    """By channel, pattern, protocol and time, in small batches, from sealed segments and one that is written."""
    monkeypatch.setattr(folder_log, "BATCH_ROWS", 7)
    log = mixed(tmp_path)
    with OpenLog(tmp_path, **SMALL) if is_open else nullcontext() as opened:
        if opened is not None:
            opened.append_to("a/one", 1, time_us=601_000)
            assert opened.history.written(20)
        until = log.head().next
        rows = rows_of(log, 1, until)
        for first, end in ((1, until), (77, 78), (100, 500), (until, until)):
            expected = [row.offset for row in rows if first <= row.offset < end and wanted.matches(row)]
            assert chosen(log, first, end, wanted) == (expected, [])


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
def test_gaps_are_found_whatever_is_wanted(tmp_path, wanted):
    """L9: damage, a hole, a deleted segment, and rows that vanished from the newest one, as without a filter."""
    log = mixed(tmp_path)
    every = rows_of(log, 1, 601)
    first, second, third, *_ = sorted(files(tmp_path))
    newest = max(files(tmp_path))
    flip(files(tmp_path)[first], b'"number":7,')
    files(tmp_path)[second].unlink()
    remove_rows(files(tmp_path)[third], third + 5, third + 5)
    seal_again(files(tmp_path)[third])
    document = checksummed_json.load(tmp_path / "log.json")
    checksummed_json.save(tmp_path / "log.json", document | {"holes": [(third + 5, third + 5)]})
    remove_rows(files(tmp_path)[newest], newest, newest)
    _, faults = told(log, 1, 601)
    assert {each.why for each in faults} == {"damaged", "missing", "hole"}
    lost = {offset for fault in faults for offset in range(fault.first, fault.last + 1)}
    expected = [row.offset for row in every if row.offset not in lost and wanted.matches(row)]
    assert chosen(log, 1, 601, wanted) == (expected, faults)


@pytest.mark.parametrize("seed", range(4))
def test_a_filter_finds_the_faults_that_a_reader_of_all_finds(tmp_path, seed):
    """L9: after flipped bits, deleted rows and segments, faults are the same, and no other wanted row is left out.

    Bits flip in sealed segments only: in the newest one, which has no digests yet, only the rows that are read show it.
    """
    chance = random.Random(seed)
    log = mixed(tmp_path)
    newest = max(files(tmp_path))
    for first, path in files(tmp_path).items():
        match chance.randrange(4):
            case 0 if first < newest:
                path.chmod(0o644)
                content = bytearray(path.read_bytes())
                content[chance.randrange(8_192, len(content))] ^= 1 << chance.randrange(8)
                path.write_bytes(content)
            case 1:
                remove_rows(path, first, first + chance.randrange(40))
            case 2 if first > 1:
                path.unlink()
    rows, faults = [], []
    for found in log.read(1, 601):
        faults, rows = ([*faults, found], rows) if isinstance(found, Fault) else (faults, [*rows, *found])
    for wanted in WANTED.values():
        expected = [row[0] for row in rows if wanted.matches(Stored._make(row))]
        assert chosen(log, 1, 601, wanted) == (expected, faults)


def test_one_channel_is_read_by_its_index(tmp_path, monkeypatch):
    """A channel with few events costs at most a fiftieth of the steps that SQLite takes to read all sealed segments.

    In the newest segment, which has no digests, all rows are counted too.
    """
    steps = [0]
    read = segment.read

    def counting(path, *, is_sealed):
        connection = read(path, is_sealed=is_sealed)
        connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 1)
        return connection

    monkeypatch.setattr(segment, "read", counting)
    with OpenLog(tmp_path, segment_bytes=500_000) as opened:
        for begin in range(0, 60_000, 1_000):
            opened.write(*range(999), topic=f"busy/{begin // 1_000}")
            opened.write(begin, topic="rare")
        opened.until_sealed()
    log = FolderLog(tmp_path)
    newest = max(files(tmp_path))
    assert len(files(tmp_path)) > 3
    assert sum(len(rows) for rows in log.read(1, newest)) == newest - 1
    whole, steps[0] = steps[0], 0
    rare = RowFilter(Pattern(Match.EXACT, "rare"))
    found = chosen(log, 1, newest, rare)[0]
    assert 0 < steps[0] < whole / 50
    assert found + chosen(log, newest, 60_001, rare)[0] == list(range(1_000, 60_001, 1_000))


# Folders that are not a log


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(JobRejected, match=r"does not exist$"):
        FolderLog(tmp_path / "nowhere").head()


def test_a_folder_on_which_no_server_was_started(tmp_path):
    """An empty folder, or one with other files, is refused with one sentence."""
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(JobRejected, match=f"{tmp_path} holds no log: no server was ever started on it"):
        FolderLog(tmp_path).head()


def test_a_file(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(JobRejected, match=r"letter.txt is not a data folder"):
        FolderLog(tmp_path / "letter.txt").head()


def test_a_log_of_a_later_version(tmp_path):
    """A later version is refused, whether the log has it or one of its segments."""
    log = filled(tmp_path, 10)
    content = checksummed_json.load(tmp_path / "log.json")
    checksummed_json.save(tmp_path / "log.json", content | {"format": 99})
    with pytest.raises(JobRejected, match="was written by a later version of Halley"):
        log.head()
    checksummed_json.save(tmp_path / "log.json", content)
    connection = sqlite3.connect(files(tmp_path)[1], isolation_level=None)
    connection.execute("update meta set value = 99 where name = 'format'")
    connection.close()
    with pytest.raises(JobRejected, match=r"db was written by a later version of Halley"):
        list(log.read(1, 11))


def test_a_segment_of_another_log(tmp_path):
    """A segment of another log is refused with one sentence that names the file."""
    log = filled(tmp_path / "one", 10)
    filled(tmp_path / "other", 10)
    shutil.copy(files(tmp_path / "other")[1], files(tmp_path / "one")[1])
    with pytest.raises(JobRejected, match=r"00001.db belongs to another log"):
        list(log.read(1, 11))


@pytest.mark.parametrize("content", [b"", b"torn", bytes(20), None], ids=["empty", "torn", "zeros", "gone"])
def test_a_mark_that_says_nothing(tmp_path, content, monkeypatch):
    """Only the mark shows what is committed, so without it the log is refused, with a sentence that says what to do."""
    monkeypatch.setattr(folder_log, "_MARK_WAIT_S", 0)
    log = filled(tmp_path, 10)
    if content is None:
        (tmp_path / "mark").unlink()
    else:
        (tmp_path / "mark").write_bytes(content)
    with pytest.raises(JobRejected, match="mark is missing or damaged"):
        log.head()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user who is not allowed to read the files")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_somebody_elses_folder(tmp_path, mode):
    """T10: a reader without the right to read, or to write next to a WAL that needs it, is told what to do."""
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to other users
        other = Path(place) / "log"
        with OpenLog(tmp_path, **SMALL) as opened:
            opened.write({"number": 1})
            shutil.copytree(tmp_path, other, ignore=shutil.ignore_patterns("*-shm"))  # as if its server had been killed
        Path(place).chmod(0o755)
        for file in other.iterdir():
            file.chmod(0o644)
        other.chmod(mode)
        assert _is_refused_to_others(other)


def _is_refused_to_others(folder):
    """Return whether a process of another user is refused with the right sentence."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            os.setuid(65_534)
            try:
                log = FolderLog(folder)
                list(log.read(1, log.head().next))
            except JobRejected as refused:
                code = 0 if "cannot be read (" in str(refused) and "--from URL" in str(refused) else 2
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_damaged_identity(tmp_path):
    """A damaged identity is refused with one sentence: only a server restores it from the segments."""
    log = filled(tmp_path, 10)
    (tmp_path / "log.json").write_text("{}")
    with pytest.raises(JobRejected, match="start the server on this folder, which restores it"):
        log.head()


# The positions of consumers


def test_two_queries_of_one_name_tell_their_position(tmp_path):
    """T19: two queries of one name do not disturb each other, and the file is complete at any time."""
    log = filled(tmp_path, 10)
    problems = []

    def report(offsets):
        try:
            for offset in offsets:
                log.commit("ingest", offset)
        except JobFailed as problem:
            problems.append(problem)

    threads = [threading.Thread(target=report, args=(range(begin, 100, 2),)) for begin in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert checksummed_json.load(tmp_path / "consumers" / "ingest.json")["offset"] in (98, 99)
