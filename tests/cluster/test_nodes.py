"""Two and three `halley serve` that are one server to their clients, on a real NATS server."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from types import SimpleNamespace

import pytest
from nats.aio.client import Client as NatsClient
from support import wamp
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.nats import FREE_PORTS, nats_servers, node, rows, taken, url_of
from support.process import ended
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, request, until

from halley.client import ALL, Client, HistoryClient, IdempotentPublish
from halley.cluster.frames import Row, SharedFields, pack
from halley.cluster.members import id_of

pytestmark = pytest.mark.slow


@asynccontextmanager
async def cluster(folder, *names, **settings):
    """Yield the NATS server and the nodes of these names."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(folder))
        yield nats, [await stack.enter_async_context(node(folder, nats, name, **settings)) for name in names]


async def published(server, channel, data, **fields):
    """Publish without a session; return the reply."""
    wire = await server.wire()
    return (await wire.post(publish(channel, data, **fields))).messages[0]


async def until_taken(server, channel="/chat/probe"):
    """Publish until a durable event is acknowledged; return its reply."""
    async with asyncio.timeout(DEADLINE_S):
        while not (reply := await published(server, channel, "probe"))["successful"]:
            await asyncio.sleep(0.05)
        return reply


async def test_what_is_published_at_a_node_is_heard_at_all(tmp_path):
    """By Bayeux, by JSONP and by WAMP; recorded, recorded afterwards, and not recorded."""
    async with cluster(tmp_path, "a", "b") as (_, (a, b)), Client(url_of(b)) as client:
        assert json.loads(await b.until_logged("cluster_member"))["node"] == "a"
        for pattern in ("/chat/**", "/loose/**", "/fleeting/**"):
            await client.subscribe(pattern)
        wire = await b.wire()
        jsonp = (await wire.get(HANDSHAKE)).called[1][0]["clientId"]
        await wire.get(connect(jsonp))
        await wire.get(subscribe(jsonp, "/chat/room"))
        async with await wamp.join(url_of(b)) as peer, await wamp.join(url_of(a)) as publisher:
            await peer.subscribe("chat.room")
            for channel in ("/chat/room", "/loose/room", "/fleeting/room"):
                await published(a, channel, channel)
            await publisher.publish("chat.room", ["by WAMP"])
            heard = await taken(client, 4)
            assert {event.channel for event in heard} == {"/chat/room", "/loose/room", "/fleeting/room"}
            assert next(each.data for each in heard if each.channel == "/chat/room") == "/chat/room"
            assert [(await anext(peer)).args, (await anext(peer)).args] == [["/chat/room"], ["by WAMP"]]
        events = (await wire.get(connect(jsonp))).called[1]
        assert "/chat/room" in [message.get("data") for message in events]


async def test_sessions_chosen_at_one_node_are_chosen_at_all(tmp_path):
    """WAMP's exclude and eligible by session id hold for the sessions of other nodes."""
    async with (
        cluster(tmp_path, "a", "b") as (_, (a, b)),
        await wamp.join(url_of(a)) as publisher,
        await wamp.join(url_of(b)) as one,
        await wamp.join(url_of(b)) as two,
    ):
        for peer in (one, two):
            await peer.subscribe("chat.room")
        await publisher.publish("chat.room", [1], exclude=[one.session])
        await publisher.publish("chat.room", [2], eligible=[one.session])
        await publisher.publish("chat.room", [3])
        assert [(await anext(one)).args for _ in range(2)] in ([[2], [3]], [[3], [2]])
        assert [(await anext(two)).args for _ in range(2)] in ([[1], [3]], [[3], [1]])


