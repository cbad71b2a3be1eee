"""What a measurement of the durable history has found: figures with it and without it, and of logs by size."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.bench.result import Result
    from app.bench.stock import Stock

    Figures = dict[str, float]
    """Milliseconds by name."""

_MUCH = 0.1


@dataclass(slots=True)
class Durability:
    """Medians over the rounds are what counts; every round's figures are kept.

    `figures`: by load (`single`, `batched`, `received`, `steady`), by history `off` or `on`, by name. `wide`: pages of
    very many channels by what is stored, for `all` or a `rare` reader. `wrong`: what no healthy server shows.
    `warnings`: where the load generator was the limit. `is_in_memory`: the log was on no disk.
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
        """Take note of one measurement."""
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
            self.warnings.append(f"{name}: {result.unsent:,} events that were due found no free publisher")
        # With a history its own writer is what the loop's thread waits for.
        if switch == "off" and (result.server_waited_share or 0) >= _MUCH:
            self.warnings.append(
                f"{name}: something else used the server's core {result.server_waited_share:.0%} of the time"
            )
        if result.limit == "load":
            self.warnings.append(f"{name}: the load generator was the limit")

    def median(self, load: str, switch: str, name: str) -> float | None:
        """Over the rounds; None if there is no such figure."""
        values = self.figures.get(load, {}).get(switch, {}).get(name)
        return statistics.median(values) if values else None

    def as_json(self) -> dict[str, Any]:
        """As saved and compared."""
        medians = {
            load: {switch: {name: statistics.median(values) for name, values in found.items()} for switch, found in by}
            for load, by in ((load, by.items()) for load, by in self.figures.items())
        }
        return {"verb": "history", "load": self.plan, "medians": medians, **asdict(self)}
