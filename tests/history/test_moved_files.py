"""The log's files are deleted or moved while it is open: nothing more is acknowledged, and a restart reports it."""

from __future__ import annotations

import shutil
import time

import pytest
from support.log import SMALL, ClockedLog, OpenLog

from halley.broker.errors import LogMoved
from halley.broker.names import Match, Pattern
from halley.broker.pending import Entry
from halley.broker.ports import Erasure, Query
from halley.history import writer
from halley.history.examination import verify
from halley.history.folder import FolderLocked
from halley.history.history import History
from halley.history.rules import Rules
from halley.pipeline.source.folder_log import FolderLog
from halley.settings import History as Options

ALL = Pattern(Match.DESCENDANTS, "")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Let the writer look at its files twenty times a second."""
    monkeypatch.setattr(writer, "_CHECK_S", 0.05)


def awaited(condition, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.005)


def refuses(log):
    return isinstance(log.history.refusal, LogMoved)


def wal_of(folder):
    return next(folder.glob("seg-*.db-wal"))


def live_of(folder):
    return max(folder.glob("seg-*.db"))


def replaced(folder):
    segment = live_of(folder)
    copy = shutil.copy(segment, folder / "copy")
    copy.replace(segment)


def is_sealed(log):
    """Whether all segments but the one that is written are sealed, and nothing more is done with them."""
    are_full = [each for each in log.history.folder.segments if each.last is not None]
    return all(each.is_sealed for each in are_full) and len(list(log.history.folder.path.glob("seg-*-wal"))) == 1


def deleted(folder):
    """Delete a folder in one step: a writer that looks in the middle of it would put files back."""
    aside = folder.with_name(f"{folder.name}-deleted")
    folder.rename(aside)
    shutil.rmtree(aside)


def emptied(folder):
    for file in list(folder.iterdir()):
        file.unlink(missing_ok=True)


LOSSES = {
    "the folder": deleted,
    "all files": emptied,
    "the segment": lambda folder: live_of(folder).unlink(),
    "the segment with its companions": lambda folder: [file.unlink() for file in folder.glob("seg-*")],
    "the WAL": lambda folder: wal_of(folder).unlink(),
    "another file in its place": replaced,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_nothing_is_acknowledged_that_would_be_written_to_a_deleted_file(tmp_path, lose):
    """Within a look the log refuses every event, as long as it is open; it counts that as one failure."""
    with OpenLog(tmp_path / "log") as log:
        log.write(1, 2, 3)
        lose(tmp_path / "log")
        awaited(lambda: refuses(log))
        with pytest.raises(LogMoved):
            log.append("later")
        time.sleep(0.2)  # several looks
        assert refuses(log)
        assert log.history.failures == 1
        assert log.reports.committed == {1: 1, 2: 2, 3: 3}


def test_what_waits_when_it_is_noticed_is_refused(tmp_path):
    """Events that the log has taken already are reported as refused, and are not written."""
    with OpenLog(tmp_path / "log") as log:
        log.write(1)
        deleted(tmp_path / "log")
        awaited(lambda: refuses(log))
        waiting = log.event("waiting")
        log.history.writer._inbox.put(([Entry(waiting)], waiting.nbytes))
        assert log.history.written(10)
        assert log.reports.refused == ["waiting"]


LOST = {name: LOSSES[name] for name in ("the folder", "all files", "the segment", "the segment with its companions")}


@pytest.mark.parametrize("lose", LOST.values(), ids=LOST)
def test_a_restart_reports_what_was_lost_and_uses_no_position_again(tmp_path, lose):
    """The offsets up to the mark are damage and a hole for every reader, also after a second restart."""
    folder = tmp_path / "log"
    with OpenLog(folder) as log:
        log.write(*range(1, 6))
        log_id = log.history.log_id
        lose(folder)
        awaited(lambda: refuses(log))
    for further in range(2):
        with OpenLog(folder) as log:
            assert log.history.log_id == log_id
            assert [(each.first, each.last) for each in log.history.folder.damage] == [(1, 5)]
            assert log.history.holes == [(1, 5)]
            assert log.history.damaged == []
            assert (log.history.start, log.history.head) == (1, 5 + further)
            page = log.history.read(Query(((ALL, 0),), log.history.head))
            assert page.gaps == [(1, 5)]
            assert log.history.read(Query(((ALL, 3),), log.history.head)).gaps == [(4, 5)]
            log.write("next")
            assert log.reports.committed == {6 + further: "next"}
            head = FolderLog(folder).head()
            assert (head.first, head.next, head.holes) == (1, 7 + further, ((1, 5),))
    assert verify(folder).damage == []


def test_older_segments_are_still_read(tmp_path):
    """If only the newest segment was deleted, its offsets are missing, and no others."""
    with ClockedLog(tmp_path) as log:
        log.fill(2)
        log.publish()
        first, head = log.firsts[-1], log.history.head
        live_of(tmp_path).unlink()
        awaited(lambda: refuses(log))
    with ClockedLog(tmp_path, wall=log.clock.wall) as log:
        assert log.history.holes == [(first, head)]
        assert [row.offset for row in log.rows()] == list(range(1, first))


def test_what_retention_has_deleted_is_not_reported_as_lost(tmp_path):
    """A log that begins late, and one of which retention has left only the newest, empty segment, have lost nothing."""
    with ClockedLog(tmp_path, (ALL, 60.0, True)) as log:
        log.fill(2)
        log.clock.pass_(300_000)
        log.history.purge(Erasure(Pattern(Match.EXACT, "none"), None), lambda *_: None)  # ends the newest segment
        log.retain()
        log.clock.pass_(300_000)
        log.retain()
        head = log.history.head
        assert len(log.history.folder.segments) == 0
    with ClockedLog(tmp_path, (ALL, 60.0, True), wall=log.clock.wall) as log:
        assert list(log.history.folder.damage) == []
        assert (log.history.holes, log.history.start, log.history.head) == ([], head + 1, head)
        log.publish()
        deleted(tmp_path)
        awaited(lambda: refuses(log))
    with ClockedLog(tmp_path, (ALL, 60.0, True), wall=log.clock.wall) as log:
        assert log.history.holes == [(head + 1, head + 1)]


def test_the_oldest_segment_is_missed_too(tmp_path):
    """A segment that somebody has deleted at the beginning of the log is lost, since retention has not deleted it."""
    with ClockedLog(tmp_path) as log:
        log.fill(2)
        log.retain()
        following = log.firsts[1]
    (tmp_path / f"seg-{1:020}.db").unlink()
    assert [(each.first, each.last) for each in verify(tmp_path).damage] == [(1, following - 1)]
    with ClockedLog(tmp_path, wall=log.clock.wall) as log:
        assert log.history.holes == [(1, following - 1)]
        assert log.read().gaps == [(1, following - 1)]


def test_a_hole_at_the_beginning_goes_with_the_events_behind_it(tmp_path):
    """Once the events after the hole are too old to be read, so is the hole."""
    with ClockedLog(tmp_path, (ALL, 600.0, True)) as log:
        log.publish(times=3)
        live_of(tmp_path).unlink()
        awaited(lambda: refuses(log))
    with ClockedLog(tmp_path, (ALL, 600.0, True), wall=log.clock.wall) as log:
        log.publish(times=3)
        log.retain()
        assert log.read().gaps == [(1, 3)]
        log.clock.pass_(598.5)
        log.retain()
        assert (log.read().gaps, log.offsets()) == ([], [5, 6])


def test_a_folder_that_is_moved_back_is_written_again(tmp_path):
    """While it is elsewhere everything is refused, and nothing is put in its old place."""
    folder, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    with OpenLog(folder) as log:
        log.write(1)
        folder.rename(elsewhere)
        awaited(lambda: refuses(log))
        time.sleep(0.2)
        assert not folder.exists()
        elsewhere.rename(folder)
        awaited(lambda: log.history.refusal is None)
        log.write(2)
    with OpenLog(folder) as log:
        assert log.stored() == {1: 1, 2: 2}
        assert list(log.history.folder.damage) == []


def test_another_log_in_its_place_is_left_alone(tmp_path):
    """A server of another log that has taken the path keeps its files, also when the first one ends."""
    folder = tmp_path / "log"
    with OpenLog(folder, **SMALL) as log:
        log.write_many(count=300)
        awaited(lambda: is_sealed(log))
        aside = folder.rename(tmp_path / "aside")
        with OpenLog(folder, **SMALL) as other:
            shutil.rmtree(aside)
            other.write_many(count=300)
            awaited(lambda: refuses(log) and is_sealed(other))
            before = {file.name: file.stat().st_ino for file in folder.iterdir()}
            with pytest.raises(OSError, match="deleted or moved"):
                log.history.purge(Erasure(ALL, None), lambda *_: None)
            with pytest.raises(OSError, match="taken its place"):
                log.history.folder.remove(log.history.folder.segments[:1])
            log.history.close()
            assert {file.name: file.stat().st_ino for file in folder.iterdir()} == before
            assert len(other.rows()) == 300
    with OpenLog(folder, **SMALL) as log:
        assert list(log.history.folder.damage) == []


def test_what_is_put_back_is_put_back_again(tmp_path):
    """Somebody who deletes the files one by one may delete those that the server has just put back."""
    folder = tmp_path / "log"
    with OpenLog(folder) as log:
        log.write(1, 2)
        log_id = log.history.log_id
        deleted(folder)
        for name in ("log.json", "mark", "lock"):
            awaited((folder / name).exists)
            (folder / name).unlink()
            awaited((folder / name).exists)
    with OpenLog(folder) as log:
        assert (log.history.log_id, log.history.holes) == (log_id, [(1, 2)])


def test_a_deleted_folder_cannot_be_taken_while_its_server_runs(tmp_path):
    """The server that has put its identity back has locked it again, until it ends."""
    with OpenLog(tmp_path / "log") as log:
        log.write(1)
        deleted(tmp_path / "log")
        awaited(lambda: refuses(log))
        with pytest.raises(FolderLocked):
            History(tmp_path / "log", Options(), Rules(), lambda _: None)
