"""Verifying a log: an intact one passes, and each fault is reported with its place."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from dataclasses import replace

import pytest
from support.log import SMALL, OpenLog

from halley.history import examination, segment
from halley.history.examination import verify
from halley.history.folder import FolderUnusable
from halley.history.seals import BLOCK_BYTES, Seal, seal_path


@pytest.fixture
def folder(tmp_path):
    """A closed log of 620 events in several sealed segments and an open one."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=620)
    return tmp_path / "log"


def sealed(folder):
    """Return the segments that have a seal."""
    return sorted(file.with_suffix(".db") for file in folder.glob("seg-*.seal"))


def writable(file):
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return file


def told(folder):
    """Return the damage that is found, as (file, what)."""
    return [(damage.file, damage.what) for damage in verify(folder).damage]


def test_a_sound_log_is_said_to_be(folder):
    """All segments and rows are checked, and the progress reaches the total."""
    steps = []
    verdict = verify(folder, lambda done, of: steps.append((done, of)))
    assert verdict.damage == []
    assert (verdict.rows, verdict.last) == (620, 620)
    assert verdict.segments == len(list(folder.glob("seg-*.db"))) > 2
    assert steps[-1][0] == steps[-1][1] == sum(file.stat().st_size for file in folder.glob("seg-*.db"))
    assert steps == sorted(steps)


def test_a_log_that_a_server_has_open_can_be_verified(tmp_path):
    """Verifying takes no lock and changes nothing; commits in the meantime are not faults."""
    with OpenLog(tmp_path / "log", **SMALL) as log:
        log.write_many(count=100)
        assert log.history.written(10)
        verdict = verify(tmp_path / "log", lambda *_: log.append_to("b"))
        assert verdict.damage == []
        assert verdict.rows >= 100
        log.write_many(count=10, first=100)


def test_a_flipped_bit_is_found_in_its_block(folder):
    """H3: in a sealed segment, the digest of its block does not match."""
    file = writable(sealed(folder)[1])
    data = bytearray(file.read_bytes())
    data[BLOCK_BYTES + 77] ^= 1
    file.write_bytes(data)
    assert (file.name, f"bytes {BLOCK_BYTES} to {2 * BLOCK_BYTES - 1} are not what was sealed") in told(folder)


def test_a_changed_row_is_found_where_there_is_no_seal(folder):
    """In an open segment, the row's checksum does not match; the damage has its offset."""
    newest = max(folder.glob("seg-*.db"))
    with closing(sqlite3.connect(newest)) as connection, connection:
        offset = connection.execute("select max(offset) - 1 from stored").fetchone()[0]
        connection.execute("update stored set payload = '\"y\"' where offset = ?", (offset,))
    (damage,) = verify(folder).damage
    assert (damage.first, damage.last, damage.file) == (offset, offset, newest.name)


def test_a_missing_row_and_a_missing_segment_are_found(folder):
    """Offsets that are missing within a segment or between two are reported."""
    newest = max(folder.glob("seg-*.db"))
    with closing(sqlite3.connect(newest)) as connection, connection:
        offset = connection.execute("select min(offset) from stored").fetchone()[0]
        connection.execute("delete from stored where offset = ?", (offset + 1,))
    gone = sealed(folder)[1]
    following = sealed(folder)[2]
    first = int(gone.stem.removeprefix("seg-"))
    gone.unlink()
    gone.with_suffix(".seal").unlink()
    found = {(damage.first, damage.last): damage.file for damage in verify(folder).damage}
    assert found[offset + 1, offset + 1] == newest.name
    assert found[first, int(following.stem.removeprefix("seg-")) - 1] == following.name


def test_a_lost_end_is_found(folder):
    """H2: the mark has a higher offset than the last row."""
    newest = max(folder.glob("seg-*.db"))
    with closing(sqlite3.connect(newest)) as connection, connection:
        connection.execute("delete from stored where offset > 615")
    (damage,) = verify(folder).damage
    assert (damage.first, damage.last, damage.file) == (616, 620, "mark")


