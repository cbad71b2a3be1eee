"""How cometd.js finds the transport that works (A29, A60)."""

from __future__ import annotations

import pytest
from clients.foreign import OK
from clients.kinds import clients

pytestmark = pytest.mark.asyncio(loop_scope="session")


@clients("cometd9-node", "cometd7-node", "cometd-same-origin", "cometd-cross-origin")
async def test_cometd_with_websocket_left_on_falls_back_to_long_polling(kind, site):
    """The upgrade is refused immediately; cometd.js continues with long-polling and does not try WebSocket again."""
    server = await site.serve(bayeux={"hold_s": 1.0})
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert "websocket" in client.outgoing[0]["supportedConnectionTypes"]
    assert await client.subscribe("/room") == OK
    await client.until(lambda: len(client.replies("/meta/connect")) >= 2)
    assert await client.publish("/room", "by long-polling") == OK
    await client.hears(("/room", "by long-polling"))
    assert client.transport == "long-polling"
    assert proxy.sent.lower().count(b"upgrade: websocket") == 1


@clients("cometd-jsonp", "faye-jsonp")
async def test_a_long_batch_is_split_over_several_scripts(kind, site):
    """A67: URLs stay below 2,000 characters, so 40 publishes are sent in several requests; all arrive once.

    cometd.js sends one request after the other, so their order is kept. Faye does not wait, and its scripts race.
    """
    server = await site.serve()
    client = await site.join(kind, server.port)
    assert await client.subscribe("/room") == OK
    data = [f"{number}: {'ü' * 20}" for number in range(40)]
    await client.page.evaluate("(data) => Promise.all(data.map((text) => commands.publish('/room', text)))", data)
    await client.until(lambda: len(client.events) >= len(data))
    heard = client.events if kind == "cometd-jsonp" else sorted(client.events, key=lambda event: data.index(event[1]))
    assert heard == [("/room", text) for text in data]
