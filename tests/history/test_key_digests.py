"""What was sent with an idempotency key is known after a restart, and gone with its event."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from support.log import SMALL, OpenLog

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.history.backup import backup
from halley.history.examination import verify
from halley.history.folder import segment_files
from halley.history.stored import COLUMNS

PAYLOAD = "x" * 1_500


def digest(number):
    return b"diges%03d" % number


def write(log, count, first=0):
    """Write events with keys, on a/0, a/1 and a/2 in turn, each third without a digest, and as many without a key."""
    for number in range(first, first + count):
        known = None if number % 3 == 2 else digest(number)
        log.append_to(f"a/{number % 3}", f"{number} {PAYLOAD}", idempotency_key=f"k{number}", key_digest=known)
        log.write(f"{number} without a key")


def known(log):
    """Return the digests that are known, by key."""
    return {each.key: each.published.key_digest for each in log.history.recent_keys()}


def expected(count):
    return {f"k{number}": None if number % 3 == 2 else digest(number) for number in range(count)}


def test_a_restart_knows_what_was_sent(tmp_path):
    """Of each key that has a digest, in all segments; readers of the log get no column more."""
    with OpenLog(tmp_path, **SMALL) as log:
        write(log, 150)
        assert len(log.history.folder.segments) > 2
        assert {type(row.idempotency_key) for row in log.rows()} == {str, type(None)}
    for _ in range(2):
        with OpenLog(tmp_path, **SMALL) as log:
            assert known(log) == expected(150)
    for _, path in segment_files(tmp_path):
        with closing(sqlite3.connect(path)) as file:
            assert [name for _, name, *_ in file.execute("pragma table_info(events)")] == [*COLUMNS]
    assert verify(tmp_path).damage == []


def test_a_purge_takes_the_digest_with_the_event(tmp_path):
    """Those of all other events stay, in segments that are written anew too."""
    with OpenLog(tmp_path, **SMALL) as log:
        write(log, 150)
        assert log.history.purge(Erasure(Pattern(Match.EXACT, "a/0"), None), lambda *_: None) == 50
        left = {key: value for key, value in expected(150).items() if int(key[1:]) % 3}
        assert known(log) == left
    files = b"".join(path.read_bytes() for _, path in segment_files(tmp_path))
    assert digest(1) in files
    assert digest(0) not in files
    with OpenLog(tmp_path, **SMALL) as log:
        assert known(log) == left


def test_a_backup_has_them(tmp_path):
    with OpenLog(tmp_path / "log", **SMALL) as log:
        write(log, 150)
        backup(tmp_path / "log", tmp_path / "copy")
    with OpenLog(tmp_path / "copy", **SMALL) as log:
        assert known(log) == expected(150)


@pytest.mark.parametrize(
    "damage",
    [
        "update stored set key_digest = substr(key_digest, 1, 7) || x'00' || substr(key_digest, 9) where offset = 1",
        "update stored set key_digest = x'00' where offset = 1",
        "update stored set key_digest = 'text of a digest' where offset = 1",
        "update stored set key_digest = cast(x'ff' as text) where offset = 1",
        "update stored set key_digest = (select key_digest from stored where offset = 3) where offset = 1",
    ],
)
def test_a_damaged_digest_is_none(tmp_path, damage):
    """The key is known all the same, and its channel decides whether a publish with it is a repeat."""
    with OpenLog(tmp_path, **SMALL) as log:
        write(log, 5)
    ((_, path),) = segment_files(tmp_path)
    with closing(sqlite3.connect(path)) as file:
        file.execute(damage)
        file.commit()
    with OpenLog(tmp_path, **SMALL) as log:
        found = known(log)
        assert found["k0"] is None
        assert found.keys() == expected(5).keys()


def test_rows_without_digests_of_a_program_of_before_are_read(tmp_path):
    """An earlier version that goes on with the folder writes none, and drops the column where it writes a file anew."""
    with OpenLog(tmp_path, **SMALL) as log:
        write(log, 5)
    ((_, path),) = segment_files(tmp_path)
    with closing(sqlite3.connect(path)) as file:
        file.execute("alter table stored drop column key_digest")
        file.commit()
    with OpenLog(tmp_path, **SMALL) as log:
        assert known(log) == dict.fromkeys(expected(5))
        write(log, 3, first=5)
    with OpenLog(tmp_path, **SMALL) as log:
        assert known(log) == dict.fromkeys(expected(5)) | {
            f"k{number}": expected(8)[f"k{number}"] for number in (5, 6, 7)
        }
