"""The state that is saved with a log's rows: never ahead of them, in the newest segment alone, and gone when erased."""

from __future__ import annotations

import math
import random
import sqlite3
from contextlib import closing

import pytest
from support.log import SMALL, OpenLog, contents, copy_of

from halley.broker.pending import Entry
from halley.history import recovery
from halley.history.backup import backup
from halley.history.examination import verify
from halley.history.folder import segment_files
from halley.history.seals import seal_path
from halley.history.segment import CommitUncertain, SegmentWriter
from halley.history.state import AT, Change, decoded

SECRET = "a secret name"


class Applying:
    """A log that is filled as in a cluster: `frame` gives it events with their offsets, and what they change."""

    def __init__(self, folder, sequence=0, offset=0):
        self.log = OpenLog(folder, **SMALL)
        self.sequence, self.offset = sequence, offset
        self.refused = []
        self.log.history.writer._report = self.reported
        self.log.history.writer._checked_at = math.inf  # what it does once a second is done when a test says so
        self.log.history.writer.later = lambda hand_over: None  # a frame is handed over whole

    def reported(self, report):
        if hasattr(report, "refusal"):
            self.refused += report.entries

    def frame(self, count=1, **values):
        """Append so many events and their change; return that."""
        for _ in range(count):
            self.offset += 1
            event = self.log.event("x" * 400, "news", authid="me")
            event.position = self.offset
            self.log.history.append(Entry(event))
        self.sequence += 1
        values = {"run/a": [self.sequence, self.sequence, 5], self.offset: [SECRET, "key"], **values}
        values[AT] = {"sequence": self.sequence, "offset": self.offset}
        change = Change(self.sequence - 1, self.sequence, self.offset, values)
        self.log.history.change(change)
        self.log.history.writer.set_executor()
        return change

    def written(self):
        assert self.log.history.written(30)

    def close(self):
        self.log.history.close()


@pytest.fixture
def applying(tmp_path):
    applying = Applying(tmp_path / "log")
    yield applying
    applying.close()


def saved(folder):
    """Return what a start would find."""
    values = recovery.saved_state(folder)
    return None if values is None else decoded(values)


def traces(folder):
    """Return the names of the files that have the secret."""
    return [name for name, found in contents(folder).items() if SECRET.encode() in found]


def offsets(folder):
    """Return the offsets of all rows that a start would find."""
    with OpenLog(folder) as opened:
        return [row.offset for row in opened.rows()]


def with_state(folder):
    """Return the numbers of the segments that have a state, from the last one on."""
    found = []
    for number, (_, file) in enumerate(reversed(segment_files(folder))):
        with closing(sqlite3.connect(file)) as connection:
            if connection.execute("select 1 from sqlite_master where name = 'state'").fetchone():
                found.append(number)
    return found


def test_the_state_is_that_of_the_last_rows(tmp_path, applying):
    """What a value was before is forgotten, and what is deleted is gone."""
    applying.frame(3)
    applying.frame(2, **{"keeper/a": [2, 7]})
    applying.written()
    folder = tmp_path / "log"
    expected = {
        AT: {"sequence": 2, "offset": 5},
        "run/a": [2, 2, 5],
        "keeper/a": [2, 7],
        3: [SECRET, "key"],
        5: [SECRET, "key"],
    }
    assert saved(folder) == expected == decoded(applying.log.history.state.copy())
    applying.frame(1, **{"keeper/a": None})
    applying.written()
    assert "keeper/a" not in saved(folder)
    assert applying.log.history.state.sequence == 3


def test_a_change_without_events_is_saved_with_the_next_ones(tmp_path, applying):
    """Or at the end; it costs no sync of its own, so it may be lost, and is applied again."""
    applying.frame(1)
    applying.written()
    applying.frame(0)
    applying.written()
    assert saved(tmp_path / "log")[AT]["sequence"] == 1
    applying.frame(1)
    applying.written()
    assert saved(tmp_path / "log")[AT]["sequence"] == 3
    applying.frame(0)
    applying.close()
    assert saved(tmp_path / "log")[AT]["sequence"] == 4


