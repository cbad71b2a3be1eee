"""L1 to L3: an ingest that is killed with SIGKILL at each edge of a batch, and the lake after the next run."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.damage import files, flip
from support.lake import INGEST, offsets
from support.log import OpenLog

from halley.history import checksummed_json
from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.jobs.run import consumer
from halley.pipeline.lake import tables, upkeep
from halley.pipeline.lake.verify import verify
from halley.settings import Pipeline

pytestmark = pytest.mark.slow

DYING = Path(__file__).with_name("dying_ingest.py")
EVENTS = 6_000
DAMAGED = (1_234, 3_234, 5_234)


EDGES = {
    "writing": (2_001, "staging"),
    "rejected": (2_001, "staging"),
    "moving": (2_001, "orphans"),
    "committed": (4_001, "nothing"),
}


def begin(submit, tmp_path_factory):
    """Start ingests that are killed at each edge of their second batch, while other tests run (see `conftest.py`).

    The result for each edge is a folder with a log of six thousand events, a damaged segment in each batch, and a lake.
    """
    folder = tmp_path_factory.mktemp("kills")
    data = folder / "data"
    with OpenLog(data, segment_bytes=65_536) as log:
        for at in range(0, EVENTS, 500):
            log.write(*({"number": n} for n in range(at + 1, at + 501)))
    for number in DAMAGED:
        first = max(each for each in files(data) if each <= number)
        flip(files(data)[first], b'{"number":%d}' % number)
    return {place: submit(kill, folder, place) for place in EDGES}


def kill(folder, place):
    """Run an ingest of a copy of the log that is killed at `place`, and assert that it was killed."""
    shutil.copytree(folder / "data", folder / place / "data")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, DYING, folder / place / "data", folder / place / "lake", place, "2"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False, start_new_session=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folder / place


def intact(data):
    """Return the offsets of all events that are in no damaged segment."""
    firsts = [*files(data), EVENTS + 1]
    segments = [range(first, end) for first, end in itertools.pairwise(firsts)]
    return [offset for each in segments if not any(number in each for number in DAMAGED) for offset in each]


@pytest.mark.parametrize(("place", "reached", "left"), [(place, *edge) for place, edge in EDGES.items()])
def test_l1_l2_killed_at_an_edge_every_event_is_there_once(spark, beside, place, reached, left):
    """L1, L2: the ingest died at its edge; the next run stores each event once, and vacuum deletes leftovers (T6)."""
    folder = beside[__name__][place].result()
    data, lake = folder / "data", folder / "lake"
    table = tables.open_table(lake, "events")
    assert table.position(INGEST) == reached
    named = {table.folder / file.path for file in table.data_files()}
    on_disk = set((lake / "events").glob("day=*/protocol=*/*.parquet"))
    assert bool(on_disk - named) == (left == "orphans")
    assert bool(list((lake / ".staging").glob("*/kind=event/*/*/*.parquet"))) == (left == "staging")
    if place == "committed":
        assert checksummed_json.load(data / "consumers" / f"{consumer('lake', lake)}.json")["offset"] <= 2_001

    options = Pipeline(batch_rows=2_500, partition_rows=1_000)
    list(Ingest(spark, {"path": str(data)}, lake, options, accept_gap=True).once())
    table = tables.open_table(lake, "events")
    assert offsets(table) == intact(data)
    assert all(each.is_sound for each in verify(lake, is_thorough=True))
    upkeep.vacuum(lake, 0)
    left_over = set((lake / "events").glob("day=*/protocol=*/*.parquet")) & (on_disk - named)
    assert left_over == set()
    assert offsets(tables.open_table(lake, "events")) == intact(data)
    assert list((lake / ".staging").iterdir()) == []
