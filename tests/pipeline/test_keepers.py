"""A lake that is filled from two keepers of a cluster, of which one is killed: real nodes, a real NATS server."""

import asyncio
import signal
import threading

import pytest
from support.lake import offsets
from support.nats import nats_servers, node, url_of
from support.wire import DEADLINE_S

from halley.client import Client, HistoryClient
from halley.pipeline.jobs.ingest import Ingest
from halley.pipeline.jobs.run import consumer
from halley.pipeline.lake import tables
from halley.pipeline.lake.verify import verify
from halley.settings import Pipeline

pytestmark = pytest.mark.nightly

OPTIONS = Pipeline(batch_rows=1_000, partition_rows=100, ingest_s=0.1, compact_s=0)


async def next_of(server):
    """The offset after the last one that a keeper has, and its consumers."""
    async with HistoryClient(url_of(server)) as client:
        head = await client.log_head()
    return head["next"], head["consumers"]


async def test_a_lake_goes_on_at_another_keeper(tmp_path, spark):
    """One keeper is killed while an ingest reads it, and a keeper's folder has the rest: each event is there once."""
    lake, stop, seen = tmp_path / "lake", threading.Event(), []

    async def until_read(server):
        async with asyncio.timeout(DEADLINE_S):
            while not seen or seen[-1] < (await next_of(server))[0]:
                assert not working.done(), working.exception()
                await asyncio.sleep(0.05)

    def work(job):
        for progress in job.live(stop):
            seen[:] = [progress.next]

    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "b") as b:
        async with node(tmp_path, nats, "a") as a, Client(url_of(b)) as client:
            job = Ingest(spark, {"url": f"{url_of(a)},{url_of(b)}"}, lake, OPTIONS)
            await client.publish_many("/chat/room", range(300))
            working = asyncio.ensure_future(asyncio.to_thread(work, job))
            try:
                await until_read(b)
                assert consumer("lake", lake) in (await next_of(a))[1]
                await client.publish_many("/chat/room", range(300, 600))
                a.send_signal(signal.SIGKILL)
                await client.publish_many("/chat/room", range(600, 900))
                await until_read(b)
            finally:
                stop.set()
                await working
        assert (await next_of(b))[1][consumer("lake", lake)] == seen[-1]
    last = [progress.next for progress in Ingest(spark, {"path": str(tmp_path / "b")}, lake, OPTIONS).once()][-1]
    assert offsets(tables.open_table(lake, "events")) == [*range(1, last)]
    assert [finding for finding in verify(lake, is_thorough=True) if not finding.is_sound] == []
