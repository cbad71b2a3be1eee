"""Long batches by callback-polling, whose requests are URLs."""

from __future__ import annotations

import pytest
from clients.foreign import OK
from clients.kinds import clients

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
