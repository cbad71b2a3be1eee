"""The market: ten shares whose prices walk at random, a news flash every minute or so, and a halt now and then.

News makes one share trade many times as often for a while, which is a spike; a halt makes one silent for longer than
a steady channel ever is. Pure: the time is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

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
    "{} wins the contract for the new harbour",
    "Rumours of a merger: {} says nothing",
)
_APART_S = (0.5, 2.0)
"""The mean time between two trades: of the busiest share and of the calmest."""

_FLASH_S = (45.0, 75.0)
_RUSH_S = 20.0
_RUSH_TIMES = 15.0
_HALT_AFTER_S = (240.0, 420.0)
_HALT_S = (75.0, 90.0)
_STEP = 0.0008
"""The standard deviation of a price from one trade to the next, relative to the price."""

_LOWEST = 0.5
_LOTS = (1, 5, 10, 25, 50, 100, 250, 500)


class _Share:
    def __init__(self, price: float, apart_s: float, next_s: float) -> None:
        self.price = price
        self.apart_s = apart_s
        self.next_s = next_s
        self.rush_until_s = -math.inf


class Market:
    """A market that opens at `now_s`; `until` returns what happens there."""

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
        if self._flash_s <= now_s:
            self._flash_s = now_s + self._random.uniform(*_FLASH_S)
            symbol = self._random.choice([*SHARES])
            yield NEWS, {"symbol": symbol, "headline": self._random.choice(_HEADLINES).format(symbol.title())}
        if self._halt_s <= now_s:
            yield NEWS, self._halt(now_s)
        for symbol, share in self._shares.items():
            if share.next_s <= now_s:
                share.next_s = now_s + self._random.expovariate(self._per_s(share, now_s))
                yield symbol, self._trade(symbol, share)

    def rush(self, symbol: object, now_s: float) -> None:
        """Make a share trade often for a while, after news about it; any other symbol is ignored."""
        share = self._shares.get(symbol) if isinstance(symbol, str) else None
        if share is not None:
            share.rush_until_s = now_s + _RUSH_S
            share.next_s = now_s

    def _per_s(self, share: _Share, now_s: float) -> float:
        return (_RUSH_TIMES if now_s < share.rush_until_s else 1.0) / share.apart_s

    def _halt(self, now_s: float) -> dict[str, Any]:
        symbol = self._random.choice([*SHARES])
        self._shares[symbol].next_s = now_s + self._random.uniform(*_HALT_S)
        self._halt_s = now_s + self._random.uniform(*_HALT_AFTER_S)
        return {"headline": f"Trading in {symbol.title()} is halted for a moment"}

    def _trade(self, symbol: str, share: _Share) -> dict[str, Any]:
        before = share.price
        share.price = max(_LOWEST, round(before * math.exp(self._random.gauss(0, _STEP)), 2))
        return {
            "symbol": symbol,
            "price": share.price,
            "change": round(share.price - before, 2),
            "size": self._random.choice(_LOTS),
        }
