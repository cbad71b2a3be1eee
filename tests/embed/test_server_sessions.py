"""What a program does with sessions of clients: their subscriptions, also where they replay, and batches of events."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.messages import HANDSHAKE, connect, subscribe
from support.server import brisk, serving

from halley.settings import Access, Record


@asynccontextmanager
async def replaying(folder):
    """Serve, with five events on /old in the history, of which a session that subscribes to it has read nothing yet.

    The session has pages of two events, all from the disk. Yields the server, its connection and id, and what its
    hooks were told.
    """
    told = []

    def register(halley):
        for occasion in ("subscribed", "unsubscribed"):
            halley.on(occasion)(lambda session, channel, occasion=occasion: told.append((occasion, channel)))

    history = {"enabled": True, "free_bytes": 0, "page_events": 2, "tail_bytes": 0}
    record = (Record(pattern="/**", age="1d", durable=True),)
    async with serving(brisk(data_dir=str(folder), history=history, record=record), register=register) as served:
        for number in range(5):
            assert (await served.halley.publish("/old", number))["successful"]
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/old", ext={"replay": {"/old": -2}}))
        yield served, wire, client_id, told


async def connected(wire, client_id, times):
    """Return the data of all events that the next connects bring; none of them is held."""
    data = []
    for _ in range(times):
        data += (await wire.post(connect(client_id, advice={"timeout": 0}))).data
    return data


async def test_what_a_program_unsubscribes_is_not_replayed_any_more(tmp_path):
    """A right that the program takes away: neither what waits nor what has not been read yet is delivered."""
    async with replaying(tmp_path) as (served, wire, client_id, told):
        assert (await wire.post(connect(client_id, advice={"timeout": 0}))).data == [0, 1]
        session = served.halley.session(client_id)
        session.unsubscribe("/old")
        session.unsubscribe("/old")
        assert session.subscriptions == []
        await served.halley.publish("/old", 5)
        assert await connected(wire, client_id, 3) == []
        assert told == [("subscribed", "/old"), ("unsubscribed", "/old")]


async def test_what_a_program_subscribes_is_delivered_while_the_session_is_behind(tmp_path):
    """Events from the subscription on arrive, each once and in order, also while older ones are still being read."""
    async with replaying(tmp_path) as (served, wire, client_id, told):
        await served.halley.publish("/new", "before")
        session = served.halley.session(client_id)
        session.subscribe("/new")
        session.subscribe("/new")
        for number in range(3):
            await served.halley.publish("/new", number)
        data = await connected(wire, client_id, 6)
        assert data == [0, 1, 2, 3, 4, 0, 1, 2]
        await served.halley.publish("/new", "live")
        assert await connected(wire, client_id, 1) == ["live"]
        assert told == [("subscribed", "/old"), ("subscribed", "/new")]


async def test_what_a_program_subscribes_is_not_the_rules_to_take():
    """New rules end what the client has subscribed to; the rest the program takes back itself."""
    both = tuple(Access("*", "subscribe", channel) for channel in ("/a", "/b"))
    async with serving(brisk(access=both)) as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a", "/b"))
        session = served.halley.session(client_id)
        for channel in ("/b", "/private/ada"):
            session.subscribe(channel)
        settings = replace(served.house.settings, access=(Access("*", "subscribe", "/news"),))
        assert served.house.reloading.apply_access(settings) == (0, 1)
        assert session.subscriptions == ["/b", "/private/ada"]
        await served.halley.publish("/private/ada", 1)
        assert await connected(wire, client_id, 1) == [1]
        session.unsubscribe("/private/ada")
        assert session.subscriptions == ["/b"]


async def test_an_ended_session_is_not_subscribed(tmp_path):
    async with replaying(tmp_path) as (served, _, client_id, told):
        session = served.halley.session(client_id)
        session.disconnect()
        session.subscribe("/new")
        assert session.subscriptions == []
        assert told == [("subscribed", "/old")]


@asynccontextmanager
async def subscribed(*, acks=False, **bayeux):
    """Serve, with a client that is connected and subscribed to /a; yields the server, its connection and id."""
    async with serving(brisk(bayeux={"hold_s": 0.1, **bayeux})) as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE | ({"ext": {"ack": True}} if acks else {}))).messages[0]["clientId"]
        await wire.post(connect(client_id, **({"ext": {"ack": -1}} if acks else {})))
        await wire.post(subscribe(client_id, "/a"))
        yield served, wire, client_id


def publish_three(served):
    for number in range(3):
        served.halley.publish("/a", number)


@pytest.mark.parametrize("advice", [{"timeout": 0}, {}])
@pytest.mark.parametrize("acks", [False, True])
async def test_a_connect_within_a_batch_takes_no_events(advice, acks):
    """Neither one that is answered at once nor one whose hold times out; the connect after the block has them all."""
    async with subscribed(acks=acks) as (served, wire, client_id):
        more = {"ext": {"ack": 0}} if acks else {}
        with served.halley.session(client_id).batch():
            publish_three(served)
            assert (await wire.post(connect(client_id, advice=advice, **more))).data == []
        assert (await wire.post(connect(client_id, **more))).data == [0, 1, 2]


async def test_a_poll_that_is_replaced_within_a_batch_takes_no_events():
    async with subscribed(hold_s=5) as (served, wire, client_id):
        first = asyncio.create_task(wire.post(connect(client_id)))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        other = await served.wire()
        with served.halley.session(client_id).batch():
            publish_three(served)
            second = asyncio.create_task(other.post(connect(client_id)))
            assert (await first).data == []
            await served.until(lambda: served.house.engine.sessions.holds == 1)
        assert (await second).data == [0, 1, 2]


async def test_a_batch_of_a_replaying_session_holds_back_what_it_reads(tmp_path):
    """The connect is held until the block ends, and then answered with what it has read."""
    async with replaying(tmp_path) as (served, wire, client_id, _):
        with served.halley.session(client_id).batch():
            answer = asyncio.create_task(wire.post(connect(client_id)))
            await served.until(lambda: served.house.engine.sessions.holds == 1)
        assert (await answer).data == [0, 1]


async def test_a_batch_that_fills_the_queue_loses_nothing():
    """More events than the queue has room for: those before are sent to the connect that is held."""
    async with serving(brisk(limits={"queue_events": 4})) as served:
        wire = await served.wire()
        client_id = (await wire.post(HANDSHAKE)).messages[0]["clientId"]
        await wire.post(connect(client_id))
        await wire.post(subscribe(client_id, "/a"))
        answer = asyncio.create_task(wire.post(connect(client_id)))
        await served.until(lambda: served.house.engine.sessions.holds == 1)
        with served.halley.session(client_id).batch():
            for number in range(6):
                served.halley.publish("/a", number)
        assert (await answer).data == [0, 1, 2, 3]
        assert (await wire.post(connect(client_id))).data == [4, 5]


async def test_a_batch_holds_back_the_events_of_a_local_session():
    """The handle of a program's own session has batches too."""
    heard = []
    async with serving() as served:
        served.halley.local_session("ear").subscribe("/a", lambda channel, data: heard.append(data))
        (session,) = served.halley.sessions
        with session.batch():
            publish_three(served)
            await served.until(lambda: not served.house.broker.ready)
            assert heard == []
        await served.until(lambda: heard == [0, 1, 2])
