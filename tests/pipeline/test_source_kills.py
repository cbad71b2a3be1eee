"""An ingest that is killed with SIGKILL at an edge of a batch, while those of two other sources fill the same lake."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.damage import files, flip
from support.log import OpenLog

from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.lake import tables, upkeep
from halley.pipeline.lake.verify import verify
from halley.settings import Pipeline

pytestmark = pytest.mark.nightly

DYING = Path(__file__).with_name("dying_ingest.py")
OPTIONS = Pipeline(batch_rows=250, partition_rows=200, ingest_s=0.1, compact_s=0)
EVENTS = {"west": 3_000, "east": 2_000, "south": 6_000}
EDGES = {"writing": 2_001, "rejected": 2_001, "moving": 2_001, "committed": 4_001}
"""How far the ingest of `south` has come when it dies at each edge of its second batch."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Make three logs; in each batch of `south` is a damaged segment, and in that of `west` one at a later offset."""
    folder = tmp_path_factory.mktemp("logs")
    for name, count in EVENTS.items():
        with OpenLog(folder / name, segment_bytes=65_536) as log:
            for at in range(0, count, 500):
                log.write(*({"number": n, "of": name} for n in range(at + 1, at + 501)))
    for name, number in (("south", 1_234), ("south", 3_234), ("south", 5_234), ("west", 2_900)):
        first = max(each for each in files(folder / name) if each <= number)
        flip(files(folder / name)[first], b'{"number":%d,' % number)
    return folder


def run_dying(folder, place):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, DYING, folder / "south", folder / "lake", place, "2", "south"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False, start_new_session=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(("place", "reached"), EDGES.items())
def test_each_log_is_exact_after_a_kill_of_one_ingest(spark, logs, tmp_path, place, reached):
    """The killed ingest resumes where its own log's position is; nothing of the others is touched by that."""
    shutil.copytree(logs, tmp_path, dirs_exist_ok=True)
    lake = tmp_path / "lake"

    def ingest(name):
        options = replace(OPTIONS, source=name)
        list(Ingest(spark, {"path": str(tmp_path / name)}, lake, options, accept_gap=True).once())

    with ThreadPoolExecutor(3) as executor:
        dying = executor.submit(run_dying, tmp_path, place)
        for done in [executor.submit(ingest, name) for name in ("west", "east")]:
            done.result()
        dying.result()
    events = tables.open_table(lake, "events")
    [south] = events.sources.of("south")
    assert events.position(events.app(tables.INGEST, south.log_id)) == reached
    for name in ("events", "rejected", "gaps"):  # a killed batch's rows are not to be compacted
        upkeep.compact(lake, name)
    for name in EVENTS:
        ingest(name)
    assert [each for each in verify(lake, is_thorough=True) if not each.is_sound] == []
    rows = tables.open_table(lake, "events").dataset().to_table(columns=["source", "offset"]).to_pylist()
    rejected = tables.open_table(lake, "rejected").dataset().to_table().to_pylist()
    found = Counter(each["source"] for each in rows)
    for each in rejected:
        found[each["source"]] += each["last"] - each["first"] + 1
    assert found == EVENTS
    assert {each["source"] for each in rejected} == {"south", "west"}
    upkeep.vacuum(lake, 0)
    assert [each for each in verify(lake, is_thorough=True) if not each.is_sound] == []
