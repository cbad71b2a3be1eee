"""The analyst: receives every trade over WAMP, by a pattern, and publishes `market.index`, the mean of all prices."""

from __future__ import annotations

import asyncio
from random import Random
from statistics import fmean
from typing import Any

from app.demo.beside import beside
from app.demo.comeback import come_back
from app.demo.market import SHARES
from app.demo.wamp_session import joined

_EVERY_S = 2.0


async def analyst(server: str, random: Random) -> None:
    """Publish the market's index until cancelled."""
    await come_back(lambda: _visit(server), random)


async def _visit(server: str) -> None:
    prices = dict(SHARES)

    def hear(trade: Any) -> None:
        match trade:
            case {"symbol": str(symbol), "price": int() | float() as price} if symbol in prices:
                prices[symbol] = price

    async with joined(server) as session, beside(session.listen()) as listening:
        await session.subscribe("market", hear, match="prefix")
        before = fmean(prices.values())
        while not listening.done():
            index = fmean(prices.values())
            await session.publish("market.index", {"index": round(index, 2), "change": round(index - before, 2)})
            before = index
            await asyncio.sleep(_EVERY_S)
