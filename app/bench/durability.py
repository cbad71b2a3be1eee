"""The results of measuring the durable history: figures with it and without it, and of reading logs by size."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from app.bench.result import Result
from app.bench.stock import Stock

Figures = dict[str, float]
"""Milliseconds by name."""

_MUCH = 0.1


@dataclass(slots=True)
class Durability:
    """Every round's figures of the loads, and of reads; results are compared by the medians over the rounds.

    `figures`: by load (`single`, `batched`, `received`, `steady`), by history `off` or `on`, by name. `stock`: reads of
    a channel's newest events, by the number of events stored. `wide`: times of pages over very many channels, by the
    number of events stored, for a reader of `all` events or of `rare` ones. `wrong`: faults, which a healthy server
    does not have. `warnings`: reasons to doubt figures. `is_in_memory`: the log was not on a disk.
    """

    plan: dict[str, object]
    date: str
    is_in_memory: bool
    figures: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    stock: dict[int, Stock] = field(default_factory=dict)
    wide: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether everything went as it should; speed does not count."""
        return not self.wrong

    def take(self, load: str, switch: str, found: tuple[Result, Figures]) -> None:
        """Add the figures of one measurement."""
        result, more = found
        figures = self.figures.setdefault(load, {}).setdefault(switch, {})
        figures_now = {"publishes_per_s": result.publishes_per_s, **result.latency_ms, **more}
        if result.server_cpu_us is not None:
            figures_now["server_cpu_us"] = result.server_cpu_us
        for name, value in figures_now.items():
            figures.setdefault(name, []).append(value)
        name = f"{load}, history {switch}"
        if not result.is_clean:
            self.wrong.append(f"{name}: {result.lost} lost, {result.repeated} repeated, errors {result.errors}")
        if result.unsent:
            self.warnings.append(f"{name}: {result.unsent:,} due events were not sent, because no publisher was free")
        # With a history, the server's own writer thread uses its core too.
        if switch == "off" and (result.server_waited_share or 0) >= _MUCH:
            self.warnings.append(
                f"{name}: something else used the server's core {result.server_waited_share:.0%} of the time"
            )
        if result.limit == "load":
            self.warnings.append(f"{name}: the load generator was the limit")

    def median(self, load: str, switch: str, name: str) -> float | None:
        """Return the median of a figure over the rounds; None if there is no such figure."""
        values = self.figures.get(load, {}).get(switch, {}).get(name)
        return statistics.median(values) if values else None

    def as_json(self) -> dict[str, Any]:
        """Return the results as they are saved and compared."""
        medians = {
            load: {switch: {name: statistics.median(values) for name, values in found.items()} for switch, found in by}
            for load, by in ((load, by.items()) for load, by in self.figures.items())
        }
        return {"verb": "history", "load": self.plan, "medians": medians, **asdict(self)}
