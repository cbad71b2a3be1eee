"""Lazy events and the end of inactive sessions in a page: cometd.js 9 in Chromium, by a WebSocket and without `ack`.

Its binary extension is tested with those of other clients, in `test_binary.py`; with `ack` in `test_extensions.py`.
"""

from __future__ import annotations

import pytest
from clients.foreign import OK
from clients.kinds import clients
from clients.publisher import publish

from halley.settings import Lazy

pytestmark = [pytest.mark.asyncio(loop_scope="session"), clients("cometd-same-origin-binary")]

NEVER_S = 600.0


async def test_lazy_events_come_with_others_or_when_their_time_is_over(kind, site):
    """They wait meanwhile, with a connect that is held; what is not lazy takes them along, and so does a reply."""
    server = await site.serve(
        lazy=(Lazy("/room/slow", NEVER_S), Lazy("/room/soon", 0.2)), bayeux={"hold_s": 2 * NEVER_S, "lazy_s": NEVER_S}
    )
    client = await site.join(kind, server.port)
    assert await client.subscribe("/room/*") == OK
    await client.until(lambda: server.house.engine.sessions.holds == 1)
    sent = []

    async def say(channel):
        sent.append((channel, len(sent)))
        await publish(server.port, sent[-1])

    for taken_along_by in ("event", "reply", "time"):
        await say("/room/slow")
        await client.until(lambda: server.house.broker.queued == 1)
        assert client.events == sent[:-1]
        if taken_along_by == "event":
            await say("/room/now")
        elif taken_along_by == "reply":
            assert await client.publish("/elsewhere", 1) == OK
        else:
            await say("/room/soon")
        await client.hears(*sent)
    assert client.transport == "websocket"
    assert server.house.engine.sessions.holds == 1


async def test_a_page_that_is_left_open_is_disconnected(kind, site):
    """It does nothing but connect: its session ends, and by the advice it stays away."""
    server = await site.serve(bayeux={"activity": "client", "activity_s": 0.5, "hold_s": 0.2})
    client = await site.join(kind, server.port)
    await client.until(lambda: client.replies("/meta/disconnect"))
    await client.until(lambda: client.replies("/meta/connect")[-1].get("advice", {}).get("reconnect") == "none")
    assert not server.house.broker.sessions
    assert len(client.replies("/meta/handshake")) == 1
