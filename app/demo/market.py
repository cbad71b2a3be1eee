"""The market, over WAMP: ten shares whose prices walk at random, a news flash every minute or so, and a halt at times.

News makes one share trade many times as often for a while, which is a spike; a halt makes one silent for longer than
a steady channel ever is. `ticker` publishes `market.SYMBOL` and `market.news`, `analyst` the mean of all prices as
`market.index`; Bayeux shows `/market/SYMBOL`. `commuter` follows them over a bad connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from app.client.wamp import WampClient
from app.demo.script_page import ScriptPage

NEWS = "news"
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
_APART_S = (0.5, 2.0)
"""The mean time between two trades: of the busiest share and of the calmest."""

_FLASH_S = (45.0, 75.0)
_RUSH_S, _RUSH_TIMES = 20.0, 15.0
_HALT_AFTER_S, _HALT_S = (240.0, 420.0), (75.0, 90.0)
_STEP = 0.0008
"""The standard deviation of a price from one trade to the next, relative to the price."""

_LOWEST = 0.5
_LOTS = (1, 5, 10, 25, 50, 100, 250, 500)

_LOOK_S = (0.05, 1.0)
"""Times between two looks at the market: what happens meanwhile is sent together. Others can publish news any time."""

_ACKNOWLEDGED_SHARE = 0.05
"""The share of publishes that wait for an acknowledgement, so for the disk: they show if it is slow."""

_INDEX_EVERY_S = 2.0
_COMMUTER_PAUSE_S = (2.0, 7.0)
"""The pause between two polls; after 10 s without one the session would end."""


@dataclass
class _Share:
    price: float
    apart_s: float
    next_s: float
    rush_until_s: float = -math.inf


class Market:
    """A market that opens at `now_s`; `until` returns what happens there. Pure: the time is an argument."""

    def __init__(self, random: Random, now_s: float) -> None:
        self._random = random
        self._shares: dict[str, _Share] = {}
        for symbol, price in SHARES.items():
            apart_s = random.uniform(*_APART_S)
            self._shares[symbol] = _Share(price, apart_s, now_s + random.expovariate(1 / apart_s))
        self._flash_s = now_s + random.uniform(*_FLASH_S)
        self._halt_s = now_s + random.uniform(*_HALT_AFTER_S)

    @property
    def next_s(self) -> float:
        """The time of the next event."""
        return min(self._flash_s, self._halt_s, *(share.next_s for share in self._shares.values()))

    def until(self, now_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what has happened until now: a symbol or `NEWS`, and the data to publish."""
        random, symbol = self._random, self._random.choice([*SHARES])
        if self._flash_s <= now_s:
            self._flash_s = now_s + random.uniform(*_FLASH_S)
            yield NEWS, {"symbol": symbol, "headline": random.choice(_HEADLINES).format(symbol.title())}
        if self._halt_s <= now_s:
            self._halt_s = now_s + random.uniform(*_HALT_AFTER_S)
            self._shares[symbol].next_s = now_s + random.uniform(*_HALT_S)
            yield NEWS, {"headline": f"Trading in {symbol.title()} is halted for a moment"}
        for name, share in self._shares.items():
            if share.next_s <= now_s:
                per_s = (_RUSH_TIMES if now_s < share.rush_until_s else 1.0) / share.apart_s
                share.next_s = now_s + random.expovariate(per_s)
                before, lots = share.price, random.choice(_LOTS)
                share.price = max(_LOWEST, round(before * math.exp(random.gauss(0, _STEP)), 2))
                change = round(share.price - before, 2)
                yield name, {"symbol": name, "price": share.price, "change": change, "size": lots}

    def rush(self, news: Any, now_s: float) -> None:
        """Make the share that news names trade often for a while; any client can publish news, of any form."""
        symbol = news.get("symbol") if isinstance(news, dict) else None
        share = self._shares.get(symbol) if isinstance(symbol, str) else None
        if share is not None:
            share.rush_until_s = now_s + _RUSH_S
            share.next_s = now_s


async def ticker(server: str, random: Random) -> None:
    """Publish what happens in the market until the connection is lost."""
    clock = asyncio.get_running_loop().time
    market = Market(random, clock())

    async def read_news(client: WampClient) -> None:
        async for event in client:
            market.rush(next(iter(event.args), None), clock())

    async with WampClient(server) as client, asyncio.TaskGroup() as group:
        await client.subscribe(f"market.{NEWS}")
        group.create_task(read_news(client))
        while True:
            for name, data in market.until(clock()):
                publish = client.publish if random.random() < _ACKNOWLEDGED_SHARE else client.send_event
                await publish(f"market.{name}", [data])
                if name == NEWS:
                    market.rush(data, clock())  # a publisher does not receive its own events
            await asyncio.sleep(min(max(market.next_s - clock(), _LOOK_S[0]), _LOOK_S[1]))


async def analyst(server: str, _random: Random) -> None:
    """Receive every trade, by a pattern, and publish the mean of all prices, until the connection is lost."""
    prices = dict(SHARES)

    async def read_trades(client: WampClient) -> None:
        async for event in client:
            match event.args:
                case [{"symbol": str(symbol), "price": int() | float() as price}, *_] if symbol in prices:
                    prices[symbol] = price

    async with WampClient(server) as client, asyncio.TaskGroup() as group:
        await client.subscribe("market", match="prefix")
        group.create_task(read_trades(client))
        before = fmean(prices.values())
        while True:
            index = fmean(prices.values())
            await client.send_event("market.index", [{"index": round(index, 2), "change": round(index - before, 2)}])
            before = index
            await asyncio.sleep(_INDEX_EVERY_S)


async def commuter(server: str, random: Random) -> None:
    """Follow the market over a bad connection until it is lost: polls are rare, so that events queue up."""
    async with ScriptPage(server, lambda: random.uniform(*_COMMUTER_PAUSE_S)) as page:
        await page.subscribe("/market/*")
        async for _ in page:
            pass
