"""A client comes back to another node of its cluster by a WebSocket, and its session goes on there."""

from __future__ import annotations

import asyncio
import signal

import pytest
import pytest_asyncio
from clients.kinds import KINDS, require
from clients.node import NodeClient
from support.bayeux_sockets import BayeuxWire, socket_connect
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.relayed import HITS, POLL, SHARE, WAITING, metric, running, session, until_held, until_metric
from support.tcp_proxy import relaying
from support.wire import DEADLINE_S, Wire

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory):
    """A cluster that all tests share but those that end nodes."""
    async with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


async def cut_off(server, *channels):
    """Have a session at a node by a WebSocket that is cut; return its id."""
    socket = await BayeuxWire.join(server, *channels)
    socket.wire.reset()
    return socket.client_id


async def claim(server, client_id, **headers):
    """Open a WebSocket to a node for a session of another one."""
    socket = await BayeuxWire.open(server, **headers)
    socket.client_id = client_id
    return socket


async def hold(socket, home):
    """Send a connect, and wait until it is held at the session's node."""
    await socket.say(socket_connect(socket.client_id, id="held"))
    await home.until_held(1)


def data_of(messages):
    """The data of the events among messages."""
    return [message["data"] for message in messages if "data" in message]


def replies_of(messages):
    """The id and the success of each reply among messages."""
    return [(message["id"], message["successful"]) for message in messages if "successful" in message]


async def test_a_session_goes_on_by_a_websocket_to_another_node(cluster):
    """What was published meanwhile comes with the next connect; subscribes and publishes succeed, in their order."""
    a, b, c = cluster.nodes
    client_id = await cut_off(a, "/fleeting/on")
    other = await c.wire()
    assert (await other.post(publish("/chat/warm", 0))).messages[0]["successful"]
    for number in range(3):
        await (await a.wire()).post(publish("/fleeting/on", number))
    socket = await claim(b, client_id)
    messages = await socket.ask(socket_connect(client_id, id="1"))
    assert (data_of(messages), replies_of(messages)) == ([0, 1, 2], [("1", True)])
    assert replies_of(await socket.ask(subscribe(client_id, "/chat/on", id="2"))) == [("2", True)]
    await hold(socket, a)
    assert (await other.post(publish("/chat/on", "durable"))).messages[0]["successful"]
    messages = await socket.hear()
    assert (data_of(messages), replies_of(messages)) == (["durable"], [("held", True)])


async def test_publishes_behind_a_held_connect_keep_their_order(cluster):
    """None waits for the connect, and each for the one before; a newer connect ends the one that is held."""
    a, b, _ = cluster.nodes
    client_id = await session(a)
    listener = await BayeuxWire.join(a, "/fleeting/order")
    socket = await claim(b, client_id)
    await hold(socket, a)
    for number in range(30):
        await socket.say(publish("/fleeting/order", number, clientId=client_id, id=str(number)))
    replies = [message for _ in range(30) for message in await socket.hear()]
    assert replies_of(replies) == [(str(number), True) for number in range(30)]
    heard = []
    while len(heard) < 30:
        heard += data_of(await listener.hear())
    assert heard == [*range(30)]
    assert replies_of(await socket.ask(socket_connect(client_id, id="newer"))) == [("held", True)]
    replies = await socket.ask(socket_connect(client_id, id="last", **POLL)) + await socket.hear()
    assert sorted(replies_of(replies)) == [("last", True), ("newer", True)]
    listener.wire.reset()
    socket.wire.reset()
    await a.until_held(0)


async def test_a_lost_websocket_ends_what_it_has_passed_on(cluster):
    """The connect that is held at the other node, whose events come with the next one."""
    a, b, c = cluster.nodes
    client_id = await session(a, "/fleeting/lost")
    socket = await claim(b, client_id)
    await hold(socket, a)
    socket.wire.reset()
    await a.until_held(0)
    await until_metric(b, WAITING, 0)
    await (await a.wire()).post(publish("/fleeting/lost", 1))
    messages = await (await claim(c, client_id)).ask(socket_connect(client_id))
    assert data_of(messages) == [1]


async def test_events_that_the_client_does_not_read_come_again(cluster):
    """They wait in the other node for a slow reader, which dies."""
    a, b, c = cluster.nodes
    client_id = await session(a, "/fleeting/unread")
    queued, before = await metric(a, "halley_queued"), await metric(a, "halley_put_back_total")
    for number in range(8):
        await (await a.wire()).post(publish("/fleeting/unread", [number, "x" * 60_000]))
    slow = await BayeuxWire.over(await Wire.open(b.port, receive_buffer_bytes=4096))
    await slow.say(socket_connect(client_id))
    async with asyncio.timeout(DEADLINE_S):
        while await metric(a, "halley_queued") > queued:
            await asyncio.sleep(0.01)
        await slow.wire.reader.readexactly(1)  # it has begun to arrive
    slow.wire.reset()
    await until_metric(a, "halley_put_back_total", before + 8)
    messages = await (await claim(c, client_id)).ask(socket_connect(client_id))
    assert [number for number, _ in data_of(messages)] == [*range(8)]


