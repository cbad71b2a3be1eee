"""WAMP sessions and events when the server's process is killed, is stopped, or has slow clients."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress

import pytest_asyncio
from support.frames import text
from support.process import launched
from support.wamp import EVENT, GOODBYE, PUBLISH, PUBLISHED, SUBSCRIBE, connect
from support.wire import DEADLINE_S
from websockets.exceptions import ConnectionClosed

TOPIC = "com.news"
AT_LEAST = 300
AT_ONCE = 50
PAGE = 300


@pytest_asyncio.fixture
async def knock():
    """A function that connects to a server, with a session by default; the connections are closed after the test."""
    clients = []

    async def knock(server, *, joins=True):
        clients.append(await connect(f"http://127.0.0.1:{server.port}"))
        if joins:
            await clients[-1].join()
        return clients[-1]

    yield knock
    for client in clients:
        client.socket.transport.abort()
        await client.socket.wait_closed()


def frame_of(message):
    """Return a message in a frame, to be sent without the client's own flow control."""
    return text(json.dumps(message).encode())


async def publish_on(client, acknowledged, enough):
    """Publish 0, 1, 2 ... without end; note the acknowledged ones with their ids, in order."""
    sent, waiting = 0, {}
    try:
        while True:
            for _ in range(AT_ONCE):
                request = client.next_request()
                waiting[request] = sent
                await client.send([PUBLISH, request, {"acknowledge": True}, TOPIC, [sent]])
                sent += 1
            while waiting:
                code, request, publication = await client.receive()
                assert code == PUBLISHED
                acknowledged.append((waiting.pop(request), publication))
            if len(acknowledged) >= AT_LEAST:
                enough.set()
    except ConnectionClosed:
        return sent


async def history(client):
    """Return all published events and their ids."""
    number = (await client.call("wamp.subscription.lookup", TOPIC))[3][0]
    found, more = [], {}
    while True:
        answer = await client.call("wamp.subscription.get_events", number, limit=PAGE, **more)
        found += [(event["args"][0], event["publication"]) for event in answer[3]]
        if answer[4]["next"] is None:
            return found
        more = {"after_publication": answer[4]["next"]}


async def test_what_was_acknowledged_is_there_after_kill_9(tmp_path, knock):
    """P1: after a kill in the middle of publishing, `get_events` has each acknowledged publication once, in order.

    Earlier subscription ids are not used for anything else (W13).
    """
    acknowledged: list[tuple[int, int]] = []
    async with launched(cwd=tmp_path) as server:
        client, other = await knock(server), await knock(server)
        before = {topic: await other.subscribe(topic) for topic in ("a.b", "a.c", TOPIC)}
        enough = asyncio.Event()
        publishing = asyncio.create_task(publish_on(client, acknowledged, enough))
        async with asyncio.timeout(DEADLINE_S):
            await enough.wait()
            server.send_signal(signal.SIGKILL)
            sent = await publishing
    async with launched(cwd=tmp_path) as server:
        client = await knock(server)
        recorded = await history(client)
        after = {topic: await client.subscribe(topic) for topic in ("x.y", "a.c", "a.b")}
    assert [number for number, _ in recorded] == list(range(len(recorded)))
    assert len(acknowledged) <= len(recorded) <= sent
    assert set(acknowledged) <= set(recorded)
    assert all(before.get(topic) == number or number not in before.values() for topic, number in after.items())


async def test_sigterm_says_goodbye_to_every_session(tmp_path, knock):
    """P7: each gets its events, then GOODBYE `wamp.close.system_shutdown`; without a session it is ABORT."""
    async with launched("--history", "off", cwd=tmp_path, HALLEY_DRAIN_CLIENTS_PER_S="1000") as server:
        clients = [await knock(server) for _ in range(20)]
        for client in clients:
            await client.subscribe(TOPIC)
        stranger = await knock(server, joins=False)
        await clients[0].publish(TOPIC, ["last"], exclude_me=False)
        server.send_signal(signal.SIGTERM)
        for client in clients:
            assert (await client.receive())[0] == EVENT
            assert await client.receive() == [GOODBYE, {}, "wamp.close.system_shutdown"]
        assert (await stranger.receive())[2] == "wamp.close.system_shutdown"
        for client in clients[::2]:  # the others never reply
            with suppress(ConnectionClosed):  # the server waits for no reply, and can have ended before a late one
                await client.send([GOODBYE, {}, "wamp.close.goodbye_and_out"])
        for client in clients:
            assert await client.closed() in (1000, 1001)
        assert await server.exit_code() == 0
    assert not server.logged("fault")


async def test_a_reader_that_never_reads_is_sent_away_and_the_others_get_all(tmp_path, knock):
    """S32, WD14: its connection is cut, counted and logged; a client that reads gets every event in order."""
    async with launched("--history", "off", cwd=tmp_path, HALLEY_LIMITS_QUEUE_BYTES="200000") as server:
        deaf, good, publisher = await knock(server), await knock(server), await knock(server)
        for client in (deaf, good):
            await client.subscribe(TOPIC)
        deaf.socket.transport.pause_reading()
        published = 0
        async with asyncio.timeout(DEADLINE_S):
            while not server.logged("connection_cut"):
                for _ in range(10):
                    await publisher.publish(TOPIC, [published, "x" * 60_000])
                    published += 1
                for number in range(published - 10, published):
                    assert (await good.receive())[4][0] == number
        assert server.logged("connection_cut")[0]["reason"] in ("lingers", "slow_reader")
    assert not server.logged("fault")


async def test_a_client_that_asks_and_never_reads_is_sent_away(tmp_path, knock):
    """S32: replies are bounded as events are; other clients are not affected."""
    async with launched("--history", "off", cwd=tmp_path, HALLEY_LIMITS_QUEUE_BYTES="200000") as server:
        deaf, good = await knock(server), await knock(server)
        for number in range(200):
            await good.publish(f"{TOPIC}.n{number}", ["x" * 5_000], retain=True)
        deaf.socket.transport.pause_reading()
        async with asyncio.timeout(DEADLINE_S):
            while not server.logged("connection_cut"):
                for _ in range(50):
                    message = [SUBSCRIBE, deaf.next_request(), {"match": "prefix", "get_retained": True}, TOPIC]
                    deaf.socket.transport.write(frame_of(message))
                assert (await good.call("wamp.session.get", good.session))[3][0]["session"] == good.session
    assert not server.logged("fault")
