"""What is to be done to a server, and each load process' share of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verb = Literal["publish", "fanout", "one-to-one", "idle"]


@dataclass(frozen=True, slots=True)
class Load:
    """A load as its user describes it.

    `publish`: acknowledged publishes that nobody hears. `fanout`: every publish goes to all receivers. `one-to-one`:
    every publish goes to one receiver; the channels are dealt out among the receivers. `idle`: held polls, and with a
    `rate` publishes to all of them. `rate` is in publishes a second over all publishers; 0 is a closed loop, in which
    every publisher waits until its event was acknowledged and has arrived everywhere. What has not come `grace_s` after
    the end is lost. A request publishes `batch` events at once, which are due and answered together.
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

    @property
    def sessions(self) -> int:
        """All sessions that are opened."""
        return self.receivers + self.publishers

    @property
    def is_shared(self) -> bool:
        """Whether every receiver hears every event."""
        return self.verb in ("fanout", "idle")


@dataclass(frozen=True, slots=True)
class Share:
    """What one load process does. A *group* is those receivers that hear the same events; they are numbered from 0.

    With `is_shared` there is the one group 0 in all processes, which the first one publishes to. Otherwise each
    receiver is a group with channels of its own, and a process publishes to its own receivers only. `has_others`: some
    receivers of what this process publishes are in others.
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

    def channels_of(self, receiver: int) -> range:
        """The channels of a receiver of this process, as numbers."""
        if self.load.is_shared:
            return range(1)
        each, more = divmod(self.channels, self.receivers)
        first = self.first_channel + receiver * each + min(receiver, more)
        return range(first, first + each + (receiver < more))


def split(load: Load) -> list[Share]:
    """The shares of a load, one for each process that has anything to do."""
    # A process without a receiver, or without a publisher where these cannot do without, would have nothing to do.
    count = min(load.processes, load.receivers or load.publishers)
    if not load.is_shared:
        count = min(count, load.publishers)
    shares, group, channel = [], 0, 0
    for number in range(count):
        receivers = _part(load.receivers, count, number)
        channels = 1 if load.is_shared or not load.receivers else _part(load.channels, count, number)
        publishers = _part(load.publishers, count, number) if not load.is_shared else load.publishers * (number == 0)
        rate = load.rate * publishers / load.publishers if publishers else 0.0
        has_others = load.is_shared and publishers > 0 and count > 1
        shares.append(Share(load, number, receivers, publishers, group, channel, channels, rate, has_others))
        if not load.is_shared:
            group, channel = group + receivers, channel + channels
    return shares


def _part(total: int, count: int, number: int) -> int:
    return total // count + (number < total % count)
