"""An account with more than `limits.waiting_share` of what may wait gives way, in each protocol and in each place.

The stranger is 127.0.0.1, and the other 127.0.0.2. `tests/broker/test_sharing.py` has who ends, and when.
"""

from __future__ import annotations

import asyncio
import json
from math import inf
from time import monotonic

import pytest
from support import wamp
from support.bayeux_sockets import BayeuxWire, socket_connect
from support.frames import opening
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import SHORT_WAY, brisk, serving
from support.streams import StreamReader
from support.wire import post, request

from halley.broker.sharing import CHECK_S

pytestmark = pytest.mark.faces(SHORT_WAY)

LARGE = "x" * 60_000
WAITING = 1_500_000
OTHER = "127.0.0.2"
CHANNEL = "/com/a"


def settings(**limits):
    bounds = {"exempt": [], "waiting_bytes": WAITING, "write_s": 60, "publish_burst": 10_000}
    return brisk(limits={**bounds, **limits}, bayeux={"max_interval_s": 60, "lazy_s": 60})


def waiting(served):
    return served.house.broker.waiting.value


async def publish_large(served, *, until=None, lazy=False):
    """Publish large events from the other address, as many as fit into one answer or more."""
    wire = await served.wire(source=OTHER)
    ext = {"ext": {"lazy": True}} if lazy else {}
    for _ in range(8):
        assert (await wire.post(publish(CHANNEL, LARGE, **ext))).messages[0]["successful"]
    while until is not None and not until():
        assert (await wire.post(publish(CHANNEL, LARGE))).messages[0]["successful"]


async def stuck_poll(served, client_id, **more):
    """Send a connect on a connection that is not read."""
    wire = await served.wire(receive_buffer_bytes=4_096)
    await wire.send(post(json.dumps([connect(client_id, **more)]).encode()))
    return wire


# What each of these holds, more than half of what may wait; returns what is to happen to its client


async def queue(served):
    """A session whose client does not poll."""
    client_id = await served.open_session(CHANNEL)
    await publish_large(served)

    async def hears():
        answer = await (await served.wire()).post(connect(client_id))
        assert (answer.messages[0]["error"], answer.messages[0]["advice"]["reconnect"]) == (
            "402::session_unknown",
            "handshake",
        )

    return hears


async def answer(served):
    """A session whose events are all in an answer that is not read."""
    client_id = await served.open_session(CHANNEL)
    await publish_large(served)
    wire = await stuck_poll(served, client_id)
    session = served.house.broker.sessions[client_id]
    await served.until(lambda: session.unsettled is not None and not len(session.outbox))

    async def hears():
        assert not (await wire.rest()).endswith(b"]")  # cut off within the answer

    return hears


async def unacknowledged(served):
    """A session whose client has read all, and acknowledges nothing."""
    client_id = await served.open_session(CHANNEL, ext={"ack": True})
    await publish_large(served)
    wire = await served.wire()
    assert len((await wire.post(connect(client_id, ext={"ack": 0}))).data) == 8

    async def hears():
        assert (await wire.post(connect(client_id, ext={"ack": 0}))).messages[0]["error"] == "402::session_unknown"

    return hears


async def departed(served):
    """An answer that is not read, of a session that its client has ended by another connection."""
    client_id = await served.open_session(CHANNEL)
    await publish_large(served)
    wire = await stuck_poll(served, client_id)
    session = served.house.broker.sessions[client_id]
    await served.until(lambda: session.unsettled is not None)
    await (await served.wire()).post(disconnect(client_id))
    assert session.closed == "disconnected"

    async def hears():
        assert not (await wire.rest()).endswith(b"]")

    return hears


async def dismissed(served):
    """The last answer to a held connect, with all events, of a session that its client ends."""
    client_id = await served.open_session(CHANNEL)
    wire = await stuck_poll(served, client_id)
    session = served.house.broker.sessions[client_id]
    await served.until(lambda: session.held is not None)
    await publish_large(served, lazy=True)
    assert len(session.outbox) == 8
    await (await served.wire()).post(disconnect(client_id))
    assert session.closed == "disconnected"

    async def hears():
        assert not (await wire.rest()).endswith(b"]")

    return hears


