"""A person on a train, who follows the market over a bad connection: polls are rare, so that events queue up."""

from __future__ import annotations

from random import Random

from app.demo.comeback import come_back
from app.demo.script_page import ScriptPage

_PAUSE_S = (2.0, 7.0)
"""The pause between two polls; after 10 s without one the session would end."""


async def commuter(server: str, random: Random) -> None:
    """Follow the market, until cancelled."""

    async def visit() -> None:
        async with ScriptPage(server, lambda: random.uniform(*_PAUSE_S)) as page:
            await page.subscribe("/market/*")
            async for _ in page:
                pass

    await come_back(visit, random)
