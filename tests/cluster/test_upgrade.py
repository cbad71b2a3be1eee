"""Nodes of other versions of Halley in one cluster (`other_version.py`): a rolling restart, and what must not be."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from contextlib import AsyncExitStack

import httpx
import pytest
from cluster.golden import HEARTBEAT
from cluster.rounds import Node, Round
from nats.aio.client import Client as NatsClient
from support.messages import publish
from support.nats import FREE_PORTS, nats_servers, node, rows
from support.process import ended
from support.wire import DEADLINE_S

from halley.cluster.availability import LATER, OUTVOTED

pytestmark = pytest.mark.slow

SETTINGS = {"HALLEY_CLUSTER_SETTLED_BY": "keeper", "HALLEY_DRAIN_SPREAD_S": "0", "HALLEY_HISTORY_COMMIT_S": "2"}


def other(how):
    """Return the setting that makes a node another version of Halley."""
    return {"FIRST": f"cluster.other_version:be_{how}"}


async def figures(server):
    """Return what a node knows of the cluster, and its metrics."""
    url = f"http://127.0.0.1:{server.operations_port}"
    async with httpx.AsyncClient(verify=False) as client:
        return (await client.get(f"{url}/cluster")).json(), (await client.get(f"{url}/metrics")).text


async def others_known(server, count):
    """Wait until a node has heard of so many others."""
    await server.until(lambda: len(server.logged("cluster_member")) >= count)


class Rolling(Round):
    """Every node is restarted as the next version, one after another, and then back."""

    async def strike(self, settings):
        self.ended, self.differences = [], []
        for how in (other("next"), {}):
            for each in self.nodes:
                self.ended.append((each.server, await figures(each.server), await each.stop()))
                await each.start(**settings, **how)
                await others_known(each.server, len(self.nodes) - 1)
                self.differences.append([found["what"] for found in (await figures(each.server))[0]["differs"]])
                await self.until_written(each.name, is_new=bool(how))

    async def until_written(self, name, *, is_new):
        """Wait until a node has written a frame in the form of its version."""
        client = NatsClient()
        await client.connect(self.servers.urls)
        async with asyncio.timeout(DEADLINE_S):
            while (b'"new":' in (await client.jetstream().get_last_msg("halley", f"halley.f.{name}")).data) != is_new:
                await asyncio.sleep(0.05)
        await client.close()


async def test_a_rolling_restart_under_load(tmp_path):
    """From one version to the next and back: nothing acknowledged is lost or elsewhere, and no node has a fault."""
    async with nats_servers(tmp_path) as servers, AsyncExitStack() as stack:
        nodes = [Node(tmp_path, servers, name, keeps=name != "front") for name in ("one", "two", "front")]
        for each in nodes:
            await each.start(**SETTINGS)
            stack.push_async_callback(each.kill)
        played = Rolling(0, nodes, servers, random.Random(0))
        await played.run(SETTINGS)
        assert await played.check(1) == []
        assert played.differences == [["version"], ["version"], [], ["version"], ["version"], []]
        running = [(each.server, await figures(each.server), 0) for each in nodes]
        for server, (_, metrics), code in (*played.ended, *running):
            assert code == 0
            assert "\nhalley_cluster_foreign_total 0.0\n" in metrics
            assert not [line for line in server.lines if '"fault"' in line or "Traceback" in line]
            assert {line["what"] for line in server.logged("cluster_differs")} <= {"version"}
        await check_heartbeats(servers, "one")


async def check_heartbeats(servers, keeper):
    """Check that a keeper sends all that other nodes know of version 1."""
    client = NatsClient()
    await client.connect(servers.urls)
    heard = await client.subscribe(f"halley.h.{keeper}")
    told = json.loads((await heard.next_msg(DEADLINE_S)).data)
    await client.close()
    golden = json.loads(HEARTBEAT)
    assert [name for name in golden if name not in told] == []
    assert told["kept"].keys() == golden["kept"].keys()
    assert told["settings"].keys() == golden["settings"].keys()


async def published(server, channel, data, **fields):
    """Publish without a session; return the reply."""
    wire = await server.wire()
    return (await wire.post(publish(channel, data, **fields))).messages[0]


async def test_frames_of_the_next_version_are_written_when_all_nodes_know_them(tmp_path):
    """Not while an older node is there; one that comes back after that stops, and so does one that joins."""
    async with nats_servers(tmp_path) as servers, AsyncExitStack() as stack:
        a = await stack.enter_async_context(node(tmp_path, servers, "a", **SETTINGS, **other("hasty")))
        async with node(tmp_path, servers, "before", keeps=False, **SETTINGS, **other("before")) as before:
            await others_known(a, 1)
            await asyncio.sleep(2.5)  # two looks, by which it would have begun
            first = (await published(before, "/chat/room", 1))["ext"]["position"]
            await published(a, "/chat/room", 2)
            assert await versions(servers) == {1}
            before.send_signal(signal.SIGSTOP)
            await a.until_logged("cluster_member_gone")
            async with asyncio.timeout(DEADLINE_S):
                while await versions(servers) != {1, 3}:
                    await published(a, "/chat/room", 3)
            before.send_signal(signal.SIGCONT)
            assert json.loads(await before.until_logged("cluster_diverged"))["why"] == LATER
        refused = await ended(
            *("serve", "--cluster", servers.urls, "--node", "new", "--front", *FREE_PORTS),
            cwd=tmp_path,
            **SETTINGS,
            **other("before"),
        )
        assert (refused.code, "another version of Halley" in refused.lines[-1]) == (2, True), refused.lines
        b = await stack.enter_async_context(node(tmp_path, servers, "b", **SETTINGS))
        last = (await published(b, "/chat/room", 4))["ext"]["position"]
        assert await rows(a, last) == await rows(b, last)
        assert [row["payload"] for row in await rows(b, last)][first - 1 : first + 2] == ["1", "2", "3"]


async def versions(servers):
    """Return the versions of the frames in the stream."""
    client = NatsClient()
    await client.connect(servers.urls)
    stream = client.jetstream()
    state = (await stream.stream_info("halley")).state
    frames = [await stream.get_msg("halley", number) for number in range(state.first_seq, state.last_seq + 1)]
    await client.close()
    return {json.loads(frame.data[: frame.data.index(b"\n")])[0] for frame in frames}


async def test_a_node_that_would_count_otherwise_stops(tmp_path):
    """A faulty one, where most others agree; and one that meets frames of a version that it does not know."""
    async with nats_servers(tmp_path) as servers, AsyncExitStack() as old, AsyncExitStack() as new:

        async def start(within, name, **how):
            one = node(tmp_path, servers, name, keeps=name == "keeper", **SETTINGS, **how)
            return await within.enter_async_context(one)

        keeper = await start(old, "keeper")
        front, faulty, later = await asyncio.gather(
            start(old, "front"), start(old, "faulty", **other("faulty")), start(new, "later", **other("later"))
        )
        await others_known(faulty, 3)
        first = (await published(keeper, "/faulty/room", 1))["ext"]["position"]
        assert json.loads(await faulty.until_logged("cluster_diverged"))["why"] == OUTVOTED
        assert (await published(faulty, "/chat/room", 1))["error"] == "503::history_unavailable"
        assert (await published(front, "/chat/room", 2))["ext"]["position"] == first + 1
        keyed = {"ext": {"idempotency_key": "k"}}
        assert (await published(later, "/chat/room", 3, **keyed))["error"] == "503::history_outcome_unknown"
        for each in (keeper, front):
            assert json.loads(await each.until_logged("cluster_diverged"))["why"] == LATER
            assert (await published(each, "/chat/room", 4))["error"] == "503::history_unavailable"
        await old.aclose()
        keeper = await start(new, "keeper", **other("later"))
        assert (await published(keeper, "/chat/room", 3, **keyed))["ext"]["position"] == first + 2
        async with asyncio.timeout(DEADLINE_S):
            while not (reply := await published(later, "/chat/room", 5))["successful"]:
                await asyncio.sleep(0.05)
        stored = [row for row in await rows(keeper, reply["ext"]["position"]) if row["topic"] == "chat/room"]
        assert [json.loads(row["payload"]) for row in stored] == [2, 3, 5]
