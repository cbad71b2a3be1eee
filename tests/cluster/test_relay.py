"""Any node of a cluster serves any client: requests that reach another node than that of their session.

The cluster has no sticky balancer: in front of it is a proxy that sends each request of each connection to the next
node, without looking at it.
"""

from __future__ import annotations

import asyncio
import json
import re
from itertools import cycle
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from clients.kinds import KINDS, require
from clients.node import NodeClient
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.relayed import (
    HITS,
    NAMES,
    POLL,
    SHARE,
    WAITING,
    held,
    listening,
    metric,
    running,
    session,
    until_held,
    until_metric,
)
from support.wamp import REALM
from support.wire import DEADLINE_S, Wire, post, request

from halley.client import Client
from halley.cluster.members import id_of

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """A cluster that all tests share; those that end nodes have their own."""
    async with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


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
        for waiting in (2, 1):
            await until_held(cluster, waiting)
            assert (await clients[waiting - 1].disconnect()).successful
    finally:
        for client in clients:
            await client.close()


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
    cut = await metric(cluster.b, "halley_connections_cut_total")
    assert [number for number, _ in (await (await cluster.c.wire()).post(connect(client_id))).data] == [*range(8)]
    await until_metric(cluster.b, "halley_connections_cut_total", cut + 1)
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


async def test_no_more_than_a_share_are_passed_on_to_a_node_at_a_time(cluster):
    """Then 503 with Retry-After; direct requests are served on, and those for another node have their own share."""
    a, b, c = cluster.nodes
    await until_metric(b, WAITING, 0)  # polls that other tests have left count too
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
    await until_metric(b, WAITING, 0)


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
                assert "date" not in answer.headers  # nodes remember each other's heads
                if status == 403:
                    assert (answer.text, await wire.is_closed()) == ("for nodes of the cluster only", True)
                await wire.close()
        opened = cluster.a.logged("session_opened")
        assert [each["address"] for each in opened if each["address"] != "127.0.0.1"] == ["10.9.8.7"]
        wire = await cluster.a.wire()
        assert (await wire.post(HANDSHAKE, halley_node=proof, x_forwarded_for="10.9.8.7")).status == 200
        await cluster.a.until(lambda: len(cluster.a.logged("session_opened")) > len(opened))
        assert cluster.a.logged("session_opened")[-1]["address"] == "127.0.0.1"
        assert not [line for line in cluster.a.lines if beats["a"]["key"] in line]


async def test_a_request_that_is_not_parsed_is_passed_on_with_its_own_path(tmp_path):
    """It has the head of an earlier one on its connection, behind which another request was parsed."""
    async with running(tmp_path) as cluster:
        client_id = await session(cluster.a, "/chat/**")
        wire = await cluster.b.wire()
        for _ in range(3):
            assert (await wire.post(connect(client_id, **POLL))).messages[0]["successful"]
            assert (await wire.request(request("GET", "/bayeux"))).status == 400
            assert (await wire.post(connect(client_id, **POLL))).messages[0]["successful"]
