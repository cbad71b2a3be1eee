"""The market, over WAMP: ten shares whose prices walk at random, and news of one of them every minute or so.

News makes its share trade many times as often for a while, which is a spike, or halts the share for longer than a
steady channel is ever silent. `ticker` publishes `market.SYMBOL` and `market.news`, `analyst` the mean of all prices as
`market.index`; Bayeux shows `/market/SYMBOL`. `commuter` follows them over a bad connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from random import Random
from statistics import fmean
from typing import Any

import httpx

from app.client import Client
from app.client.wamp import WampClient
from app.client.wire import Trace, Wire

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
_NEWS_S = (45.0, 75.0)
_RUSH_S, _RUSH_TIMES = 20.0, 15.0
_HALT_S = (75.0, 90.0)
_HALTS = 0.2
"""The share of the news that are a halt."""

_APART_S = 1.0
"""The mean time between two trades of a share."""

_STEP, _LOWEST = 0.0008, 0.5
"""The standard deviation of a price from one trade to the next, relative to the price; and the lowest price."""

LOOK_S = 0.05
"""The time between two looks at the market: what happens meanwhile is sent together."""

_INDEX_EVERY_S = 2.0
_COMMUTER_PAUSE_S = 5.0
"""The pause between two polls; after 10 s without one the session would end."""


class Market:
    """A market that opens at `now_s`; `until` returns what happens there. Pure: the time is an argument."""

    def __init__(self, random: Random, now_s: float) -> None:
        self._random = random
        self._news_s = now_s + random.uniform(*_NEWS_S)
        self._prices = dict(SHARES)
        self._trades_s = dict.fromkeys(SHARES, now_s)
        self._rush_until_s = dict.fromkeys(SHARES, now_s)

    def until(self, now_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what has happened until now: a symbol or `NEWS`, and the data to publish."""
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

    async def read_news(client: WampClient) -> None:
        async for event in client:
            market.rush(next(iter(event.args), None), clock())

    async with WampClient(server) as client, asyncio.TaskGroup() as group:
        await client.subscribe(f"market.{NEWS}")
        group.create_task(read_news(client))
        while True:
            for name, data in market.until(clock()):
                publish = client.publish if name == NEWS else client.send_event
                await publish(f"market.{name}", [data], exclude_me=False)  # it also reads its own news
            await asyncio.sleep(LOOK_S)


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


class _BadWire(Wire):
    """A connection over which polls take a while to reach the server, so that events queue up there."""

    async def _send(self, body: bytes, trace: Trace) -> tuple[httpx.Response, bytes]:
        if b"/meta/connect" in body:
            await asyncio.sleep(_COMMUTER_PAUSE_S)
        return await super()._send(body, trace)


class _Commuter(Client):
    _wire_class = _BadWire


async def commuter(server: str, _random: Random) -> None:
    """Follow the market over a bad connection until it is lost and cannot be restored."""
    async with _Commuter(server) as client:
        await client.subscribe("/market/*")
        async for _ in client:
            pass
