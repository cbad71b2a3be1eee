"""What a measurement found, and who set its limit. Plain numbers: a saved result is this as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.bench.load import Load

_FULL = 0.9
"""Of a core, from which on whoever uses it counts as the limit: the rest goes to the system's own work."""


@dataclass(slots=True)
class Result:
    """One measurement. What could not be known, as a foreign machine's CPU, is None.

    `published`, `deliveries`, `lost` and `repeated` count events; `deliveries` are distinct ones. `lost` were published
    and did not come, not even in the load's `grace_s` after the end. `unsent` were due in the open loop, and no
    publisher was free to send them. `server_cpu_us` is per unit of work: delivery, or acknowledged publish where nobody
    listens; polls are in it. `server_waited_share` is how much of the time something else ran on the server's core.
    `memory_kb` is resident memory per session, `rss_mb` are (seconds, resident memory) over the measurement.
    `connects_per_s` are connections accepted with their handshakes.
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
        """Whether everything went as it should; speed does not count."""
        return not (self.errors or self.lost or self.repeated)

    def as_json(self) -> dict[str, Any]:
        """As saved and compared."""
        return asdict(self)


def limit(load_cpu_shares: Sequence[float], server_cpu_share: float | None, *, is_closed: bool) -> str:
    """Who kept the rate from being higher: "server", "load", or "neither".

    A load process that uses up a core cannot send faster; unless the server does too, the figures are not the server's.
    Where neither is busy, an open loop was not meant to be faster, and a closed one waits for the way between them.
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
    """The slope of a line through (seconds, value), per minute; None for fewer than three samples.

    The first fifth is left out: a server that has just begun to work is still filling its caches.
    """
    steady = samples[len(samples) // 5 :]
    if len(steady) < 3:
        return None
    mean_s = sum(at for at, _ in steady) / len(steady)
    mean = sum(value for _, value in steady) / len(steady)
    spread = sum((at - mean_s) ** 2 for at, _ in steady)
    return 60 * sum((at - mean_s) * (value - mean) for at, value in steady) / spread if spread else None
