"""An idempotency key that is used again with other data, at any node of a cluster, also next to one of before."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack

import httpx
import pytest
from support.messages import publish
from support.nats import files_with, nats_servers, node, rows, url_of
from support.wire import DEADLINE_S

from halley.protocols.value_digest import digest_of

pytestmark = pytest.mark.slow

REUSED = "409::idempotency_key_reused"
BEFORE = {"FIRST": "cluster.other_version:be_without_digests"}


async def outcome(server, data, key="k", channel="/chat/room"):
    """Publish with a key; return the position, or the error."""
    wire = await server.wire()
    (reply,) = (await wire.post(publish(channel, data, ext={"idempotency_key": key}))).messages
    return reply["ext"]["position"] if reply["successful"] else reply["error"]


async def stored(server, last):
    """Return what is stored up to a position, with the keys."""
    return [
        (row["offset"], row["idempotency_key"], row["payload"])
        for row in await rows(server, last)
        if row["idempotency_key"] is not None or row["shape"] == "purged"
    ]


async def test_each_node_knows_what_another_has_published(tmp_path):
    """At once and after a restart, as a keeper and as a front; and one that joins later knows it, too."""
    async with nats_servers(tmp_path) as nats, AsyncExitStack() as stack:

        async def start(name, within=stack):
            return await within.enter_async_context(node(tmp_path, nats, name, keeps=name != "front"))

        async with AsyncExitStack() as run:
            a, front = await start("a"), await start("front", run)
            b = await start("b", run)
            position = await outcome(front, {"order": 1.0, "of": []})
            for each in (a, b, front):
                async with asyncio.timeout(DEADLINE_S):
                    while (await outcome(each, {"of": [], "order": 1})) != position:
                        pass
                assert await outcome(each, {"order": 2, "of": []}) == REUSED
            for each in (b, front):
                each.send_signal(signal.SIGKILL)
                await each.exit_code()
        b, front, joined = await start("b"), await start("front"), await start("c")
        for each in (b, front, joined):
            assert await outcome(each, {"order": 2, "of": []}) == REUSED
            assert await outcome(each, {"of": [], "order": 1}) == position
        async with AsyncExitStack() as run:
            joined.send_signal(signal.SIGTERM)
            await joined.exit_code()
            joined = await start("c", run)
            assert await outcome(joined, {"order": 2, "of": []}) == REUSED
            last = await outcome(joined, 1, "another")
            assert [await stored(each, last) for each in (a, b, joined)] == 3 * [
                [(position, "k", '{"order":1.0,"of":[]}'), (last, "another", "1")]
            ]


async def test_two_at_once(tmp_path):
    """One of two publishers with the same key and other data is refused, and all nodes have the same events."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a") as a, node(tmp_path, nats, "b") as b:
        found = [await asyncio.gather(outcome(a, "a", f"k{turn}"), outcome(b, "b", f"k{turn}")) for turn in range(40)]
        positions = [[each for each in outcomes if isinstance(each, int)] for outcomes in found]
        assert [len(each) for each in positions] == [1] * 40
        assert {each for outcomes in found for each in outcomes if isinstance(each, str)} == {REUSED}
        last = positions[-1][0]
        assert await rows(a, last) == await rows(b, last)
        assert [offset for offset, _, _ in await stored(a, last)] == [each for (each,) in positions]
        for turn, outcomes in enumerate(found):
            assert await asyncio.gather(outcome(b, "a", f"k{turn}"), outcome(a, "b", f"k{turn}")) == outcomes


async def test_next_to_a_node_of_before(tmp_path):
    """It compares channels, as ever, and so do the others with what it publishes; all nodes number alike, and erase."""
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "a") as a,
        node(tmp_path, nats, "b") as b,
        node(tmp_path, nats, "before", **BEFORE) as before,
    ):
        nodes = a, b, before

        async def until_all_have(position):
            return [await rows(each, position) for each in nodes]

        ours = await outcome(a, "secret", "ours", "/private/room")
        theirs = await outcome(before, "secret", "theirs", "/private/room")
        await until_all_have(theirs)
        assert [await outcome(each, "other", "ours", "/private/room") for each in nodes] == [REUSED, REUSED, ours]
        assert [await outcome(each, "other", "theirs", "/private/room") for each in nodes] == [theirs] * 3
        assert [await outcome(each, "secret", "ours") for each in nodes] == [REUSED] * 3
        found = [
            await asyncio.gather(
                outcome(a, "a", f"k{turn}"), outcome(before, "b", f"k{turn}"), outcome(b, "a", f"k{turn}")
            )
            for turn in range(20)
        ]
        last = await outcome(a, "end", "end")
        await until_all_have(last)
        assert await rows(a, last) == await rows(b, last) == await rows(before, last)
        assert [offset for offset, key, _ in await stored(a, last) if key.startswith("k")] == [
            next(each for each in outcomes if isinstance(each, int)) for outcomes in found
        ]
        erased = {ours, theirs}
        for eraser in (before, a):
            async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
                answer = await client.post(f"{url_of(eraser)}/log/purge", json={"channel": "/private/**"})
            assert json.loads(answer.text.splitlines()[-1]) == {"erased": len(erased)}
            assert (
                files_with(
                    tmp_path, b"private/room", b"theirs", digest_of(b'"secret"'), digest_of(b'"secret"').hex().encode()
                )
                == []
            )
            last = await outcome(b, "after", f"after {eraser.port}")
            found = await until_all_have(last)
            assert found == 3 * found[:1]
            assert erased <= {row["offset"] for row in found[0] if row["shape"] == "purged"}
            erased = {await outcome(each, "secret", "another of theirs", "/private/room") for each in (before, a)}
            await until_all_have(max(erased))
        assert [each.logged("cluster_diverged") for each in nodes] == [[]] * 3
