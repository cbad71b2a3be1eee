"""How a test checks that a client has recovered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from clients.foreign import DEADLINE_S
from clients.publisher import publish

if TYPE_CHECKING:
    from clients.foreign import Foreign


async def is_heard_again(client: Foreign, port: int, channel: str) -> None:
    """Publish 0, 1, 2 ... until the client gets one; assert that it gets all later ones too, once, in order."""
    before, published = len(client.events), 0
    try:
        async with asyncio.timeout(DEADLINE_S):
            while len(client.events) == before:
                await publish(port, (channel, published))
                published += 1
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{client.name} has not recovered: {client.lately()}") from None
    await publish(port, (channel, "after"))
    await client.until(lambda: client.events[-1] == (channel, "after"))
    heard = client.events[before:]
    first = heard[0][1]
    assert heard == [*((channel, number) for number in range(first, published)), (channel, "after")]
