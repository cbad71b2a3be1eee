"""The results of measuring one protocol's fan-out: figures by phase and by server."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from app.bench.result import limit
from app.bench.target import Usage

MUCH = 0.1
"""The share of time, or of a rate, from which there is a warning."""


@dataclass(slots=True)
class FanOut:
    """Every round's figures; results are compared by the medians over the rounds.

    `figures`: by phase, by server, by name. `wrong`: faults, which a healthy server does not have. `warnings`: reasons
    to doubt figures. Each protocol's subclass sets its `verb`, and the `order` of its servers.
    """

    verb: ClassVar[str]
    order: ClassVar[tuple[str, ...]]

    plan: dict[str, Any]
    date: str
    figures: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether everything went as it should; speed does not count."""
        return not self.wrong

    @property
    def servers(self) -> list[str]:
        """The names of the servers that were measured, in the table's order."""
        return [name for name in self.order if any(name in by for by in self.figures.values())]

    def add(self, phase: str, server: str, figures: dict[str, float]) -> None:
        """Add one round's figures of a server in a phase."""
        known = self.figures.setdefault(phase, {}).setdefault(server, {})
        for name, value in figures.items():
            known.setdefault(name, []).append(value)

    def is_by_load(self, name: str, told: dict[str, Any], used: Usage) -> bool:
        """Whether the load generator was the limit of a phase; if so, add a warning."""
        cpu_share = None if used.cpu_s is None else used.cpu_s / told["seconds"]
        if limit([told["load_cpu_share"]], cpu_share, is_closed=False) != "load":
            return False
        self.warnings.append(f"{name}: the load generator was the limit")
        return True

    def heed_core(self, name: str, told: dict[str, Any], used: Usage) -> None:
        """Add a warning if the server had to share its core."""
        share = (used.waited_s or 0) / told["seconds"]
        if share >= MUCH:
            self.warnings.append(f"{name}: something else used the server's core {share:.0%} of the time")

    def median(self, phase: str, server: str, name: str) -> float | None:
        """Return the median of a figure over the rounds; None if there is no such figure."""
        values = self.figures.get(phase, {}).get(server, {}).get(name)
        return statistics.median(values) if values else None

    def as_json(self) -> dict[str, Any]:
        """Return the results as they are saved and compared."""
        medians = {
            phase: {server: {name: statistics.median(values) for name, values in of.items()} for server, of in by}
            for phase, by in ((phase, by.items()) for phase, by in self.figures.items())
        }
        return {"verb": self.verb, "load": self.plan, "medians": medians, **asdict(self)}
