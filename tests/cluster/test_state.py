"""What a keeper has applied is saved with its rows: it starts again by itself, whatever the stream has lost since."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from contextlib import AsyncExitStack, closing

import pytest
from nats.aio.client import Client as NatsClient
from support.log import OpenLog
from support.messages import publish
from support.nats import nats_servers, node, rows
from support.wire import DEADLINE_S

from halley.broker.names import Match, Pattern
from halley.broker.ports import Erasure
from halley.cluster.frames import control_to_json
from halley.cluster.membership import saved_state
from halley.history import checksummed_json
from halley.history.examination import verify
from halley.history.folder import segment_files
from halley.history.state import Change

pytestmark = pytest.mark.slow

JOIN_S = {"HALLEY_CLUSTER_JOIN_S": "300"}
"""A node that waited for another one would do so for longer than the test."""


async def published(server, data, channel="/chat/room", **fields):
    """Publish without a session; return the position."""
    wire = await server.wire()
    reply = (await wire.post(publish(channel, data, **fields))).messages[0]
    assert reply["successful"], reply
    return reply["ext"]["position"]


async def killed(server):
    server.send_signal(signal.SIGKILL)
    await server.exit_code()


async def purged(nats, *keepers):
    """Purge the stream, once these keepers say that they have saved all of it."""
    client = NatsClient()
    await client.connect(nats.urls)
    stream = client.jetstream()
    heard = {name: await client.subscribe(f"halley.h.{name}") for name in keepers}
    last = (await stream.stream_info("halley")).state.last_seq
    for each in heard.values():
        async with asyncio.timeout(DEADLINE_S):
            while json.loads((await each.next_msg(DEADLINE_S)).data)["saved"] < last:
                pass
    await stream.purge_stream("halley", seq=last + 1)
    await client.close()


async def test_a_keeper_whose_stream_is_empty_starts_by_itself(tmp_path):
    """Killed, and its frames have gone meanwhile: all of them are in its folder, with the keys."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            first = await published(a, 1, ext={"idempotency_key": "k"})
            last = await published(a, 2)
            await purged(nats, "a")
            before = await rows(a, last)
            await killed(a)
        async with node(tmp_path, nats, "a", **JOIN_S) as a:
            assert await published(a, 1, ext={"idempotency_key": "k"}) == first
            assert await published(a, 3) == last + 1
            assert (await rows(a, last + 1))[:last] == before
    assert not (tmp_path / "a" / "cluster.json").exists()


async def test_two_keepers_do_not_wait_for_each_other(tmp_path):
    """The power was off, and the stream has nothing left: both start, and neither needs what the other has."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a, node(tmp_path, nats, "b") as b:
            last = await published(a, 1)
            await rows(b, last)
            await purged(nats, "a", "b")
            await killed(a)
            await killed(b)
        async with AsyncExitStack() as stack:
            starting = [node(tmp_path, nats, each, **JOIN_S) for each in "ab"]
            a, b = await asyncio.gather(*map(stack.enter_async_context, starting))
            assert await published(b, 2) == last + 1
            assert await published(a, 3) == last + 2
            assert await rows(a, last + 2) == await rows(b, last + 2)


async def test_frames_behind_the_state_are_applied_again(tmp_path):
    """Many segments, a node that is killed at some moment, again and again: the other one has the same rows."""
    settings = {"HALLEY_HISTORY_SEGMENT_BYTES": "65536"}
    async with nats_servers(tmp_path) as nats, AsyncExitStack() as stack:
        b = await stack.enter_async_context(node(tmp_path, nats, "b", **settings))
        last = 0
        for number in range(4):
            async with node(tmp_path, nats, "a", **settings) as a:
                for _ in range(10):
                    pieces = await asyncio.gather(*(published(b, f"{number} {'x' * 900}") for _ in range(10)))
                    last = max(last, *pieces)
                await killed(a)
        async with node(tmp_path, nats, "a", **settings) as a:
            assert await rows(a, last) == await rows(b, last)
            assert a.logged("cluster_copying") == []
    assert verify(tmp_path / "a").damage == []


async def test_a_folder_of_the_version_before_goes_on(tmp_path):
    """Its state is in a file, and is behind its rows; from now on it is with them."""
    folder = tmp_path / "a"
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            first = await published(a, 1, ext={"idempotency_key": "k"})
        before = saved_state(folder)
        async with node(tmp_path, nats, "a") as a:
            await published(a, 2)
            last = await published(a, 3)
            expected = await rows(a, last)
        for _, file in segment_files(folder):
            with closing(sqlite3.connect(file)) as connection:
                connection.executescript("drop table if exists state; drop table if exists state_of_events")
        checksummed_json.save(folder / "cluster.json", before)
        async with node(tmp_path, nats, "a", **JOIN_S) as a:
            assert await published(a, 1, ext={"idempotency_key": "k"}) == first
            assert await published(a, 4) == last + 1
            assert (await rows(a, last + 1))[:last] == expected
            assert not (folder / "cluster.json").exists()
    assert saved_state(folder)["offset"] == last + 1


async def test_what_was_to_be_erased_is_erased_before_the_node_serves(tmp_path):
    """It was killed between the erasure's place in the stream and the end of the work."""
    folder = tmp_path / "a"
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a") as a:
            erased = await published(a, "a secret", "/private/room")
            last = await published(a, "kept")
        due = [control_to_json(Erasure(Pattern(Match.DESCENDANTS, "private"), None)), erased]
        with OpenLog(folder) as log:
            log.history.change(Change(None, 0, 0, {"erasure/1": due}))
        async with node(tmp_path, nats, "a") as a:
            shapes = [row["shape"] for row in await rows(a, last)]
            assert (shapes[erased - 1], shapes[last - 1] == "purged") == ("purged", False)
            assert await published(a, "later", "/private/room") == last + 1
        async with node(tmp_path, nats, "a") as a:
            assert (await rows(a, last + 1))[-1]["payload"] == '"later"', "it is done, and what came later stays"
    assert [file.name for file in folder.iterdir() if b"a secret" in file.read_bytes()] == []
