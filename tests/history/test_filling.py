"""Filling: what is damaged or lost comes back from another copy of the log, and is no hole any more."""

from __future__ import annotations

import shutil

import pytest
from support.damage import files, flip, move_mark, remove_rows
from support.log import ALL, SMALL, ClockedLog, OpenLog

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure, Query
from halley.history.examination import verify

EVENTS = 600


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A closed log of 600 events in several segments, and its rows by offset."""
    folder = tmp_path_factory.mktemp("whole") / "log"
    with OpenLog(folder, **SMALL) as log:
        log.write_many(count=EVENTS)
        return folder, {row.offset: row for row in log.rows()}


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of the log."""
    return shutil.copytree(whole[0], tmp_path / "log")


def supply_of(rows, asked=None):
    """Return what supplies these rows, in small pieces; what was asked for is added to `asked`."""

    def supply(first, last):
        if asked is not None:
            asked.append((first, last))
        found = [rows[offset] for offset in range(first, last + 1) if offset in rows]
        for at in range(0, len(found), 7):
            yield found[at : at + 7]

    return supply


def fill(log, supply):
    """Fill all that the supply has; return how many rows that was."""
    total = 0
    while count := log.history.fill(supply):
        total += count
    return total


def damage_row(path, offset):
    """Flip a bit in a row's payload."""
    flip(path, f'{{"n":{offset - 1},"secret":"secret-{(offset - 1) % 3}-x'.encode())


def read(log):
    """Read all of the log, so that damage is found; return the offsets of its events, and the gaps."""
    page = log.history.read(Query(((ALL, 0),), EVENTS, limit=EVENTS, max_bytes=10**9))
    return [event.position for event in page.events], page.gaps


def check_whole(folder, log, whole):
    """Check that the log has all of its rows, now and when it is opened again."""
    assert read(log) == ([*range(1, EVENTS + 1)], [])
    assert (log.history.damaged, log.history.holes, log.history.folder.damage) == ([], [], ())
    log.history.close()
    assert verify(folder).damage == []
    with OpenLog(folder, **SMALL) as again:
        assert {row.offset: row for row in again.rows()} == whole[1]
        assert (again.history.holes, again.history.damaged) == ([], [])


def test_damaged_rows_come_back(whole, folder):
    """Only what cannot be read is asked for, and no hole is left."""
    first, following, *_ = sorted(files(folder))
    for offset in (5, 6, following - 1):
        damage_row(files(folder)[first], offset)
    with OpenLog(folder, **SMALL) as log:
        assert read(log)[1] == [(1, following - 1)]
        asked = []
        assert fill(log, supply_of(whole[1], asked)) == 3
        assert asked == [(5, 6), (following - 1, following - 1)]
        check_whole(folder, log, whole)


def test_segments_that_are_gone_come_back(whole, folder):
    """The first, the last that is sealed, and one that is no database any more; also while the log is open."""
    firsts = sorted(files(folder))
    for first in (firsts[0], firsts[2], firsts[3]):
        path = files(folder)[first]
        path.unlink()
        path.with_suffix(".seal").unlink()
    with OpenLog(folder, **SMALL) as log:
        assert log.history.holes == [(1, firsts[1] - 1), (firsts[2], EVENTS)]
        assert fill(log, supply_of(whole[1])) > 100
        read(log)
        path = files(folder)[firsts[1]]
        path.chmod(0o600)
        path.write_bytes(b"no database" * 1_000)
        log.history._pool._verified.clear()
        log.history._pool.close()
        assert read(log)[1] == [(firsts[1], firsts[2] - 1)]
        assert fill(log, supply_of(whole[1])) == firsts[2] - firsts[1]
        check_whole(folder, log, whole)


def test_a_hole_from_before_is_filled_where_it_is(whole, folder):
    """One within a segment that was salvaged, and the end of a WAL, behind which the log went on."""
    damage_row(files(folder)[1], 5)
    with OpenLog(folder, **SMALL) as log:
        read(log)
        log.history.salvage(lambda *_: None)
        log.write(*"abcd")
        rows = whole[1] | {row.offset: row for row in log.rows()}
    remove_rows(files(folder)[max(files(folder))], EVENTS + 1, EVENTS + 4)
    with OpenLog(folder, **SMALL) as log:
        assert log.history.holes == [(5, 5), (EVENTS + 1, EVENTS + 4)]
        log.write("next")
        assert log.reports.committed == {EVENTS + 5: "next"}
        assert fill(log, supply_of(rows)) == 5
        assert log.history.holes == []
        page = log.history.read(Query(((ALL, 0),), EVENTS + 5, limit=1_000, max_bytes=10**9))
        assert ([event.position for event in page.events], page.gaps) == ([*range(1, EVENTS + 6)], [])
    assert verify(folder).damage == []


