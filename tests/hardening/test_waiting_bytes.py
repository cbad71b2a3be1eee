"""`limits.waiting_bytes` counts what waits: nothing of it is left after a delivery, or however a session has ended."""

from __future__ import annotations

import asyncio
import json
from math import inf
from time import monotonic

import pytest
from support import wamp
from support.messages import HANDSHAKE, connect, disconnect, publish, subscribe
from support.server import brisk, serving
from support.wire import post

from halley.server.metrics import exposition
from halley.settings import Realm

EVENT = "x" * 10_000
LARGE = "x" * 60_000


def waiting(served):
    return served.house.broker.waiting.value


def metric(served):
    """Return `halley_waiting_bytes` as /metrics shows it."""
    lines = exposition(served.house, served.watch).decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("halley_waiting_bytes ")))


# What was delivered does not wait, whatever else refers to it


async def test_a_thousand_delivered_events_do_not_use_up_a_limit_that_is_smaller(tmp_path):
    """The newest events stay in memory for those who replay (`history.tail_bytes`): more bytes than may wait here."""
    history = {"enabled": True, "free_bytes": 0}
    async with serving(brisk(data_dir=str(tmp_path), limits={"waiting_bytes": 262_144}, history=history)) as served:
        async with await wamp.join(served.url) as client:
            await client.subscribe("com.a")
            async with await wamp.join(served.url) as publisher:
                for _ in range(1_000):
                    await publisher.publish("com.a", [EVENT[:1_000]])
            assert len(await client.receive_all()) == 1_000
        assert (await (await served.wire()).post(HANDSHAKE)).status == 200
        assert metric(served) == 0


async def test_delivered_events_that_are_retained_do_not_use_up_a_limit_that_is_smaller():
    """WAMP's retained events have a bound of their own (`wamp.retained_bytes`), in each realm."""
    realms = ["realm1", "realm2", "realm3"]
    limits, options = {"waiting_bytes": 200_000}, {"retained_bytes": 100_000}
    settings = brisk(limits=limits, wamp=options, realm=tuple(map(Realm, realms)))
    async with serving(settings) as served:
        for realm in realms:
            async with await wamp.join(served.url, realm=realm) as client:
                await client.subscribe("com.", match="prefix")
                for number in range(20):
                    await client.publish(f"com.{number}", [EVENT[:4_000]], retain=True, exclude_me=False)
                assert len(await client.receive_all()) == 20
        assert metric(served) == 0
        assert served.house.broker.hits["waiting_bytes"] == 0


async def test_a_broadcast_to_many_held_polls_counts_once_until_the_last_has_it():
    """A thousand bytes for fifty polls are a thousand bytes, and nothing once all polls are answered."""
    async with serving() as served:
        for _ in range(50):
            await served.hold(await served.open_session("/a"))
        await (await served.wire()).post(publish("/a", EVENT))
        await served.until(lambda: not waiting(served))
        assert len(EVENT) < served.house.broker.waiting.peak < 3 * len(EVENT)


# Nothing is left of a session, however it ends


async def laden(served, *, ack):
    """Open a session for which events wait; with `ack` it has some more, which it does not acknowledge."""
    client_id = await served.open_session("/a", ext={"ack": ack})
    publisher = await served.wire()
    for _ in range(3):
        await publisher.post(publish("/a", EVENT))
    if ack:
        answer = await publisher.post(connect(client_id, advice={"timeout": 0}, ext={"ack": 0}))
        assert len(answer.data) == 3
        await publisher.post(publish("/a", EVENT))
    assert waiting(served) > 3 * len(EVENT)
    return client_id, served.house.broker.sessions[client_id]


async def disconnected(served, client_id, _):
    await (await served.wire()).post(disconnect(client_id))


async def dismissed(served, client_id, _):
    served.halley.session(client_id).disconnect()


async def expired(served, _, session):
    served.house.broker.touch(session, monotonic())


async def token_expired(served, _, session):
    session.expiry = monotonic()
    served.house.broker.touch(session, inf)


async def slow(served, _, session):
    publisher = await served.wire()
    while session.closed is None:
        await publisher.post(publish("/a", EVENT))


async def faulty(served, _, session):
    """Let the session's engine fail when it is due."""

    class Broken:
        def due(self, session, now):
            raise ValueError("a fault")

    session.owner = Broken()
    served.house.broker.touch(session, monotonic())


ENDS = {
    "disconnected": disconnected,
    "dismissed": dismissed,
    "expired": expired,
    "token_expired": token_expired,
    "slow_consumer": slow,
    "fault": faulty,
}


