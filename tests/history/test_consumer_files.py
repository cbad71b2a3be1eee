"""Consumers' files: valid ones are used, and each other file in their folder is reported once."""

from __future__ import annotations

import os
import shutil
import threading
from time import monotonic

import pytest

from halley.history import checksummed_json
from halley.history.consumers import Ignored, TooManyConsumers, is_name

BAD = {
    "damaged": (lambda file: file.write_text('{"crc":1,"content":{"offset":5}}'), "is damaged"),
    "torn": (lambda file: file.write_bytes(b'{"crc":'), "is damaged"),
    "empty": (lambda file: file.touch(), "is damaged"),
    "no-document": (lambda file: file.write_text('{"offset":5}'), "is damaged"),
    "binary": (lambda file: file.write_bytes(bytes(range(256))), "is damaged"),
    "huge": (lambda file: file.write_bytes(b"[" * 10_000), "is damaged"),
    "folder": (lambda file: file.mkdir(), "is not a consumer's file"),
    "pipe": (os.mkfifo, "is not a consumer's file"),
    "link": (lambda file: file.symlink_to("/etc/hostname"), "is not a consumer's file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_cannot_be_believed_is_left_out_and_told_once(kind, clocked_log):
    """The other consumers' files are read, retention continues, and does not wait for this file."""
    make, why = BAD[kind]
    log = clocked_log()
    log.consume("good", 4)
    file = log.consumer("bad")
    make(file)
    for _ in range(3):
        log.retain()
    assert log.history.consumers.positions == {"good": 4}
    assert log.news() == [Ignored("bad.json", why)]
    if file.is_dir():
        file.rmdir()
    else:
        file.unlink()
    log.retain()
    log.consume("bad", 9)
    log.retain()
    assert log.history.consumers.positions == {"bad": 9, "good": 4}
    assert log.news() == []


@pytest.mark.parametrize("offset", [0, -1, True, None, "5", 5.0, [5], 1 << 63])
def test_a_file_without_an_offset_says_nothing(offset, clocked_log):
    """An offset is a whole number of at least 1; without one, the consumer's previous position no longer counts."""
    log = clocked_log()
    log.consume("ingest", 3)
    log.retain()
    log.consume("ingest", offset)
    log.retain()
    log.retain()
    assert log.history.consumers.positions == {}
    (told,) = log.news()
    assert told in (Ignored("ingest.json", "has no valid offset"), Ignored("ingest.json", "is damaged"))
    log.consume("ingest", 4)
    log.retain()
    assert log.history.consumers.positions == {"ingest": 4}


def test_a_file_that_is_being_written_is_no_consumer(clocked_log):
    """A draft is ignored and not reported, even if its writer was killed; `draft-...` is not a valid name."""
    log = clocked_log()
    log.consume("ingest", 3)
    shutil.copy(log.consumer("ingest"), log.consumer("draft-ingest"))
    log.retain()
    assert log.history.consumers.positions == {"ingest": 3}
    assert log.news() == []
    assert not is_name("draft-ingest")


@pytest.mark.parametrize("name", ["", "a" * 65, "a.b", "a/b", "..", "ü", "a b", "a\n", "%61"])
def test_what_is_no_name_is_none(name, clocked_log):
    """Names are used as file names: letters, digits, `_` and `-`, at most 64 characters."""
    assert not is_name(name)
    assert is_name("a" * 64)
    assert is_name("Ingest_2-b")
    log = clocked_log()
    log.consume("ingest", 1)
    if name and "/" not in name and name != "..":
        shutil.copy(log.consumer("ingest"), log.consumer(name))
        log.retain()
        assert log.history.consumers.positions == {"ingest": 1}
        assert log.news() == [Ignored(f"{name}.json", "is not a consumer's file")]


def test_no_more_than_so_many_are_heard(clocked_log):
    """`history.consumers` is a limit: the files that changed last are used, and a new consumer is refused."""
    log = clocked_log(consumers=3)
    for number in range(5):
        log.clock.pass_(1)
        log.consume(f"c{number}", number + 1)
    for _ in range(3):
        log.retain()
    assert log.history.consumers.positions == {"c2": 3, "c3": 4, "c4": 5}
    assert log.news() == [Ignored("consumers", "has more than 3 consumers; only those that changed last are used")]
    with pytest.raises(TooManyConsumers):
        log.history.consumers.report("c9", 1)
    assert not log.consumer("c9").exists()
    log.history.consumers.report("c3", 9)
    for name in ("c0", "c1", "c2"):
        assert log.history.consumers.forget(name)
    log.retain()
    log.history.consumers.report("c9", 1)
    assert log.history.consumers.positions == {"c3": 9, "c4": 5, "c9": 1}
    with pytest.raises(TooManyConsumers):
        log.history.consumers.report("c10", 1)


def test_a_report_is_on_disk_and_may_go_back(clocked_log):
    """A consumer that has lost its results reads the log again, and retention waits for it as before."""
    log = clocked_log(name="log")
    log.history.consumers.report("ingest", 7)
    log.history.consumers.report("ingest", 2)
    assert log.history.consumers.positions == {"ingest": 2}
    assert log.consumer("ingest").parent.stat().st_mode & 0o077 == 0
    log.retain()
    log.history.close()
    again = clocked_log(name="log")
    assert again.history.consumers.positions == {"ingest": 2}


def test_a_file_that_is_replaced_all_the_time_is_always_heard(clocked_log):
    """While a job in another process replaces its file, the server finds either the old file or the new one."""
    log = clocked_log()
    log.consume("ingest", 1)
    is_over = threading.Event()

    def commit():
        offset = 1
        while not is_over.is_set():
            offset += 1
            checksummed_json.save(log.consumer("ingest"), {"offset": offset})

    job = threading.Thread(target=commit)
    job.start()
    try:
        seen = [1]
        until = monotonic() + 60
        while len(seen) < 50:
            assert monotonic() < until
            log.retain()
            offset = log.history.consumers.positions["ingest"]
            assert offset >= seen[-1]
            if offset > seen[-1]:
                seen.append(offset)
    finally:
        is_over.set()
        job.join()
    assert log.news() == []
