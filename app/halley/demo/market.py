"""The market, over WAMP: ten shares whose prices walk at random, and news of one of them every minute or so.

News makes its share trade many times as often for a while, which is a spike, or halts the share for longer than a
steady channel is ever silent. `ticker` publishes `market.SYMBOL`, `market.news` and the mean of all prices as
`market.index`; Bayeux shows `/market/SYMBOL`. `trader` follows them, `commuter` only now and then.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from statistics import fmean
from typing import Any

from halley.client import Client
from halley.client.wamp import WampClient

NEWS, INDEX = "news", "index"
SHARES = {
    "ACORN": 48.20, "BASIL": 131.75, "CEDAR": 17.40, "DELFT": 212.10, "EMBER": 9.85,
    "FJORD": 76.30, "GULL": 34.55, "HAZEL": 154.90, "IRIS": 61.05, "JUNO": 420.00,
}  # fmt: skip
"""The first price of each."""

_HEADLINES = (
    "{} has found a buyer for its old warehouse",
    "{} doubles its forecast for the year",
    "The head of {} leaves to sail around the world",
    "Rumours of a merger: {} says nothing",
)
_INDEX_S = 2.0
_NEWS_S = (45.0, 75.0)
_RUSH_S, _RUSH_TIMES = 20.0, 15.0
_HALT_S = (75.0, 90.0)
_HALTS = 0.2
"""The share of the news that are a halt."""

_APART_S = 1.0
"""The mean time between two trades of a share."""

_STEP, _LOWEST = 0.0008, 0.5
"""The standard deviation of a price from one trade to the next, relative to the price; and the lowest price."""

CHECK_S = 0.05
"""The time between two looks at the market: what happens meanwhile is sent together."""

_GLANCE_S, _AWAY_S = 1.0, 5.0
"""How long the commuter reads, and then does not."""


class Market:
    """A market that opens at `now_s`; `until` returns what happens there. Pure: the time is an argument."""

    def __init__(self, random: Random, now_s: float) -> None:
        self._random = random
        self._news_s = now_s + random.uniform(*_NEWS_S)
        self._index_s, self._index = now_s, round(fmean(SHARES.values()), 2)
        self._prices = dict(SHARES)
        self._trades_s = dict.fromkeys(SHARES, now_s)
        self._rush_until_s = dict.fromkeys(SHARES, now_s)

    def until(self, now_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what has happened until now: a symbol, `NEWS` or `INDEX`, and the data to publish."""
        random = self._random
        if self._news_s <= now_s:
            self._news_s = now_s + random.uniform(*_NEWS_S)
            symbol = random.choice([*SHARES])
            if random.random() < _HALTS:
                self._trades_s[symbol] = now_s + random.uniform(*_HALT_S)
                yield NEWS, {"headline": f"Trading in {symbol.title()} is halted for a moment"}
            else:
                yield NEWS, {"symbol": symbol, "headline": random.choice(_HEADLINES).format(symbol.title())}
        for symbol, before in self._prices.items():
            if self._trades_s[symbol] <= now_s:
                per_s = (_RUSH_TIMES if now_s < self._rush_until_s[symbol] else 1.0) / _APART_S
                self._trades_s[symbol] = now_s + random.expovariate(per_s)
                price = self._prices[symbol] = max(_LOWEST, round(before * math.exp(random.gauss(0, _STEP)), 2))
                change, lots = round(price - before, 2), random.randrange(5, 505, 5)
                yield symbol, {"symbol": symbol, "price": price, "change": change, "size": lots}

        if self._index_s <= now_s:
            self._index_s = now_s + _INDEX_S
            before, self._index = self._index, round(fmean(self._prices.values()), 2)
            yield INDEX, {"index": self._index, "change": round(self._index - before, 2)}

    def rush(self, news: Any, now_s: float) -> None:
        """Make the share that news names trade often for a while; any client can publish news, of any form."""
        match news:
            case {"symbol": str(symbol)} if symbol in SHARES:
                self._rush_until_s[symbol] = now_s + _RUSH_S
                self._trades_s[symbol] = now_s


async def ticker(server: str, random: Random) -> None:
    """Publish what happens in the market until the connection is lost."""
    clock = asyncio.get_running_loop().time
    market = Market(random, clock())
    async with WampClient(server) as client:
        await client.subscribe(f"market.{NEWS}")
        while True:
            for name, data in market.until(clock()):
                publish = client.publish if name == NEWS else client.send_event
                await publish(f"market.{name}", [data], exclude_me=False)  # it also reads its own news
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    async for event in client:
                        market.rush(next(iter(event.args), None), clock())


async def trader(server: str, _random: Random) -> None:
    """Receive all of it, by a pattern, until the connection is lost."""
    async with WampClient(server) as client:
        await client.subscribe("market", match="prefix")
        async for _ in client:
            pass


async def commuter(server: str, _random: Random) -> None:
    """Follow the market at glances until the connection is lost; between them events queue up at the server."""
    async with Client(server, events_kept=1) as client:
        await client.subscribe("/market/*")
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GLANCE_S):
                    async for _ in client:
                        pass
            await asyncio.sleep(_AWAY_S)
