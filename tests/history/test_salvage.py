"""Salvaging: what is intact of damaged segments is written again, and what is not becomes a hole."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import pytest
from support.damage import files, flip, move_mark, remove_rows
from support.log import ALL, SMALL, OpenLog

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure, Query
from halley.history import checksummed_json, rewriting
from halley.history.examination import verify
from halley.pipeline.source.folder_log import FolderLog

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


def quietly(_done, _of):
    """Show no progress."""


def salvaged(folder):
    """Salvage a log, and return what that did, its rows by offset, its holes, and what is damaged still."""
    with OpenLog(folder, **SMALL) as log:
        done = log.history.salvage(quietly)
        rows = {row.offset: row for row in log.rows()}
        return done, rows, log.history.holes, log.history.damaged


def damage_row(path, offset):
    """Flip a bit in a row's payload."""
    flip(path, f'{{"n":{offset - 1},"secret":"secret-{(offset - 1) % 3}-x'.encode())


def test_an_intact_log_is_left_as_it_is(whole, folder):
    """Nothing is rewritten where nothing is damaged."""
    before = {file.name: file.stat().st_ino for file in folder.glob("seg-*.db")}
    with OpenLog(folder, **SMALL) as log:
        steps = []
        assert log.history.salvage(lambda *step: steps.append(step)) == (0, [])
        assert steps[-1][0] == steps[-1][1]
        assert log.rows() == list(whole[1].values())
    assert {name: (folder / name).stat().st_ino for name in before} == before


def test_only_damaged_rows_are_lost(whole, folder):
    """A segment is a gap until it is salvaged; then its intact rows are read where they were, the others are holes."""
    first, following, *_ = sorted(files(folder))
    for offset in (5, 6, following - 1):
        damage_row(files(folder)[first], offset)
    query = Query(((ALL, 0),), EVENTS, limit=EVENTS)
    with OpenLog(folder, **SMALL) as log:
        page = log.history.read(query)
        assert (page.gaps, page.events[0].position) == ([(1, following - 1)], following)
        assert log.history.damaged == [(1, following - 1)]
        assert "salvage" in log.history.folder.damage[0].what
        assert log.history.salvage(quietly) == (1, [(5, 6), (following - 1, following - 1)])
        page = log.history.read(query)
        assert page.gaps == [(5, 6), (following - 1, following - 1)]
        assert len(page.events) == EVENTS - 3
        assert log.history.damaged == []
    assert verify(folder).damage == []
    done, rows, holes, damaged = salvaged(folder)
    assert (done, holes, damaged) == ((0, []), [(5, 6), (following - 1, following - 1)], [])
    assert rows == {offset: row for offset, row in whole[1].items() if offset not in (5, 6, following - 1)}
    (folder / "log.json").unlink()
    assert salvaged(folder)[2] == [(5, 6), (following - 1, following - 1)]


def test_a_segment_of_which_nothing_is_intact_becomes_a_hole(whole, folder):
    """A file that is no database is deleted, once its offsets are recorded as lost."""
    _, first, following, *_ = sorted(files(folder))
    path = files(folder)[first]
    path.chmod(0o600)
    path.write_bytes(b"no database" * 1_000)
    done, rows, holes, damaged = salvaged(folder)
    assert (done, holes, damaged) == ((1, [(first, following - 1)]), [(first, following - 1)], [])
    assert rows == {offset: row for offset, row in whole[1].items() if not first <= offset < following}
    assert not path.exists()
    assert verify(folder).damage == []


def test_a_hole_from_before_the_first_segment_into_it_is_one_of_the_log(whole, folder):
    """A log of which the first segment and the row behind it are lost begins where it began, without `log.json` too."""
    first, following, *_ = sorted(files(folder))
    for path in (files(folder)[first], files(folder)[following]):
        path.chmod(0o600)
    files(folder)[first].write_bytes(b"no database" * 1_000)
    damage_row(files(folder)[following], following)
    lost = [(first, following)]
    assert salvaged(folder)[2] == lost
    with OpenLog(folder, **SMALL) as log:
        assert log.history.start == first
        page = log.history.read(Query(((ALL, 0),), EVENTS))
        assert (page.gaps, page.is_cut_off) == (lost, False)
        log.history.purge(Erasure(Pattern(Match.EXACT, "about/0"), None), quietly)
    (folder / "log.json").unlink()
    assert salvaged(folder)[2] == lost


def test_the_newest_segment_is_salvaged_too(whole, folder):
    """A log whose newest segment is damaged continues behind it, and gets its intact rows back."""
    with OpenLog(folder, **SMALL) as log:
        log.write(*"abcdefgh")
    newest, last = max(files(folder)), EVENTS + 8
    remove_rows(files(folder)[newest], last - 3, last - 2)
    move_mark(folder, last + 2)  # of which the rows are gone
    holes = [(last - 3, last - 2), (last + 1, last + 2)]
    with OpenLog(folder, **SMALL) as log:
        log.write("next")
        assert log.reports.committed == {last + 3: "next"}
        assert log.history.damaged == [(newest, last + 2)]
        assert log.history.salvage(quietly) == (1, holes)
    done, rows, found, damaged = salvaged(folder)
    assert (done, found, damaged) == ((0, []), holes, [])
    assert set(rows) == set(range(1, last + 4)) - {last - 3, last - 2, last + 1, last + 2}