def test_a_change_without_events_is_saved_within_a_second(tmp_path, applying):
    """Though nothing follows."""
    applying.frame(0)
    applying.written()
    assert saved(tmp_path / "log") is None
    applying.log.history.writer._checked_at = 0
    applying.written()
    applying.written()
    assert saved(tmp_path / "log")[AT]["sequence"] == 1


def test_every_new_segment_has_all_of_it_and_older_ones_nothing(tmp_path, applying):
    """In files that are sealed no byte of it is left: names in it may have to be erased."""
    for _ in range(20):
        applying.frame(20)
        applying.written()
    applying.close()
    folder = tmp_path / "log"
    files = [file for _, file in segment_files(folder)]
    assert len(files) > 3
    assert with_state(folder) == [0]
    assert len([name for name in saved(folder) if isinstance(name, int)]) == 20
    assert all(seal_path(file).exists() for file in files[:-1])
    assert [file.name for file in files[:-1] if SECRET.encode() in file.read_bytes()] == []
    assert verify(folder).damage == []


def test_a_segment_is_sealed_only_when_another_has_the_state(tmp_path, applying, monkeypatch):
    """The disk is full: what is there goes on having it."""
    applying.frame(1)
    applying.written()

    def full(*_args, **_more):
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr("halley.history.segment.create", full)
        applying.log.history.roll()
        assert applying.log.history.refusal is not None
        assert saved(tmp_path / "log")[AT]["sequence"] == 1
        applying.close()
    assert saved(tmp_path / "log")[AT]["sequence"] == 1
    again = Applying(tmp_path / "log", 1, 1)
    again.frame(1)
    again.written()
    assert again.refused == []
    again.close()
    assert saved(tmp_path / "log")[AT]["sequence"] == 2


def test_what_is_deleted_leaves_no_trace_when_the_segment_ends(tmp_path, applying):
    """Nor in a segment that begins then, with what waits to be deleted."""
    applying.frame(1)
    applying.written()
    applying.log.history.change(Change(None, 0, 0, {1: None}))
    applying.log.history.roll()
    applying.log.history._all_sealed()
    assert traces(tmp_path / "log") == []
    assert 1 not in saved(tmp_path / "log")


def test_what_is_deleted_leaves_no_trace_in_a_segment_without_events(tmp_path, applying):
    """Which does not end then: two erasures, one behind the other."""
    applying.frame(1)
    applying.log.history.roll()
    applying.log.history.change(Change(None, 0, 0, {1: None}))
    applying.log.history.roll()
    applying.log.history._all_sealed()
    assert traces(tmp_path / "log") == []


class Failing:
    """Let commits of segments fail, before or after they are on disk."""

    def __init__(self, monkeypatch, error):
        self.fails = False
        write = SegmentWriter.write

        def failing(segment, *group):
            if self.fails:
                raise error
            write(segment, *group)

        monkeypatch.setattr(SegmentWriter, "write", failing)


@pytest.mark.parametrize("error", [sqlite3.OperationalError("full"), CommitUncertain("?")])
def test_after_a_failure_what_was_refused_comes_again_and_nothing_is_ahead(tmp_path, monkeypatch, error):
    """A change behind one that was refused is refused too, also if it goes with no event."""
    failing, applying = Failing(monkeypatch, error), Applying(tmp_path / "log")
    applying.frame(2)
    applying.written()
    failing.fails = True
    applying.frame(2)
    applying.written()
    failing.fails = False
    applying.frame(0)
    applying.frame(2)
    applying.written()
    assert saved(tmp_path / "log")[AT] == {"sequence": 1, "offset": 2}
    assert applying.log.history.head == 2
    again, applying.refused = applying.refused, []
    for entry in again:
        (applying.log.history.change if isinstance(entry, Change) else applying.log.history.append)(entry)
    applying.written()
    assert applying.refused == []
    applying.close()
    assert saved(tmp_path / "log")[AT] == {"sequence": 4, "offset": 6}
    assert offsets(tmp_path / "log") == [1, 2, 3, 4, 5, 6]


