"""The counts of one worker in a round. They are exact; latencies have a resolution of a microsecond."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping

from halley.bench.requests import ROUND

SAMPLES = 50_000_000
"""The maximum number of latencies that a worker keeps (200 MB); later events are counted, but not timed."""

COUNTS = ("published", "acknowledged", "deliveries", "repeated", "unsent", "polls")
"""What a `Tally` counts, besides errors and times."""

_PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "max": 1_000}
_NEVER = 1 << 62
_LONGEST_US = (1 << 32) - 1


class Tally:
    """The counts of one round, in one worker.

    `deliveries` does not include repeated ones; `polls` are those with a response, with or without an event. `reached`
    is called when `deliveries` reaches `goal`, which a closed loop waits for. `lost_all` is called when the last
    connection is lost.
    """

    def __init__(self) -> None:
        self.reached: Callable[[], None] = lambda: None
        self.connections = 0
        self.lost_all: Callable[[], None] = lambda: None
        self.begin(0)

    def begin(self, number: int) -> None:
        """Reset all counts for round `number`."""
        self.floor = number * ROUND
        self.deliveries = self.repeated = self.polls = self.published = self.acknowledged = self.unsent = 0  # `COUNTS`
        self.errors: Counter[str] = Counter()
        self.goal = _NEVER
        self.last_ns = 0
        self.latencies_us = array("I")

    def time(self, due_ns: int, now_ns: int) -> None:
        """Add the latency of a unit of work that was due at one time and done at another."""
        self.last_ns = now_ns
        if len(self.latencies_us) < SAMPLES:
            self.latencies_us.append(min(max(now_ns - due_ns, 0) // 1_000, _LONGEST_US))

    def disconnected(self) -> None:
        """Count a connection that was lost unexpectedly."""
        self.errors["connection lost"] += 1
        self.connections -= 1
        if self.connections == 0:
            self.lost_all()


def percentiles(latencies_us: Mapping[int, int]) -> dict[str, float]:
    """Return percentiles of latencies in ms, and the maximum; `latencies_us` has counts by microsecond."""
    total = sum(latencies_us.values())
    # The rank of a percentile is a whole number: p99 of 1,000 is the 990th, of 10 the 10th.
    wanted = [(name, -(-total * thousandths // 1_000)) for name, thousandths in _PERCENTILES.items()]
    found: dict[str, float] = {}
    seen = 0
    for latency_us in sorted(latencies_us):
        seen += latencies_us[latency_us]
        while wanted and seen >= wanted[0][1]:
            found[wanted.pop(0)[0]] = latency_us / 1_000
    return found
