"""Several tabs of one browser, as real browsers have them (B9)."""

from __future__ import annotations

import pytest
from clients.foreign import OK
from clients.kinds import clients

pytestmark = pytest.mark.asyncio(loop_scope="session")


def holders(server):
    """The ids of the sessions whose connect is held."""
    return [session.id for session in list(server.house.broker.sessions.values()) if session.held is not None]


def is_one_of_many(client):
    """Whether the reply to its last poll had `multiple-clients`: another tab of its browser holds the connect."""
    polls = client.replies("/meta/connect")
    return bool(polls) and polls[-1].get("advice", {}).get("multiple-clients") is True


@clients("cometd-same-origin-polling", "faye-same-origin-polling")
async def test_one_tab_holds_and_the_others_poll_until_it_closes(kind, site):
    """B9, E15: the second tab gets `multiple-clients`; when the first is closed, the second holds in its place."""
    server = await site.serve(bayeux={"browser_interval_s": 0.05})
    first = await site.join(kind, server.port)
    await first.until(lambda: holders(server) == [first.id])
    second = await site.join(kind, server.port)
    await second.until(lambda: is_one_of_many(second))
    assert holders(server) == [first.id]
    assert not is_one_of_many(first)

    await first.close()
    await second.until(lambda: holders(server) == [second.id])
    assert await second.subscribe("/room") == OK
    assert await second.publish("/room", "alone now") == OK
    await second.hears(("/room", "alone now"))


@clients("cometd-same-origin-polling")
async def test_a_reloaded_page_takes_the_place_of_its_old_self(kind, site):
    """B9, B15: the old session of a reloaded page does not prevent the next one from holding."""
    server = await site.serve(bayeux={"browser_interval_s": 0.05})
    client = await site.join(kind, server.port)
    await client.until(lambda: holders(server) == [client.id])
    for _ in range(3):
        before = client.id
        await client.restart()
        assert await client.open() == OK
        assert client.id != before
        await client.until(lambda: holders(server) == [client.id])
