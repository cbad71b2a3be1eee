"""The load that is put on a server, each worker's share of it, and the error of a measurement that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Verb = Literal["publish", "fanout", "one-to-one", "idle"]


@dataclass(frozen=True, slots=True)
class Load:
    """A load as its user describes it.

    `publish`: acknowledged publishes without subscribers, to the channels in turn. `fanout`: every event is delivered
    to all receivers. `one-to-one`: every event is delivered to one receiver; the channels are divided among the
    receivers. `idle`: held polls and, with a `rate`, publishes to all of them. `rate` is in publishes per second over
    all publishers; 0 is a closed loop, in which every publisher waits until its event was acknowledged and has arrived
    everywhere. An event that has not arrived `grace_s` after the end is lost. A request publishes `batch` events, which
    are due at the same time and acknowledged in one response. The receivers of `one-to-one` also have `patterns`,
    divided among them. With an `age`, a closed loop first delivers that number of events to each receiver, instead of a
    warm-up.
    """

    verb: Verb
    receivers: int = 0
    publishers: int = 1
    channels: int = 1
    rate: float = 0.0
    seconds: float = 10.0
    warm_up_s: float = 2.0
    grace_s: float = 5.0
    data_bytes: int = 20
    browser_headers: bool = False
    processes: int = 1
    batch: int = 1
    patterns: int = 0
    age: int = 0

    @property
    def sessions(self) -> int:
        """The number of sessions that are opened."""
        return self.receivers + self.publishers

    @property
    def is_shared(self) -> bool:
        """Whether every receiver gets every event."""
        return self.verb in ("fanout", "idle")


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker does. A *group* is the receivers that get the same events; groups are numbered from 0.

    If the load `is_shared`, group 0 is the only one, it spans all workers, and the first worker publishes to it.
    Otherwise each receiver is a group with its own channels, and a worker publishes to its own receivers only.
    `has_others`: other workers have receivers of what this worker publishes.
    """

    load: Load
    number: int
    receivers: int
    publishers: int
    first_group: int
    first_channel: int
    channels: int
    rate: float
    has_others: bool

    @property
    def fan(self) -> int:
        """The number of receivers of this worker that get each event."""
        return self.receivers if self.load.is_shared else min(self.receivers, 1)

    def channels_of(self, receiver: int) -> range:
        """Return the channels of a receiver of this worker, as numbers."""
        if self.load.is_shared:
            return range(1)
        each, more = divmod(self.channels, self.receivers)
        first = self.first_channel + receiver * each + min(receiver, more)
        return range(first, first + each + (receiver < more))

    def patterns_of(self, receiver: int) -> int:
        """Return the number of patterns of a receiver of this worker; none if the load is shared."""
        if self.load.is_shared:
            return 0
        return _part(self.load.patterns, self.load.receivers, self.first_group + receiver)


def split(load: Load) -> list[Share]:
    """Divide a load into shares, one for each worker that is needed."""
    # A worker without receivers (or without publishers, unless the load is shared) would have nothing to do.
    count = min(load.processes, load.receivers or load.publishers)
    if not load.is_shared:
        count = min(count, load.publishers)
    shares, group, channel = [], 0, 0
    for number in range(count):
        receivers = _part(load.receivers, count, number)
        channels = 1 if load.is_shared else max(_part(load.channels, count, number), 1)
        publishers = _part(load.publishers, count, number) if not load.is_shared else load.publishers * (number == 0)
        rate = load.rate * publishers / load.publishers if publishers else 0.0
        has_others = load.is_shared and publishers > 0 and count > 1
        shares.append(Share(load, number, receivers, publishers, group, channel, channels, rate, has_others))
        if not load.is_shared:
            group, channel = group + receivers, channel + channels
    return shares


def _part(total: int, count: int, number: int) -> int:
    return total // count + (number < total % count)


Answer = TypeVar("Answer")


class BenchFailed(Exception):
    """There is no result; the text explains why, for the user."""


async def together(work: Iterable[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """Run all at the same time and return their results; the first `BenchFailed` cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(each) for each in work]
    except* BenchFailed as failures:
        raise failures.exceptions[0] from None
    return [each.result() for each in begun]
