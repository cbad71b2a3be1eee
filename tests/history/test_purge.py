"""Purging: erased events leave no trace in the folder, and all others stay where they were."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from support.damage import flip, seal_again
from support.log import SMALL, OpenLog, contents

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure, Query
from halley.history import checksummed_json, rewriting
from halley.history.examination import verify
from halley.history.folder import segment_files
from halley.history.history import PurgeUnderWay
from halley.pipeline.source.folder_log import FolderLog
from halley.pipeline.source.log import Fault

ONE = Erasure(Pattern(Match.EXACT, "about/1"), None)
TRACES = (b"secret-1", b"key-1-", b"user-1", b"about/1")
"""What identifies the events of about/1: payload, idempotency key, authid, topic."""


def folder_bytes(folder):
    """Return the contents of all files in the folder, joined."""
    return b"".join(contents(folder).values())


@pytest.mark.parametrize("erasure", [ONE, Erasure(None, "user-1")], ids=["channel", "publisher"])
def test_nothing_is_left_of_what_was_erased(erasure, tmp_path):
    """No trace is left in rows, indexes, free pages, WAL or names, neither while the log is open nor afterwards."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many()
        before = log.rows()
        assert all(trace in folder_bytes(tmp_path) for trace in TRACES)
        steps = []
        assert log.history.purge(erasure, lambda *step: steps.append(step)) == 200
        assert steps[-1] == (600, 600)
        assert not any(trace in folder_bytes(tmp_path) for trace in TRACES)
        after = log.rows()
        log.write_many(count=10, first=600)
    assert [row.offset for row in after] == list(range(1, 601))
    for old, new in zip(before, after, strict=True):
        if old.topic == "about/1":
            assert new.is_purged
            assert (new.offset, new.time_us, new.publication) == (old.offset, old.time_us, old.publication)
        else:
            assert new == old
    assert verify(tmp_path).damage == []
    with OpenLog(tmp_path, **SMALL) as log:
        assert list(log.history.folder.damage) == []
        assert len(log.rows()) == 610


