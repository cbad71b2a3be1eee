"""Backups: complete copies of a log, made while the original is being written."""

from __future__ import annotations

import threading

import pytest
from support.logbook import logbook

from app.history.backup import backup
from app.history.folder import FolderUnusable
from app.history.verify import verify


def test_a_backup_is_the_log_up_to_its_beginning(tmp_path):
    """The copy has every row, byte for byte, including the open segment's, and verifies."""
    with logbook(tmp_path / "log") as book:
        book.fill()
        steps = []
        copied = backup(tmp_path / "log", tmp_path / "copy", lambda done, of: steps.append((done, of)))
        before = book.rows()
        book.fill(count=10, first=600)
    assert (copied.damaged, copied.segments) == ([], len(list((tmp_path / "log").glob("seg-*.db"))))
    assert steps[-1][0] == steps[-1][1]
    assert verify(tmp_path / "copy").damage == []
    with logbook(tmp_path / "copy") as copy:
        assert copy.rows() == before


def test_a_backup_while_publishers_go_on_is_consistent(tmp_path):
    """A backup of a log that is being written has its first events, without a hole."""
    with logbook(tmp_path / "log") as book:
        book.fill(count=200)
        is_over = threading.Event()

        def publish():
            first = 200
            while not is_over.is_set():
                book.fill(count=50, first=first)
                first += 50

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for number in range(5):
                backup(tmp_path / "log", tmp_path / f"copy-{number}")
        finally:
            is_over.set()
            publisher.join()
        rows = book.rows()
    for number in range(5):
        verdict = verify(tmp_path / f"copy-{number}")
        assert verdict.damage == []
        with logbook(tmp_path / f"copy-{number}") as copy:
            found = copy.rows()
        assert len(found) >= 200
        assert found == rows[: len(found)]


def test_a_copy_that_is_opened_begins_a_log_of_its_own(tmp_path):
    """An opened copy gets a new log_id, once; its positions and publications continue from the copied ones."""
    with logbook(tmp_path / "log") as book:
        book.fill(count=10)
        assert book.history.written(10)
        original = book.history.log_id
        backup(tmp_path / "log", tmp_path / "copy")
    ids = []
    for expected in (11, 12):
        with logbook(tmp_path / "copy") as copy:
            ids.append(copy.history.log_id)
            copy.write("b")
            assert copy.rows()[-1].offset == expected
    assert ids[0] == ids[1] != original
    assert verify(tmp_path / "copy").damage == []
    with logbook(tmp_path / "log") as book:
        assert book.history.log_id == original


def test_a_backup_of_a_backup_can_be_opened(tmp_path):
    """Its segments have the ids of two earlier logs, which the second backup recognizes as its ancestors."""
    with logbook(tmp_path / "log") as book:
        book.fill(count=300)
    backup(tmp_path / "log", tmp_path / "copy")
    with logbook(tmp_path / "copy") as copy:
        copy.fill(count=300, first=300)
    backup(tmp_path / "copy", tmp_path / "again")
    with logbook(tmp_path / "again") as again:
        assert len(again.rows()) == 600
        assert list(again.history.damage) == []


def test_only_into_an_empty_folder(tmp_path):
    """A folder with any file in it is refused, so nothing is overwritten or mixed."""
    with logbook(tmp_path / "log") as book:
        book.fill(count=10)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").touch()
    with pytest.raises(FolderUnusable, match="is not empty"):
        backup(tmp_path / "log", tmp_path / "copy")
    with pytest.raises(FolderUnusable, match="there is no log in"):
        backup(tmp_path / "copy", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_is_damaged_is_copied_and_named(tmp_path):
    """A backup of a damaged log is better than none; the damaged files are reported."""
    with logbook(tmp_path / "log") as book:
        book.fill()
    file = min((tmp_path / "log").glob("seg-*.db"))
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    data[70_000] ^= 1
    file.write_bytes(data)
    assert backup(tmp_path / "log", tmp_path / "copy").damaged == [file.name]
    assert (tmp_path / "copy" / file.name).read_bytes() == bytes(data)
