"""A cluster whose folders and stream were left by the version before state lay beside the rows, all nodes killed.

Its two keepers had saved their state 5 events before their last rows, in cluster.json.
"""

from __future__ import annotations

import asyncio
import json
import tarfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from nats.aio.client import Client as NatsClient
from support import tarballs
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows
from support.process import ended

pytestmark = pytest.mark.slow

SETTINGS = {"HALLEY_CLUSTER_SETTLED_BY": "keeper", "HALLEY_HISTORY_KEY_AGE_S": "1e9"}
LAST = 27
KEYS = {"key-0": ("/room/0", 1), "key-16": ("/room/1", 17), "key-24": ("/room/1", 26)}
"""Of idempotency keys that were used, the channels and positions of their events."""


def unpack(folder):
    with tarfile.open(Path(__file__).with_name("cluster_before_state_tables.tar.xz")) as archive:
        tarballs.unpack(archive, folder)
    (folder / "nats").rename(folder / "0")


async def started(stack, folder, servers):
    """Start both keepers: a keeper of that version does not know whether the other one has gone on without it."""
    starting = [node(folder, servers, each, **SETTINGS) for each in "ab"]
    return await asyncio.gather(*map(stack.enter_async_context, starting))


async def published(server, channel, data, **fields):
    """Publish without a session; return the position."""
    wire = await server.wire()
    reply = (await wire.post(publish(channel, data, **fields))).messages[0]
    assert reply["successful"], reply
    return reply["ext"]["position"]


async def stream(servers):
    """Connect to NATS, and return a client and what it says of the stream."""
    client = NatsClient()
    await client.connect(servers.urls)
    return client, await client.jetstream().stream_info("halley")


async def test_all_goes_on_where_it_was(tmp_path):
    """No row is lost or doubled, keys hold, and the state is beside the rows from then on."""
    unpack(tmp_path)
    async with nats_servers(tmp_path) as servers:
        for is_first in (True, False):
            async with AsyncExitStack() as stack:
                nodes = await started(stack, tmp_path, servers)
                last = LAST if is_first else LAST + 1
                found = [await rows(each, last) for each in nodes]
                assert found[0] == found[1]
                assert [row["offset"] for row in found[0]] == [*range(1, last + 1)]
                for at, (key, (channel, position)) in enumerate(KEYS.items()):
                    assert await published(nodes[at % 2], channel, "again", ext={"idempotency_key": key}) == position
                assert await published(nodes[is_first], "/room/0", "new") == last + 1
                await rows(nodes[0], last + 1)
                await rows(nodes[1], last + 1)
        client, info = await stream(servers)
        await client.close()
        assert info.config.max_age in (0, None)
        assert not [*tmp_path.glob("*/cluster.json")]


async def test_what_the_stream_has_deleted_needs_recovery(tmp_path):
    """Where the frames behind the saved state are gone, no node guesses; one line says what to do, and that helps."""
    unpack(tmp_path)
    async with nats_servers(tmp_path) as servers:
        client, info = await stream(servers)
        await client.jetstream().purge_stream("halley", seq=info.state.last_seq)
        await client.close()
        own = ("--cluster", servers.urls, "--node", "a", "--data-dir", str(tmp_path / "a"), *FREE_PORTS)
        short = SETTINGS | {"HALLEY_CLUSTER_JOIN_S": "1", "HALLEY_OPERATIONS_ENABLED": "off"}
        refused = await ended("serve", *own, cwd=tmp_path, **short)
        assert (refused.code, "halley cluster recover" in refused.lines[-1]) == (75, True), refused
        recover = ("cluster", "recover", servers.urls, "--data-dir", str(tmp_path / "a"), "--yes", "--discard")
        recovered = await ended(*recover, cwd=tmp_path, **SETTINGS)
        assert recovered.code == 0, recovered
        async with AsyncExitStack() as stack:
            nodes = await started(stack, tmp_path, servers)
            position = await published(nodes[1], "/room/0", "new")
            assert position > LAST
            found = [await rows(each, position) for each in nodes]
            assert found[0] == found[1]
            assert [json.loads(row["payload"]) for row in found[0]][-1] == "new"
            assert [row["offset"] for row in found[0]][:LAST] == [*range(1, LAST + 1)]
