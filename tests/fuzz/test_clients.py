"""What a server that is faulty or hostile sends to Halley's own clients: each raises errors of its own, or goes on."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from random import Random

import msgpack
import pytest
from fuzz import inputs
from support.answering import answering
from support.nt4 import V41
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from halley.client import Client, ClientError, OutcomeUnknown, Timeouts
from halley.client.history import HistoryClient
from halley.client.nt4 import Nt4Client
from halley.client.wamp import WampClient

SEEDS = range(12)
BRIEF = Timeouts(answer_s=0.2, network_s=0.2, goodbye_s=0.1)
EXPECTED = (ClientError, ConnectionClosed, TimeoutError)
USUAL = {"successful": True, "clientId": "abc", "advice": {"interval": 0, "timeout": 0, "reconnect": "retry"}}


def spoiled_text(choose, value):
    return inputs.text_of(choose, inputs.spoiled(choose, value, choose.choice((0, 1, 1, 2))))


def replies(asked):
    """Yield a valid reply to each message, and an event with each connect."""
    for message in json.loads(asked):
        yield {"channel": message["channel"], "id": message["id"], "ext": {"ack": 1, "replay_log": "l"}, **USUAL}
        if message["channel"] == "/meta/connect":
            yield {"channel": "/a", "data": 1, "ext": {"replay": 4}}


@pytest.mark.parametrize("seed", SEEDS)
async def test_bayeux(seed):
    choose = Random(seed)

    async with answering(lambda _, body: (b"", spoiled_text(choose, [*replies(body)]))) as url:
        await use_bayeux(url, "long-polling")


@pytest.mark.parametrize("seed", SEEDS)
async def test_bayeux_over_a_websocket(seed):
    choose = Random(seed)

    async def handle(socket):
        async for frame in socket:
            await socket.send(spoiled_text(choose, [*replies(frame)]).decode("utf-8", "replace"))

    async with serve(handle, "127.0.0.1", 0) as server:
        await use_bayeux(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "websocket")


async def use_bayeux(url, transport):
    """Subscribe, and publish what is received, for half a second or until the client fails."""
    with suppress(*EXPECTED):
        async with asyncio.timeout(0.5), Client(url, transport=transport, timeouts=BRIEF) as client:
            await client.subscribe("/a")
            async for event in client:
                assert isinstance(event.channel, str)
                await client.publish("/b", event.data)


async def test_a_client_id_that_cannot_be_sent_back_is_none():
    """JSON can express half of a character; a request with it could not be encoded."""

    def answer(_, body):
        return b"", json.dumps([{**each, "clientId": "\ud800"} for each in replies(body)]).encode()

    async with answering(answer) as url:
        with pytest.raises(OutcomeUnknown, match="no clientId"):
            async with Client(url, timeouts=BRIEF):
                pass


@pytest.mark.parametrize("seed", SEEDS)
async def test_wamp(seed):
    choose = Random(seed)

    async def handle(socket):
        async for frame in socket:
            code, number, *_ = [*json.loads(frame), 0]
            usual = {1: [2, 77, {"roles": {}}], 32: [33, number, 5], 16: [17, number, 6], 48: [50, number, {}, [1]]}
            for message in (usual.get(code, [6, {}, "wamp.close.normal"]), [36, 5, 6, {}, [1], {}])[: 1 + (code == 32)]:
                await socket.send(spoiled_text(choose, message).decode("utf-8", "replace"))

    async with serve(handle, "127.0.0.1", 0, subprotocols=["wamp.2.json"]) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with suppress(*EXPECTED):
            async with asyncio.timeout(0.5), WampClient(url, answer_s=0.2) as client:
                assert type(await client.subscribe("a")) is int
                assert type(await client.publish("b", [1])) is int
                await client.call("x")
                assert len(await anext(client)) == 5


@pytest.mark.parametrize("seed", SEEDS)
async def test_networktables(seed):
    choose = Random(seed)
    announce = [{"method": "announce", "params": {"name": "/a", "id": 3, "type": "double", "properties": {}}}]

    async def handle(socket):
        async for frame in socket:
            if isinstance(frame, str):
                await socket.send(spoiled_text(choose, announce).decode("utf-8", "replace"))
            value = [-1, 5_000, 2, msgpack.unpackb(frame)[3]] if isinstance(frame, bytes) else [3, 5_000, 1, 2.5]
            with suppress(TypeError, ValueError, OverflowError):  # not everything that is odd has a form
                data = msgpack.packb(inputs.spoiled(choose, value, choose.choice((0, 1, 1, 2))))
                await socket.send(inputs.scrambled(choose, data) if choose.random() < 0.2 else data)

    async with serve(handle, "127.0.0.1", 0, subprotocols=[V41]) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with suppress(*EXPECTED):
            async with asyncio.timeout(0.5), Nt4Client(url, "x", answer_s=0.2) as client:
                await client.subscribe("/a")
                assert type(await client.time()) is int
                await anext(client)


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_history(seed):
    choose = Random(seed)
    links = (b"4", b"x", b"", b"1", b"99999999999999999999")

    def answer(path, _):
        usual = {"log_id": "x", "first": 1, "next": 5} if "head" in path else {"offset": 3, "done": 1}
        more = b'link: <http://x/log?from_offset=%b>; rel="next"\r\n' % choose.choice(links)
        return more if choose.random() < 0.5 else b"", spoiled_text(choose, usual) + b"\n"

    async with answering(answer) as url, HistoryClient(url) as client:
        async with asyncio.timeout(5):
            with suppress(ClientError):
                head = await client.log_head()
                assert (type(head["first"]), type(head["next"])) == (int, int)
            with suppress(ClientError):
                async for offset, _ in client.rows(1, 5):
                    assert type(offset) is int
            with suppress(ClientError):
                async for progress in client.purge({"channel": "/a"}):
                    assert type(progress) is dict


async def test_a_log_whose_link_leads_back_is_not_read_for_ever():
    link = b'link: <http://x/log?from_offset=1>; rel="next"\r\n'
    async with answering(lambda *_: (link, b'{"offset":3}\n')) as url, HistoryClient(url) as client:
        with pytest.raises(OutcomeUnknown):
            async for _ in client.rows(1, 5):
                pass
