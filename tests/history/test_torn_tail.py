"""H2, H3: the newest segment is cut, or a bit in it flipped; the log reports what is missing and continues.

With `HALLEY_FULL=1` it is cut at every byte, else at and near every border of a frame, and at a seeded share of the
other bytes.
"""

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.log import OpenLog

DYING = Path(__file__).with_name("dying.py")
COMMITS = 6
SEED = int(os.environ.get("HALLEY_SEED", "5"))
IS_FULL = os.environ.get("HALLEY_FULL") == "1"
TRUTH = {3 * commit + event + 1: (commit + 1) * 10 + event for commit in range(COMMITS) for event in range(3)}


@pytest.fixture
def killed(tmp_path, faulty):
    """A folder whose process was killed after six commits of three events each, all of them in the WAL."""
    folder = tmp_path / "killed"
    command = [sys.executable, DYING, folder, "after-report", str(COMMITS)]
    subprocess.run(command, env=faulty, stdout=subprocess.DEVNULL, timeout=60, check=False)
    return folder


def commit_ends(wal):
    """The length of the WAL after each commit (https://sqlite.org/fileformat.html, 4.1)."""
    size = wal.stat().st_size
    with wal.open("rb") as file:
        page_bytes = struct.unpack(">I", file.read(12)[8:])[0]
        ends = []
        for at in range(32, size, 24 + page_bytes):
            file.seek(at + 4)
            if struct.unpack(">I", file.read(4))[0]:
                ends.append(at + 24 + page_bytes)
    return ends


def cuts(ends, frame_bytes):
    """Return where to cut the WAL: within its last three commits."""
    everywhere = range(ends[-4], ends[-1] + 1)
    if IS_FULL:
        return list(everywhere)
    borders = [at + by for at in range(ends[-4], ends[-1] + 1, frame_bytes) for by in (-1, 0, 1, 24)]
    return sorted({*borders, *random.Random(SEED).sample(everywhere, 40)} & set(everywhere))


def test_h2_a_wal_cut_anywhere_loses_what_is_cut_off_and_says_so(tmp_path, killed):
    """H2: every whole record is kept, the missing offsets are reported and never used again, and writing continues."""
    wal = next(killed.glob("*.db-wal"))
    ends = commit_ends(wal)
    assert len(ends) == COMMITS
    for cut in cuts(ends, 24 + 8_192):
        folder = tmp_path / "cut"
        shutil.copytree(killed, folder)
        os.truncate(folder / wal.name, cut)
        kept = {offset: TRUTH[offset] for offset in range(1, 3 * sum(end <= cut for end in ends) + 1)}
        missing = [(len(kept) + 1, len(TRUTH))] if len(kept) < len(TRUTH) else []
        with OpenLog(folder) as log:
            assert log.stored() == kept, f"cut at {cut}"
            assert [(damage.first, damage.last) for damage in log.history.folder.damage] == missing, f"cut at {cut}"
            log.write("next")
            assert log.reports.committed == {len(TRUTH) + 1: "next"}
        with OpenLog(folder) as log:
            assert log.stored() == kept | {len(TRUTH) + 1: "next"}
            assert [(damage.first, damage.last) for damage in log.history.folder.damage] == missing
            assert (log.history.holes, log.history.damaged) == (missing, [])
            assert log.history.head == len(TRUTH) + 1
        shutil.rmtree(folder)


def test_h2_new_publication_ids_do_not_repeat_lost_ones(killed):
    """H2: lost events had publication ids too, which are not used again."""
    os.truncate(next(killed.glob("*.db-wal")), 0)
    with OpenLog(killed) as log:
        assert log.history.last_number == len(TRUTH)


@pytest.mark.parametrize("ending", [".db", ".db-wal"])
def test_h3_a_flipped_bit_in_the_newest_segment_is_told_and_nothing_wrong_is_served(tmp_path, killed, ending):
    """H3: whichever bit is flipped, each event is served unchanged or is in a range that is reported."""
    chance = random.Random(SEED)
    name = next(killed.glob(f"seg-*{ending}")).name
    if ending == ".db":  # all of it in the database, as some time after the writes
        with OpenLog(killed):
            pass
    whole = (killed / name).read_bytes()
    for _ in range(2_000 if IS_FULL else 60):
        at, bit = chance.randrange(len(whole)), chance.randrange(8)
        folder = tmp_path / "flipped"
        shutil.copytree(killed, folder)
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        with OpenLog(folder) as log:
            stored = log.stored()
            told = {n for damage in log.history.folder.damage for n in range(damage.first, damage.last + 1)}
            where = f"seed {SEED}, byte {at}, bit {bit}: {log.history.folder.damage}"
            assert stored == {offset: TRUTH[offset] for offset in stored}, where
            assert set(TRUTH) - set(stored) <= told, where
            log.write("next")
            (offset,) = log.reports.committed
            assert offset == len(TRUTH) + 1, where
            assert log.stored()[offset] == "next", where
        shutil.rmtree(folder)
