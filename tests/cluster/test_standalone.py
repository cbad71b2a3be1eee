"""The pipeline on a standalone Spark cluster that `deploy/spark-standalone` starts.

It takes a minute, so it is skipped unless `TESTS_NO_SKIP=1` is set.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bench.logs import fill
from deltalake import DeltaTable
from support.process import environment
from support.programs import unavailable

from halley.pipeline import session

pytestmark = pytest.mark.slow

CLUSTER = Path(__file__).parents[2] / "deploy" / "spark-standalone"
EVENTS, BATCH = 60_000, 5_000
DEADLINE_S = 240.0
_WORKER = re.compile(r"worker \d+ \((\d+)\)")


@asynccontextmanager
async def cluster(*options):
    """Yield the master's URL and the process ids of the workers; each leads a process group with its executors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, CLUSTER, "--port", "0", *options, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, limit=1 << 20
    )
    workers = []

    async def read_log():
        async for line in process.stderr:
            match = _WORKER.match(line.decode())
            if match and int(match[1]) not in workers:
                workers.append(int(match[1]))

    reading = asyncio.create_task(read_log())
    try:
        async with asyncio.timeout(DEADLINE_S):
            url = (await process.stdout.readline()).decode().strip()
        assert url.startswith("spark://"), "the cluster has not started"
        yield url, workers
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
        await reading


def offsets(lake):
    """Return the offsets in the lake; none if there is no table yet."""
    try:
        table = DeltaTable(str(lake / "events")).to_pyarrow_table(columns=["offset"])
    except Exception:  # noqa: BLE001 - the table is being created
        return []
    return table["offset"].to_pylist()


@pytest.mark.nightly
async def test_l14_a_worker_that_is_killed_mid_run_changes_nothing(tmp_path):
    """L14: ingest on two workers; one is killed with its executor, the job succeeds, and every event is stored once."""
    if os.environ.get("TESTS_NO_SKIP") != "1":
        unavailable("a cluster takes a minute: TESTS_NO_SKIP=1")
    data_dir, lake = tmp_path / "data", tmp_path / "lake"
    fill(data_dir, EVENTS, channels=10)
    async with cluster("--workers", "2") as (url, workers):
        job = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "halley", "pipeline", "ingest", "--once", "--master", url),
            *("--data-dir", str(data_dir), "--lake", str(lake), "--conf", "spark.executor.memory=512m"),
            *("--conf", f"spark.executor.extraJavaOptions={session.QUICK_START}"),
            env=environment(HALLEY_PIPELINE_BATCH_ROWS=str(BATCH), HALLEY_PIPELINE_PARTITION_ROWS="1000"),
            stdin=DEVNULL,
            stderr=PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not offsets(lake):
                    assert job.returncode is None
                    await asyncio.sleep(0.1)
                os.killpg(workers[0], signal.SIGKILL)
                assert len(offsets(lake)) < EVENTS, "it was killed too late to prove anything"
                _, said = await job.communicate()
        finally:
            if job.returncode is None:
                job.terminate()
        assert job.returncode == 0, said.decode()
    assert sorted(offsets(lake)) == [*range(1, EVENTS + 1)]
