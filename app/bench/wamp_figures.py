"""The results of measuring WAMP's fan-out: figures by phase and by server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.bench.fan_out import FanOut
from app.bench.target import Usage

ON, OFF, CROSSBAR = "halley", "halley without history", "crossbar"
"""The servers. With the history, every event is on disk before it is delivered."""

_MB = 1_000_000


@dataclass(slots=True)
class WampFigures(FanOut):
    """Figures by the phases `window`, `single` and `paced`. `is_in_memory`: the log was not on a disk."""

    verb = "wamp"
    order = ON, OFF, CROSSBAR

    is_in_memory: bool = False

    def take(self, phase: str, server: str, told: dict[str, Any], before: Usage, after: Usage) -> None:
        """Add one phase: what the load process reported, and the server's usage before and after it."""
        name, used = f"{phase} at {server}", after.since(before)
        figures = {each: told[each] for each in ("deliveries_per_s", "load_cpu_share")} | told["latency_ms"]
        if used.rss_bytes is not None:
            figures["rss_mb"] = used.rss_bytes / _MB
        if used.cpu_s and told["deliveries"]:
            figures["deliveries_per_cpu_s"] = told["deliveries"] / used.cpu_s
        self.add(phase, server, figures)
        for fault in ("lost", "repeated", "disordered"):
            if told[fault]:
                self.wrong.append(f"{name}: {told[fault]:,} {fault}")
        if told["deliveries"]:
            self.is_by_load(name, told, used)
        else:
            self.wrong.append(f"{name}: nothing was delivered")
        if server != ON and phase != "paced":  # with a history, the server's own writer uses its core too
            self.heed_core(name, told, used)