def test_a_state_that_is_damaged_counts_as_none(tmp_path, applying):
    """A flipped bit in a number would make a node pass over frames."""
    applying.frame(1)
    applying.close()
    ((_, file),) = segment_files(tmp_path / "log")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("update state set value = replace(value, '1', '3')")
        connection.commit()
    assert saved(tmp_path / "log") is None
    assert [found.what for found in verify(tmp_path / "log").damage] == [
        "what a cluster has saved in it cannot be read: a value has the wrong checksum"
    ]


def test_another_state_takes_the_place_of_all(tmp_path, applying):
    """As a node has it from a keeper."""
    applying.frame(1)
    applying.written()
    applying.log.history.restate({AT: {"sequence": 9, "offset": 1}, "run/b": [0, 1, 1]})
    assert saved(tmp_path / "log") == {AT: {"sequence": 9, "offset": 1}, "run/b": [0, 1, 1]}
    applying.sequence = 9
    applying.frame(1)
    applying.written()
    assert applying.refused == []
    assert saved(tmp_path / "log")[AT]["sequence"] == 10


def test_a_server_without_a_cluster_ends_the_state(tmp_path, applying):
    """The folder has another history from its first event on, and must not be taken for a keeper's."""
    applying.frame(1)
    applying.close()
    with OpenLog(tmp_path / "log", **SMALL) as alone:
        assert saved(tmp_path / "log")[AT]["sequence"] == 1, "that it is opened changes nothing"
        alone.write("own")
    assert saved(tmp_path / "log") is None


def test_without_a_cluster_there_are_no_tables(tmp_path):
    """Nothing of this costs a single server anything."""
    with OpenLog(tmp_path / "log", **SMALL) as alone:
        alone.write_many()
    assert with_state(tmp_path / "log") == []


def test_a_backup_has_the_state_of_its_rows(tmp_path, applying):
    """It is a snapshot of both."""
    for _ in range(9):
        applying.frame(20)
    applying.written()
    assert backup(tmp_path / "log", tmp_path / "copy").damaged == []
    copied = saved(tmp_path / "copy")
    assert copied[AT]["offset"] == verify(tmp_path / "copy").last == 180


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_state_and_rows_agree(tmp_path, seed):
    """Copies of the files, taken between groups: in each the rows reach at least to where the state is.

    What follows is applied again and comes to the same, in the copies as in the log itself.
    """
    chance, folder = random.Random(seed), tmp_path / "log"
    applying, changes, copies = Applying(folder), [], []
    for number in range(30):
        changes.append(applying.frame(chance.choice([0, 0, 1, 2, 30])))
        if chance.random() < 0.5:
            applying.written()
        if chance.random() < 0.1:
            applying.log.history.roll()
        if chance.random() < 0.3:
            copies.append(tmp_path / f"copy-{number}")
            applying.written()
            applying.log.history._all_sealed()
            copy_of(folder, copies[-1])
    applying.close()
    end = saved(folder)
    assert copies
    for copy in copies:
        found = saved(copy) or {AT: {"sequence": 0, "offset": 0}}
        at = found[AT]
        again = Applying(copy, at["sequence"], at["offset"])
        head = again.log.history.head
        assert at["offset"] <= head
        for change in changes[at["sequence"] :]:
            count = change.offset - again.offset
            again.offset = min(change.offset, max(head, again.offset))  # these are on disk
            for _ in range(change.offset - max(head, change.offset - count)):
                event = again.log.event("x" * 400, "news", authid="me")
                again.offset += 1
                event.position = again.offset
                again.log.history.append(Entry(event))
            again.offset = change.offset
            again.log.history.change(change)
        again.written()
        assert again.refused == []
        again.close()
        assert saved(copy) == end
        assert offsets(copy) == list(range(1, applying.offset + 1))
        assert verify(copy).damage == []
