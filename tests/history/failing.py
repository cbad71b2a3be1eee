"""A process that lets each call to the disk fail in turn, and checks its log each time.

    LD_PRELOAD=faults.so FAULTS_FOLDER=DIR python failing.py DIR FAULT TIMES KINDS SHARE SEED

For each n, up to the number of calls without a fault, it writes three groups of events to a log, lets the n-th call
fail, writes more, and opens the log again once the disk works. SHARE is the number of these n that are tried, drawn
with SEED; 0 means all. Prints how many were tried and how many calls there are. A failed check ends it with a
traceback.
"""

import ctypes
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

from support.log import SMALL, WRITTEN_S, OpenLog

from halley.broker.errors import HistoryUnavailable
from halley.history import writer
from halley.history.folder import FolderUnusable

SYNC = 4
PAYLOAD = "x" * 1_500
faults = ctypes.CDLL(None)
writer._CHECK_S = 0.01  # time until a broken disk is tried again


class Expected:
    """The payloads that were acknowledged, and those whose outcome is unknown, over all openings of one log."""

    def __init__(self):
        self.acknowledged = {}
        self.unknown = []

    def take(self, reports):
        for offset, payload in reports.committed.items():
            assert offset not in self.acknowledged, f"offset {offset} was given twice"
            self.acknowledged[offset] = payload
        self.unknown += reports.unknown

    def check(self, log):
        stored = log.stored()
        assert list(stored) == list(range(1, log.history.head + 1)), list(stored)
        assert {offset: stored[offset] for offset in self.acknowledged} == self.acknowledged
        # An event whose outcome is unknown can be stored, at an offset that no acknowledged event has. No other can:
        # whoever is refused for sure publishes again without a key.
        rest = [payload for offset, payload in stored.items() if offset not in self.acknowledged]
        assert all(payload in self.unknown for payload in rest), rest


def frozen(folder):
    """Return the bytes of every segment except the newest, each with its WAL, which one loses that is being sealed."""
    newest = max((file.name for file in folder.glob("seg-*.db")), default="")
    found = {}
    for file in folder.glob("seg-*.db*"):
        if not file.name.startswith(newest) and not file.name.endswith("-shm"):
            with suppress(FileNotFoundError):
                found[file.name] = file.read_bytes()
    return found


def append(log, *payloads):
    """Append a group, of which some may be refused immediately, and wait for the outcome of the others."""
    for payload in payloads:
        with suppress(HistoryUnavailable):
            log.append(payload)
    assert log.history.written(WRITTEN_S)


def recover(log, name):
    """Append until an event is acknowledged: once the disk works again, the log must recover within seconds."""
    deadline = time.monotonic() + 10
    while True:
        before = len(log.reports.committed)
        append(log, name)
        if len(log.reports.committed) > before:
            return
        assert time.monotonic() < deadline, "it has not recovered"
        time.sleep(0.005)


def attempt(folder, n, fault, times, kinds):
    """Write a log whose n-th call to the disk fails, and check it."""
    expected = Expected()
    faults.faults_arm(n, times, kinds, fault)
    try:
        with OpenLog(folder, **SMALL) as log:
            for group in range(3):
                append(log, *(f"{group} {event} {PAYLOAD}" for event in range(25)))
                served = log.history.head
                assert served == max(log.reports.committed, default=0)
            # Reads succeed while the disk refuses writes; but the fault can have hit a read of this process before.
            faults.faults_arm(1, 1_000_000, 0b101110, 0)
            assert set(log.reports.committed) <= set(log.stored())
            faults.faults_arm(0, 0, 0, 0)
            was_broken = bool(log.reports.refused)
            before = frozen(folder) if was_broken and kinds == SYNC else {}
            recover(log, "recovered")
            append(log, "written on")
            assert log.stored().keys() >= log.reports.committed.keys()
    except FolderUnusable:
        faults.faults_arm(0, 0, 0, 0)
    else:
        expected.take(log.reports)
        after = frozen(folder)
        failed = {name for name in before if not (folder / name).with_suffix(".seal").exists()}  # all others are sealed
        assert all(after.get(name) == before[name] for name in failed), "a failed segment was written"
    for opening in range(2):
        with OpenLog(folder, **SMALL) as log:
            expected.check(log)
            log.write(f"opened {opening}")
            assert len(log.reports.committed) == 1, "it takes nothing though the disk works"
            expected.take(log.reports)
            expected.check(log)
            assert log.history.folder.damage == (), log.history.folder.damage


def main(parent, fault, times, kinds, share, seed):
    faults.faults_arm(0, 0, kinds, 0)
    with OpenLog(Path(parent) / "counted", **SMALL) as log:
        for group in range(3):
            log.write(*(f"{group} {event} {PAYLOAD}" for event in range(25)))
    most = faults.faults_arm(0, 0, 0, 0)
    tried = range(1, most + 1)
    if share and share < most:
        tried = sorted(random.Random(seed).sample(tried, share))
    for n in tried:
        try:
            attempt(Path(parent) / str(n), n, fault, times, kinds)
        except BaseException:
            print(f"call {n} of {most}, fault {fault}, {times} times, kinds {kinds}", file=sys.stderr)
            raise
    print(len(tried), most)


main(sys.argv[1], *map(int, sys.argv[2:]))
