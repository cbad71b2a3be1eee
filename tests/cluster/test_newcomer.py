"""A node whose folder the stream cannot fill gets what it lacks from another node, while publishing goes on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client as NatsClient
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows, url_of
from support.process import ended

from halley.client import Client

pytestmark = pytest.mark.slow


async def published(server, data):
    """Publish without a session; return the position."""
    wire = await server.wire()
    reply = (await wire.post(publish("/chat/room", data))).messages[0]
    assert reply["successful"], reply
    return reply["ext"]["position"]


async def lapse(nats):
    """Let the stream lose all its frames but the newest, as it does when they are too old."""
    client = NatsClient()
    await client.connect(nats.urls)
    await client.jetstream().purge_stream("halley", keep=1)
    await client.close()


@asynccontextmanager
async def publishing(server):
    """Publish one event after another within the block; yield the list of their positions."""
    positions, ends = [], asyncio.Event()

    async def publish_on():
        while not ends.is_set():
            positions.append(await published(server, len(positions)))

    task = asyncio.create_task(publish_on())
    yield positions
    ends.set()
    await task


async def test_a_node_gets_what_the_stream_no_longer_has(tmp_path):
    """One that was away for too long, and one that is new; publishing goes on, and both have every row."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a", HALLEY_LIMITS_PUBLISH_BURST="10000") as a:
        async with node(tmp_path, nats, "away"):
            await published(a, "before")
        async with Client(url_of(a)) as client:
            await client.publish_many("/chat/much", ["x" * 2_000] * 2_000)
        await lapse(nats)
        async with (
            publishing(a) as positions,
            node(tmp_path, nats, "away") as away,
            node(tmp_path, nats, "new") as new,
        ):
            assert '"first":1,' in (await new.until_logged("cluster_copying")).replace(" ", "")
            last = [await published(each, "after") for each in (a, away, new)][-1]
            stored = await rows(a, last)
            assert len(stored) == last > 2_000
            assert stored == await rows(away, last)
            assert stored == await rows(new, last)
            assert len(positions) > 0
    async with nats_servers(tmp_path) as nats:
        await lapse(nats)
        arguments = ("serve", "--cluster", nats.urls, "--node", "late", "--data-dir", "late", *FREE_PORTS)
        settings = {"HALLEY_CLUSTER_JOIN_S": "2", "HALLEY_CLUSTER_SETTLED_BY": "keeper"}
        result = await ended(*arguments, cwd=tmp_path, **settings)
        text = "frames are missing from the stream and no keeper is running to copy their events from"
        assert (result.code, text in result.lines[-1]) == (75, True), result.lines
