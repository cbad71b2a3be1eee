"""When to publish: closed and open loop.

In a **closed loop** a publisher waits until its event was acknowledged and has arrived everywhere. This finds the
highest rate, but a server that pauses is sent fewer events, so few events show the pause. In an **open loop** events
are due at a fixed rate, regardless of the server, and each carries the time at which it was *due*, not the one at
which it was sent. So the latency of an event includes the time it waited for the server, or for events before it:
there is no coordinated omission. The schedule is checked every millisecond, which adds up to 1 ms to latencies.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from halley.bench.load import Share
from halley.bench.sessions import Publisher
from halley.bench.tally import Tally

_NS = 1_000_000_000
_TICK_S = 0.001


class Groups:
    """The groups that a worker publishes to, in turn, and each group's channels, also in turn."""

    def __init__(self, share: Share) -> None:
        self._first = share.first_group
        if share.load.is_shared or not share.receivers:
            self._channels = [range(share.first_channel, share.first_channel + share.channels)]
        else:
            self._channels = [share.channels_of(receiver) for receiver in range(share.receivers)]
        self._turn = 0
        self.begin()

    def begin(self) -> None:
        """Reset the counts of published events."""
        self.published = [0] * len(self._channels)

    def next(self) -> tuple[int, int, int]:
        """Return the channel and group of the next event, and its number within the group."""
        turn = self._turn
        self._turn = (turn + 1) % len(self._channels)
        number = self.published[turn]
        self.published[turn] = number + 1
        channels = self._channels[turn]
        return channels[number % len(channels)], self._first + turn, number


class LoadLoop(ABC):
    """Publishes a worker's share, `batch` events per request, between `begin` and `stop`."""

    def __init__(self, publishers: Sequence[Publisher], tally: Tally, share: Share) -> None:
        self.tally = tally
        self.groups = Groups(share)
        self.batch = share.load.batch
        self._idle: deque[Publisher] = deque()
        self._publishers = publishers
        self._is_running = False
        for publisher in publishers:
            publisher.freed = self._freed

    @property
    def unanswered(self) -> int:
        """The number of publishers that still wait for a reply."""
        return sum(publisher.is_busy for publisher in self._publishers)

    def begin(self) -> None:
        """Reset the counts of each group; from now on `step` publishes."""
        self.groups.begin()
        self._idle = deque(publisher for publisher in self._publishers if not publisher.is_busy)
        self._is_running = True

    def stop(self) -> None:
        """Let `step` publish nothing more; requests that were sent before are still answered."""
        self._is_running = False

    def renew(self) -> None:
        """Keep the publishers' sessions alive."""
        for publisher in self._publishers:
            publisher.renew()
        self._idle = deque(publisher for publisher in self._publishers if not publisher.is_busy)

    @abstractmethod
    def step(self) -> None:
        """Publish what can be published now; nothing unless the loop is running."""

    def _publish(self, due_ns: int) -> None:
        events: list[int] = []
        for _ in range(self.batch):
            channel, group, number = self.groups.next()
            events += (channel, due_ns, group, self.tally.floor + number)
        self._idle.popleft().publish(tuple(events), due_ns)
        self.tally.published += self.batch

    def _freed(self, publisher: Publisher) -> None:
        self._idle.append(publisher)
        self.step()


class ClosedLoop(LoadLoop):
    """A closed loop, with as many batches under way as there are publishers.

    Where other workers have receivers of an event too, its arrival there is reported to `others_arrived`.
    """

    def __init__(self, publishers: Sequence[Publisher], tally: Tally, share: Share) -> None:
        super().__init__(publishers, tally, share)
        self._fan = share.fan
        self._has_others = share.has_others
        self._others_arrived = self._written_off = 0

    def begin(self) -> None:
        """Start to publish, with one batch from each publisher."""
        super().begin()
        self._others_arrived = self._written_off = 0
        self.tally.reached = self._reached
        self.tally.goal = self._fan or self.tally.goal
        self.step()

    def step(self) -> None:
        """Publish as long as fewer batches are under way than there are publishers."""
        most = len(self._publishers) * self.batch
        while self._is_running and self._idle and self.tally.published - self._arrived() < most:
            self._publish(time.monotonic_ns())

    def others_arrived(self, count: int) -> None:
        """Set the number of events that have arrived at all receivers in the other workers."""
        self._others_arrived = count
        self.step()

    def write_off(self) -> None:
        """Give up the events that are under way, so that the loop goes on without them; nothing arrives any more."""
        self._written_off = self.tally.published - (self._arrived() - self._written_off)
        self.step()

    def _arrived(self) -> int:
        counts = [self.tally.deliveries // self._fan] if self._fan else []
        if self._has_others:
            counts.append(self._others_arrived)
        return min(counts, default=self.tally.published) + self._written_off

    def _reached(self) -> None:
        self.tally.goal = (self.tally.deliveries // self._fan + 1) * self._fan
        self.step()


class OpenLoop(LoadLoop):
    """An open loop: its share of the `rate` of events per second is due, regardless of the server."""

    def __init__(self, publishers: Sequence[Publisher], tally: Tally, share: Share) -> None:
        super().__init__(publishers, tally, share)
        self._interval_ns = _NS / share.rate
        self._start_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin the schedule now; a timer that fires at most once a millisecond publishes what has become due."""
        super().begin()
        self._start_ns = time.monotonic_ns()
        self.step()
        self._tick()

    def step(self) -> None:
        """Publish the events that are due; an event for which no publisher is idle waits, and keeps its due time."""
        now_ns = time.monotonic_ns()
        while self._is_running and self._idle and self._due_ns() <= now_ns:
            self._publish(self._due_ns())

    def stop(self) -> None:
        """End the schedule, and count the events that were due but could not be sent."""
        super().stop()
        if self._timer is not None:
            self._timer.cancel()
        self.tally.unsent += max(
            int((time.monotonic_ns() - self._start_ns) / self._interval_ns) - self.tally.published, 0
        )

    def _due_ns(self) -> int:
        return self._start_ns + int(self.tally.published * self._interval_ns)

    def _tick(self) -> None:
        self.step()
        wait_s = (self._due_ns() - time.monotonic_ns()) / _NS
        self._timer = asyncio.get_running_loop().call_later(max(wait_s, _TICK_S), self._tick)