def test_only_segments_that_have_some_of_it_are_written_anew(tmp_path):
    """Segments without erased events keep their files."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many(topics=1)
        log.append_to("b/1", "once")
        assert log.history.written(10)
        before = {file.name: file.stat().st_ino for file in tmp_path.glob("seg-*.db")}
        assert log.history.purge(Erasure(Pattern(Match.EXACT, "b/1"), None), lambda *_: None) == 1
        after = {file.name: file.stat().st_ino for file in tmp_path.glob("seg-*.db")}
    assert sum(after[name] != inode for name, inode in before.items()) == 1


def test_a_pattern_leaves_the_servers_own_topics_alone(tmp_path):
    """As everywhere, /** does not match /halley/**, which must be named."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.append_to("a")
        log.append_to("halley/sessions", {"authid": "ada"})
        everything = Erasure(Pattern(Match.DESCENDANTS, ""), None)
        assert log.history.purge(everything, lambda *_: None) == 1
        assert [row.topic for row in log.rows()] == ["", "halley/sessions"]


def test_what_the_server_has_recorded_of_a_person_goes_with_what_they_published(tmp_path):
    """The server's records of a person's sessions are personal data too, and are erased with what they published."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.append_to("halley/sessions", {"authid": "ada", "address": "10.0.0.7"})
        log.append_to("halley/sessions", {"authid": "bob", "address": "10.0.0.8"})
        log.append_to("a", {"authid": "ada"}, authid="bob")
        log.append_to("a", authid="ada")
        assert log.history.purge(Erasure(None, "ada"), lambda *_: None) == 2
        assert [row.is_purged for row in log.rows()] == [True, False, False, True]
        assert b"10.0.0.7" not in folder_bytes(tmp_path)


def test_it_may_be_repeated(tmp_path):
    """A second purge of the same events erases nothing and replaces no file."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many()
        assert log.history.purge(ONE, lambda *_: None) == 200
        before = {file.name: file.stat().st_ino for file in tmp_path.glob("seg-*.db")}
        assert log.history.purge(ONE, lambda *_: None) == 0
        assert {name: (tmp_path / name).stat().st_ino for name in before} == before


def test_one_at_a_time(tmp_path):
    """A purge during another one is refused, since both would write the same files."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many(count=10)

        def another(*_):
            with pytest.raises(PurgeUnderWay):
                log.history.purge(ONE, lambda *_: None)

        assert log.history.purge(ONE, another) == 3


class _Crash(Exception):
    """Ends a purge where the process would have crashed."""


FEW = 250
"""Events in two or three segments. Further ones would meet the same, and each step takes a purge of its own."""


@pytest.mark.nightly
def test_a_crash_at_any_step_leaves_each_segment_old_or_new(tmp_path, monkeypatch):
    """With a crash before any rename, unlink or fsync of the folder the log is whole; a repeat erases the rest."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=FEW)
        rows = log.rows()
    step, is_over = 0, False
    while not is_over:
        step += 1
        copy = tmp_path / f"crash-{step}"
        shutil.copytree(tmp_path / "log", copy)
        is_over = _purged_up_to(step, copy, monkeypatch)
        with OpenLog(copy, **SMALL) as log:
            assert list(log.history.folder.damage) == []
            found = log.rows()
            assert [row.offset for row in found] == [row.offset for row in rows]
            assert all(
                new == old or (new.is_purged and old.topic == "about/1") for old, new in zip(rows, found, strict=True)
            )
            if not is_over:
                log.history.purge(ONE, lambda *_: None)
            assert not any(trace in folder_bytes(copy) for trace in TRACES)
        assert verify(copy).damage == []
        shutil.rmtree(copy)
    assert step > 10


def _damage_some(folder):
    """Damage three events in the first segment, one in its middle and two at its end; return their offsets."""
    first, following, *_ = (first for first, _ in segment_files(folder))
    path = dict(segment_files(folder))[first]
    lost = [5, following - 2, following - 1]
    for offset in lost:
        flip(path, f'{{"n":{offset - 1},"secret":"secret-{(offset - 1) % 3}-x'.encode())
    return lost


def _faults(folder):
    """Return the offsets without a row that the pipeline finds in a folder's log, each with the reason."""
    log = FolderLog(folder)
    faults = [each for each in log.read(1, log.head().next) if isinstance(each, Fault)]
    return {offset: each.why for each in faults for offset in range(each.first, each.last + 1)}


def flipped(path):
    """Damage the one event of private/1."""
    flip(path, b"a secret of ada")


def flipped_and_sealed(path):
    """Damage it so that the segment's digests do not show it."""
    flipped(path)
    seal_again(path)


def no_database(path):
    """Leave nothing that can be read of the segment."""
    path.chmod(0o600)
    path.write_bytes(b"not SQLite" + path.read_bytes()[10:])


@pytest.mark.parametrize("damage", [flipped, flipped_and_sealed, no_database])
def test_what_is_damaged_is_erased_too(damage, tmp_path):
    """Nobody can say that it is not what must go: nothing of it is left in any file, and its offsets are holes."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many(count=100)
        log.append_to("private/1", "a secret of ada", authid="ada lovelace")  # hexadecimal ids have no such name
        log.write_many(count=200, first=100)
    (first, path), (following, _), *_ = segment_files(tmp_path)
    assert first <= 101 < following
    damage(path)
    lost = [*range(first, following)] if damage is no_database else [101]
    with OpenLog(tmp_path, **SMALL) as log:
        assert log.history.purge(Erasure(Pattern(Match.EXACT, "private/1"), None), lambda *_: None) == len(lost)
        assert not any(trace in folder_bytes(tmp_path) for trace in (b"secret of ad", b"private/1", b"lovelace"))
        assert (log.history.holes, log.history.damaged) == ([(lost[0], lost[-1])], [])
        assert [(each.first, each.last) for each in log.history.folder.damage] == [(lost[0], lost[-1])]
        assert [row.offset for row in log.rows()] == [*range(1, lost[0]), *range(lost[-1] + 1, 302)]
        assert log.history.purge(Erasure(Pattern(Match.EXACT, "private/1"), None), lambda *_: None) == 0
    assert verify(tmp_path).damage == []


def test_damaged_rows_become_holes_of_the_log(tmp_path):
    """Rows that cannot be copied are lost: they are reported as holes, immediately, later, and without log.json."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many()
    lost = _damage_some(tmp_path)
    assert _faults(tmp_path) == dict.fromkeys(range(1, lost[-1] + 1), "damaged")
    holes = [(lost[0], lost[0]), (lost[1], lost[2])]
    with OpenLog(tmp_path, **SMALL) as log:
        log.history.purge(ONE, lambda *_: None)
        everything = Query(((Pattern(Match.DESCENDANTS, ""), 0),), last=600, limit=600)
        assert log.history.read(everything).gaps == holes
        assert (log.history.holes, log.history.damaged) == (holes, [])
    assert verify(tmp_path).damage == []
    (tmp_path / "log.json").unlink()
    with OpenLog(tmp_path, **SMALL) as log:
        assert (log.history.holes, log.history.damaged) == (holes, [])
        assert {row.offset for row in log.rows()} == set(range(1, 601)) - set(lost)
    assert _faults(tmp_path) == dict.fromkeys(lost, "hole")


@pytest.mark.nightly
def test_a_crash_at_any_step_leaves_no_row_missing_without_a_record(tmp_path, monkeypatch):
    """With a crash before any rename, unlink or fsync, the segment is damaged, or has holes and all other rows."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=FEW)
    lost = _damage_some(tmp_path / "log")
    step, is_over, seen = 0, False, set()
    while not is_over:
        step += 1
        copy = tmp_path / f"crash-{step}"
        shutil.copytree(tmp_path / "log", copy)
        is_over = _purged_up_to(step, copy, monkeypatch)
        found = _faults(copy)
        seen |= set(found.values())
        segment = set(range(1, lost[-1] + 1))
        assert set(found) in (set(lost), segment)
        assert set(found.values()) <= {"damaged", "hole"}
        with OpenLog(copy, **SMALL) as log:
            stored = {row.offset for row in log.rows()}
            assert stored in (set(range(1, FEW + 1)) - set(lost), set(range(1, FEW + 1)) - segment)
            told = {offset for low, high in log.history.holes + log.history.damaged for offset in range(low, high + 1)}
            assert told == set(range(1, FEW + 1)) - stored
            log.history.purge(ONE, lambda *_: None)
            assert not any(trace in folder_bytes(copy) for trace in TRACES)
            assert (log.history.holes, log.history.damaged) == ([(5, 5), (lost[1], lost[2])], [])
        assert verify(copy).damage == []
        shutil.rmtree(copy)
    assert seen == {"damaged", "hole"}


def _purged_up_to(step, folder, monkeypatch):
    """Purge, but stop before the `step`-th file operation; returns True if there were fewer."""
    left = [step]
    purging_thread = threading.get_ident()

    def counted(operation):
        def do(*arguments, **named):
            if threading.get_ident() != purging_thread:  # the sealer clears up
                return operation(*arguments, **named)
            left[0] -= 1
            if left[0] <= 0:
                raise _Crash
            return operation(*arguments, **named)

        return do

    with OpenLog(folder, **SMALL) as log:
        log.history.roll()
        log.history._all_sealed()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", counted(Path.replace))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            patch.setattr(rewriting, "sync_folder", counted(rewriting.sync_folder))
            patch.setattr(checksummed_json, "sync_folder", counted(checksummed_json.sync_folder))
            try:
                rewriting.purge(rewriting.concerned_by(ONE), log.history.folder, lambda *_: None)
            except _Crash:
                return False
    return True


def test_readers_go_on_and_see_no_damage(tmp_path):
    """A reader gets the old or the new form of each event while segments are replaced, and no damage is reported."""
    pattern = Pattern(Match.DESCENDANTS, "")
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many()
        history, faults, pages = log.history, [], []
        is_over = threading.Event()

        def read():
            while not is_over.is_set() and not faults:
                try:
                    pages.append(history.read(Query(((pattern, 0),), last=600, first=200, limit=300)))
                except Exception as fault:  # noqa: BLE001 - shown below
                    faults.append(fault)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for which in range(3):
                history.purge(Erasure(Pattern(Match.EXACT, f"about/{which}"), None), lambda *_: None)
        finally:
            is_over.set()
            reader.join()
        assert faults == []
        assert list(history.folder.damage) == []
        assert all(page.gaps == [] for page in pages)
        assert history.read(Query(((pattern, 0),), last=600)).events == []


def test_no_file_of_the_old_one_stays_open(tmp_path):
    """A deleted file takes space, and its bytes can be read, as long as a process has it open."""
    with OpenLog(tmp_path, **SMALL) as log:
        log.write_many()
        log.history.purge(ONE, lambda *_: None)
        held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        assert [path for path in held if path.startswith(str(tmp_path)) and path.endswith("(deleted)")] == []
