"""Any node of a cluster serves any client: requests that reach another node than that of their session.

The cluster has no sticky balancer: in front of it is a proxy that sends each request of each connection to the next
node, without looking at it.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from time import monotonic
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from clients.kinds import KINDS, require
from clients.node import NodeClient
from nats.aio.client import Client as NatsClient
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.nats import nats_servers, node
from support.round_robin import round_robin
from support.wamp import REALM
from support.wire import DEADLINE_S, Wire, post, request

from halley.client import ALL, Client
from halley.cluster.members import id_of
from halley.host.relay import machine

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NAMES = ("a", "b", "c")
RELAYED = 6
SHARE = RELAYED // 2
"""Of each of the two other nodes."""

PAUSE_S, MAX_INTERVAL_S = 5.0, 10.0
POLL = {"advice": {"timeout": 0}}


@asynccontextmanager
async def running(folder, names=NAMES, **more):
    """Run nodes that know of each other, and the proxy in front of them, within the block."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_servers(folder))
        options = {"HALLEY_CLUSTER_RELAYED": str(RELAYED), "HALLEY_LIMITS_QUEUE_BYTES": "64000000", **more}
        nodes = await asyncio.gather(
            *(stack.enter_async_context(node(folder, nats, name, **options)) for name in names)
        )
        for server in nodes:
            await server.until(lambda server=server: len(server.logged("cluster_member")) == len(names) - 1)
        proxy = await stack.enter_async_context(round_robin(*nodes))
        yield SimpleNamespace(nats=nats, nodes=nodes, proxy=proxy, **dict(zip(names, nodes, strict=True)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """A cluster that all tests share; those that end nodes have their own."""
    async with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


async def session(server, *channels):
    """Open a session at a node with subscriptions, by a client that keeps no cookies; return its id."""
    wire = await server.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    for channel in channels:
        await wire.post(subscribe(client_id, channel))
    return client_id


async def metric(server, name):
    """Return the value of one of a node's metrics."""
    wire = await Wire.open(server.operations_port)
    text = (await wire.request(request("GET", "/metrics"))).text
    await wire.close()
    return next(float(line.split()[1]) for line in text.splitlines() if line.split()[0] == name)


async def until_metric(server, name, value):
    """Wait until a metric has a value."""
    async with asyncio.timeout(DEADLINE_S):
        while await metric(server, name) != value:
            await asyncio.sleep(0.01)


async def held(server, client_id, **headers):
    """Return a connection to a node on which a connect of that session is held, at its node."""
    wire = await server.wire()
    await wire.send(post(json.dumps([connect(client_id)]).encode(), **headers))
    return wire


async def test_ids_begin_with_those_of_their_nodes(cluster):
    """Of sessions, of browsers, and of WAMP's long-poll transports."""
    for name, server in zip(NAMES, cluster.nodes, strict=True):
        wire = await server.wire()
        answer = await wire.post(HANDSHAKE)
        ids = [answer.messages[0]["clientId"], re.match(r"BAYEUX_BROWSER=(\w+);", answer.set_cookies[0])[1]]
        for each in ids:
            assert re.fullmatch(id_of(name) + "[0-9a-f]{40}", each)
        opened = await wire.request(post(b'{"protocols": ["wamp.2.json"]}', path="/wamp/open"))
        assert json.loads(opened.body)["transport"].startswith(id_of(name))


async def test_a_connect_is_held_at_its_node_and_answered_through_the_other(cluster):
    """Events of any node come; batches, forms and JSONP too."""
    a, b, c = cluster.nodes
    client_id = await session(a, "/chat/**")
    wire = await held(b, client_id)
    await a.until_held(1)
    other = await c.wire()
    assert (await other.post(publish("/chat/room", 1))).messages[0]["successful"]
    assert (await wire.read()).data == [1]
    batch = [subscribe(client_id, "/fleeting/x"), publish("/fleeting/x", 2, clientId=client_id), connect(client_id)]
    answer = await wire.post(*batch)
    assert ([each["successful"] for each in answer.replies], answer.data) == ([True] * 3, [2])
    form = urlencode({"message": json.dumps(publish("/fleeting/x", 3, clientId=client_id))}).encode()
    answer = await other.request(post(form, content_type="application/x-www-form-urlencoded"))
    assert (answer.replies[0]["successful"], answer.data) == (True, [3])
    await wire.get(publish("/fleeting/x", 4, clientId=client_id))
    name, messages = (await wire.get(connect(client_id), callback="my.call")).called
    assert (name, [each["data"] for each in messages if "data" in each]) == ("my.call", [4])


async def test_of_several_sessions_the_first_decides(cluster):
    """The others are unknown where the request is answered, also those of the node that has received it."""
    a, b, _ = cluster.nodes
    first, second = await session(a), await session(b)
    wire = await b.wire()
    answer = await wire.post(publish("/fleeting/x", 1, clientId=first), publish("/fleeting/x", 1, clientId=second))
    assert [each.get("error", "").partition(":")[0] for each in answer.messages] == ["", "402"]


async def test_an_answer_is_that_of_a_direct_request(cluster):
    """Status, all headers in their order, and the body: with CORS, errors, and a preflight."""
    a, b, _ = cluster.nodes
    client_id = await session(a)
    there, here = await a.wire(), await b.wire()
    for more in ({}, {"origin": "http://localhost:3000"}, {"user_agent": "x", "accept": "*/*"}):
        for messages in ([connect(client_id, **POLL)], [{"channel": "/a/*", "clientId": client_id}]):
            answers = [await wire.post(*messages, **more) for wire in (there, here)]
            assert (answers[0].head, answers[0].body) == (answers[1].head, answers[1].body)
    assert (
        b"access-control-allow-origin"
        in (await here.post(connect(client_id, **POLL), origin="http://localhost:3000")).head
    )
    refused = [await wire.post(connect(client_id), origin="https://evil.example.com") for wire in (there, here)]
    assert (refused[0].status, refused[0].head) == (403, refused[1].head)
    await here.post({"channel": "/meta/disconnect", "clientId": client_id})
    answers = [await wire.post(connect(client_id)) for wire in (there, here)]
    assert (answers[0].head, answers[0].body) == (answers[1].head, answers[1].body)
    assert answers[1].messages[0]["error"].startswith("402")


async def test_a_session_with_a_cookie_needs_it_at_every_node(cluster):
    """The cookie goes along, and a request without it is refused as at its own node."""
    a, b, _ = cluster.nodes
    wire, other = await a.wire(), await b.wire()
    answer = await wire.post(HANDSHAKE)
    client_id, cookie = answer.messages[0]["clientId"], answer.set_cookies[0].partition(";")[0]
    assert (await other.post(connect(client_id), cookie=cookie)).messages[0]["successful"]
    for each in (wire, other):
        assert not (await each.post(publish("/fleeting/x", 1, clientId=client_id))).messages[0]["successful"]
    assert (await other.post(publish("/fleeting/x", 1, clientId=client_id), cookie=cookie)).messages[0]["successful"]


async def test_requests_of_several_clients_over_one_connection_are_each_their_own(cluster):
    """A head that is sent again and again is not parsed each time, and no client is taken for another one."""
    a, b, _ = cluster.nodes
    clients = []
    for _ in range(2):
        answer = await (await a.wire()).post(HANDSHAKE)
        cookie = answer.set_cookies[0].partition(";")[0]
        clients.append((await b.wire(), answer.messages[0]["clientId"], cookie))
    for times in (1, 3, 1, 4):
        for wire, own, cookie in clients:
            for _ in range(times):
                for client_id in (own, clients[0][1], clients[1][1]):
                    answer = await wire.post(publish("/fleeting/x", times, clientId=client_id), cookie=cookie)
                    assert answer.messages[0]["successful"] == (client_id == own)
                assert (await wire.post(connect(own, **POLL), cookie=cookie)).messages[0]["successful"]
                assert not (await wire.post(connect(own, **POLL))).messages[0]["successful"]


async def test_wamp_by_long_polling(cluster):
    """A transport that was opened at one node sends and receives through the others."""
    a, b, c = cluster.nodes
    wires = cycle([await server.wire() for server in (b, c, a)])
    opened = await (await a.wire()).request(post(b'{"protocols": ["wamp.2.json"]}', path="/wamp/open"))
    name = json.loads(opened.body)["transport"]

    async def send(*message):
        return (await next(wires).request(post(json.dumps(message).encode(), path=f"/wamp/{name}/send"))).status

    async def receive():
        return json.loads((await next(wires).request(post(b"", path=f"/wamp/{name}/receive"))).body)

    assert await send(1, REALM, {"roles": {"subscriber": {}, "publisher": {}}}) == 204
    assert (await receive())[0] == 2
    assert await send(32, 1, {}, "chat.room") == 204
    assert (await receive())[:2] == [33, 1]
    waiting = asyncio.create_task(receive())
    assert (await (await c.wire()).post(publish("/chat/room", "hello"))).messages[0]["successful"]
    assert (await waiting)[4] == ["hello"]
    for wire in [next(wires) for _ in range(3)]:
        answer = await wire.request(post(b"", path=f"/wamp/{id_of('a')}{name[4:][::-1]}/receive"))
        assert (answer.status, answer.text) == (404, "no such transport")


async def test_halleys_own_client_behind_the_proxy(cluster):
    url = f"http://127.0.0.1:{cluster.proxy.port}"
    async with asyncio.timeout(DEADLINE_S), Client(url) as client, Client(url) as publisher:
        await client.subscribe("/chat/**")
        for number in range(10):
            await publisher.publish("/chat/room", number)
        assert [(await anext(client)).data for _ in range(10)] == [*range(10)]


@pytest.mark.node
@pytest.mark.parametrize("kind", ["cometd9-node-polling", "cometd7-node-polling", "faye-node-polling"])
async def test_foreign_clients_behind_the_proxy(cluster, kind):
    """Stock clients, which keep no cookies or their own, hear and publish as with one server."""
    require("node")
    clients = [await NodeClient.start(f"http://127.0.0.1:{cluster.proxy.port}/bayeux", KINDS[kind]) for _ in range(2)]
    try:
        for client in clients:
            assert (await client.open()).successful
            assert (await client.subscribe(f"/chat/{kind}")).successful
        for number in range(5):
            assert (await clients[number % 2].publish(f"/chat/{kind}", number)).successful
        for client in clients:
            await client.hears(*((f"/chat/{kind}", number) for number in range(5)))
            assert len(client.replies("/meta/handshake")) == 1
            assert (await client.disconnect()).successful
    finally:
        for client in clients:
            await client.close()


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
        await until_metric(b, "halley_cluster_relayed_waiting", len(clients))  # their next polls
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
            assert (await client.disconnect()).successful
            assert len(client.replies("/meta/handshake")) == 1


async def test_a_poll_that_dies_loses_nothing(cluster):
    """The client hangs up: the poll ends at its node, and the events come with the next one."""
    a, b, c = cluster.nodes
    client_id = await session(a, "/fleeting/dies")
    wire = await held(b, client_id)
    await a.until_held(1)
    wire.reset()
    await a.until_held(0)
    other = await a.wire()
    for number in range(3):
        await other.post(publish("/fleeting/dies", number))
    assert (await (await c.wire()).post(connect(client_id))).data == [0, 1, 2]


async def unread(cluster, client_id, topic):
    """Return a connection to b whose client has not read its response: 8 events, which have left their node a."""
    other = await cluster.a.wire()
    queued = await metric(cluster.a, "halley_queued")
    for number in range(8):
        await other.post(publish(topic, [number, "x" * 60_000]))
    slow = await Wire.open(cluster.b.port, receive_buffer_bytes=4096)
    await slow.send(post(json.dumps([connect(client_id)]).encode()))
    async with asyncio.timeout(DEADLINE_S):
        while await metric(cluster.a, "halley_queued") > queued:
            await asyncio.sleep(0.01)
        await slow.reader.readexactly(1)  # it has begun to arrive
    return slow


async def test_events_of_an_answer_that_the_client_does_not_read_come_again(cluster):
    """They wait in the other node for a slow reader, which dies."""
    client_id = await session(cluster.a, "/fleeting/slow")
    slow = await unread(cluster, client_id, "/fleeting/slow")
    before = await metric(cluster.a, "halley_put_back_total")
    slow.reset()
    await until_metric(cluster.a, "halley_put_back_total", before + 8)
    assert [number for number, _ in (await (await cluster.c.wire()).post(connect(client_id))).data] == [*range(8)]


async def test_a_newer_connect_cuts_one_whose_answer_is_not_read(cluster):
    """It gets the events, at another node, and the older one does not get all of its response."""
    client_id = await session(cluster.a, "/fleeting/unread")
    slow = await unread(cluster, client_id, "/fleeting/unread")
    assert [number for number, _ in (await (await cluster.c.wire()).post(connect(client_id))).data] == [*range(8)]
    assert len(await slow.rest()) < 480_000
    await slow.close()


async def test_a_newer_connect_cuts_an_older_one_at_another_node(cluster):
    """As at one server; the older connection is closed without a response, or with the status that the settings say."""
    a, b, c = cluster.nodes
    client_id = await session(a, "/fleeting/newer")
    older = await held(b, client_id)
    await a.until_held(1)
    newer = await held(c, client_id)
    assert (await older.read()).status == 200
    await (await a.wire()).post(publish("/fleeting/newer", 1))
    assert (await newer.read()).data == [1]


HITS = 'halley_limits_hit_total{limit="relayed"}'


async def test_no_more_than_a_share_are_passed_on_to_a_node_at_a_time(cluster):
    """Then 503 with Retry-After; direct requests are served on, and those for another node have their own share."""
    a, b, c = cluster.nodes
    await until_metric(b, "halley_cluster_relayed_waiting", 0)  # polls that other tests have left count too
    ids = {server: [await session(server) for _ in range(SHARE + 1)] for server in (a, c)}
    wires, before = [], await metric(b, HITS)
    for count, server in enumerate((a, c), 1):
        wires += [await held(b, client_id) for client_id in ids[server][:-1]]
        await server.until_held(SHARE)
        answer = await (await b.wire()).post(connect(ids[server][-1]))
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert (await (await server.wire()).post(publish("/fleeting/x", 1, clientId=ids[server][-1]))).replies[0][
            "successful"
        ]
        assert await metric(b, HITS) == before + count
    for wire in wires:
        await wire.close()
    for server in (a, c):
        await server.until_held(0)
    await until_metric(b, "halley_cluster_relayed_waiting", 0)


@asynccontextmanager
async def listening(nats):
    """Yield a connection to NATS, and what the nodes send each other, by their names, as soon as all have."""
    client, beats = NatsClient(), {}
    await client.connect(nats.urls)

    async def take(message):
        beat = json.loads(message.data)
        beats[beat["node"]] = beat

    await client.subscribe("halley.h.*", cb=take)
    async with asyncio.timeout(DEADLINE_S):
        while len(beats) < len(NAMES):
            await asyncio.sleep(0.01)
    yield client, beats
    await client.close()


async def test_strangers_at_the_nodes_listener_get_403(cluster):
    """Without the key, and with that of another node; with it, the client is who the other node says it is."""
    async with listening(cluster.nats) as (_, beats):
        port = int(beats["a"]["url"].rpartition(":")[2])
        proofs = {
            "": 403,
            "x": 403,
            f"{beats['b']['key']} {id_of('a')} http 10.9.8.7": 403,
            f"{beats['a']['key']} {id_of('b')} http 10.9.8.7": 421,
            f"{beats['a']['key']} {id_of('a')} gopher 10.9.8.7": 403,
            f"{beats['a']['key']} {id_of('a')} http 10.9.8.7": 200,
        }
        for proof, status in proofs.items():
            for target in ("/bayeux", "/health/live", "/"):
                wire = await Wire.open(port)
                answer = await wire.post(HANDSHAKE, path=target, halley_node=proof)
                assert answer.status == status if target == "/bayeux" else answer.status in (status, 404, 405)
                if status == 403:
                    assert (answer.text, await wire.is_closed()) == ("for nodes of the cluster only", True)
                await wire.close()
        opened = cluster.a.logged("session_opened")
        assert [each["address"] for each in opened if each["address"] != "127.0.0.1"] == ["10.9.8.7"]
        wire = await cluster.a.wire()
        assert (await wire.post(HANDSHAKE, halley_node=proof, x_forwarded_for="10.9.8.7")).status == 200
        assert cluster.a.logged("session_opened")[-1]["address"] == "127.0.0.1"
        await cluster.a.until(lambda: len(cluster.a.logged("session_opened")) > len(opened))
        assert not [line for line in cluster.a.lines if beats["a"]["key"] in line]


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
        for name, (facts, reason) in cases.items():
            answer = await answer_of(name, **facts)
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
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


async def test_a_request_that_is_not_parsed_is_passed_on_with_its_own_path(tmp_path):
    """It has the head of an earlier one on its connection, behind which another request was parsed."""
    async with running(tmp_path) as cluster:
        client_id = await session(cluster.a, "/chat/**")
        wire = await cluster.b.wire()
        for _ in range(3):
            assert (await wire.post(connect(client_id, **POLL))).messages[0]["successful"]
            assert (await wire.request(request("GET", "/bayeux"))).status == 400
            assert (await wire.post(connect(client_id, **POLL))).messages[0]["successful"]


async def test_a_node_that_stands_still_costs_no_session_and_no_other_node(tmp_path):
    """What waits for it ends when it counts as gone, for others there is room, and its sessions go on after it does.

    The publish that it had was cut, since it may be acted on later; its repetition finds that. Polls get 503, and what
    comes meanwhile is not passed on at all, so nothing is done twice.
    """
    async with running(tmp_path) as cluster:
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
        await until_metric(b, "halley_cluster_relayed_waiting", SHARE)
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
        (repeated,) = [each for each in (await wire.post(keyed)).replies if each["channel"] == "/chat/room"]
        events = {client_id: await _until_data(wire, client_id, 4) for client_id in ids}
        assert [sorted(data, key=str) for data in events.values()] == [[0, 1, 2, "late"]] * SHARE
        assert len({*map(str, events.values())}) == 1
        assert (await (await a.wire()).post(keyed)).replies[0]["ext"] == repeated["ext"]
        for client_id in ids:
            assert (await wire.post(connect(client_id, **POLL))).data == []
        await _kill_silent(cluster, ids[0])


async def _until_alive_again(server, name):
    """Wait until a node has noticed another one a second time."""
    await server.until(lambda: [each["node"] for each in server.logged("cluster_member")].count(name) == 2)


async def _until_data(wire, client_id, count):
    """Return the data of the next `count` events of a session, as its connects bring them."""
    data = []
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