async def websocket(served):
    """A session of a WebSocket that is not read."""
    wire = await served.wire(receive_buffer_bytes=4_096)
    socket = BayeuxWire(wire, await wire.request(opening("/bayeux", protocol="")))
    await socket.handshake()
    await socket.ask(socket_connect(socket.client_id, id="c"))
    await socket.ask({"channel": "/meta/subscribe", "clientId": socket.client_id, "subscription": CHANNEL})
    await publish_large(served, until=lambda: waiting(served) > 0.6 * WAITING)

    async def hears():
        await wire.rest()  # it ends

    return hears


async def wamp_session(served):
    """A WAMP session whose connection is not read."""
    client = await wamp.join(served.url, "wamp.2.json")
    await client.subscribe("com.a")
    client.socket.transport.pause_reading()
    await publish_large(served, until=lambda: waiting(served) > 0.6 * WAITING)

    async def hears():
        client.socket.transport.resume_reading()
        while (message := await client.receive())[0] == wamp.EVENT:
            pass
        assert message == [wamp.GOODBYE, {"message": "slow_consumer"}, "wamp.close.killed"]

    return hears


async def stream(served):
    """A stream of events, where there is no history, that is not read."""
    wire = await served.wire(receive_buffer_bytes=4_096)
    await wire.send(request("GET", f"/events{CHANNEL}"))
    await served.until(lambda: len(served.house.broker.sessions) == 2)
    await publish_large(served, until=lambda: waiting(served) > 0.6 * WAITING)

    async def hears():
        reader = StreamReader(wire, await wire.read())
        assert (await reader.rest()).endswith(b'event: end\ndata: {"reason":"slow_consumer"}\n\n')

    return hears


WAYS = (queue, answer, unacknowledged, departed, dismissed, websocket, wamp_session, stream)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_what_waits_in_any_way_gives_way_to_another_address(way):
    """It ends as a slow reader's does, what waited is free, and whoever else is there notices nothing."""
    async with serving(settings()) as served:
        broker = served.house.broker
        other = await served.wire(source=OTHER)
        client_id = (await other.post(HANDSHAKE)).messages[0]["clientId"]
        served.house._sharing._due = inf  # it is not looked before all of it waits
        hears = await way(served)
        assert waiting(served) > WAITING / 2
        served.house._sharing._due = 0.0
        await served.until(lambda: waiting(served) == 0)
        assert broker.hits["waiting_share"] == 1
        assert broker.closed["slow_consumer"] == (way not in (departed, dismissed))
        await hears()
        assert broker.sessions[client_id].closed is None
        assert (await other.post(subscribe(client_id, "/b"))).messages[0]["successful"]
        await served.until(lambda: not broker.shares.departed)


async def test_the_attack_of_one_address_is_felt_by_nobody_else():
    """Sessions of one address that read nothing: another one publishes and shakes hands throughout.

    Others at the stranger's own address keep their sessions, and at no moment more waits than is allowed in all.
    """
    async with serving(settings(sessions_per_address=1_000)) as served:
        broker = served.house.broker
        honest = [await served.open_session("/honest") for _ in range(20)]
        other, own = await served.wire(source=OTHER), await served.wire()
        client_id = (await other.post(HANDSHAKE)).messages[0]["clientId"]
        stranger = await served.wire()
        for number in range(30):
            victim = await served.wire()
            shaken = await victim.post(HANDSHAKE)
            if shaken.status == 200:  # if not, the stranger itself is refused, which is as it should be
                mine = shaken.messages[0]["clientId"]
                await victim.post(connect(mine), subscribe(mine, f"/victim/{number}"))
            await victim.close()
            for _ in range(3):
                await stranger.post(publish(f"/victim/{number}", LARGE))
            assert (await other.post(publish("/honest", number, clientId=client_id))).messages[0]["successful"]
            assert (await other.post(HANDSHAKE)).status == 200
            assert (await other.post(publish("/honest", number))).messages[0]["successful"]
            polled = await own.post(connect(honest[number % 20], advice={"timeout": 0}))
            assert polled.replies[0]["successful"], (number, polled.replies, broker.closed, broker.hits)
            while served.house._sharing.sweep(monotonic() + number * CHECK_S):
                await asyncio.sleep(0)
        assert broker.closed["slow_consumer"] > 0
        assert all(client in broker.sessions for client in (*honest, client_id))
        assert broker.waiting.peak <= WAITING * 1.25 + 130_000
