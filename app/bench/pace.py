"""When to publish: closed and open loop.

In a **closed loop** a publisher waits until its event was acknowledged and has arrived everywhere. It finds the highest
rate, but a server that hesitates is simply sent less, and its hesitation is seen by few events. In an **open loop**
events are due at a fixed rate, whatever the server does, and each carries the time at which it was *due*, not the one
at which it could be sent. So an event that had to wait for the server, or for events before it, has that wait in its
latency: there is no coordinated omission. The clock ticks in milliseconds, so up to one of them counts as latency too.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.bench.publisher import Publisher
    from app.bench.tally import Tally

_NS = 1_000_000_000
_TICK_S = 0.001


class Groups:
    """The groups that a process publishes to, in turn, and the channels of each, in turn as well."""

    def __init__(self, first: int, channels: Sequence[Sequence[int]]) -> None:
        self.published = [0] * len(channels)
        self._first = first
        self._channels = channels
        self._turn = 0

    def begin(self) -> None:
        """Forget what was published."""
        self.published = [0] * len(self._channels)

    def next(self) -> tuple[int, int, int]:
        """Channel, group, and the event's number within the group."""
        turn = self._turn
        self._turn = (turn + 1) % len(self._channels)
        number = self.published[turn]
        self.published[turn] = number + 1
        channels = self._channels[turn]
        return channels[number % len(channels)], self._first + turn, number


class Pace(ABC):
    """Publishes between `begin` and `stop`, `batch` events at once; `step` looks whether some can be published now."""

    def __init__(self, publishers: Sequence[Publisher], groups: Groups, tally: Tally, *, batch: int) -> None:
        self.tally = tally
        self.groups = groups
        self.batch = batch
        self._idle: deque[Publisher] = deque()
        self._publishers = publishers
        self._is_running = False
        for publisher in publishers:
            publisher.freed = self._freed

    @property
    def is_done(self) -> bool:
        """Whether every event has an answer."""
        return not any(publisher.is_busy for publisher in self._publishers)

    @property
    def unanswered(self) -> int:
        """Publishers that still wait for an answer."""
        return sum(publisher.is_busy for publisher in self._publishers)

    def begin(self) -> None:
        """Start to publish."""
        self.groups.begin()
        self._idle = deque(publisher for publisher in self._publishers if not publisher.is_busy)
        self._is_running = True

    def stop(self) -> None:
        """Publish no more."""
        self._is_running = False

    def renew(self) -> None:
        """Keep the publishers' sessions alive."""
        for publisher in self._publishers:
            publisher.renew()
        self._idle = deque(publisher for publisher in self._publishers if not publisher.is_busy)

    @abstractmethod
    def step(self) -> None:
        """Publish what can be published now."""

    def _publish(self, due_ns: int) -> None:
        events: list[int] = []
        for _ in range(self.batch):
            channel, group, number = self.groups.next()
            events += (channel, due_ns, group, self.tally.floor + number)
        self._idle.popleft().publish(tuple(events), due_ns)
        self.tally.published += self.batch

    def _freed(self, publisher: Publisher) -> None:
        self._idle.append(publisher)
        if self._is_running:
            self.step()


class ClosedLoop(Pace):
    """As many batches under way as there are publishers. `fan`: how many receivers in this process hear each event.

    `elsewhere` is how many events have arrived at every receiver of the other processes.
    """

    def __init__(
        self, publishers: Sequence[Publisher], groups: Groups, tally: Tally, *, batch: int, fan: int, has_others: bool
    ) -> None:
        super().__init__(publishers, groups, tally, batch=batch)
        self._fan = fan
        self._has_others = has_others
        self._elsewhere = 0
        self._written_off = 0

    def begin(self) -> None:
        """Start to publish: one batch each."""
        super().begin()
        self._elsewhere = 0
        self._written_off = 0
        self.tally.reached = self._reached
        self.tally.goal = self._fan or self.tally.goal
        self.step()

    def step(self) -> None:
        """Publish as long as fewer batches are under way than there are publishers."""
        while self._idle and self.tally.published - self._arrived() < len(self._publishers) * self.batch:
            self._publish(time.monotonic_ns())

    def arrived_elsewhere(self, count: int) -> None:
        """Another process has told."""
        self._elsewhere = count
        if self._is_running:
            self.step()

    def write_off(self) -> None:
        """Nothing comes any more: those under way are lost, and must not stop the rest."""
        self._written_off = self.tally.published - (self._arrived() - self._written_off)
        if self._is_running:
            self.step()

    def _arrived(self) -> int:
        counts = [self.tally.deliveries // self._fan] if self._fan else []
        if self._has_others:
            counts.append(self._elsewhere)
        return min(counts, default=self.tally.published) + self._written_off

    def _reached(self) -> None:
        self.tally.goal = (self.tally.deliveries // self._fan + 1) * self._fan
        if self._is_running:
            self.step()


class OpenLoop(Pace):
    """Events are due at `rate` a second, whatever the server does."""

    def __init__(
        self, publishers: Sequence[Publisher], groups: Groups, tally: Tally, *, batch: int, rate: float
    ) -> None:
        super().__init__(publishers, groups, tally, batch=batch)
        self._interval_ns = _NS / rate
        self._start_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the schedule."""
        super().begin()
        self._start_ns = time.monotonic_ns()
        self.step()
        self._tick()

    def step(self) -> None:
        """Publish what is due; what finds no idle publisher keeps its time and waits."""
        now_ns = time.monotonic_ns()
        while self._idle and self._due_ns() <= now_ns:
            self._publish(self._due_ns())

    def stop(self) -> None:
        """End the schedule; what was due and could not be sent is counted."""
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
