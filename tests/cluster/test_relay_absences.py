"""What becomes of sessions whose node cannot be reached: it ends, stands still, or is none that anybody knows.

A client that another node serves must not handshake again while its session may go on, nor be told to come back for one
that is gone.
"""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from time import monotonic

import pytest
import pytest_asyncio
from clients.kinds import KINDS, require
from clients.node import NodeClient
from support.messages import connect, publish
from support.nats import node
from support.relayed import POLL, SHARE, WAITING, held, listening, metric, running, session, until_held, until_metric
from support.round_robin import round_robin
from support.wire import DEADLINE_S, post

from halley.client import ALL, Client
from halley.cluster.members import id_of
from halley.host.relay import machine

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

PAUSE_S, MAX_INTERVAL_S = 5.0, 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """A cluster that all tests share; those that end nodes have their own."""
    async with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.node
async def test_foreign_clients_go_on_with_their_sessions_when_the_node_of_these_stood_still(cluster):
    """They try again after 503, and get all that was published meanwhile, once."""
    require("node")
    a, b, _ = cluster.nodes
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(round_robin(a))
        clients = []
        for kind in ("cometd9-node-polling", "faye-node-polling"):
            client = await NodeClient.start(f"http://127.0.0.1:{proxy.port}/bayeux", KINDS[kind])
            stack.push_async_callback(client.close)
            assert (await client.open()).successful
            assert (await client.subscribe("/chat/foreign")).successful
            clients.append(client)
        proxy.use(b)
        wire = await b.wire()
        assert (await wire.post(publish("/chat/foreign", 0))).messages[0]["successful"]
        await until_metric(b, WAITING, len(clients))  # their next polls
        a.send_signal(signal.SIGSTOP)
        for number in range(1, 5):
            assert (await wire.post(publish("/chat/foreign", number))).messages[0]["successful"]
            await asyncio.sleep(PAUSE_S / 4)
        async with asyncio.timeout(DEADLINE_S):
            while await metric(b, 'halley_cluster_relayed_failed_total{reason="silent"}') < len(clients):
                await asyncio.sleep(0.05)
        a.send_signal(signal.SIGCONT)
        await _until_alive_again(b, "a")
        assert (await wire.post(publish("/chat/foreign", 5))).messages[0]["successful"]
        for client in clients:
            await client.hears(*(("/chat/foreign", number) for number in range(6)))
            assert len(client.replies("/meta/handshake")) == 1
        for waiting in (2, 1):
            await until_held(cluster, waiting)
            assert (await clients[waiting - 1].disconnect()).successful


async def test_a_node_that_cannot_be_reached_is_not_taken_for_a_dead_one(cluster):
    """503, and a line in the log: nothing listens at its URL, it names another machine's loopback, or another node."""
    wire = await cluster.a.wire()
    async with listening(cluster.nats) as (nats, beats):

        async def answer_of(name, **facts):
            """Pretend to be a node that is alive; return what its sessions are answered."""
            beat = {"node": name, "id": id_of(name), "key": "k", **facts}
            await nats.publish(f"halley.h.{name}", json.dumps(beat).encode())
            await cluster.a.until(lambda: name in [each["node"] for each in cluster.a.logged("cluster_member")])
            return await wire.post(connect(id_of(name) + "0" * 40))

        cases = {
            "x1": ({}, "no URL"),
            "x2": ({"url": beats["b"]["url"], "machine": "another"}, "its own machine only"),
            "x3": ({"url": beats["b"]["url"], "machine": machine()}, "for nodes of the cluster only"),
            "x4": ({"url": beats["b"]["url"], "machine": machine(), "key": beats["b"]["key"]}, "another node"),
        }
        logged = len(cluster.a.logged("cluster_unreachable"))
        for count, (name, (facts, reason)) in enumerate(cases.items(), logged + 1):
            answer = await answer_of(name, **facts)
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            await cluster.a.until(lambda count=count: len(cluster.a.logged("cluster_unreachable")) >= count)
            assert reason in cluster.a.logged("cluster_unreachable")[-1]["reason"]
        nobody = {"url": "http://127.0.0.1:1", "machine": machine()}
        answer = await answer_of("x5", **nobody)  # it may have died this moment
        assert (answer.status, answer.messages[0]["error"][:3]) == (200, "402")
        async with asyncio.timeout(DEADLINE_S):
            while (await answer_of("x5", **nobody)).status != 503:
                await asyncio.sleep(0.01)


