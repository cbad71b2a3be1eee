"""Locks: what excludes what, and that a killed process holds no lock."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from halley.pipeline.errors import JobRejected
from halley.pipeline.lake import locks

HOLD = """
import sys, time
from pathlib import Path
from halley.pipeline.lake import locks
with locks.ingest(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds the lock of an ingest."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    command = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_l6_a_second_ingest_is_refused_and_told_by_whom(tmp_path, holder):
    """L6: a lake has one ingest at a time; the error names the process that runs it."""
    sentence = rf"an ingest into .* is already running \(process {holder.pid}\)"
    with pytest.raises(locks.Busy, match=sentence), locks.ingest(tmp_path):
        pass


def test_a_killed_process_holds_no_lock(tmp_path, holder):
    """After a SIGKILL the lock is free immediately."""
    holder.send_signal(signal.SIGKILL)
    holder.wait(30)
    with locks.ingest(tmp_path):
        pass


def test_t5_vacuum_waits_for_the_commits_under_way(tmp_path, monkeypatch):
    """T5: commits can run at the same time, vacuum only when there is none."""
    monkeypatch.setattr(locks, "PATIENCE_S", 0)
    with ExitStack() as held:
        held.enter_context(locks.files(tmp_path))
        held.enter_context(locks.files(tmp_path))
        with pytest.raises(locks.Busy):
            held.enter_context(locks.files(tmp_path, alone=True))
    with ExitStack() as held:
        held.enter_context(locks.files(tmp_path, alone=True))
        with pytest.raises(locks.Busy):
            held.enter_context(locks.files(tmp_path))


def test_who_waits_is_served_before_those_that_come_later(tmp_path):
    """A vacuum that waits is served before later commits, so they cannot delay it endlessly."""
    order = []
    waits = threading.Event()

    def vacuum():
        waits.set()
        with locks.files(tmp_path, alone=True):
            order.append("vacuum")

    def commit():
        with locks.files(tmp_path):
            order.append("commit")

    threads = [threading.Thread(target=vacuum), threading.Thread(target=commit)]
    with locks.files(tmp_path):
        threads[0].start()
        assert waits.wait(30)
        while _is_free(tmp_path / ".locks" / "files.gate"):
            pass
        threads[1].start()
    for thread in threads:
        thread.join(30)
    assert order == ["vacuum", "commit"]


def _is_free(path):
    import fcntl

    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_a_lake_that_cannot_be_written_is_refused(tmp_path):
    """A lake below a file cannot be written."""
    (tmp_path / "file").touch()
    with pytest.raises(JobRejected, match=r"cannot be written: .*Not a directory"), locks.ingest(tmp_path / "file"):
        pass
