"""H1: a log whose process is killed at any time has every event that was acknowledged, once and in order."""

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import orjson
import pytest
from support.log import SMALL, OpenLog

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("HALLEY_KILL_ROUNDS", "12"))
APPENDING = Path(__file__).with_name("appending.py")


def acknowledged_until_killed(folder, round_, delay_s, environment):
    """Let a process append for a while, kill it, and return what had been acknowledged by then."""
    command = [sys.executable, APPENDING, folder, str(round_)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay_s)  # the kill comes at this time
        process.kill()
        lines = process.stdout.read().split(b"\n")[:-1]  # the last one can be incomplete
    return [tuple(map(int, line.split())) for line in lines]


def test_h1_nothing_acknowledged_is_lost_doubled_or_reordered_by_kill_9(tmp_path, environment):
    """H1: after each of many kill -9 every acknowledged event is at its reported offset, and none is stored twice."""
    seed = int(os.environ.get("HALLEY_SEED", "5"))
    chance = random.Random(seed)
    expected = {}
    for round_ in range(ROUNDS):
        acknowledged = acknowledged_until_killed(tmp_path, round_, chance.uniform(0, 0.4), environment)
        for publisher, number, offset in acknowledged:
            assert offset not in expected, f"offset {offset} was used twice (seed {seed}, round {round_})"
            expected[offset] = [round_, publisher, number]
        with OpenLog(tmp_path, **SMALL) as log:
            assert log.history.folder.damage == ()
            stored = log.stored()
            assert list(stored) == list(range(1, len(stored) + 1))
            assert {offset: stored.get(offset) for offset in expected} == expected, f"seed {seed}, round {round_}"
            by_publisher = defaultdict(list)
            for payload in stored.values():
                by_publisher[payload[0], payload[1]].append(payload[2])
            for numbers in by_publisher.values():
                assert numbers == list(range(1, len(numbers) + 1))
    assert len(expected) > ROUNDS


def test_h1_a_log_goes_on_where_it_was_killed(tmp_path, environment):
    """H1: after a kill the next event has the next offset."""
    acknowledged_until_killed(tmp_path, 0, 0.2, environment)
    with OpenLog(tmp_path, **SMALL) as log:
        head = log.history.head
        log.write("after")
        assert log.reports.committed == {head + 1: "after"}
        assert log.stored()[head + 1] == "after"
    assert orjson.loads((tmp_path / "log.json").read_bytes())["content"]["log_id"] == log.history.log_id
