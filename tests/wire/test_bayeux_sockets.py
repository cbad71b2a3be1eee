"""Bayeux over a WebSocket, byte by byte: the conversation of cometd.js, Faye's ways, and moves between transports."""

from __future__ import annotations

import json

import pytest
from support.bayeux_sockets import SOCKET_HANDSHAKE, BayeuxWire, socket_connect
from support.frames import next_frame, text
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import PARSED, RECORDED, SHORT_WAY, TLS, brisk, serving
from support.switchboard import speaking_plainly
from support.wire import Wire

FACES = pytest.mark.faces(SHORT_WAY, PARSED, pytest.param(TLS, marks=pytest.mark.slow))


@FACES
async def test_the_conversation_of_cometd_js():
    """BW10, BW13, BW15, BW16, BW21: the frames of a whole conversation, in bytes."""
    async with serving(brisk(bayeux={"hold_s": 0.5})) as served:
        served.house.engine.sessions.new_id = iter(("a" * 20,)).__next__
        socket = await BayeuxWire.open(served, "/cometd")
        advice = b'"advice":{"reconnect":"retry","interval":0,"timeout":500}'

        async def frames(*messages, count=1):
            await socket.say(*messages)
            return [(await next_frame(socket.wire)).data for _ in range(count)]

        handshake = SOCKET_HANDSHAKE | {"id": "1", "advice": {"timeout": 60_000, "interval": 0}}
        assert await frames(handshake) == [
            b'[{"id":"1","channel":"/meta/handshake","successful":true,"clientId":"aaaaaaaaaaaaaaaaaaaa","version":"1.0",'
            b'"minimumVersion":"1.0","supportedConnectionTypes":["websocket","long-polling",'
            b'"cross-origin-long-polling","callback-polling"],' + advice + b"}]"
        ]
        end = b'"successful":true,"clientId":"aaaaaaaaaaaaaaaaaaaa"'
        assert await frames(socket_connect("a" * 20, id="2", advice={"timeout": 0})) == [
            b'[{"id":"2","channel":"/meta/connect",' + end + b"," + advice + b"}]"
        ]
        await socket.say(socket_connect("a" * 20, id="3"))
        assert await frames(subscribe("a" * 20, "/cut/x", id="4")) == [
            (
                b'[{"id":"4","channel":"/meta/subscribe","successful":true,"subscription":"/cut/x",'
                b'"clientId":"aaaaaaaaaaaaaaaaaaaa"}]'
            )
        ]
        assert await frames(publish("/cut/x", 0, clientId="a" * 20, id="5")) == [
            b'[{"channel":"/cut/x","data":0},{"id":"5","channel":"/cut/x","successful":true}]'
        ]
        assert (await next_frame(socket.wire)).data == b'[{"id":"3","channel":"/meta/connect",' + end + b"}]"
        await socket.say(socket_connect("a" * 20, id="6"))
        left = await socket.ask({"channel": "/meta/disconnect", "clientId": "a" * 20, "id": "7"})
        assert {message["id"]: message.get("advice", {}).get("reconnect") for message in left} == {
            "7": None,
            "6": "none",
        }


@FACES
async def test_a_lone_object_and_a_ping_of_faye():
    """BW6, BW7: answered with arrays."""
    async with serving() as served:
        socket = await BayeuxWire.open(served)
        await socket.wire.send(text(json.dumps(SOCKET_HANDSHAKE).encode()))
        assert (await socket.hear())[0]["successful"] is True
        assert await socket.ask() == []


async def test_bw34_faye_opens_its_socket_before_it_handshakes_by_post():
    """BW34: a subscribe may come before the connect that moves the session to the socket."""
    async with serving() as served:
        socket = await BayeuxWire.open(served)
        wire = await served.wire()
        types = ["long-polling", "websocket"]
        (reply,) = (await wire.post(HANDSHAKE | {"supportedConnectionTypes": types})).messages
        assert reply["supportedConnectionTypes"][0] == "long-polling"
        assert "websocket" in reply["supportedConnectionTypes"]
        client_id = reply["clientId"]
        (reply,) = await socket.ask(subscribe(client_id, "/a", id="1"))
        assert reply["successful"] is True
        (reply,) = await socket.ask(socket_connect(client_id, id="2"))
        assert reply["advice"]["reconnect"] == "retry"
        await wire.post(publish("/a", 1))
        assert await socket.hear() == [{"channel": "/a", "data": 1}]


async def test_bw30_faye_returns_with_the_same_connect():
    """BW30: on a new socket, with the same id; what was published meanwhile comes first."""
    async with serving() as served:
        socket = await BayeuxWire.join(served, "/a")
        await socket.hold("2")
        socket.wire.reset()
        await served.until(lambda: served.house.engine.sessions.holds == 0)
        await (await served.wire()).post(publish("/a", 1))
        again = await BayeuxWire.open(served)
        await again.say(socket_connect(socket.client_id, id="2"))
        assert await again.hear() == [{"channel": "/a", "data": 1}]
        assert served.house.engine.sessions.holds == 1