def test_a_filled_row_is_found_by_its_time(tmp_path):
    """Also where the hole around it was searched for that time before, in vain."""
    folder = tmp_path / "log"
    with ClockedLog(folder, segment_bytes=10**8) as log:
        log.publish(times=999)
        log.clock.wall -= 5_000
        log.write("lost")
        log.clock.wall += 5_000
        log.publish(times=1_200)
        rows = {row.offset: row for row in log.rows()}
        time_us = rows[1_000].time_us
        log.history.purge(Erasure(Pattern(Match.EXACT, "none"), None), lambda *_: None)  # ends the segment
        log.publish()
    flip(files(folder)[1], b'"lost')
    with ClockedLog(folder, segment_bytes=10**8) as log:
        log.read()
        log.history.salvage(lambda *_: None)
        assert log.history.holes == [(1_000, 1_000)]
        assert log.offsets(until_time_us=time_us) == []
        assert fill(log, supply_of(rows)) == 1
        assert log.offsets(until_time_us=time_us) == [1_000]


def test_what_no_copy_has_becomes_a_hole(whole, folder):
    """And is asked for again; a copy that does not know leaves the segment as it is."""
    first, following, *_ = sorted(files(folder))
    for offset in (5, 6):
        damage_row(files(folder)[first], offset)

    def unknown(_first, _last):
        raise TimeoutError
        yield

    with OpenLog(folder, **SMALL) as log:
        read(log)
        with pytest.raises(TimeoutError):
            fill(log, unknown)
        assert (log.history.damaged, log.history.holes) == ([(1, following - 1)], [])
        partly = {offset: row for offset, row in whole[1].items() if offset != 5}
        assert fill(log, supply_of(partly)) == 1
        assert (log.history.damaged, log.history.holes) == ([], [(5, 5)])
        assert fill(log, supply_of(partly)) == 0
        assert fill(log, supply_of(whole[1])) == 1
        check_whole(folder, log, whole)


def test_rows_of_another_log_are_refused(whole, folder, tmp_path):
    """Their publications have another key; nothing is changed."""
    first, following, *_ = sorted(files(folder))
    for offset in (5, 6, 7):
        damage_row(files(folder)[first], offset)
    with OpenLog(tmp_path / "other", **SMALL) as other:
        other.write_many(count=20)
        others = {row.offset: row for row in other.rows()}
    with OpenLog(folder, **SMALL) as log:
        read(log)
        with pytest.raises(OSError, match="not those of this log"):
            fill(log, supply_of(others))
        with pytest.raises(OSError, match="not those of this log"):
            fill(log, supply_of({5: whole[1][9]}))
        assert (log.history.damaged, log.history.holes) == ([(1, following - 1)], [])


def test_what_is_erased_stays_erased(whole, folder):
    """A purge behind it erases from what was filled in."""
    first, *_ = sorted(files(folder))
    damage_row(files(folder)[first], 5)
    with OpenLog(folder, **SMALL) as log:
        read(log)
        fill(log, supply_of(whole[1]))
        topic = whole[1][5].topic
        log.history.purge(Erasure(Pattern(Match.EXACT, topic), None), lambda *_: None)
        assert all(row.is_purged for row in log.rows() if row.offset == 5)


def test_a_mark_is_no_hole_where_rows_follow(whole, folder):
    """A mark that is too high, as after a lost WAL, is filled as far as the copy reaches."""
    move_mark(folder, EVENTS + 5)
    with OpenLog(folder, **SMALL) as log:
        assert log.history.holes == [(EVENTS + 1, EVENTS + 5)]
        assert fill(log, supply_of(whole[1])) == 0
        assert log.history.holes == [(EVENTS + 1, EVENTS + 5)]
