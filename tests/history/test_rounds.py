"""H1 and H5 over the wire: fewer rounds of what `rounds.py` does."""

import os

import pytest
from history.kill_rounds import kill_rounds
from history.seam_rounds import seam_rounds

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("HALLEY_SEED", "5"))


async def test_h1_what_a_killed_server_had_acknowledged_is_there_once_and_in_order(tmp_path):
    """H1, P1, P2: after each kill -9 log and replay have all acknowledged events; repeats with keys are stored once."""
    acknowledged, repeated, head = await kill_rounds(tmp_path / "log", 2, 20, SEED)
    assert head >= acknowledged > 0
    assert repeated > 0


async def test_h5_no_gap_and_no_duplicate_between_history_and_live(tmp_path):
    """H5, P3: under load, subscribers that attach anywhere, are cut off or reconnect get every event once."""
    attached, events = await seam_rounds(tmp_path / "log", 1, 30, 4, SEED, era_rounds=1)
    assert attached == 30
    assert events > attached
