"""Deliveries beyond the simple ones: overlapping patterns, and all kinds of clients in one room."""

from __future__ import annotations

import asyncio

import pytest
from clients.foreign import OK
from clients.kinds import PLAIN, every_plain_client
from clients.publisher import AWKWARD

pytestmark = pytest.mark.asyncio(loop_scope="session")


@every_plain_client
async def test_an_event_comes_once_however_many_subscriptions_match(kind, site):
    """A50: with three overlapping subscriptions an event is on the wire once."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    for pattern in ("/a/b", "/a/*", "/**"):
        assert await client.subscribe(pattern) == OK
    for number in (1, 2):
        assert await client.publish("/a/b", number) == OK
    await client.until(lambda: ("/a/b", 2) in client.events)
    assert [message["data"] for message in client.incoming if "data" in message] == [1, 2]


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.node
async def test_every_client_hears_every_other_in_the_same_order(site):
    """A49, E40: one client of each kind publishes three events at the same time; all get the same, once, in one order.

    One order for all clients needs `connect_delivery_only`: events in replies to other requests can be read before or
    after those in a connect's reply, which is sent on another connection.
    """
    server = await site.serve(bayeux={"browser_interval_s": 0.05, "connect_delivery_only": True})
    clients = [await site.join(kind, server.port) for kind in PLAIN]
    for client in clients:
        assert await client.subscribe("/room/*") == OK

    async def speak(number, client):
        for turn in range(3):
            assert await client.publish(f"/room/{number}", {"turn": turn, "text": AWKWARD}) == OK

    await asyncio.gather(*(speak(number, client) for number, client in enumerate(clients)))
    for client in clients:
        await client.until(lambda client=client: len(client.events) >= 3 * len(clients))
    first = clients[0].events
    for number in range(len(clients)):
        said = [(f"/room/{number}", {"turn": turn, "text": AWKWARD}) for turn in range(3)]
        assert [event for event in first if event[0] == f"/room/{number}"] == said
    assert len(first) == 3 * len(clients)
    for client in clients[1:]:
        assert client.events == first, client.name