@pytest.mark.parametrize("ack", [False, True], ids=["", "ack"])
@pytest.mark.parametrize("reason", ENDS)
async def test_nothing_waits_for_a_session_that_has_ended(reason, ack):
    """Events that wait, or were sent and not acknowledged, are counted no more when their session ends."""
    async with serving(brisk(limits={"queue_events": 20})) as served:
        client_id, session = await laden(served, ack=ack)
        await ENDS[reason](served, client_id, session)
        await served.until(lambda: session.closed is not None)
        assert session.closed == reason
        assert waiting(served) == 0


@pytest.mark.parametrize("ack", [False, True], ids=["", "ack"])
async def test_what_is_on_its_way_waits_until_its_connection_ends_even_after_its_session(ack):
    """A reply that is stuck in its socket keeps its events in memory: they count until it is written or lost."""
    async with serving() as served:
        client_id = await served.open_session("/a", ext={"ack": ack})
        session = served.house.broker.sessions[client_id]
        publisher = await served.wire()
        for _ in range(8):  # as many as fit into one answer
            await publisher.post(publish("/a", LARGE))
        before = waiting(served)
        stuck = await served.wire(receive_buffer_bytes=4_096)
        await stuck.send(post(json.dumps([connect(client_id, ext={"ack": 0})]).encode()))
        await served.until(lambda: session.unsettled is not None)
        assert waiting(served) == before
        await publisher.post(disconnect(client_id))
        assert session.closed == "disconnected"
        assert waiting(served) == before
        stuck.reset()
        await served.until(lambda: waiting(served) == 0)


async def test_nothing_waits_after_rights_were_taken_away():
    """Events that are dropped with a subscription are counted no more, in the outbox and among unacknowledged ones."""
    async with serving() as served:
        _, session = await laden(served, ack=True)
        session.discard(lambda _: True)
        assert waiting(served) == 0


async def test_nothing_waits_for_a_replaying_session_that_has_ended(tmp_path):
    """Events that were read from the history count as others do, from the outbox to the end of the session."""
    history = {"enabled": True, "free_bytes": 0, "tail_bytes": 0, "page_events": 5}
    async with serving(brisk(data_dir=str(tmp_path), history=history)) as served:
        wire = await served.wire()
        for _ in range(10):
            await wire.post(publish("/a", EVENT))
        client_id = await served.open_session(ext={"ack": True, "replay": True})
        await wire.post(subscribe(client_id, "/a", ext={"replay": {"/a": -2}}))
        answer = await wire.post(connect(client_id, ext={"ack": 0}))
        assert len(answer.data) == 5
        assert waiting(served) > 5 * len(EVENT)
        await wire.post(disconnect(client_id))
        assert waiting(served) == 0


async def stalled(served):
    """Return a WAMP client that has stopped reading, and its session, for which events wait."""
    client = await wamp.join(served.url, "wamp.2.json")
    await client.subscribe("com.a")
    client.socket.transport.pause_reading()
    broker = served.house.broker
    session = broker.sessions[str(client.session)]
    async with await wamp.join(served.url) as publisher:
        while not waiting(served):
            await publisher.publish("com.a", [LARGE])
    return client, session


async def cut(_, client, __):
    client.socket.transport.abort()


async def killed(served, _, session):
    async with await wamp.join(served.url) as other:
        await other.call("wamp.session.kill", int(session.id))


async def too_slow(served, _, session):
    async with await wamp.join(served.url) as publisher:
        while session.closed is None:
            await publisher.publish("com.a", [LARGE])


WAMP_ENDS = {"connection_lost": cut, "killed": killed, "slow_consumer": too_slow, "token_expired": token_expired}


@pytest.mark.parametrize("reason", WAMP_ENDS)
async def test_nothing_waits_for_a_wamp_session_that_has_ended(reason):
    """Frames that are written count no more: the connection's buffer is bounded. What is left in the outbox goes."""
    async with serving() as served:
        client, session = await stalled(served)
        await WAMP_ENDS[reason](served, client, session)
        await served.until(lambda: session.closed is not None)
        assert session.closed == reason
        assert waiting(served) == 0
        client.socket.transport.abort()


async def test_nothing_waits_after_a_local_session_has_ended_while_it_was_told():
    """A program that closes its session within a callback, because the outbox is full, gets nothing more."""
    async with serving(brisk(limits={"queue_events": 2})) as served:
        local = served.halley.local_session("local")
        heard = []

        def hear(channel, data):
            heard.append(data)
            local.close()

        local.subscribe("/a", hear)
        await (await served.wire()).post(*(publish("/a", number) for number in range(5)))
        await asyncio.sleep(0)
        assert heard[0] == 0
        assert waiting(served) == 0
