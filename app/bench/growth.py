"""How a server's costs grow: one measurement for each number of receivers, and for each number of channels.

CPU per delivery should stay constant, and memory should grow linearly with the sessions. Each point is measured on a
separate server, which should be freshly started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from app.bench.load import Load
from app.bench.measurement import Phase, measure
from app.bench.result import Result
from app.bench.target import Target

RECEIVERS = (1, 10, 100, 1_000, 10_000)
CHANNELS = (1, 10, 100, 1_000, 10_000, 100_000)

_DELIVERIES_PER_S = 2_000  # the same work at every point, well below what any server can do
_PUBLISHES_PER_S = 400.0
_WARM_UP_S = 2.0
_SESSIONS = 1_000  # over which many channels are spread, within the limit of subscriptions per session


@dataclass(slots=True)
class Growth:
    """The measurements by number of receivers, and by number of channels."""

    receivers: list[Result]
    channels: list[Result]

    @property
    def is_clean(self) -> bool:
        """Whether there were no errors, losses or repeats at any point."""
        return all(result.is_clean for result in (*self.receivers, *self.channels))

    def as_json(self) -> dict[str, Any]:
        """Return the results as they are saved and compared."""
        return {
            "verb": "growth",
            "receivers": [result.as_json() for result in self.receivers],
            "channels": [result.as_json() for result in self.channels],
        }


async def grow(
    serve: Callable[[], AbstractAsyncContextManager[Target]],
    watch: Callable[[Phase], object],
    *,
    seconds: float,
    processes: int,
    receivers: Sequence[int] = RECEIVERS,
    channels: Sequence[int] = CHANNELS,
) -> Growth:
    """Measure every point on a server that `serve` provides. Raises `BenchFailed`."""

    async def point(load: Load) -> Result:
        async with serve() as target:
            return await measure(load, target, watch)

    by_receivers = [await point(fanout_of(count, seconds, processes)) for count in receivers]
    by_channels = [await point(channels_of(count, seconds, processes)) for count in channels]
    return Growth(by_receivers, by_channels)


def fanout_of(receivers: int, seconds: float, processes: int) -> Load:
    """Return a load of publishes to all `receivers`, at a rate that makes about the same deliveries per second for any.

    There are at least 0.5 and at most 400 publishes per second.
    """
    rate = min(max(_DELIVERIES_PER_S / receivers, 0.5), _PUBLISHES_PER_S)
    return Load(
        "fanout",
        receivers=receivers,
        rate=rate,
        seconds=seconds,
        warm_up_s=min(_WARM_UP_S, seconds),
        processes=processes,
    )


def channels_of(channels: int, seconds: float, processes: int) -> Load:
    """Return a load of publishes to one receiver each, over `channels` channels."""
    return Load(
        "one-to-one",
        receivers=min(channels, _SESSIONS),
        publishers=8,
        channels=channels,
        rate=_PUBLISHES_PER_S,
        seconds=seconds,
        warm_up_s=min(_WARM_UP_S, seconds),
        processes=processes,
    )
