"""Lazy events from a real server: by a held poll and by a WebSocket."""

from __future__ import annotations

import pytest_asyncio
from support.bayeux_sockets import BayeuxWire
from support.messages import connect, publish
from support.server import brisk, serving
from support.wire import DEADLINE_S

from halley.settings import Lazy


@pytest_asyncio.fixture
async def served():
    async with serving(brisk(lazy=(Lazy("/lazy", 0.2),), bayeux={"hold_s": 2 * DEADLINE_S})) as server:
        yield server


async def test_a_held_poll_is_answered_when_their_time_is_over(served):
    """The sweep finds them due, long before the hold ends."""
    client_id = await served.open_session("/lazy", "/now")
    poll, other = await served.wire(), await served.wire()
    await poll.post({**connect(client_id), "advice": {"timeout": 0}})
    for messages in ([publish("/lazy", 1), publish("/lazy", 2)], [publish("/lazy", 3), publish("/now", 4)]):
        held = poll.post(connect(client_id))
        assert all(reply["successful"] for reply in (await other.post(*messages)).messages)
        answer = await held
        assert [each["data"] for each in answer.messages if "data" in each] == [each["data"] for each in messages]


async def test_a_websocket_gets_them_when_their_time_is_over_or_with_others(served):
    """What is not lazy takes along what came before it; so does the reply to a message."""
    socket = await BayeuxWire.join(served, "/lazy", "/now")
    await socket.hold()
    other = await served.wire()
    await other.post(publish("/lazy", 1), publish("/lazy", 2), publish("/now", 3))
    heard = []
    while len(heard) < 3:
        heard += await socket.hear()
    assert [each["data"] for each in heard] == [1, 2, 3]
    await other.post(publish("/lazy", 4))
    assert [each["data"] for each in await socket.hear() if "data" in each] == [4]
    event, reply = await socket.ask(publish("/lazy", 5, clientId=socket.client_id, id="p"))
    assert (event["data"], reply["id"]) == (5, "p")
