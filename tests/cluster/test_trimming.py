"""Nodes on a real NATS server whose stream is small: it is trimmed, fills, and is changed, and everybody is told."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from nats.aio.client import Client as NatsClient
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows
from support.process import ended
from support.wire import DEADLINE_S

pytestmark = pytest.mark.slow

SMALL_BYTES = 1_048_576
SMALL = {
    "HALLEY_CLUSTER_STREAM_BYTES": str(SMALL_BYTES),
    "HALLEY_CLUSTER_STREAM_KEEP_S": "1",
    "HALLEY_LIMITS_PUBLISHES_PER_S": "0",
    "HALLEY_HISTORY_COMMIT_S": "3",
}


class Publisher:
    """Publishes large events at a node, one after another, and knows what was acknowledged where."""

    def __init__(self, server):
        self.server = server
        self.acknowledged = {}
        self.errors = []
        self.sent = 0

    async def publish(self, nbytes=20_000):
        self.sent += 1
        wire = await self.server.wire()
        reply = (await wire.post(publish("/chat/room", f"{self.sent}:" + "x" * nbytes))).messages[0]
        await wire.close()
        if reply["successful"]:
            self.acknowledged[reply["ext"]["position"]] = self.sent
        else:
            self.errors.append(reply["error"])
        return reply

    async def publish_at(self, bytes_per_s, until):
        """Publish at that rate until something is the case, for 30 s at most."""
        async with asyncio.timeout(DEADLINE_S):
            while not await until():
                await asyncio.gather(self.publish(), asyncio.sleep(20_000 / bytes_per_s))

    async def check(self, *keepers):
        """Check that keepers have all that was acknowledged, each event once and where the publisher was told."""
        for keeper in keepers:
            stored = [row for row in await rows(keeper, max(self.acknowledged)) if row["topic"] == "chat/room"]
            found = {row["offset"]: int(json.loads(row["payload"]).partition(":")[0]) for row in stored}
            assert self.acknowledged.items() <= found.items()
            assert len(set(found.values())) == len(found)


async def figures(server):
    """What a node knows of the cluster."""
    async with httpx.AsyncClient(verify=False) as client:
        return (await client.get(f"http://127.0.0.1:{server.operations_port}/cluster")).json()


async def health(server):
    """The status and body of a node's health check."""
    async with httpx.AsyncClient(verify=False) as client:
        answer = await client.get(f"http://127.0.0.1:{server.operations_port}/health/ready")
    return answer.status_code, answer.text


async def metrics(server):
    """A node's metrics, by name and labels."""
    async with httpx.AsyncClient(verify=False) as client:
        lines = (await client.get(f"http://127.0.0.1:{server.operations_port}/metrics")).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


