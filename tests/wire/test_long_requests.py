"""One request with very many messages: others are answered meanwhile, and its own connection keeps its order."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.messages import HANDSHAKE, connect, publish
from support.server import PARSED, SHORT_WAY, TLS
from support.wire import DEADLINE_S, post

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.faces(SHORT_WAY, PARSED, TLS)]

COUNT = 1_000
OTHERS = "/others"


async def join(wire):
    """Handshake and connect once; return the clientId."""
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    return client_id


def body(client_id, channel="/long", count=COUNT):
    """A request that publishes so many numbers."""
    messages = [publish(channel, number, clientId=client_id, id=str(number)) for number in range(count)]
    return post(json.dumps(messages).encode())


async def begun(broker, before):
    """Wait until a part of a request's publishes is made."""
    async with asyncio.timeout(DEADLINE_S):
        while broker.published == before:
            await asyncio.sleep(0)


async def test_anothers_request_is_answered_before_the_long_one(served):
    """P5: the publish that comes after 1,000 in one body is answered while most of them are still to be made."""
    broker = served.house.broker
    wire, other = await served.wire(), await served.wire()
    client_id, others_id = await join(wire), await join(other)
    before = broker.published
    await wire.send(body(client_id))
    await begun(broker, before)
    assert (await other.post(publish(OTHERS, 0, clientId=others_id))).messages[0]["successful"] is True
    assert broker.published - before < COUNT
    replies = (await wire.read()).messages
    assert [(reply["id"], reply["successful"]) for reply in replies] == [(str(each), True) for each in range(COUNT)]
    assert broker.published - before == COUNT + 1


async def test_the_next_request_of_the_same_connection_waits(served):
    """Pipelined requests are answered in their order, and their publishes are made in it."""
    wire = await served.wire()
    client_id = await join(wire)
    await wire.send(body(client_id) + body(client_id, count=1))
    first, second = await wire.read(), await wire.read()
    assert [len(first.messages), len(second.messages)] == [COUNT, 1]


async def test_a_connection_that_dies_during_a_long_request(served):
    """All that it had sent is published, as with a short request, and the server goes on for others."""
    broker = served.house.broker
    wire, other = await served.wire(), await served.wire()
    client_id, others_id = await join(wire), await join(other)
    before = broker.published
    await wire.send(body(client_id))
    await begun(broker, before)
    wire.reset()
    await served.until(lambda: broker.published - before == COUNT)
    assert (await other.post(publish(OTHERS, 0, clientId=others_id))).messages[0]["successful"] is True
