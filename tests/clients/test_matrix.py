"""Every client does every step of a session.

Handshake, subscribe (exact, `*`, `**`), publish with reply, receive, two tabs, unsubscribe, server restart and
recovery, disconnect: a test for each, which runs with each of `kinds.KINDS`, but with an extension only where that
has something to do.
"""

from __future__ import annotations

import pytest
from clients.foreign import OK
from clients.kinds import KINDS, every_client, every_plain_client
from clients.publisher import AWKWARD, publish
from clients.recovery import is_heard_again

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATTERNS = {
    "exact": ("/one/room", ["/one/room"], ["/one", "/one/room/too", "/one/rooms"]),
    "one-level": ("/one/*", ["/one/a", "/one/room"], ["/one", "/one/a/b", "/ones/a"]),
    "all-levels": ("/one/**", ["/one/a", "/one/a/b", "/one/a/b/c"], ["/one", "/ones/a", "/two"]),
}
"""A pattern, channels that it matches, and channels that it does not match."""

VALUES = ["text", AWKWARD, "", 0, -1.5e-3, False, True, None, [], {}, 2**53 - 1, {AWKWARD: [1, {"deep": [[], {}]}]}]
"""Data can be any JSON value, also those that are false or empty in JavaScript."""


@every_client
async def test_handshake(kind, site):
    """A24, A31, A37, B17, B18: each client gets a session, its transport, and the extensions that it asks for."""
    server = await site.serve()
    client = await site.start(kind, server.port)
    assert await client.open() == OK
    await client.until(lambda: client.transport == KINDS[kind].transport)
    (reply,) = client.replies("/meta/handshake")
    assert set(reply.get("ext", {})) == set(KINDS[kind].extensions)
    assert list(server.house.broker.sessions) == [client.id]


@pytest.mark.parametrize("pattern", PATTERNS)
@every_plain_client
async def test_subscribe(kind, pattern, site):
    """A17, A44: a subscription gets the events of channels that its pattern matches, and no others."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    subscription, named, others = PATTERNS[pattern]
    assert await client.subscribe(subscription) == OK
    await publish(server.port, *((channel, "others") for channel in others), *((channel, "named") for channel in named))
    await client.hears(*((channel, "named") for channel in named))


@every_plain_client
async def test_publish_with_reply(kind, site):
    """A47: a publish gets its reply, and a client without a subscription gets no event."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    for number in range(3):
        assert await client.publish("/room", number) == OK
    assert [reply["successful"] for reply in client.replies("/room")] == [True, True, True]
    assert server.house.broker.published == 3
    assert client.events == []


@every_client
async def test_receive(kind, site):
    """A49, A51: any JSON value arrives as it was sent, in order, from other clients and from the client itself."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    assert await client.subscribe("/room") == OK
    await publish(server.port, *(("/room", value) for value in VALUES))
    await client.hears(*(("/room", value) for value in VALUES))
    own = [value for value in VALUES if value is not None or KINDS[kind].runtime != "java"]  # which omits data of null
    for value in own:
        assert await client.publish("/room", value) == OK
    await client.hears(*(("/room", value) for value in VALUES + own))


@every_client
async def test_two_tabs(kind, site):
    """A49, B9: two tabs of a browser, or two programs, both get the events of both, in one order."""
    server = await site.serve(bayeux={"browser_interval_s": 0.05})
    one, other = [await site.join(kind, server.port) for _ in range(2)]
    for client in (one, other):
        assert await client.subscribe("/room") == OK
    assert await one.publish("/room", {"from": "one"}) == OK
    assert await other.publish("/room", {"from": "other"}) == OK
    for client in (one, other):
        await client.hears(("/room", {"from": "one"}), ("/room", {"from": "other"}))


@every_plain_client
async def test_unsubscribe(kind, site):
    """A45, A55: an unsubscribed pattern brings no more events, other subscriptions do."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    assert await client.subscribe("/left/*") == OK
    assert await client.subscribe("/kept") == OK
    assert await client.publish("/left/room", 1) == OK
    await client.hears(("/left/room", 1))
    assert await client.unsubscribe("/left/*") == OK
    assert await client.publish("/left/room", 2) == OK
    assert await client.publish("/kept", 3) == OK
    await client.hears(("/left/room", 1), ("/kept", 3))


@every_client
async def test_restart_and_recovery(kind, site):
    """A38, B30, E33: a restarted server has no sessions; the client handshakes again by itself and gets events."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    assert await client.subscribe("/room/*") == OK
    await publish(server.port, ("/room/a", "before"))
    await client.hears(("/room/a", "before"))
    for restarts in (1, 2):
        await server.stop()
        await server.start()
        await is_heard_again(client, server.port, "/room/a")
        assert len([reply for reply in client.replies("/meta/handshake") if reply["successful"]]) == 1 + restarts
    assert await client.publish("/room/b", "own") == OK
    await client.until(lambda: client.events[-1] == ("/room/b", "own"))


@every_plain_client
async def test_disconnect(kind, site):
    """A52: a disconnect ends the session and its held connect immediately."""
    server = await site.serve()
    client = await site.join(kind, server.port)
    await client.until(lambda: server.house.engine.sessions.holds == 1)
    assert await client.disconnect() == OK
    await client.until(lambda: not server.house.broker.sessions)
    assert server.house.engine.sessions.holds == 0