def test_damage_that_a_reader_finds_ends_the_segment_that_is_written(tmp_path):
    """What is written after damage was found is in a new segment, so that it can be read."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=20)
        (listed,) = log.history.folder.segments
        damage_row_of_open = "update stored set payload = '1' where offset = 7"
        log.history.writer._current.connection.execute(damage_row_of_open)
        query = Query(((ALL, 0),), 20)
        assert log.history.read(query).gaps == [(1, 20)]
        assert log.history.damaged == [(1, 20)]
        log.history.writer._checked_at = 0
        log.write("after")
        log.history.writer._checked_at = 0
        log.write("later")
        assert log.history.folder.segments[-1].first > 20
        assert not log.history.folder.segments[0].is_intact
        assert listed.path.exists()
        page = log.history.read(Query(((ALL, 0),), 22))
        assert page.events[-1].position == 22
    done, rows, holes, _ = salvaged(tmp_path / "log")
    assert (done.segments, holes) == (1, [(7, 7)])
    assert set(rows) == set(range(1, 23)) - {7}


@pytest.mark.parametrize("seed", range(6))
def test_whatever_bits_are_flipped_what_is_salvaged_is_right(whole, folder, seed):
    """H3: offsets do not change, every row is as it was stored, and all others are holes; a repeat changes nothing."""
    choose = random.Random(seed)
    for path in choose.sample(sorted(files(folder).values()), 3):
        path.chmod(0o600)
        content = bytearray(path.read_bytes())
        for _ in range(choose.randrange(1, 20)):
            content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
        path.write_bytes(content)
    _, rows, holes, damaged = salvaged(folder)
    assert all(whole[1][offset] == row for offset, row in rows.items())
    lost = {offset for first, last in holes for offset in range(first, last + 1)}
    assert lost - {EVENTS + 1} == set(whole[1]) - set(rows)  # the newest segment, which is empty, may have had one
    assert damaged == []
    assert verify(folder).damage == []
    again = salvaged(folder)
    assert again == ((0, []), rows, holes, [])


class _Crash(Exception):
    """Ends a salvage where the process would have crashed."""


@pytest.mark.slow
def test_a_crash_at_any_step_is_harmless(whole, folder, tmp_path, monkeypatch):
    """With a crash before any rename, unlink or fsync, a second salvage has the result of an undisturbed one."""
    first, second, third, *_ = sorted(files(folder))
    lost = {5, second - 1, *range(second, third)}
    for offset in (5, second - 1):
        damage_row(files(folder)[first], offset)
    files(folder)[second].chmod(0o600)
    files(folder)[second].write_bytes(b"no database" * 1_000)
    step, is_over = 0, False
    while not is_over:
        step += 1
        copy = shutil.copytree(folder, tmp_path / f"crash-{step}")
        is_over = _salvaged_up_to(step, copy, monkeypatch)
        faults = [each for each in FolderLog(copy).read(1, EVENTS + 1) if not isinstance(each, list)]
        told = {offset for fault in faults for offset in range(fault.first, fault.last + 1)}
        assert lost <= told <= set(range(1, third))
        _, rows, holes, damaged = salvaged(copy)
        assert rows == {offset: row for offset, row in whole[1].items() if offset not in lost}
        assert (holes, damaged) == ([(5, 5), (second - 1, third - 1)], [])
        assert verify(copy).damage == []
        shutil.rmtree(copy)
    assert step > 10


def _salvaged_up_to(step, folder, monkeypatch):
    """Salvage, but stop before the `step`-th file operation; returns True if there were fewer."""
    left = [step]
    salvaging_thread = threading.get_ident()

    def counted(operation):
        def do(*arguments, **named):
            if threading.get_ident() != salvaging_thread:  # the sealer clears up
                return operation(*arguments, **named)
            left[0] -= 1
            if left[0] <= 0:
                raise _Crash
            return operation(*arguments, **named)

        return do

    with OpenLog(folder, **SMALL) as log:
        log.history._all_sealed()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", counted(Path.replace))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            patch.setattr(rewriting, "sync_folder", counted(rewriting.sync_folder))
            patch.setattr(checksummed_json, "sync_folder", counted(checksummed_json.sync_folder))
            try:
                rewriting.salvage(log.history.folder, quietly)
            except _Crash:
                return False
    return True


def test_a_purge_does_not_fail_where_a_segment_cannot_be_read(folder):
    """What can be read is erased; of what cannot, nobody knows what it was."""
    _, second, *_ = sorted(files(folder))
    path = files(folder)[second]
    path.chmod(0o600)
    os.truncate(path, 5_000)
    with OpenLog(folder, **SMALL) as log:
        assert log.history.purge(Erasure(None, "user-1"), quietly) > 100
