"""The throughput and delays of the last ticks, which the first tick of `/halley/rates` to each subscriber comes with.

So a chart does not begin empty. Only what is measured at every tick anyway is kept: the other figures cost time where
there are many sessions, and are made only for subscribers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson

_MOST_TICKS = 120
"""Ticks; two minutes at the usual pace, as the console's charts show. They are about 35 KB in an event."""

_FIGURES = ("published_per_s", "delivered_per_s", "delay_ms")


class PastRates:
    """The figures of the last ticks, and the sessions that have received them."""

    def __init__(self) -> None:
        self._ticks: deque[bytes] = deque(maxlen=_MOST_TICKS)
        self._recipients: frozenset[str] = frozenset()

    def add(self, time: str, protocols: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep the figures of a tick at `time` (RFC 3339); `protocols` are those of `/halley/rates`."""
        figures = {name: {each: rate[each] for each in _FIGURES} for name, rate in protocols.items()}
        self._ticks.append(orjson.dumps({"time": time, "protocols": figures}))

    def new_subscribers(self, subscribers: frozenset[str]) -> frozenset[str]:
        """Those of the sessions subscribed now that were not at the previous call, by their ids."""
        new = subscribers - self._recipients
        self._recipients = subscribers
        return new

    @property
    def ticks(self) -> list[orjson.Fragment]:
        """The figures that are kept, the oldest first, as `orjson` writes them."""
        return [orjson.Fragment(tick) for tick in self._ticks]
