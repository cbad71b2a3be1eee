"""The result of a measurement, and what limited the rate. It has plain values only, since it is saved as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from app.bench.load import Load

_FULL = 0.9
"""The share of a core from which its user counts as the limit; the rest is used by the system."""


@dataclass(slots=True)
class Result:
    """One measurement. A figure that is unknown, such as the CPU of another machine, is None.

    `published`, `deliveries`, `lost` and `repeated` count events; `deliveries` does not include repeated ones. `lost`
    events were published and not received, not even in the load's `grace_s` after the end. `unsent` events were due in
    an open loop, but no publisher was free to send them. `server_cpu_us` is per unit of work, including polls: per
    delivery or, without subscribers, per acknowledged publish. `server_waited_share` is the share of the time in which
    something else ran on the server's core. `memory_kb` is resident memory per session, `rss_mb` has pairs of (seconds,
    resident memory) over the measurement. `connects_per_s` is the rate of accepted connections with handshake.
    """

    load: Load
    server: str
    date: str
    seconds: float
    sessions: int
    connects_per_s: float
    published: int
    acknowledged: int
    deliveries: int
    lost: int
    repeated: int
    unsent: int
    polls: int
    errors: dict[str, int]
    publishes_per_s: float
    deliveries_per_s: float
    latency_ms: dict[str, float]
    server_cpu_us: float | None
    server_cpu_share: float | None
    server_waited_share: float | None
    memory_kb: float | None
    rss_mb: list[tuple[float, float]] = field(default_factory=list)
    rss_slope_kb_per_minute: float | None = None
    load_cpu_shares: list[float] = field(default_factory=list)
    limit: str = "neither"

    @property
    def is_clean(self) -> bool:
        """Whether there were no errors, losses or repeats; speed does not count."""
        return not (self.errors or self.lost or self.repeated)

    def as_json(self) -> dict[str, Any]:
        """Return the result as it is saved and compared."""
        return asdict(self)


def limit(load_cpu_shares: Sequence[float], server_cpu_share: float | None, *, is_closed: bool) -> str:
    """Return what kept the rate from being higher: "server", "load", "neither", or "unknown".

    A load process that uses a whole core cannot send faster; unless the server does too, the figures are not the
    server's. If neither is busy, an open loop was not meant to be faster, and a closed one waits for the connections
    between them. "unknown" is a closed loop without a busy load process, if the server's CPU time is unknown.
    """
    is_load_full = max(load_cpu_shares, default=0.0) >= _FULL
    is_server_full = server_cpu_share is not None and server_cpu_share >= _FULL
    if is_server_full:
        return "server"
    if is_load_full:
        return "load"
    if is_closed and server_cpu_share is None:
        return "unknown"
    return "neither"


def slope_per_minute(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of a line through samples of (seconds, value), per minute; None if there are too few.

    The first fifth is left out, in which the server still fills its caches; three samples must remain.
    """
    steady = samples[len(samples) // 5 :]
    if len(steady) < 3:
        return None
    mean_s = sum(at for at, _ in steady) / len(steady)
    mean = sum(value for _, value in steady) / len(steady)
    spread = sum((at - mean_s) ** 2 for at, _ in steady)
    return 60 * sum((at - mean_s) * (value - mean) for at, value in steady) / spread if spread else None
