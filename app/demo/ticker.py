"""The ticker: publishes the market over WAMP, `market.SYMBOL` and `market.news`; Bayeux shows `/market/SYMBOL`."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from app.demo.beside import beside
from app.demo.comeback import come_back
from app.demo.market import NEWS, Market
from app.demo.wamp_session import joined

_LEAST_S, _MOST_S = 0.05, 1.0
"""Times between two looks at the market: what happens meanwhile is sent together. Others can publish news any time."""

_ACKNOWLEDGED_SHARE = 0.05
"""The share of publishes that wait for an acknowledgement, so for the disk: they show if it is slow."""


async def ticker(server: str, random: Random) -> None:
    """Publish what happens in the market until cancelled."""
    await come_back(lambda: _visit(server, random), random)


async def _visit(server: str, random: Random) -> None:
    clock = asyncio.get_running_loop().time
    market = Market(random, clock())

    def hear(news: Any) -> None:
        if isinstance(news, dict):
            market.rush(news.get("symbol"), clock())

    async with joined(server) as session, beside(session.listen()) as listening:
        await session.subscribe(f"market.{NEWS}", hear)
        while not listening.done():
            for name, data in market.until(clock()):
                is_acknowledged = random.random() < _ACKNOWLEDGED_SHARE
                await session.publish(f"market.{name}", data, is_acknowledged=is_acknowledged)
                if name == NEWS:
                    hear(data)  # a publisher does not receive its own events
            await asyncio.sleep(min(max(market.next_s - clock(), _LEAST_S), _MOST_S))
