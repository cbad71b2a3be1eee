"""No event is lost when a poll's socket dies: real sockets, and peers that disconnect at the worst moment."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.server import PARSED, RECORDED, SHORT_WAY, TLS, brisk, serving
from support.wire import post

pytestmark = pytest.mark.faces(SHORT_WAY, PARSED, RECORDED, TLS)

HANDSHAKE = {"channel": "/meta/handshake", "version": "1.0", "supportedConnectionTypes": ["long-polling"]}


async def open_session(served, *channels, **handshake):
    """Handshake, connect once and subscribe; return the clientId."""
    wire = await served.wire()
    client_id = (await wire.post(HANDSHAKE | handshake)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    for channel in channels:
        await wire.post({"channel": "/meta/subscribe", "clientId": client_id, "subscription": channel})
    await wire.close()
    return client_id


def connect(client_id, **more):
    return {"channel": "/meta/connect", "clientId": client_id, "connectionType": "long-polling"} | more


def data_of(response):
    return [message["data"] for message in response.messages if "data" in message]


async def test_a_client_that_vanishes_during_a_hold_is_noticed_at_once():
    """B15: the slot is free and the hold has ended as soon as the socket is closed, long before the poll would end."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await open_session(served, "/a")
        wire = await served.wire()
        await wire.send(post(json.dumps([connect(client_id)]).encode()))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await wire.close()
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        assert client_id in served.house.broker.sessions


async def test_events_published_after_a_poll_died_come_with_the_next_connect():
    """B15: Faye and cometd-nodejs-server lose these events; here the next connect delivers them in order."""
    async with serving() as served:
        client_id = await open_session(served, "/a")
        wire = await served.wire()
        await wire.send(post(json.dumps([connect(client_id)]).encode()))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        wire.reset()
        other = await served.wire()
        for number in range(3):
            await other.post({"channel": "/a", "data": number})
        assert data_of(await other.post(connect(client_id))) == [0, 1, 2]


async def test_events_of_an_answer_whose_socket_dies_while_it_is_written_come_again():
    """D4: the connection of a reader that is too slow is reset; its events are delivered to the next connect."""
    async with serving() as served:
        client_id = await open_session(served, "/a")
        other = await served.wire()
        slow = await served.wire(receive_buffer_bytes=4096)
        text = "x" * 60_000
        for number in range(8):
            await other.post({"channel": "/a", "data": [number, text]})
        await slow.send(post(json.dumps([connect(client_id)]).encode()))
        session = served.house.broker.sessions[client_id]
        await served.until(lambda: session.unsettled is not None)
        assert len(session.outbox) == 0
        slow.reset()
        await served.until(lambda: session.unsettled is None)
        assert [number for number, _ in data_of(await other.post(connect(client_id)))] == list(range(8))
        assert served.house.engine.sessions.put_back == 8


async def test_a_newer_connect_aborts_one_whose_answer_is_half_written():
    """The connection of the half-written response is cut, and the newer connect gets its events, in order."""
    async with serving() as served:
        client_id = await open_session(served, "/a")
        other = await served.wire()
        slow = await served.wire(receive_buffer_bytes=4096)
        text = "x" * 60_000
        for number in range(8):
            await other.post({"channel": "/a", "data": [number, text]})
        await slow.send(post(json.dumps([connect(client_id)]).encode()))
        session = served.house.broker.sessions[client_id]
        await served.until(lambda: session.unsettled is not None)
        assert [number for number, _ in data_of(await other.post(connect(client_id)))] == list(range(8))
        await served.until(lambda: served.watch.cut == 1)


async def test_with_acks_an_answer_that_got_lost_behind_the_kernel_comes_again():
    """B17: the client repeats its old batch number and gets the events again, under a new one."""
    async with serving() as served:
        client_id = await open_session(served, "/a", ext={"ack": True})
        wire = await served.wire()
        await wire.post({"channel": "/a", "data": 1})
        lost = await wire.post(connect(client_id, ext={"ack": 1}))
        again = await wire.post(connect(client_id, ext={"ack": 1}))
        assert data_of(lost) == data_of(again) == [1]
        assert again.messages[0]["ext"]["ack"] == lost.messages[0]["ext"]["ack"] + 1


async def test_bytes_that_come_during_a_hold_wait_and_an_end_of_stream_still_counts():
    """A pipelined request is answered after the hold; if the peer closes during the hold, that is noticed."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await open_session(served, "/a")
        held = post(json.dumps([connect(client_id)]).encode())
        publish = post(json.dumps([{"channel": "/b", "data": 1}]).encode())

        wire = await served.wire()
        await wire.send(held + publish)
        await wire.send(publish)
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        other = await served.wire()
        await other.post({"channel": "/a", "data": "wake"})
        assert data_of(await wire.read()) == ["wake"]
        for _ in range(2):
            (reply,) = (await wire.read()).messages
            assert (reply["channel"], reply["successful"]) == ("/b", True)

        await wire.send(held + publish)
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        await wire.close()
        await served.until(lambda: served.house.engine.sessions.holds == 0)


async def test_too_many_bytes_during_a_hold_close_the_connection():
    """At most one further head and body are kept during a hold."""
    async with serving(brisk(bayeux={"hold_s": 3600})) as served:
        client_id = await open_session(served, "/a")
        wire = await served.wire()
        await wire.send(post(json.dumps([connect(client_id)]).encode()))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        limits = served.house.settings.limits
        wire.writer.write(b"x" * (limits.head_bytes + limits.body_bytes + 1))
        assert await wire.is_closed()
        await served.until(lambda: served.house.engine.sessions.holds == 0)


async def test_held_polls_are_answered_with_retry_when_the_server_leaves():
    """P7: every held connect gets 200 with retry advice, and its connection is closed."""
    async with serving(brisk(bayeux={"hold_s": 3600, "holds_per_browser": -1})) as served:
        wires = []
        for _ in range(20):
            client_id = await open_session(served, "/a")
            wires.append(await served.wire())
            await wires[-1].send(post(json.dumps([connect(client_id)]).encode()))
        await served.until(lambda: served.house.engine.sessions.holds == 20)
        served.server.begin_shutdown()
        for answer in await asyncio.gather(*(wire.read() for wire in wires)):
            assert answer.status == 200
            assert answer.messages[0]["successful"] is True
            assert answer.messages[0]["advice"]["reconnect"] == "retry"
            assert answer.headers["connection"] == "close"
