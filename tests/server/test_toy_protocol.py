"""A protocol is added by its own file and one line in a list: everything else is the server's, for all protocols alike.

`support/lines.py` is such a protocol.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from support import wamp
from support.lines import lines
from support.messages import HANDSHAKE, connect, publish, subscribe
from support.server import brisk, serving
from support.wire import DEADLINE_S
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed

from halley.server.metrics import exposition
from halley.server.protocols import PROTOCOLS


@asynccontextmanager
async def speaking(**changed):
    """A server that has lines in its list, with fast ticks."""
    settings = brisk(ticks={"every_s": 0.05}, **changed)
    async with serving(settings, protocols=(*PROTOCOLS, lines)) as served:
        yield served


def joined(served):
    return connect_websocket(
        f"ws{served.url.removeprefix('http')}/lines", subprotocols=["lines.v1"], open_timeout=DEADLINE_S
    )


async def heard(client):
    return await asyncio.wait_for(client.recv(), DEADLINE_S)


async def watching(served, *channels):
    """Subscribe a Bayeux client, as the console does; returns a function that waits for an event that fits."""
    wire = await served.wire()
    client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
    await wire.post(connect(client_id))
    await wire.post(subscribe(client_id, *channels))

    seen = []

    async def event(channel, fits):
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for message in seen:
                    if message["channel"] == channel and fits(message["data"]):
                        return message["data"]
                seen[:] = [*seen, *(await wire.post(connect(client_id))).messages][-100:]

    return event


def is_lines(session):
    return session["protocol"] == "lines"


async def test_it_publishes_to_all_protocols_and_hears_all():
    async with speaking() as served, joined(served) as client, await wamp.join(served.url) as other:
        await client.send("SUB /chat/**")
        await other.subscribe("chat.a")
        await client.send('PUB /chat/a {"x":1}')
        assert await heard(client) == 'EVENT /chat/a {"x":1}'
        event = await other.receive()
        assert event[-1] == {"x": 1} or event[-1] == [{"x": 1}]
        await (await served.wire()).post(publish("/chat/b", "from Bayeux"))
        assert await heard(client) == 'EVENT /chat/b "from Bayeux"'


async def test_it_is_limited():
    """Names, rights, subscriptions and rates are bounded by the settings of all protocols, and counted."""
    limits = {"subscriptions": 1, "publishes_per_s": 0.1, "publish_burst": 1, "exempt": ()}
    async with speaking(limits=limits) as served, joined(served) as client:
        for line, answer in (
            ("SUB /a", None),
            ("SUB /b", "REFUSED TooManySubscriptions"),
            ("SUB a", "REFUSED InvalidName"),
            ("PUB /a {", "REFUSED NotJson"),
            ("PUB /a 1", "EVENT /a 1"),
            ("PUB /a 2", "REFUSED RateLimited"),
        ):
            await client.send(line)
            assert answer is None or await heard(client) == answer
        assert served.house.broker.hits == {"subscriptions": 1, "publishes_per_s": 1}


async def test_it_is_drained():
    async with speaking() as served:
        client = await joined(served)
    with pytest.raises(ConnectionClosed) as ended:
        await heard(client)
    assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (1001, "the server is shutting down")


async def test_it_is_measured_and_logged():
    async with speaking() as served, joined(served) as client:
        await client.send("SUB /a")
        await client.send("PUB /a 1")
        assert await heard(client) == "EVENT /a 1"
        await client.send("nonsense")
        assert await heard(client) == "REFUSED InvalidName"
        text = exposition(served.house, served.watch).decode()
        for line in (
            'halley_sessions{protocol="lines"} 1.0',
            'halley_sessions_opened_total{protocol="lines"} 1.0',
            'halley_delay_seconds_count{protocol="lines"} 1.0',
            'halley_lines_refused_total{error="InvalidName"} 1.0',
        ):
            assert line in text.splitlines()
        assert [line["protocol"] for line in served.log if line["event"] == "session_opened"] == ["lines"]


async def test_it_is_shown_in_the_console():
    """The topics that the console reads name its sessions, subscriptions, throughput and queues."""
    async with speaking() as served:
        topics = ("/halley/sessions", "/halley/subscriptions", "/halley/rates", "/halley/queues")
        event = await watching(served, *topics)
        async with joined(served) as client:
            await client.send("SUB /chat/**")
            opened = await event("/halley/sessions", is_lines)
            assert (opened["event"], opened["address"]) == ("opened", "127.0.0.1")
            subscribed = await event("/halley/subscriptions", is_lines)
            assert (subscribed["session"], subscribed["channels"]) == (opened["session"], ["/chat/**"])
            rates = await event("/halley/rates", lambda data: data["protocols"]["lines"]["sessions"])
            assert rates["protocols"]["lines"]["sessions"] == 1
            queues = await event("/halley/queues", lambda data: any(map(is_lines, data["sessions"])))
            assert [each["subscriptions"] for each in filter(is_lines, queues["sessions"])] == [["/chat/**"]]
        closed = await event("/halley/sessions", lambda data: is_lines(data) and data["event"] == "closed")
        assert closed["reason"] == "connection_lost"
