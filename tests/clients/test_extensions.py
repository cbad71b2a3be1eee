"""cometd.js' extensions with Halley's (B17, B18)."""

from __future__ import annotations

import pytest
from clients.foreign import OK
from clients.kinds import EXTENDED, clients
from clients.publisher import publish

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