async def test_all_nodes_have_one_order_and_equal_positions(tmp_path):
    """Three nodes publish at once; live, by replay and on disk each has the same at each position."""
    each = 150
    async with cluster(tmp_path, "a", "b", "c") as (_, nodes), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(url_of(server))) for server in nodes]
        for client in clients:
            await client.subscribe("/chat/**")

        async def send(number, client):
            for start in range(0, each, 10):
                await client.publish_many(f"/chat/{number}", range(start, start + 10))

        await asyncio.gather(*(send(number, client) for number, client in enumerate(clients)))
        heard = [await taken(client, 3 * each) for client in clients]
        positions = [[event.position for event in events] for events in heard]
        assert positions[0] == sorted(positions[0])
        assert positions[0] == positions[1] == positions[2]
        assert heard[0] == heard[1] == heard[2]
        for number in range(3):  # each publisher's own order
            assert [event.data for event in heard[0] if event.channel == f"/chat/{number}"] == [*range(each)]
        stored = [await rows(server, positions[0][-1]) for server in nodes]
        assert stored[0] == stored[1] == stored[2]
        assert [row["offset"] for row in stored[0]] == [*range(1, positions[0][-1] + 1)]
        late = await stack.enter_async_context(Client(url_of(nodes[2])))
        await late.subscribe("/chat/**", after=ALL)
        assert await taken(late, 3 * each) == heard[0]


async def test_a_client_moves_to_another_node_in_the_middle_of_a_replay(tmp_path):
    """A position of one node means the same event at the other, and so does its history."""
    async with cluster(tmp_path, "a", "b") as (_, (a, b)):
        async with Client(url_of(a)) as client:
            await client.publish_many("/chat/room", range(40))
            await client.subscribe("/chat/**", after=ALL)
            first = await taken(client, 15)
            await rows(b, first[-1].position + 25)
            histories = [await history(server) for server in (a, b)]
        assert histories[0] == histories[1] != []
        async with Client(url_of(b)) as client:
            await client.subscribe("/chat/**", after=first[-1].position)
            rest = await taken(client, 25)
        assert [event.data for event in first + rest] == [*range(40)]


async def history(server):
    """Return what a node's history API gives of a channel, as lines."""
    async with HistoryClient(url_of(server)) as client:
        return [line async for lines in client.pages("/chat/room", {}) for line in lines]


async def test_a_key_counts_at_all_nodes(tmp_path):
    """Sent to two nodes at once it is one event, and both publishers get its position."""
    async with cluster(tmp_path, "a", "b") as (_, (a, b)), Client(url_of(a)) as client:
        await client.subscribe("/chat/**")
        for number in range(20):
            key = {"ext": {"idempotency_key": f"key {number}"}}
            first, second = await asyncio.gather(*(published(each, "/chat/room", number, **key) for each in (a, b)))
            assert first["ext"]["position"] == second["ext"]["position"]
        again = await published(b, "/chat/room", 0, ext={"idempotency_key": "key 0"})
        reused = await published(b, "/chat/other", 0, ext={"idempotency_key": "key 0"})
        assert not reused["successful"]
        heard = await taken(client, 20)
        assert [event.data for event in heard] == [*range(20)]
        assert heard[0].position == again["ext"]["position"]


async def test_a_killed_node_goes_on_with_the_same_history(tmp_path):
    """Kill -9, others publish, and the node comes back with the same rows and keys."""
    async with cluster(tmp_path, "a") as (nats, (a,)):
        async with node(tmp_path, nats, "b") as b, Client(url_of(b)) as client:
            await client.publish_keyed([IdempotentPublish("/chat/room", number, f"k{number}") for number in range(50)])
            b.send_signal(signal.SIGKILL)
            await b.exit_code()
        await published(a, "/chat/room", "meanwhile")
        async with node(tmp_path, nats, "b") as b:
            again = await published(b, "/chat/room", 7, ext={"idempotency_key": "k7"})
            last = await published(b, "/chat/room", "after")
            stored = await rows(a, last["ext"]["position"])
            assert stored == await rows(b, last["ext"]["position"])
            assert [row["payload"] for row in stored if row["idempotency_key"] == "k7"] == ["7"]
            assert again["ext"]["position"] == next(row["offset"] for row in stored if row["idempotency_key"] == "k7")