async def test_nodes_that_are_unknown_have_no_sessions(cluster):
    """402 and advice to handshake, as for any session that is unknown, once no such node can stand still."""
    wire = await cluster.a.wire()
    async with asyncio.timeout(DEADLINE_S + MAX_INTERVAL_S):
        while (await wire.post(connect("zzzz" + "0" * 40))).status == 503:
            await asyncio.sleep(0.1)
    for client_id in ("zzzz" + "0" * 40, id_of("a") + "0" * 40, "0" * 40, ""):
        (reply,) = (await wire.post(connect(client_id))).messages
        assert (reply["error"][:3], reply["advice"]["reconnect"]) == ("402", "handshake")


async def test_a_node_that_starts_while_another_one_stands_still_ends_no_session_of_that(tmp_path):
    """It has never heard of it, and asks clients to try again later, also WAMP's; then they go on through it."""
    options = {"HALLEY_BAYEUX_MAX_INTERVAL_S": "60"}
    async with running(tmp_path, ("a", "b"), **options) as cluster:
        client_id = await session(cluster.a, "/chat/**")
        opened = await (await cluster.a.wire()).request(post(b'{"protocols": ["wamp.2.json"]}', path="/wamp/open"))
        receive = post(b"", path=f"/wamp/{json.loads(opened.body)['transport']}/receive")
        cluster.a.send_signal(signal.SIGSTOP)
        async with node(tmp_path, cluster.nats, "c", **options) as starting:
            wire = await starting.wire()
            await starting.until(lambda: len(starting.logged("cluster_member")) == 1)
            await asyncio.sleep(2.0)  # by now it would know every node that lives
            for answer in (await wire.post(connect(client_id)), await wire.request(receive)):
                assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            (reply,) = (await wire.post(connect("0" * 40))).messages
            assert reply["error"][:3] == "402", "this is no id of a session"
            cluster.a.send_signal(signal.SIGCONT)
            await starting.until(lambda: len(starting.logged("cluster_member")) == 2)
            assert (await wire.post(publish("/chat/room", 1))).messages[0]["successful"]
            assert await _until_data(wire, client_id, 1) == [1]


async def test_a_node_that_ends_takes_only_its_own_sessions_along(tmp_path):
    """A node that passes requests on is stopped, and one is killed; then the node of the sessions is killed."""
    async with running(tmp_path, ("a", "b", "c", "d")) as cluster:
        client_id = await session(cluster.a, "/chat/**")
        await _stop(cluster, client_id)
        await _kill(cluster, client_id)
        await _kill_home(cluster, client_id)


async def _stop(cluster, client_id):
    """SIGTERM: the client gets 503 and can go to another node; the poll is released; the node ends at once."""
    wire = await held(cluster.d, client_id)
    await cluster.a.until_held(1)
    cluster.d.send_signal(signal.SIGTERM)
    answer = await wire.read()
    assert (answer.status, answer.headers["retry-after"], answer.headers["connection"]) == (503, "5", "close")
    await cluster.a.until_held(0)
    assert await cluster.d.exit_code() == 0
    assert not [line for line in cluster.d.lines if "are cancelled" in line]


async def _kill(cluster, client_id):
    """Kill -9: the poll is released, and what is published then comes with the next one."""
    wire = await held(cluster.c, client_id)
    await cluster.a.until_held(1)
    cluster.c.send_signal(signal.SIGKILL)
    await cluster.a.until_held(0)
    assert await wire.is_closed()
    other = await cluster.b.wire()
    assert (await other.post(publish("/chat/room", "kept"))).messages[0]["successful"]
    assert (await other.post(connect(client_id))).data == ["kept"]


async def _kill_home(cluster, client_id):
    """Kill -9: 402 and handshake at the first request, long before the node counts as gone; clients go on."""
    url = f"http://127.0.0.1:{cluster.proxy.port}"
    async with Client(url) as client, Client(f"http://127.0.0.1:{cluster.b.port}") as publisher:
        await client.subscribe("/chat/**", after=ALL)
        assert (await anext(client)).data == "kept"
        wire = await held(cluster.b, client_id)
        await cluster.a.until_held(2 if client.client_id.startswith(id_of("a")) else 1)
        cluster.a.send_signal(signal.SIGKILL)
        assert await wire.is_closed()
        assert await cluster.a.exit_code() == -signal.SIGKILL  # until then its port may take connections
        (reply,) = (await (await cluster.b.wire()).post(connect(client_id))).messages
        assert (reply["error"][:3], reply["advice"]["reconnect"]) == ("402", "handshake")
        gone = [each["node"] for each in cluster.b.logged("cluster_member_gone")]
        assert "a" not in gone
        await publisher.publish("/chat/room", "again")
        async with asyncio.timeout(DEADLINE_S):
            assert (await anext(client)).data == "again"
    await cluster.b.until(lambda: "a" in [each["node"] for each in cluster.b.logged("cluster_member_gone")])
    (reply,) = (await (await cluster.b.wire()).post(connect(client_id))).messages
    assert reply["error"][:3] == "402", "nothing listens there: it did not only fall silent"