def test_a_wrong_index_is_found(folder):
    """Rows that an index does not lead to would be missing from results."""
    newest = max(folder.glob("seg-*.db"))
    with closing(sqlite3.connect(newest)) as connection, connection:
        connection.execute("pragma writable_schema=on")
        other = "CREATE INDEX by_topic on stored (audience_id, topic_id, offset)"
        connection.execute("update sqlite_schema set sql = ? where name = 'by_topic'", (other,))
    problems = told(folder)
    assert problems
    assert all(what.startswith("the database is damaged: ") for _, what in problems)


@pytest.mark.parametrize("name", ["log.json", "seal"])
def test_a_damaged_document_is_found(name, folder):
    """Damage to the log's identity and to a seal is reported."""
    file = folder / name if name == "log.json" else sealed(folder)[0].with_suffix(".seal")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    writable(file).write_bytes(data)
    assert (file.name, f"{file.name} is damaged") in told(folder)


def test_a_seal_for_other_offsets_is_found(folder):
    """A seal that is whole, but says that the segment has fewer rows than it has, is reported."""
    file = sealed(folder)[0]
    seal = Seal.load(file)
    writable(seal_path(file))
    replace(seal, last=seal.last - 1).save(file)
    assert told(folder) == [(file.name, f"its seal is for offsets {seal.first} to {seal.last - 1}")]


def test_another_logs_segment_is_found(folder, tmp_path):
    """A segment that was copied from another log is reported."""
    with OpenLog(tmp_path / "other", **SMALL) as other:
        other.write_many()
    file = sealed(folder)[0]
    writable(file).write_bytes((tmp_path / "other" / file.name).read_bytes())
    assert (file.name, "belongs to another log") in told(folder)


def test_where_there_is_no_log(tmp_path):
    """A folder without a log is refused."""
    with pytest.raises(FolderUnusable, match="there is no log in"):
        verify(tmp_path)


def open_segment(folder):
    """Return the path of the segment of a closed log that a server would go on writing."""
    return max(folder.glob("seg-*.db"))


def test_what_is_read_of_an_open_segment_stays_as_it_was_although_a_server_starts(tmp_path):
    """A transaction that began while no server ran sees nothing of what one writes from then on, and no broken page."""
    folder = tmp_path / "log"
    with OpenLog(folder) as log:
        log.append(*("x" * 2_000 for _ in range(1_000)))
    with closing(segment.read(open_segment(folder), is_sealed=False)) as reading:
        reading.execute("begin")
        before = reading.execute("select count(*), sum(length(payload)) from events").fetchone()
        with OpenLog(folder) as log:
            log.append(*("y" * 2_000 for _ in range(2_000)))
        assert reading.execute("select count(*), sum(length(payload)) from events").fetchone() == before
        assert reading.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert (verify(folder).damage, verify(folder).rows) == ([], 3_000)


def test_a_server_that_starts_while_its_log_is_verified_is_not_taken_for_damage(tmp_path, monkeypatch):
    """It begins when the segment is open already, and has not been read yet."""
    folder = tmp_path / "log"
    with OpenLog(folder) as log:
        log.append(*("x" * 2_000 for _ in range(1_000)))

    def check(*arguments):
        monkeypatch.undo()
        with OpenLog(folder) as log:
            log.append(*("y" * 2_000 for _ in range(2_000)))
        check_database(*arguments)

    check_database = examination._check_database
    monkeypatch.setattr(examination, "_check_database", check)
    verdict = verify(folder)
    assert (verdict.damage, verdict.rows) == ([], 3_000)


def test_a_log_is_verified_where_no_file_can_be_made_beside_it(folder):
    """On a full or read-only disk SQLite has no locks, and none are needed: no server can write there either."""
    (folder / f"{open_segment(folder).name}-shm").mkdir()
    verdict = verify(folder)
    assert (verdict.damage, verdict.rows) == ([], 620)
