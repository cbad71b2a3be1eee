"""The results of measuring NetworkTables' fan-out: figures by rate and by server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.bench.fan_out import MUCH, FanOut
from app.bench.target import Usage

OFF, ON, NTCORE = "halley", "halley with history", "ntcore"
"""The servers. With a history, values are recorded after they are delivered."""

_US = 1_000_000
_MB = 1_000_000


@dataclass(slots=True)
class Nt4Figures(FanOut):
    """Figures whose phases are rates, as strings.

    A value that was replaced by a newer one is not a fault; the figure `kept` is the share of values delivered.
    """

    verb = "nt4"
    order = OFF, ON, NTCORE

    def take(
        self, rate: float, server: str, told: dict[str, Any], before: Usage, after: Usage, subscribers: int
    ) -> None:
        """Add one phase: what the load process reported, and the server's usage before and after it."""
        name, used = f"{rate:g}/s at {server}", after.since(before)
        if not told["deliveries"]:
            self.wrong.append(f"{name}: nothing was delivered")
            return
        figures = {each: told[each] for each in ("offered_per_s", "flushes_per_s", "load_cpu_share")} | told["lag_ms"]
        figures["kept"] = told["deliveries"] / (told["published"] * subscribers)
        if used.rss_bytes is not None:
            figures["rss_mb"] = used.rss_bytes / _MB
        if used.cpu_s is not None:
            figures["server_cpu_share"] = used.cpu_s / told["seconds"]
            figures["us_per_delivery"] = used.cpu_s * _US / told["deliveries"]
        self.add(f"{rate:g}", server, figures)
        if told["repeated"]:
            self.wrong.append(f"{name}: {told['repeated']:,} repeated")
        if not self.is_by_load(name, told, used) and told["offered_per_s"] < (1 - MUCH) * rate:
            self.warnings.append(f"{name}: the server accepted only {told['offered_per_s']:,.0f} values/s")
        self.heed_core(name, told, used)