async def until(condition):
    """Wait until an awaitable condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not await condition():
            await asyncio.sleep(0.1)


async def status(folder, nats, *more):
    """What `halley cluster status` prints."""
    result = await ended("cluster", "status", nats.urls, *more, cwd=folder)
    assert result.code == 0, result.lines
    return "\n".join(result.output)


@asynccontextmanager
async def stranger(nats, **proof):
    """A connection to NATS of somebody else."""
    client = NatsClient()
    await client.connect(nats.urls, **proof)
    yield client
    await client.close()


@asynccontextmanager
async def heartbeats_of_before(nats):
    """Let a node `old` of a version that does not say why it refuses be heard within the block."""

    async def beat(client):
        while True:
            await client.publish("halley.h.old", b'{"node":"old","keeps":true,"sequence":1}')
            await asyncio.sleep(0.5)

    async with stranger(nats) as client:
        beating = asyncio.create_task(beat(client))
        yield
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


def reasons(server):
    """Why a node has refused durable publishes, one after another."""
    return [line["reason"] for line in server.logged("history_unavailable")]


async def test_more_is_published_than_the_stream_holds(tmp_path):
    """Twice as much, and nothing is refused; what all keepers have leaves, and what a front was told is true."""
    async with (
        nats_servers(tmp_path) as nats,
        node(tmp_path, nats, "a", **SMALL) as a,
        node(tmp_path, nats, "b", **SMALL) as b,
        node(tmp_path, nats, "f", keeps=False, **SMALL) as f,
    ):
        publisher = Publisher(f)

        async def have_kept_up():
            found = await figures(f)
            last = found["stream"]["last"] if found["stream"] else math.inf
            return all((each["saved"] or 0) > last - 25 for each in found["keepers"])

        async def is_enough():
            await until(have_kept_up)  # on a busy machine; a keeper that does not would rightly be left behind
            return publisher.sent * 20_000 > 2 * SMALL_BYTES

        await publisher.publish_at(150_000, is_enough)
        assert publisher.errors == []
        await publisher.check(a, b)

        async def is_trimmed():
            return (await figures(f))["stream"]["first"] > publisher.sent / 2

        await until(is_trimmed)
        found = await metrics(f)
        assert 0 <= found["halley_cluster_stream_bytes"] < SMALL_BYTES == found["halley_cluster_stream_max_bytes"]
        assert found["halley_cluster_keepers"] == 2
        assert not [line for each in (a, b, f) for line in each.logged("cluster_keeper_left_behind")]


async def test_a_keeper_that_is_away(tmp_path):
    """It is waited for until the stream fills, then left behind; then it copies. Gone for good it is struck off."""
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a", **SMALL) as a:
        publisher = Publisher(a)
        async with node(tmp_path, nats, "c", **SMALL) as c:
            await publisher.publish()
            await publisher.check(c)

        async def is_left_behind():
            return bool(a.logged("cluster_keeper_left_behind"))

        await publisher.publish_at(100_000, is_left_behind)  # slow enough for a busy node to trim it before it is full
        (line,) = a.logged("cluster_keeper_left_behind")
        assert line["node"] == "c"
        assert 0 <= line["saved"] < 10
        await a.until_logged("cluster_stream_filling")
        (line,) = a.logged("cluster_stream_filling")
        assert 0.8 * SMALL_BYTES <= line["bytes"] < line["max_bytes"] == SMALL_BYTES

        async def is_smaller():
            return (await metrics(a))["halley_cluster_stream_bytes"] < SMALL_BYTES / 2

        await until(is_smaller)
        assert publisher.errors == []
        mine, other = (await figures(a))["keepers"]
        assert (mine["node"], mine["away_s"], mine["is_left_behind"]) == ("a", 0, False)
        assert (other["node"], other["away_s"] > 0, other["is_left_behind"]) == ("c", True, True)
        assert (await metrics(a))["halley_cluster_keepers_away"] == 1
        text = await status(tmp_path, nats)
        assert "keeper c is away, for " in text
        assert "have left the stream" in text
        told = json.loads(await status(tmp_path, nats, "--json"))
        assert (told["away"][0]["node"], told["nodes"][0]["saved"] > 10) == ("c", True)
        refused = await ended("cluster", "forget", "a", nats.urls, cwd=tmp_path)
        assert (refused.code, refused.lines) == (1, ["halley: a is running: stop it first"])
        refused = await ended("cluster", "forget", "z", nats.urls, cwd=tmp_path)
        assert (refused.code, refused.lines) == (1, ["halley: the cluster halley has no keeper z, but a, c"])
        async with heartbeats_of_before(nats):
            refused = await ended("cluster", "forget", "c", nats.urls, cwd=tmp_path)
        text = "halley: these nodes are of an older version of Halley, which cannot forget: old"
        assert (refused.code, refused.lines) == (1, [text])
        async with node(tmp_path, nats, "c", **SMALL) as c:
            assert c.logged("cluster_copying")
            await publisher.publish()
            await publisher.check(a, c)
        forgotten = await ended("cluster", "forget", "c", nats.urls, cwd=tmp_path)
        assert (forgotten.code, forgotten.output) == (0, ["c is not a keeper of the cluster halley any more"])

        async def is_forgotten():
            return [each["node"] for each in (await figures(a))["keepers"]] == ["a"]

        await until(is_forgotten)
        await publisher.publish_at(150_000, is_smaller)
        await publisher.check(a)
        async with node(tmp_path, nats, "c", **SMALL):

            async def is_back():
                return [each["node"] for each in (await figures(a))["keepers"]] == ["a", "c"]

            await until(is_back)


async def test_a_keeper_that_is_away_for_long(tmp_path):
    """It is left behind after `cluster.keeper_away_s`, however much room there is."""
    settings = SMALL | {"HALLEY_CLUSTER_KEEPER_AWAY_S": "2"}
    async with nats_servers(tmp_path) as nats, node(tmp_path, nats, "a", **settings) as a:
        publisher = Publisher(a)
        async with node(tmp_path, nats, "c", **settings) as c:
            await publisher.publish()
            await publisher.check(c)
        await publisher.publish()
        await a.until_logged("cluster_keeper_left_behind")
        assert not a.logged("cluster_stream_filling")
        async with node(tmp_path, nats, "c", **settings) as c:
            await publisher.check(c)
            assert c.logged("cluster_copying")


async def test_settings_are_applied_to_a_stream_that_exists(tmp_path):
    """Also to one that a version before has made, which lost frames by their age; or the start says why not."""
    async with nats_servers(tmp_path) as nats:
        async with node(tmp_path, nats, "a", **SMALL) as a:
            await Publisher(a).publish()
        async with stranger(nats) as client:
            info = await client.jetstream().stream_info("halley")
            await client.jetstream().update_stream(info.config, max_age=86_400)
        larger = SMALL | {"HALLEY_CLUSTER_STREAM_BYTES": "8388608"}
        async with node(tmp_path, nats, "a", **larger) as a, stranger(nats) as client:
            (line,) = a.logged("cluster_stream_changed")
            assert line["now"] == {"max_age": 0, "max_bytes": 8_388_608}
            config = (await client.jetstream().stream_info("halley")).config
            assert (config.max_age, config.max_bytes) == (0, 8_388_608)
        async with node(tmp_path, nats, "a", **larger) as a:
            assert not a.logged("cluster_stream_changed")
        arguments = ("serve", "--cluster", nats.urls, "--node", "a", "--data-dir", str(tmp_path / "a"), *FREE_PORTS)
        result = await ended(*arguments, cwd=tmp_path, HALLEY_CLUSTER_STREAM_BYTES="99000000000000")
        text = "NATS does not change the stream halley to max_bytes 99000000000000: insufficient storage resources"
        assert (result.code, text in result.lines[-1]) == (2, True), result.lines


async def test_a_front_without_a_keeper(tmp_path):
    """It goes on while the stream has room, and says so; then it refuses, and the keeper has everything later."""
    settings = SMALL | {"HALLEY_CLUSTER_SETTLED_BY": "stream", "HALLEY_CLUSTER_JOIN_S": "30"}
    async with nats_servers(tmp_path, 3) as nats, AsyncExitStack() as stack:
        async with node(tmp_path, nats, "k", **settings) as k:
            f = await stack.enter_async_context(node(tmp_path, nats, "f", keeps=False, **settings))
            publisher = Publisher(f)
            await publisher.publish()
            await publisher.check(k)
        await f.until_logged("cluster_no_keeper")
        assert (await publisher.publish())["successful"]
        assert await health(f) == (200, "ready\n")

        async def has_none():
            return (await metrics(f))["halley_cluster_keepers"] == 0

        async def is_refused():
            return bool(publisher.errors)

        await until(has_none)
        await publisher.publish_at(100_000, is_refused)  # slow enough for a busy node to see 80 % before 100 %
        assert publisher.errors == ["503::history_unavailable"]
        await f.until_logged("history_unavailable")
        assert reasons(f) == ["no_keeper"]
        assert await health(f) == (200, "ready\nhistory_unavailable: no_keeper\n")
        found = await metrics(f)
        assert found['halley_history_unavailable{reason="no_keeper"}'] == 1
        assert found['halley_history_unavailable{reason="stream_full"}'] == 0
        assert 0.8 <= found["halley_cluster_stream_bytes"] / found["halley_cluster_stream_max_bytes"] < 0.95
        (own,) = (await figures(f))["nodes"]
        assert (own["node"], own["refusal"]) == ("f", "no_keeper")
        assert "no_keeper" in await status(tmp_path, nats)
        refused = await ended("cluster", "forget", "k", nats.urls, cwd=tmp_path)
        assert (refused.code, refused.lines) == (1, ["halley: no keeper answers: start one first"])
        async with node(tmp_path, nats, "k", **settings) as k:
            await f.until_logged("history_recovered")
            assert (await publisher.publish())["successful"]
            await publisher.check(k)
            assert len(f.logged("cluster_no_keeper")) == 1


async def test_a_stream_that_is_full(tmp_path):
    """Here a user may not trim it. Publishers are refused, all are told why, and with room again it goes on."""
    me = '{ user: me, password: me, permissions: { publish: { deny: "$JS.API.STREAM.PURGE.>" } } }'
    more = f"authorization {{ users: [ {me}, {{ user: you, password: you }} ] }}\n"
    (tmp_path / "password").write_text("me")
    proof = {"HALLEY_CLUSTER_USER": "me", "HALLEY_CLUSTER_PASSWORD_FILE": str(tmp_path / "password")}
    settings = SMALL | proof | {"HALLEY_HISTORY_COMMIT_S": "1"}
    async with nats_servers(tmp_path, more=more) as nats, node(tmp_path, nats, "a", **settings) as a:
        publisher = Publisher(a)
        async with asyncio.timeout(DEADLINE_S):
            while "503::history_unavailable" not in publisher.errors:
                await publisher.publish(60_000)
        assert len(publisher.acknowledged) > 10
        await a.until_logged("history_unavailable")
        assert reasons(a) == ["stream_full"]
        assert await health(a) == (200, "ready\nhistory_unavailable: stream_full\n")
        assert (await metrics(a))['halley_history_unavailable{reason="stream_full"}'] == 1
        await a.until_logged("cluster_not_trimmed")
        check = await ended("cluster", "check", nats.urls, cwd=tmp_path, **proof)
        assert "STREAM.PURGE" in "\n".join(check.output)
        async with stranger(nats, user="you", password="you") as client:
            await client.jetstream().purge_stream("halley")
        await a.until_logged("history_recovered")
        last = (await publisher.publish())["ext"]["position"]
        await publisher.check(a)
        unknown = publisher.errors.count("503::history_outcome_unknown")
        assert last == len(publisher.acknowledged) + unknown, "what was on its way is stored once"


async def test_a_node_that_nats_does_not_let_in(tmp_path):
    """That is not the same as a NATS that is away, and concerns this node alone: balancers choose others."""

    def users(password):
        return f'authorization {{ users: [ {{ user: me, password: "{password}" }} ] }}\n'

    (tmp_path / "password").write_text("sesame")
    settings = {
        "HALLEY_CLUSTER_USER": "me",
        "HALLEY_CLUSTER_PASSWORD_FILE": str(tmp_path / "password"),
        "HALLEY_CLUSTER_LOST_S": "2",
    }
    async with nats_servers(tmp_path, more=users("sesame")) as nats, node(tmp_path, nats, "a", **settings) as a:
        nats.kill(0)

        async def is_away():
            return reasons(a) == ["nats_away"] and await health(a) == (
                503,
                "not ready\nhistory_unavailable: nats_away\n",
            )

        await until(is_away)
        nats.more = users("another")
        nats.start(0)

        async def is_refused():
            return reasons(a) == ["nats_away", "auth"] and await health(a) == (
                503,
                "not ready\nhistory_unavailable: auth\n",
            )

        await until(is_refused)
