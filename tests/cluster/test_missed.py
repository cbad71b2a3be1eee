"""Nodes that run and have missed a part of the stream: they get it from a keeper, and their clients get every event."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import httpx
import pytest
from nats.aio.client import Client as NatsClient
from support import wamp
from support.messages import publish
from support.nats import nats_servers, node, rows, taken, url_of
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S

from halley.client import ALL, Client

pytestmark = pytest.mark.slow

POLLS = 100


async def published(server, channel, data, **fields):
    """Publish without a session; return the reply."""
    wire = await server.wire()
    return (await wire.post(publish(channel, data, **fields))).messages[0]


async def until_taken(server, channel, data):
    """Publish until it is acknowledged; return the position."""
    async with asyncio.timeout(DEADLINE_S):
        while not (reply := await published(server, channel, data))["successful"]:
            await asyncio.sleep(0.05)
        return reply["ext"]["position"]


async def trim(nats, keep=0):
    """Delete all frames from the stream but the last ones."""
    client = NatsClient()
    await client.connect(nats.urls)
    await client.jetstream().purge_stream("halley", keep=keep)
    await client.close()


@asynccontextmanager
async def behind_a_proxy(nats):
    """Yield the proxy of a node, and the servers as that one has them."""
    async with relaying(nats.ports[0]) as proxy:
        yield proxy, SimpleNamespace(urls=f"nats://127.0.0.1:{proxy.port}")


async def test_a_front_that_was_cut_off_for_three_trims_with_held_polls(tmp_path):
    """Each of its clients gets each event once and in order, in the same session; retained events and keys come too."""
    async with (
        nats_servers(tmp_path) as nats,
        behind_a_proxy(nats) as (proxy, relayed),
        node(tmp_path, nats, "k") as k,
        node(tmp_path, relayed, "f", keeps=False) as f,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(Client(url_of(f))) for _ in range(POLLS)]
        for client in clients:
            await client.subscribe("/chat/**")
        before = [client.client_id for client in clients]
        await until_taken(k, "/chat/room", "first")
        assert [[event.data for event in await taken(client, 1)] for client in clients] == [["first"]] * POLLS
        proxy.cut()
        async with Client(url_of(k)) as publisher:
            for turn in range(3):
                await publisher.publish_many("/chat/room", range(turn * 20, turn * 20 + 20))
                await publisher.publish_many("/other/room", range(20))
                await trim(nats, keep=turn % 2)
        keyed = await published(k, "/chat/keyed", "keyed", ext={"idempotency_key": "k"})
        await trim(nats)
        proxy.mend()
        again = await published(f, "/chat/keyed", "keyed", ext={"idempotency_key": "k"})
        while not again["successful"]:
            again = await published(f, "/chat/keyed", "keyed", ext={"idempotency_key": "k"})
        assert again["ext"] == keyed["ext"]
        last = await until_taken(f, "/chat/room", "last")
        expected = [*range(60), "keyed", "last"]
        heard = [await taken(client, len(expected)) for client in clients]
        assert [[event.data for event in events] for events in heard] == [expected] * POLLS
        stored = [row for row in await rows(k, last) if row["topic"].startswith("chat/")][1:]
        assert [event.position for event in heard[0]] == [row["offset"] for row in stored]
        assert [client.client_id for client in clients] == before
        assert json.loads(await f.until_logged("cluster_healed"))["last"] >= keyed["ext"]["position"]
        assert not f.logged("cluster_diverged")


async def test_a_keeper_that_was_cut_off_has_every_row(tmp_path):
    """It writes what it missed, delivers it, and goes on; it keeps both when it is started again."""
    async with nats_servers(tmp_path) as nats, behind_a_proxy(nats) as (proxy, relayed), node(tmp_path, nats, "k") as k:
        async with node(tmp_path, relayed, "l") as other, Client(url_of(other)) as client:
            await client.subscribe("/chat/**")
            await until_taken(k, "/chat/room", "first")
            await taken(client, 1)
            for turn in range(2):
                proxy.cut()
                async with Client(url_of(k)) as publisher:
                    await publisher.publish_many("/chat/room", ["x" * 2_000] * 1_000)
                await trim(nats)
                proxy.mend()
                await other.until(lambda turn=turn: len(other.logged("cluster_healed")) > turn)
                assert len({event.position for event in await taken(client, 1_000)}) == 1_000
            last = await until_taken(other, "/chat/room", "last")
            assert [event.data for event in await taken(client, 1)] == ["last"]
            stored = await rows(k, last)
            assert stored == await rows(other, last)
        async with node(tmp_path, nats, "l") as other:
            assert await rows(other, last) == stored


async def test_a_front_that_stood_still_while_the_stream_was_trimmed(tmp_path):
    """It goes on as one that was cut off, whatever its NATS server still had for it."""
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "k") as k,
        node(tmp_path, nats, "f", keeps=False) as f,
        Client(url_of(f)) as client,
    ):
        await client.subscribe("/chat/**")
        await until_taken(k, "/chat/room", "first")
        await taken(client, 1)
        f.send_signal(signal.SIGSTOP)
        try:
            async with Client(url_of(k)) as publisher:
                for turn in range(3):
                    await publisher.publish_many("/chat/room", range(turn * 100, turn * 100 + 100))
                    await asyncio.sleep(4)  # after some seconds NATS gives up the consumer
                    await trim(nats)
        finally:
            f.send_signal(signal.SIGCONT)
        await until_taken(f, "/chat/room", "last")
        assert [event.data for event in await taken(client, 301)] == [*range(300), "last"]
        assert not f.logged("cluster_diverged")


async def test_publishes_of_a_node_that_misses_their_frames(tmp_path):
    """They are answered, and delivered once; a subscriber that its publisher left out does not get them."""
    async with (
        nats_servers(tmp_path) as nats,
        behind_a_proxy(nats) as (proxy, relayed),
        node(tmp_path, nats, "k") as k,
        node(tmp_path, relayed, "f", keeps=False) as f,
        Client(url_of(f)) as client,
        await wamp.join(url_of(f)) as peer,
    ):
        await client.subscribe("/chat/**")
        await peer.subscribe("chat", match="prefix")
        await until_taken(k, "/chat/room", "first")
        await taken(client, 1)
        proxy.holds_answers = True  # what it publishes is stored, and does not come back
        publishing = [
            asyncio.create_task(published(f, "/chat/one", "own")),
            asyncio.create_task(published(f, "/chat/keyed", "keyed", ext={"idempotency_key": "k"})),
        ]
        await asyncio.sleep(0.2)
        meanwhile = await until_taken(k, "/chat/room", "of another")
        await trim(nats)
        proxy.cut()
        proxy.holds_answers = False
        proxy.mend()
        replies = await asyncio.gather(*publishing)
        assert [reply["successful"] for reply in replies] == [True, True], replies
        last = await until_taken(f, "/chat/room", "last")
        chat = [row for row in await rows(k, last) if row["topic"].startswith("chat/")]
        stored = {json.loads(row["payload"]): row["offset"] for row in chat}
        assert [reply["ext"]["position"] for reply in replies] == [stored["own"], stored["keyed"]]
        heard = await taken(client, 4)
        assert sorted(event.position for event in heard) == [event.position for event in heard]
        assert {event.data: event.position for event in heard} == {
            name: stored[name] for name in ("own", "keyed", "of another", "last")
        }
        assert meanwhile == stored["of another"]


async def test_a_front_without_a_keeper_waits_for_one(tmp_path):
    """It refuses durable publishes with a reason, says what it waits for, and goes on when a keeper is there."""
    async with (
        nats_servers(tmp_path) as nats,
        behind_a_proxy(nats) as (proxy, relayed),
        node(tmp_path, nats, "k") as k,
        node(tmp_path, relayed, "f", keeps=False) as f,
    ):
        await until_taken(f, "/chat/room", "first")
        proxy.cut()
        await until_taken(k, "/chat/room", "missed")
        await trim(nats)
        k.send_signal(signal.SIGTERM)
        await k.exit_code()
        proxy.mend()
        await f.until(lambda: "no other keeper is running" in [line["waits"] for line in f.logged("cluster_healing")])
        refused = await published(f, "/chat/room", "refused")
        assert refused["error"] == "503::history_unavailable"
        async with node(tmp_path, nats, "k"), Client(url_of(f)) as client:
            await until_taken(f, "/chat/room", "last")
            await client.subscribe("/chat/**", after=ALL)
            assert [event.data for event in await taken(client, 3)] == ["first", "missed", "last"]


async def metric(server, name):
    """The value of a metric of a node."""
    async with httpx.AsyncClient(verify=False) as client:
        text = (await client.get(f"http://127.0.0.1:{server.operations_port}/metrics")).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


async def test_what_is_not_recorded_and_was_missed_is_counted(tmp_path):
    """At the node that was cut off, and at the others of what was published there meanwhile."""
    async with (
        nats_servers(tmp_path) as nats,
        behind_a_proxy(nats) as (proxy, relayed),
        node(tmp_path, nats, "k") as k,
        node(tmp_path, relayed, "f", keeps=False) as f,
    ):
        await until_taken(f, "/chat/room", "first")
        for server in (k, f):
            await server.until_logged("cluster_member")  # so it has had a heartbeat of the other
        for server in (k, f):
            await published(server, "/fleeting/room", "before")
            await until_taken(server, "/chat/room", "behind it on the same connection")
        await until_taken(f, "/chat/room", "behind all of that")
        proxy.cut()
        await f.until_logged("cluster_away")
        for server, count in ((k, 7), (f, 3)):
            for number in range(count):
                await published(server, "/fleeting/room", number)
        proxy.mend()
        await until_taken(f, "/chat/room", "last")
        for server, count in ((f, 7), (k, 3)):
            async with asyncio.timeout(DEADLINE_S):
                while await metric(server, "halley_cluster_missed_total") < count:
                    await asyncio.sleep(0.1)
        await published(k, "/fleeting/room", "after")
        await asyncio.sleep(2.5)
        assert [await metric(server, "halley_cluster_missed_total") for server in (f, k)] == [7, 3]


async def test_an_erasure_that_was_missed(tmp_path):
    """Its frames are gone from the stream: a front and a keeper go on with the same positions, and have erased too."""
    async with (
        nats_servers(tmp_path) as nats,
        behind_a_proxy(nats) as (proxy, relayed),
        node(tmp_path, nats, "k") as k,
        node(tmp_path, relayed, "l") as other,
        node(tmp_path, relayed, "f", keeps=False) as f,
    ):
        async with await wamp.join(url_of(f)) as peer:
            await peer.publish("private.kept", ["a secret"], retain=True)
        seen = await until_taken(f, "/chat/room", "first")
        await rows(other, seen)
        proxy.cut()
        await until_taken(k, "/private/room", "another secret")
        async with httpx.AsyncClient(timeout=DEADLINE_S, verify=False) as client:
            answer = await client.post(f"{url_of(k)}/log/purge", json={"channel": "/private/**"})
        assert json.loads(answer.text.splitlines()[-1])["missing"] == ["l"], "the frames are not deleted yet"
        await trim(nats)
        proxy.mend()
        last = await until_taken(f, "/chat/room", "last")
        stored = await rows(k, last)
        await other.until_logged("cluster_healed")
        assert await rows(other, last) == stored
        assert [row["topic"] for row in stored if row["topic"].startswith(("private", "chat"))] == ["chat/room"] * 2
        async with await wamp.join(url_of(f)) as peer, Client(url_of(f)) as client:
            await peer.subscribe("private.", match="prefix", get_retained=True)
            assert await peer.receive_all() == []
            await client.subscribe("/private/**", after=ALL)
            await client.subscribe("/chat/**", after=ALL)
            assert [event.data for event in await taken(client, 2)] == ["first", "last"]
