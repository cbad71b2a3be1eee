"""B1 and B5 over the wire, a small share of what `rounds.py` does."""

import os

import pytest
from history.kill_rounds import kill_rounds
from history.seam_rounds import seam_rounds

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("HALLEY_SEED", "5"))


async def test_h1_what_a_killed_server_had_acknowledged_is_there_once_and_in_order(tmp_path):
    """H1, P1, P2: after each kill -9 log and replay have all of it; repeats with their keys are there once."""
    acknowledged, repeated, head = await kill_rounds(tmp_path / "log", 6, 20, SEED)
    assert head >= acknowledged > 0
    assert repeated > 0


async def test_h5_no_gap_and_no_duplicate_between_history_and_live(tmp_path):
    """H5, P3: under full publish load whoever attaches anywhere, is cut off or comes back hears everything once."""
    attached, events = await seam_rounds(tmp_path / "log", 3, 30, 4, SEED, era_rounds=1)
    assert attached == 90
    assert events > attached
