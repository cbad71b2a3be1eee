"""Backups: complete copies of a log, made while the original is being written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.damage import flip, move_mark
from support.log import SMALL, OpenLog

from halley.history.backup import backup
from halley.history.examination import verify
from halley.history.folder import FolderUnusable

COPYING = Path(__file__).with_name("copying.py")


def test_a_backup_is_the_log_up_to_its_beginning(tmp_path):
    """The copy has every row, byte for byte, including the open segment's, and verifies."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many()
        steps = []
        copied = backup(tmp_path / "log", tmp_path / "copy", lambda done, of: steps.append((done, of)))
        before = log.rows()
        log.write_many(count=10, first=600)
    assert (copied.damaged, copied.segments) == ([], len(list((tmp_path / "log").glob("seg-*.db"))))
    assert steps[-1][0] == steps[-1][1]
    assert verify(tmp_path / "copy").damage == []
    with OpenLog(tmp_path / "copy", **SMALL) as copy:
        assert copy.rows() == before


def test_a_backup_while_publishers_go_on_is_consistent(tmp_path):
    """A backup of a log that is being written has its first events, without a hole."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=200)
        is_over = threading.Event()

        def publish():
            first = 200
            while not is_over.is_set():
                log.write_many(count=50, first=first)
                first += 50

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for number in range(5):
                backup(tmp_path / "log", tmp_path / f"copy-{number}")
        finally:
            is_over.set()
            publisher.join()
        rows = log.rows()
    for number in range(5):
        verdict = verify(tmp_path / f"copy-{number}")
        assert verdict.damage == []
        with OpenLog(tmp_path / f"copy-{number}", **SMALL) as copy:
            found = copy.rows()
        assert len(found) >= 200
        assert found == rows[: len(found)]


def test_a_copy_that_is_opened_begins_a_log_of_its_own(tmp_path):
    """An opened copy gets a new log_id, once; its positions and publications continue from the copied ones."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=10)
        assert log.history.written(10)
        original = log.history.log_id
        backup(tmp_path / "log", tmp_path / "copy")
    ids = []
    for expected in (11, 12):
        with OpenLog(tmp_path / "copy", **SMALL) as copy:
            ids.append(copy.history.log_id)
            copy.write("b")
            assert copy.rows()[-1].offset == expected
    assert ids[0] == ids[1] != original
    assert verify(tmp_path / "copy").damage == []
    with OpenLog(tmp_path / "log", **SMALL) as log:
        assert log.history.log_id == original


def test_a_backup_of_a_backup_can_be_opened(tmp_path):
    """Its segments have the ids of two earlier logs, which the second backup recognizes as its ancestors."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=300)
    backup(tmp_path / "log", tmp_path / "copy")
    with OpenLog(tmp_path / "copy", **SMALL) as copy:
        copy.write_many(count=300, first=300)
    backup(tmp_path / "copy", tmp_path / "again")
    with OpenLog(tmp_path / "again", **SMALL) as again:
        assert len(again.rows()) == 600
        assert list(again.history.folder.damage) == []


def test_only_into_an_empty_folder(tmp_path):
    """A folder with any file in it is refused, so nothing is overwritten or mixed."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=10)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").touch()
    with pytest.raises(FolderUnusable, match="is not empty"):
        backup(tmp_path / "log", tmp_path / "copy")
    with pytest.raises(FolderUnusable, match="there is no log in"):
        backup(tmp_path / "copy", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_is_damaged_is_copied_and_named(tmp_path):
    """A backup of a damaged log is better than none; the damaged files are reported."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many()
    file = min((tmp_path / "log").glob("seg-*.db"))
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    data[70_000] ^= 1
    file.write_bytes(data)
    assert backup(tmp_path / "log", tmp_path / "copy").damaged == [file.name]
    assert (tmp_path / "copy" / file.name).read_bytes() == bytes(data)


def fill(log, count):
    """Write events of 2 KB each."""
    log.append(*(f"{number} {'x' * 2_000}" for number in range(count)))
    assert log.history.written(30)


def test_a_backup_that_was_begun_while_no_server_ran_is_whole_although_one_starts(tmp_path, faulty):
    """The segment that the server writes meanwhile is copied as it was when its copy was begun."""
    source, target = tmp_path / "log", tmp_path / "copy"
    with OpenLog(source) as log:
        fill(log, 3_000)
        before = log.stored()
    environment = faulty | {"FAULTS_FOLDER": str(target)}
    with subprocess.Popen(
        [sys.executable, COPYING, source, target], env=environment, stdout=subprocess.PIPE
    ) as copying:
        _, status = os.waitpid(copying.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert not (target / "log.json").exists()
        with OpenLog(source) as log:
            fill(log, 2_000)
        copying.send_signal(signal.SIGCONT)
        damaged, _ = copying.communicate(timeout=60)
        assert (copying.returncode, damaged) == (0, b"\n")
    assert verify(target).damage == []
    with OpenLog(target) as copy:
        assert copy.stored() == before
    assert verify(source).damage == []


def test_the_copy_of_the_open_segment_is_checked_too(tmp_path):
    """A changed row of the segment without a seal is noticed, and so are committed events that are not there."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many()
        log.write("the last one")
    newest = max((tmp_path / "log").glob("seg-*.db"))
    assert not newest.with_suffix(".seal").exists()
    assert backup(tmp_path / "log", tmp_path / "sound").damaged == []
    move_mark(tmp_path / "log", 603)
    assert backup(tmp_path / "log", tmp_path / "torn").damaged == [newest.name]
    move_mark(tmp_path / "log", 601)
    flip(newest, b"the last one")
    assert backup(tmp_path / "log", tmp_path / "damaged").damaged == [newest.name]


def test_a_backup_that_was_not_finished_is_made_again(tmp_path):
    """It is no data folder; the next backup begins anew, and deletes nothing that is not its own."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many()
    target = tmp_path / "copy"
    (tmp_path / "log" / "beside").write_text("mine")

    def fail(_done, _of):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        backup(tmp_path / "log", target, fail, also=["beside"])
    left = {file.name for file in target.iterdir()}
    assert len(left) > 2
    with pytest.raises(FolderUnusable, match="is a backup that was not finished"):
        OpenLog(target)
    with pytest.raises(FolderUnusable, match="there is no log in"):
        verify(target)
    (target / "of somebody").touch()
    with pytest.raises(FolderUnusable, match="is not empty"):
        backup(tmp_path / "log", target, also=["beside"])
    (target / "of somebody").unlink()
    assert backup(tmp_path / "log", target, also=["beside"]).damaged == []
    assert verify(target).damage == []
    assert (target / "beside").read_text() == "mine"
    with OpenLog(target, **SMALL) as copy:
        assert len(copy.rows()) == 600


def test_only_its_owner_may_read_a_backup(tmp_path):
    """This holds for each of its files, whatever the mode of the folder."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many()
        (tmp_path / "log" / "beside").write_text("mine")
        (tmp_path / "copy").mkdir()
        backup(tmp_path / "log", tmp_path / "copy", also=["beside"])
    modes = {file.name: file.stat().st_mode & 0o077 for file in (tmp_path / "copy").iterdir()}
    assert len(modes) > 5
    assert set(modes.values()) == {0}