async def test_without_nats_durable_events_are_refused_and_the_rest_goes_on(tmp_path):
    """503 at once, the rest is delivered at home; with NATS back all goes on without a restart."""
    async with cluster(tmp_path, "a", "b") as (nats, (a, b)), Client(url_of(a)) as client:
        for pattern in ("/chat/**", "/loose/**", "/fleeting/**"):
            await client.subscribe(pattern)
        before = await until_taken(b)
        await taken(client, 1)
        nats.kill(0)
        await a.until_logged("history_unavailable")
        refused = await published(a, "/chat/room", "refused")
        assert (refused["successful"], refused["error"]) == (False, "503::history_unavailable")
        await published(a, "/loose/room", 1)
        await published(a, "/fleeting/room", 2)
        assert [event.data for event in await taken(client, 2)] == [1, 2]
        nats.start(0)
        await nats.healthy()
        after = await until_taken(b)
        await until_taken(a)
        heard = await taken(client, 2)
        assert [event.data for event in heard] == ["probe", "probe"], "what was refused is delivered nowhere"
        assert after["ext"]["position"] > before["ext"]["position"]
        last = heard[-1].position
        assert await rows(a, last) == await rows(b, last)


async def test_a_node_that_has_lost_nats_is_not_ready(tmp_path):
    """Balancers send new clients to other nodes; it is ready again when NATS is back."""
    async with cluster(tmp_path, "a", HALLEY_CLUSTER_LOST_S="1") as (nats, (a,)):
        await until_taken(a)
        wire = await a.wire(a.operations_port)

        async def ready(status):
            async with asyncio.timeout(DEADLINE_S):
                while (await wire.request(request("GET", "/health/ready"))).status != status:
                    await asyncio.sleep(0.02)

        await ready(200)
        nats.kill(0)
        await ready(503)
        nats.start(0)
        await ready(200)


async def test_a_node_whose_disk_is_full_waits_and_catches_up(tmp_path):
    """It takes no durable publishes, and the others go on; with room it has what they have."""
    async with cluster(tmp_path, "a") as (nats, (a,)):
        async with node(tmp_path, nats, "b", free_bytes=2**60) as b:
            assert (await published(b, "/chat/room", 1))["error"] == "503::history_unavailable"
            last = (await until_taken(a))["ext"]["position"]
        async with node(tmp_path, nats, "b") as b:
            assert await rows(a, last) == await rows(b, last)


async def test_a_publish_on_its_way_when_nats_is_killed_is_stored_once(tmp_path):
    """Acknowledged and lost, or doubled: none, although frames are sent again."""
    async with cluster(tmp_path, "a", "b") as (nats, (a, b)):
        acknowledged = {}

        async def send(server, name):
            for number in range(150):
                reply = await published(server, "/chat/room", f"{name}{number}")
                if reply["successful"]:
                    acknowledged[f"{name}{number}"] = reply["ext"]["position"]
                else:
                    await asyncio.sleep(0.02)

        async def strike():
            await until(lambda: len(acknowledged) > 40)
            nats.kill(0)
            nats.start(0)

        await asyncio.gather(send(a, "a"), send(b, "b"), strike())
        last = (await until_taken(a))["ext"]["position"]
        stored = await rows(a, last)
        assert stored == await rows(b, last)
        found = {json.loads(row["payload"]): row["offset"] for row in stored if row["topic"] == "chat/room"}
        assert acknowledged.items() <= found.items()
        assert len(found) == sum(row["topic"] == "chat/room" for row in stored), "an event was stored twice"