async def test_bw32_a_session_moves_to_polls_and_back():
    """BW32: with a full queue in the middle; each event once and in order."""
    async with serving() as served:
        socket = await BayeuxWire.join(served, "/a")
        publisher, poll = await served.wire(), await served.wire()
        await publisher.post(publish("/a", 0))
        assert [message["data"] for message in await socket.hear()] == [0]
        socket.wire.reset()
        await served.until(lambda: not served.house.protocol("bayeux").sockets.open)
        await publisher.post(*(publish("/a", number) for number in range(1, 900)))
        answer = await poll.post(connect(socket.client_id, advice={"timeout": 0}))
        assert answer.data == list(range(1, 900))
        await publisher.post(*(publish("/a", number) for number in range(900, 1_800)))
        again = await BayeuxWire.open(served)
        await again.say(socket_connect(socket.client_id, id="1", advice={"timeout": 0}))
        data = []
        while len(data) < 900:
            data += [message["data"] for message in await again.hear() if "data" in message]
        assert data == list(range(900, 1_800))


async def test_bw31_events_of_a_session_on_a_socket_do_not_ride_on_replies_to_posts():
    """BW16, BW31: a publish by POST gets its reply there; its event goes by the socket."""
    async with serving() as served:
        socket = await BayeuxWire.join(served, "/a")
        answer = await (await served.wire()).post(publish("/a", 1, clientId=socket.client_id, id="1"))
        assert [message["id"] for message in answer.messages] == ["1"]
        assert await socket.hear() == [{"channel": "/a", "data": 1}]


@pytest.mark.faces(SHORT_WAY, RECORDED)
async def test_bw8_a_publishers_own_event_and_the_reply_share_a_frame():
    """BW8: also where it must be on disk before."""
    async with serving(brisk()) as served:
        socket = await BayeuxWire.join(served, "/a")
        for number in range(3):
            event, reply = await socket.ask(publish("/a", number, clientId=socket.client_id, id="p"))
            assert (event["data"], reply["id"]) == (number, "p")


@pytest.mark.faces(SHORT_WAY, RECORDED)
async def test_bw18_several_publishes_in_a_frame_are_answered_in_order():
    """BW18: also where each must be on disk before."""
    async with serving(brisk()) as served:
        socket = await BayeuxWire.join(served, "/a")
        await socket.say(*(publish("/a", n, clientId=socket.client_id, id=str(n)) for n in range(50)))
        data, ids = [], []
        while len(ids) < 50:
            for message in await socket.hear():
                if "data" in message:
                    data.append(message["data"])
                else:
                    assert message["successful"] is True
                    ids.append(message["id"])
        assert (data, ids) == (list(range(50)), [str(n) for n in range(50)])


@pytest.mark.faces(RECORDED)
async def test_replay_over_a_socket_rides_with_connects():
    """BW16: what is stored comes with the reply to a connect, and so does what is new; none twice."""
    async with serving(brisk()) as served:
        publisher = await served.wire()
        await publisher.post(*(publish("/a", number) for number in range(5)))
        socket = await BayeuxWire.open(served)
        await socket.handshake(ext={"replay": True})
        await socket.ask(socket_connect(socket.client_id, id="c"))
        await socket.ask(subscribe(socket.client_id, "/a", ext={"replay": {"/a": -2}}))
        heard = []
        for number in range(5, 8):
            while len(heard) < number:
                await socket.say(socket_connect(socket.client_id, id=f"n{len(heard)}"))
                *events, reply = await socket.hear()
                assert reply["id"] == f"n{len(heard)}"
                heard += [event["data"] for event in events]
            await publisher.post(publish("/a", number))
        assert heard == list(range(7))


async def test_an_anonymous_publish_by_a_socket():
    """BW11: as by POST."""
    async with serving() as served:
        hearer, socket = await BayeuxWire.join(served, "/a"), await BayeuxWire.open(served)
        (reply,) = await socket.ask(publish("/a", 1, id="1"))
        assert reply == {"id": "1", "channel": "/a", "successful": True}
        assert await hearer.hear() == [{"channel": "/a", "data": 1}]


async def test_tabs_of_one_browser_each_have_a_held_connect():
    """BW16: sockets take no slot of a browser."""
    async with serving() as served:
        cookie = f"BAYEUX_BROWSER={'c' * 40}"
        first = await BayeuxWire.open(served, cookie=cookie)
        await first.handshake()
        await first.ask(socket_connect(first.client_id, id="c"))
        await first.hold()
        second = await BayeuxWire.open(served, cookie=cookie)
        await second.handshake()
        await second.ask(socket_connect(second.client_id, id="c"))
        await second.hold()
        assert served.house.engine.sessions.holds == 2


async def test_a_foreign_asgi_server_serves_sockets_too():
    """The same engine and route under uvicorn's own host, with its WebSocket implementation."""
    async with speaking_plainly() as served:
        wires = [await Wire.open(served.port) for _ in range(2)]
        socket = await BayeuxWire.over(wires[0])
        await socket.handshake()
        await socket.ask(socket_connect(socket.client_id, id="c"))
        await socket.ask(subscribe(socket.client_id, "/a", id="s"))
        await wires[1].post(publish("/a", 1))
        assert await socket.hear() == [{"channel": "/a", "data": 1}]
        await socket.wire.send(text(b"c4n4ry"))
        assert (await socket.close_frame()).code == 1002
        for wire in wires:
            await wire.close()
