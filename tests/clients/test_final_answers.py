"""What a server that drains or is full answers is final for no client: each comes back by the way that it had.

HTTP has a status for both, 503. A program may take it for something that stays: CometD's client on Jetty then opens no
WebSocket any more, and an EventSource reads no stream. So such clients get what they survive.

| Client | when the server drains | when it is full |
|---|---|---|
| Bayeux by a WebSocket | opened and closed with 1001 | opened and closed with 1013 |
| Bayeux by polls | `reconnect: retry`, 503 to a handshake | the session goes on, 503 to a handshake |
| WAMP by a WebSocket | the session ends by GOODBYE | the session goes on, or ABORT |
| NetworkTables | opened and closed with 1001 | opened and closed with 1013 |
| streams of events | the end of the stream, with `retry:` | a stream that ends at once, with `retry:` |
"""

from __future__ import annotations

import asyncio

import pytest
from clients.foreign import OK
from clients.kinds import KINDS, clients
from clients.recovery import is_heard_again

from halley.broker.limits import Watermark

pytestmark = pytest.mark.asyncio(loop_scope="session")

every_kind = clients(
    *("aiocometd", "cometd9-node", "cometd9-node-polling", "cometd7-node", "cometd-same-origin", "cometd-java"),
    *("faye-node", "faye-node-polling", "faye-same-origin", "cometd-cross-origin-polling", "cometd-jsonp"),
)


def openings(proxy):
    """Return how often clients have asked for a WebSocket, or polled."""
    sent = bytes(proxy.sent)
    return sent.lower().count(b"upgrade: websocket") + sent.count(b"/meta/connect") + sent.count(b"meta%2Fconnect")


async def meets_a_no(client, proxy):
    """Break the client's connections, and wait until it has asked again, and may have asked once more."""
    before = openings(proxy)
    proxy.reset()
    await client.until(lambda: openings(proxy) > before)
    await asyncio.sleep(0.5)


@every_kind
async def test_a_client_that_meets_a_draining_server_comes_back_as_before(kind, site):
    """It asks again while the server drains, and once the next one runs it has its transport and its events."""
    server = await site.serve()
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK
    server.call(server.house.engine.sessions.drain)
    await meets_a_no(client, proxy)
    await server.stop()
    await server.start()
    await is_heard_again(client, server.port, "/room")
    assert client.transport == KINDS[kind].transport
    assert await client.disconnect() == OK


@every_kind
async def test_a_client_that_meets_a_full_server_comes_back_as_before(kind, site):
    """Its connection is lost while memory is short; once it is not any more, the client is as before."""
    server = await site.serve(bayeux={"max_interval_s": 30})
    proxy = await site.relay(server)
    client = await site.join(kind, proxy.port)
    assert await client.subscribe("/room") == OK
    broker = server.house.broker
    broker.memory = Watermark(1)  # less than this process already uses
    await client.until(lambda: broker.memory.is_over)
    await meets_a_no(client, proxy)
    broker.memory = Watermark(2**60)
    await client.until(lambda: not broker.memory.is_over)
    await is_heard_again(client, server.port, "/room")
    assert client.transport == KINDS[kind].transport
    assert await client.disconnect() == OK
