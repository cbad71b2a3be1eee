"""cometd.js' extensions with Halley's (B17, B18)."""

from __future__ import annotations

import pytest
from clients.foreign import OK
from clients.kinds import EXTENDED, KINDS, clients
from clients.publisher import publish

from halley.settings import Lazy

pytestmark = [pytest.mark.asyncio(loop_scope="session"), clients(*EXTENDED)]


async def test_with_acks_no_lost_answer_loses_or_doubles_an_event(kind, site):
    """B17: replies are lost on their way and connections break; the events still arrive once, in order."""
    server = await site.serve()
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK
    sent = []

    async def say(*data):
        events = [("/room", list(data))]
        await publish(server.port, *events)
        sent.extend(events)

    for loss in range(3):
        await say(loss, "arrives")
        await client.hears(*sent)
        await client.until(lambda: server.house.engine.sessions.holds == 1)
        vanished = proxy.vanished
        proxy.loses_answers = True
        await say(loss, "vanishes")
        await say(loss, "vanishes or waits")
        await client.until(lambda vanished=vanished: proxy.vanished > vanished)
        proxy.cut()
        await say(loss, "while away")
        proxy.loses_answers = False
        proxy.mend()
        await client.hears(*sent)
    assert len(client.replies("/meta/handshake")) == 1


async def test_timesync_tells_the_client_the_servers_clock(kind, site):
    """B18: cometd.js works out lag and offset; on one machine the clocks agree."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    answer = client.replies("/meta/handshake")[-1]["ext"]["timesync"]
    assert {"tc", "ts", "p", "a"} <= set(answer)
    clock = await client.call("clock")
    assert abs(clock["offset_ms"]) < 1_000
    assert 0 <= clock["lag_ms"] < 10_000


async def test_with_acks_lazy_events_join_the_batch_of_the_next_reply(kind, site):
    """Each event comes once and in order: with one that is not lazy, alone when its time is over, and over a cut."""
    server = await site.serve(lazy=(Lazy("/room/lazy", 0.3),), bayeux={"hold_s": 60})
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room/*") == OK
    sent = []

    async def say(*channels):
        events = [(f"/room/{channel}", len(sent) + number) for number, channel in enumerate(channels)]
        sent.extend(events)
        await publish(server.port, *events)

    await client.until(lambda: server.house.engine.sessions.holds == 1)
    await say("lazy", "lazy", "now")
    await client.hears(*sent)
    await client.until(lambda: server.house.engine.sessions.holds == 1)
    await say("lazy")
    await client.hears(*sent)
    await client.until(lambda: server.house.engine.sessions.holds == 1)
    vanished, proxy.loses_answers = proxy.vanished, True
    await say("lazy")
    await client.until(lambda: proxy.vanished > vanished)
    proxy.cut()
    await say("lazy", "now")
    proxy.loses_answers = False
    proxy.mend()
    await client.hears(*sent)
    batches = [reply["ext"]["ack"] for reply in client.replies("/meta/connect") if "ack" in reply.get("ext", {})]
    assert batches == sorted(batches)


async def test_a_client_that_only_connects_is_disconnected(kind, site):
    """cometd.js stays away: the advice is `none`."""
    server = await site.serve(bayeux={"activity": "client", "activity_s": 0.5, "hold_s": 0.2})
    client = await site.join(kind, server.port)
    await client.until(lambda: not server.house.broker.sessions)
    await client.until(lambda: client.replies("/meta/disconnect"))
    if KINDS[kind].runtime != "java":  # which ends at the disconnect, and does not show the reply behind it
        await client.until(lambda: client.replies("/meta/connect")[-1].get("advice", {}).get("reconnect") == "none")
    assert len(client.replies("/meta/handshake")) == 1
