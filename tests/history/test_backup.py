"""Backups: complete copies of a log, made while the original is being written."""

from __future__ import annotations

import threading

import pytest
from support.log import SMALL, OpenLog

from app.history.backup import backup
from app.history.examination import verify
from app.history.folder import FolderUnusable


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
        assert list(again.history.damage) == []


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
