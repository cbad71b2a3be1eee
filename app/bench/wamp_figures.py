"""What a measurement of WAMP's fan-out has found: figures by phase and by server."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from app.bench.result import limit

if TYPE_CHECKING:
    from app.bench.usage import Usage

ON, OFF, CROSSBAR = "halley", "halley without history", "crossbar"
"""The servers. With the history on every event is on the disk before anybody hears of it."""

_MUCH = 0.1
_MB = 1_000_000


@dataclass(slots=True)
class WampFigures:
    """Medians over the rounds are what counts; every round's figures are kept.

    `figures`: by phase (`window`, `single`, `paced`), by server, by name. `wrong`: what no healthy server shows.
    `warnings`: what to know before these figures are believed. `is_in_memory`: the log was on no disk.
    """

    plan: dict[str, object]
    date: str
    is_in_memory: bool
    figures: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether everything went as it should; speed does not count."""
        return not self.wrong

    @property
    def servers(self) -> list[str]:
        """Those that were measured."""
        return [name for name in (ON, OFF, CROSSBAR) if any(name in by for by in self.figures.values())]

    def take(self, phase: str, server: str, told: dict[str, Any], before: Usage, after: Usage) -> None:
        """Take note of one phase: what the load process told, and what the server had used before and has after."""
        figures = {name: told[name] for name in ("deliveries_per_s", "load_cpu_share")} | told["latency_ms"]
        if after.rss_bytes is not None:
            figures["rss_mb"] = after.rss_bytes / _MB
        cpu_s = None if before.cpu_s is None or after.cpu_s is None else after.cpu_s - before.cpu_s
        if cpu_s and told["deliveries"]:
            figures["deliveries_per_cpu_s"] = told["deliveries"] / cpu_s
        known = self.figures.setdefault(phase, {}).setdefault(server, {})
        for name, value in figures.items():
            known.setdefault(name, []).append(value)
        self._judge(f"{phase} at {server}", told, cpu_s)
        # With a history its own writer is what the loop's thread waits for.
        if server != ON and phase != "paced" and before.waited_s is not None and after.waited_s is not None:
            share = (after.waited_s - before.waited_s) / told["seconds"]
            if share >= _MUCH:
                self.warnings.append(
                    f"{phase} at {server}: something else used the server's core {share:.0%} of the time"
                )

    def _judge(self, name: str, told: dict[str, Any], cpu_s: float | None) -> None:
        for fault in ("lost", "repeated", "disordered"):
            if told[fault]:
                self.wrong.append(f"{name}: {told[fault]:,} {fault}")
        if not told["deliveries"]:
            self.wrong.append(f"{name}: nothing was delivered")
            return
        cpu_share = None if cpu_s is None else cpu_s / told["seconds"]
        if limit([told["load_cpu_share"]], cpu_share, is_closed=False) == "load":
            self.warnings.append(f"{name}: the load generator was the limit")

    def median(self, phase: str, server: str, name: str) -> float | None:
        """Over the rounds; None if there is no such figure."""
        values = self.figures.get(phase, {}).get(server, {}).get(name)
        return statistics.median(values) if values else None

    def as_json(self) -> dict[str, Any]:
        """As saved and compared."""
        medians = {
            phase: {server: {name: statistics.median(values) for name, values in of.items()} for server, of in by}
            for phase, by in ((phase, by.items()) for phase, by in self.figures.items())
        }
        return {"verb": "wamp", "load": self.plan, "medians": medians, **asdict(self)}
