"""Events erased at one node are gone from all folders and from the files of NATS, and nodes have equal rows."""

from __future__ import annotations

import asyncio
import json
import signal

import httpx
import pytest
from support.messages import publish
from support.nats import files_with, nats_servers, node, rows, url_of
from support.wire import DEADLINE_S

from halley.client import ALL, Client, HistoryClient

pytestmark = pytest.mark.slow


async def published(server, channel, data, **fields):
    """Publish without a session; return the position."""
    wire = await server.wire()
    reply = (await wire.post(publish(channel, data, **fields))).messages[0]
    assert reply["successful"], reply
    return reply["ext"]["position"]


async def purge(server):
    """Erase; return the status and the last line of the answer."""
    async with httpx.AsyncClient(timeout=DEADLINE_S, verify=False) as client:
        answer = await client.post(f"{url_of(server)}/log/purge", json={"channel": "/private/**"})
    return answer.status_code, json.loads(answer.text.splitlines()[-1])


async def heard(server):
    """What a new subscriber of everything gets by replay."""
    async with Client(url_of(server)) as client:
        await client.subscribe("/chat/**", after=ALL)
        await client.subscribe("/private/**", after=ALL)
        await published(server, "/chat/room", "end")
        events = []
        async with asyncio.timeout(DEADLINE_S):
            while "end" not in events:
                events.append((await anext(client)).data)
        return events


async def test_erased_at_one_node_is_gone_everywhere(tmp_path):
    """From the stream at once, and from the folder of a node that was away before it serves."""
    traces = b"a secret", b"secret-key", b"private/room"
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "a") as a,
        node(tmp_path, nats, "front", keeps=False) as front,
    ):
        async with node(tmp_path, nats, "c") as c:
            for server in (a, front, c):
                await published(server, "/chat/room", "kept")
                await published(server, "/private/room", "a secret")
            keyed = await published(a, "/private/room", "a secret", ext={"idempotency_key": "secret-key"})
            await rows(c, keyed)
            c.send_signal(signal.SIGTERM)
            await c.exit_code()
        last = await published(front, "/private/room", "a secret")  # which c has never seen
        assert await purge(a) == (202, {"erased": 5, "missing": ["c"]})
        stored = await rows(a, last)
        assert [row["offset"] for row in stored if row["shape"] == "purged"] == [2, 4, 6, 7, 8]
        assert await heard(front) == ["kept", "kept", "kept", "end"]
        assert files_with(tmp_path / "a", *traces) == []
        assert files_with(tmp_path / "c", *traces) != []
        assert files_with(tmp_path / "0", *traces) == [], "the stream keeps nothing for c"
        async with node(tmp_path, nats, "c") as c:
            async with HistoryClient(url_of(c)) as client:
                head = (await client.log_head())["next"]
                seen = [json.loads(line) async for _, lines in client.rows(1, head) for line in lines]
            assert seen[: len(stored)] == stored, "it served before it had erased"
            assert files_with(tmp_path / "c", *traces) == []
            assert await purge(c) == (200, {"erased": 0})
            a.send_signal(signal.SIGKILL)
            await a.exit_code()
            async with node(tmp_path, nats, "a") as again, node(tmp_path, nats, "new") as new:
                assert await published(front, "/private/room", 1, ext={"idempotency_key": "secret-key"}) == keyed
                after = await published(new, "/private/room", "a new secret")
                stored = await rows(c, after)
                assert stored[after - 1]["payload"] == '"a new secret"', "what came later is not erased"
                assert stored == await rows(again, after)
                assert stored == await rows(new, after)
                assert files_with(tmp_path / "new", *traces[:2]) == []