async def test_a_node_that_stands_still_costs_no_session_and_no_other_node(tmp_path):
    """What waits for it ends when it counts as gone, for others there is room, and its sessions go on after it does.

    The publish that it had was cut, since it may be acted on later; its repetition finds that. Polls get 503, and what
    comes meanwhile is not passed on at all, so nothing is done twice.
    """
    async with running(tmp_path, HALLEY_BAYEUX_MAX_INTERVAL_S="60") as cluster:  # so that none expires meanwhile
        a, b, c = cluster.nodes
        ids = [await session(a, "/chat/**") for _ in range(SHARE)]
        other = await session(c)
        opened = await (await a.wire()).request(post(b'{"protocols": ["wamp.2.json"]}', path="/wamp/open"))
        receive = post(b"", path=f"/wamp/{json.loads(opened.body)['transport']}/receive")
        polls = [await held(b, client_id) for client_id in ids[:-1]]
        await a.until_held(len(polls))
        keyed = publish("/chat/room", "late", clientId=ids[-1], ext={"idempotency_key": "late"})
        publishing, wire, third = await b.wire(), await b.wire(), await c.wire()
        a.send_signal(signal.SIGSTOP)
        stopped_at = monotonic()
        await publishing.send(post(json.dumps([keyed]).encode()))
        await until_metric(b, WAITING, SHARE)
        assert (await wire.post(connect(ids[0]))).status == 503
        for number in range(3):
            assert (await wire.post(connect(other, **POLL))).messages[0]["successful"]
            assert (await third.post(publish("/chat/room", number))).messages[0]["successful"]
        for poll in polls:
            answer = await poll.read()
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert await publishing.is_closed()
        for each in (wire, third):
            for answer in (
                await each.post(connect(ids[0])),
                await each.post(keyed),
                await each.get(connect(ids[0])),
                await each.request(receive),
            ):
                assert (answer.status, answer.text) == (503, "the node of this session does not answer")
                assert answer.headers["retry-after"] == "5"
        await asyncio.sleep(max(0.0, stopped_at + PAUSE_S - monotonic()))
        a.send_signal(signal.SIGCONT)
        await _until_alive_again(b, "a")
        again = await wire.post(keyed)
        (repeated,) = [each for each in again.replies if each["channel"] == "/chat/room"]
        had = {ids[-1]: again.data}  # what waits for a session comes with any reply
        events = {client_id: await _until_data(wire, client_id, 4, had.get(client_id, ())) for client_id in ids}
        assert [sorted(data, key=str) for data in events.values()] == [[0, 1, 2, "late"]] * SHARE
        assert len({*map(str, events.values())}) == 1
        assert (await (await a.wire()).post(keyed)).replies[0]["ext"] == repeated["ext"]
        for client_id in ids:
            assert (await wire.post(connect(client_id, **POLL))).data == []
        await _kill_silent(cluster, ids[0])


async def _until_alive_again(server, name):
    """Wait until a node has noticed another one a second time."""
    await server.until(lambda: [each["node"] for each in server.logged("cluster_member")].count(name) == 2)


async def _until_data(wire, client_id, count, had=()):
    """Return the data of a session's next `count` events: those that it `had`, and those that its connects bring."""
    data = [*had]
    async with asyncio.timeout(DEADLINE_S):
        while len(data) < count:
            data += (await wire.post(connect(client_id))).data
    return data


async def _kill_silent(cluster, client_id):
    """A node that stands still, and is killed: its sessions end when it refuses connections."""
    wire = await cluster.b.wire()
    cluster.a.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(DEADLINE_S):
        while len(cluster.b.logged("cluster_member_gone")) < 2:
            await asyncio.sleep(0.05)
    assert (await wire.post(connect(client_id))).status == 503
    cluster.a.send_signal(signal.SIGKILL)
    await cluster.a.exit_code()
    async with asyncio.timeout(DEADLINE_S):
        while (answer := await wire.post(connect(client_id))).status == 503:
            await asyncio.sleep(0.01)
    (reply,) = answer.messages
    assert (reply["error"][:3], reply["advice"]["reconnect"]) == ("402", "handshake")
