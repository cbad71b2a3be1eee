"""Queries that publish, killed with SIGKILL again and again: each event is delivered once, and each window once."""

import asyncio
import itertools
import os
import random
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import orjson
import pytest
from support.process import environment, launched

from halley.client import Client, IdempotentPublish
from halley.pipeline.source.source import SourceOptions, Table

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("dying_sink.py")
KILLS = 4
LONGEST_S = 300
PATHS = os.pathsep.join(path for path in sys.path if path)


async def run(folder, url, *batches):
    """Start the program in a group of processes of its own; return when both queries run."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, folder / "data", url, folder, *batches,
        env=environment(PYTHONPATH=PATHS), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    assert await asyncio.wait_for(process.stdout.readline(), LONGEST_S) == b"ready\n"
    return process


async def end(process):
    """Kill the program and its Java."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def publish(url):
    """Publish a number ten times a second, until this is cancelled."""
    async with Client(url) as client:
        for number in itertools.count():
            assert await client.publish_keyed([IdempotentPublish("/in/a", number, f"in {number}")]) == [None]
            await asyncio.sleep(0.1)


def recorded(data):
    """Return what is in the log: what was published, and how often each event on /echo and /count was delivered."""
    table = Table(SourceOptions({"path": str(data)}))
    head = table.log.head()
    published, echoed, counted = {}, Counter(), Counter()
    for row in table.table(head.first, head.next, 1 << 30).select(["topic", "time_us", "payload"]).to_pylist():
        data = orjson.loads(row["payload"])
        if row["topic"] == "in/a":
            published[data] = row["time_us"] // 1_000_000 * 1_000_000
        elif row["topic"] == "echo":
            echoed[data] += 1
        elif row["topic"] == "count":
            counted[data["start"], data["events"]] += 1
    return published, echoed, counted


@pytest.mark.nightly
async def test_killed_at_random_and_between_effect_and_commit_each_event_is_delivered_once(tmp_path):
    """Kills, in turn at any time, and after a batch is published and before Spark notes that."""
    chance = random.Random(37)
    settings = {"HALLEY_LIMITS_PUBLISHES_PER_S": "0"}
    async with launched("--data-dir", str(tmp_path / "data"), cwd=tmp_path, **settings) as server:
        url = f"http://127.0.0.1:{server.port}"
        publishing = asyncio.create_task(publish(url))
        for kill in range(KILLS):
            process = await run(tmp_path, url, *([str(kill % 4)] if kill % 2 else []))
            if kill % 2:
                assert await asyncio.wait_for(process.wait(), LONGEST_S) == -signal.SIGKILL
            else:
                await asyncio.sleep(chance.uniform(0, 6))  # the duration is the random choice
                assert process.returncode is None
            await end(process)
        process = await run(tmp_path, url)
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        async with asyncio.timeout(LONGEST_S):
            while True:
                published, echoed, counted = recorded(tmp_path / "data")
                seconds = Counter(published.values())
                final = {(start, seconds[start]) for start in seconds.keys() - {max(seconds)}}
                if published.keys() <= echoed.keys() and final <= counted.keys():
                    break
                await asyncio.sleep(0.2)
        await end(process)
    published, echoed, counted = recorded(tmp_path / "data")
    assert echoed == Counter(published.keys())
    assert counted == Counter(final)