async def test_messages_of_strangers_are_dropped(tmp_path):
    """Bad bytes in the stream and past it take no offset and stop nothing; they are counted."""
    async with cluster(tmp_path, "a", "b") as (nats, (a, b)):
        await until_taken(b)
        stranger = NatsClient()
        await stranger.connect(nats.urls)
        row = Row("chat/room", b'"x"', SharedFields("bayeux", "bare", None, None, None, None))
        for subject in ("halley.f.z", "halley.c.z"):
            for data in (b"", b"garbage", pack("z-1", 1, [row])[:-1], pack("z-1", 7, [row])):
                await stranger.publish(subject, data)
        await stranger.flush()
        await stranger.close()
        reply = await published(a, "/chat/room", 1)
        assert reply["successful"]
        stored = await rows(b, reply["ext"]["position"])
        assert [row["topic"] for row in stored] == ["chat/probe", "chat/room"]
        wire = await b.wire(b.operations_port)
        async with asyncio.timeout(DEADLINE_S):
            while "\nhalley_cluster_foreign_total 7.0\n" not in (await wire.request(request("GET", "/metrics"))).text:
                await asyncio.sleep(0.01)


async def test_a_stream_that_went_back_stops_the_node(tmp_path):
    """No offset may mean two events: a stream that was made again is refused, at start and by a running node."""
    async with cluster(tmp_path, "a") as (nats, (a,)):
        await until_taken(a)
        stranger = NatsClient()
        await stranger.connect(nats.urls)
        await stranger.jetstream().delete_stream("halley")
        await stranger.jetstream().add_stream(name="halley", subjects=["halley.f.*"])
        await stranger.close()
        await a.until_logged("cluster_diverged")
        assert (await published(a, "/chat/room", 1))["error"] == "503::history_unavailable"
        result = await start(tmp_path, nats.urls, "--node", "z")
        assert (result.code, "not one of this version of Halley" in result.lines[-1]) == (2, True), result.lines
    async with nats_servers(tmp_path / "a") as fresh:
        result = await start(tmp_path, fresh.urls, HALLEY_CLUSTER_SETTLED_BY="keeper")
        assert (result.code, "is gone" in result.lines[-1]) == (2, True), result.lines


async def start(folder, urls, *more, **settings):
    """Run a node to its end: it must not start."""
    arguments = ("serve", "--cluster", urls, "--node", "a", "--data-dir", str(folder / "a"), *FREE_PORTS, *more)
    return await ended(*arguments, cwd=folder, HALLEY_OPERATIONS_ENABLED="off", **settings)


@pytest.mark.parametrize(
    ("more", "settings", "text"),
    [
        ((), {}, "needs 3 NATS servers"),
        (("--history", "off"), {}, "the history is what the nodes of a cluster share"),
        (("--node", "a b"), {}, "up to 63 letters"),
        (("--node", "a" * 64), {}, "up to 63 letters"),
        (("--cluster", "http://127.0.0.1:1"), {}, "nats://host:4222"),
        (("--cluster", "nats://me:secret@127.0.0.1:1"), {}, "cluster.user"),
    ],
)
async def test_a_wrong_configuration_is_one_line(tmp_path, more, settings, text):
    """A node that cannot be one ends with code 2 and says why."""
    async with nats_servers(tmp_path) as nats:
        result = await start(tmp_path, nats.urls, *more, **settings)
    assert (result.code, text in result.lines[-1]) == (2, True), result.lines


async def test_a_nats_that_is_not_there_yet_is_one_line(tmp_path):
    """The node ends with another code: started again later it may join."""
    result = await start(tmp_path, "nats://127.0.0.1:1", HALLEY_CLUSTER_JOIN_S="0.5")
    assert (result.code, "no NATS server lets this node in" in result.lines[-1]) == (75, True), result.lines


@pytest.mark.parametrize(
    ("server", "text", "code"),
    [("max_payload: 1000\n", "set max_payload to at least", 2), ("", "is jetstream {} in nats-server.conf?", 75)],
)
async def test_a_nats_that_does_not_do_is_one_line(tmp_path, server, text, code):
    """Messages that are too small; or no JetStream, which may be without a leader at present."""
    async with nats_servers(tmp_path, more=server, has_jetstream=bool(server)) as nats:
        result = await start(tmp_path, nats.urls, HALLEY_CLUSTER_JOIN_S="2", HALLEY_CLUSTER_SETTLED_BY="keeper")
    assert (result.code, text in result.lines[-1]) == (code, True), result.lines