async def test_the_cookie_goes_along(cluster):
    """A session that is bound to one is refused without it, as at its own node; the WebSocket stays open."""
    a, b, _ = cluster.nodes
    wire = await a.wire()
    answer = await wire.post(HANDSHAKE)
    client_id, cookie = answer.messages[0]["clientId"], answer.set_cookies[0].partition(";")[0]
    assert (await wire.post(connect(client_id, **POLL), cookie=cookie)).messages[0]["successful"]
    (reply,) = await (await claim(b, client_id, cookie=cookie)).ask(socket_connect(client_id, **POLL))
    assert reply["successful"]
    stranger = await claim(b, client_id)
    (reply,) = await stranger.ask(socket_connect(client_id, **POLL))
    assert reply["error"][:3] == "402"
    (reply,) = await stranger.ask(publish("/fleeting/x", 1))
    assert reply["successful"]


async def test_a_websocket_that_has_a_session_serves_no_other(cluster):
    a, b, _ = cluster.nodes
    client_id = await session(a)
    (reply,) = await (await BayeuxWire.join(b)).ask(socket_connect(client_id, **POLL))
    assert reply["error"][:3] == "402"


async def test_a_websocket_is_closed_where_a_post_is_answered_503(cluster):
    """More than a share are passed on to a node: 1013, and the client comes back later."""
    a, b, _ = cluster.nodes
    await until_metric(b, WAITING, 0)
    before = await metric(b, HITS)
    sockets = [await claim(b, await session(a)) for _ in range(SHARE + 1)]
    for socket in sockets[:-1]:
        await socket.say(socket_connect(socket.client_id))
    await a.until_held(SHARE)
    await sockets[-1].say(socket_connect(sockets[-1].client_id))
    frame = await sockets[-1].close_frame()
    assert (frame.code, frame.reason) == (1013, "too many requests for the node of this session at the same time")
    assert await metric(b, HITS) == before + 1
    for socket in sockets[:-1]:
        socket.wire.reset()
    await a.until_held(0)


@pytest.mark.node
@pytest.mark.parametrize("kind", ["cometd9-node", "cometd9-node-extended"])
async def test_cometd_js_goes_on_at_another_node(cluster, kind):
    """Its WebSocket is cut, the next one goes to another node: one handshake, and what is published comes in order."""
    require("node")
    a, b, _ = cluster.nodes
    async with relaying(a.port) as proxy:
        client = await NodeClient.start(f"http://127.0.0.1:{proxy.port}/bayeux", KINDS[kind])
        try:
            assert (await client.open()).successful
            await client.until(lambda: client.transport == "websocket")
            assert (await client.subscribe(f"/chat/{kind}")).successful
            proxy.server_port = b.port
            proxy.cut()
            wire = await b.wire()
            for number in range(3):
                assert (await wire.post(publish(f"/chat/{kind}", number))).messages[0]["successful"]
            proxy.mend()
            await client.hears(*((f"/chat/{kind}", number) for number in range(3)))
            for number in range(3, 6):
                assert (await client.publish(f"/chat/{kind}", number)).successful
            await client.hears(*((f"/chat/{kind}", number) for number in range(6)))
            assert len(client.replies("/meta/handshake")) == 1
            assert client.transport == "websocket"
            await until_held(cluster, 1)
            assert (await client.disconnect()).successful
        finally:
            await client.close()


async def test_when_the_node_of_a_session_is_killed(tmp_path):
    """A WebSocket with a held connect is cut, as a poll is; the next one gets 402 and the advice to handshake."""
    async with running(tmp_path, ("a", "b")) as cluster:
        a, b = cluster.nodes
        client_id = await session(a)
        socket = await claim(b, client_id)
        await hold(socket, a)
        a.send_signal(signal.SIGKILL)
        assert await socket.wire.is_closed()
        assert await a.exit_code() == -signal.SIGKILL
        socket = await claim(b, client_id)
        (reply,) = await socket.ask(socket_connect(client_id, id="1"))
        assert (reply["id"], reply["error"][:3], reply["advice"]["reconnect"]) == ("1", "402", "handshake")
        assert (await socket.handshake())["successful"]
        (reply,) = await socket.ask(socket_connect(socket.client_id, **POLL))
        assert reply["successful"]
