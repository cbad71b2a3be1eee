"""H7: a crash between any two steps of a commit leaves a log that keeps P1 and P2."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.log import OpenLog

DYING = Path(__file__).with_name("dying.py")


@pytest.mark.parametrize("commit", [2, 3, 7])
@pytest.mark.parametrize("point", ["before-fsync", "after-fsync", "after-report"])
def test_h7_a_crash_within_a_commit_loses_and_doubles_nothing(tmp_path, faulty, point, commit):
    """H7: all earlier events are stored; the group that was being committed is stored as a whole or not at all."""
    folder = tmp_path / "log"
    command = [sys.executable, DYING, folder, point, str(commit)]
    done = subprocess.run(command, env=faulty, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    acknowledged = {int(offset): int(number) for number, offset in map(str.split, done.stdout.splitlines())}
    assert len(acknowledged) == 3 * (commit - 1)
    group = {3 * (commit - 1) + event + 1: commit * 10 + event for event in range(3)}
    with OpenLog(folder) as log:
        stored = log.stored()
        assert stored in (acknowledged, acknowledged | group)
        if point != "before-fsync":
            assert stored == acknowledged | group, "it was on disk"
        assert log.history.folder.damage == ()
        log.write("next")
        assert log.reports.committed == {len(stored) + 1: "next"}