async def test_two_nodes_of_one_name_and_a_folder_of_another_log_are_refused(tmp_path):
    """The name is taken, or its id; the folder has a history that the cluster does not have."""
    name, other = "n1328", "n1832"
    assert id_of(name) == id_of(other)
    async with cluster(tmp_path, "a", name) as (nats, _):
        result = await start(tmp_path, nats.urls, HALLEY_CLUSTER_SETTLED_BY="keeper")
        assert (result.code, "is running in this cluster" in result.lines[-1]) == (2, True), result.lines
        result = await start(tmp_path, nats.urls, "--node", other, HALLEY_CLUSTER_SETTLED_BY="keeper")
        assert (result.code, len(result.lines)) == (2, 1), result.lines
        assert f"the name {name} is running" in result.lines[0]
        assert "choose another name" in result.lines[0]
        await ended("serve", "--data-dir", "c", "--port", "-1", cwd=tmp_path)
        (tmp_path / "other").mkdir()
        async with nats_servers(tmp_path / "other") as others, node(tmp_path, others, "c"):
            pass
        arguments = ("serve", "--cluster", nats.urls, "--node", "c", "--data-dir", str(tmp_path / "c"), *FREE_PORTS)
        result = await ended(*arguments, cwd=tmp_path, HALLEY_OPERATIONS_ENABLED="off")
        assert (result.code, "another history than the cluster" in result.lines[-1]) == (2, True), result.lines


@pytest.mark.parametrize("names", [("a", "a"), ("n1328", "n1832")])
async def test_of_two_nodes_of_one_name_that_start_at_once_one_goes_on(tmp_path, names):
    """Both have asked for others before either could answer: the second connection of each waits for that of both."""
    async with nats_servers(tmp_path) as nats, AsyncExitStack() as stack:

        async def start(number):
            proxy = await stack.enter_async_context(relaying(nats.ports[0]))
            proxy.passes = 1  # with it the node joins
            folder = tmp_path / f"node-{number}"
            folder.mkdir()
            through = SimpleNamespace(urls=f"nats://127.0.0.1:{proxy.port}")
            return proxy, await stack.enter_async_context(node(folder, through, names[number]))

        (first, a), (second, b) = await asyncio.gather(start(0), start(1))
        async with asyncio.timeout(DEADLINE_S):
            while first.accepted < 2 or second.accepted < 2:
                await asyncio.sleep(0.01)
        first.passes = second.passes = math.inf
        acknowledged = {server: [] for server in (a, b)}
        publishing = [asyncio.create_task(publish_on(each, acknowledged[each])) for each in (a, b)]
        ends = {asyncio.create_task(each.exit_code()): each for each in (a, b)}
        done, others = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in (*publishing, *others):
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)
        (left,), (going,) = (map(ends.get, tasks) for tasks in (done, others))
        assert left.process.returncode == 2
        assert [line for line in left.lines if "is running in this cluster" in line] == left.lines[-1:]
        assert f"halley: cluster.node: a node with the name {names[1] if left is a else names[0]} is" in left.lines[-1]
        assert (len(left.logged("cluster_name_taken")), going.logged("cluster_name_taken")) == (1, [])
        await until_taken(going)
        stored = [json.loads(line)["data"] for line in await history(going)]
        for each, found in acknowledged.items():
            assert found
            assert [data for data in stored if data in found] == found, each.lines


async def publish_on(server, acknowledged):
    """Publish until the server ends, and add what it acknowledges."""
    wire = await server.wire()
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        for number in count():
            data = f"{server.port} {number}"
            if (await wire.post(publish("/chat/room", data))).messages[0]["successful"]:
                acknowledged.append(data)


def test_a_server_alone_imports_nothing_of_it():
    """Neither the client of NATS nor the room of the cluster."""
    program = "import sys; from halley.server import create_app; create_app(); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    names = done.stdout.split()
    assert not [name for name in names if name.startswith(("halley.nats", "halley.cluster"))]
    assert "halley.server.cluster_history" not in names
