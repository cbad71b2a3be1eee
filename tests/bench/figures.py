"""Figures of several servers in several phases, over rounds, and their table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from halley.bench.result import limit
from halley.bench.target import Usage

MUCH = 0.1
"""The share of time, or of a rate, from which there is a warning."""


@dataclass(slots=True)
class Figures:
    """Every round's figures; results are compared by the medians over the rounds.

    `figures`: by phase, by server, by name. `wrong`: faults, which a healthy server does not have. `warnings`: reasons
    to doubt figures. `is_in_memory`: the log was not on a disk. Each measurement has a subclass, which sets its `verb`,
    and the `order` of its servers.
    """

    verb: ClassVar[str]
    order: ClassVar[tuple[str, ...]]

    plan: dict[str, Any]
    date: str
    is_in_memory: bool = False
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

    @property
    def sentences(self) -> list[str]:
        """What makes figures doubtful, and what was wrong."""
        memory = ["The log was in memory, not on a disk: use --data-dir."] if self.is_in_memory else []
        return [*dict.fromkeys(self.warnings), *memory, *self.wrong]

    def add(self, phase: str, server: str, figures: dict[str, float]) -> None:
        """Add one round's figures of a server in a phase."""
        known = self.figures.setdefault(phase, {}).setdefault(server, {})
        for name, value in figures.items():
            known.setdefault(name, []).append(value)

    def load_was_the_limit(self, name: str, counts: dict[str, Any], used: Usage) -> bool:
        """Whether the load generator was the limit of a phase; if so, add a warning."""
        cpu_share = None if used.cpu_s is None else used.cpu_s / counts["seconds"]
        if limit([counts["load_cpu_share"]], cpu_share, is_closed=False) != "load":
            return False
        self.warnings.append(f"{name}: the load generator was the limit")
        return True

    def warn_if_core_was_shared(self, name: str, counts: dict[str, Any], used: Usage) -> None:
        """Add a warning if the server had to share its core."""
        share = (used.waited_s or 0) / counts["seconds"]
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


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with its name aligned left and its cells aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        f"  {name:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in rows
    )
    return [line.rstrip() for line in lines]


def rounds_of(plan: dict[str, Any]) -> str:
    """Describe the number of rounds in a plan, and their length."""
    rounds = "1 round" if plan["rounds"] == 1 else f"{plan['rounds']} rounds"
    return f"medians of {rounds} of {plan['seconds']:g} s"


def cell(value: float | None, unit: str) -> str:
    """Format a figure with its unit, or a dash for None; the unit "share" is shown in per cent, "" adds no unit."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{value:.1%}"
    shown = f"{value:,.0f}" if value >= 1_000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    return shown + unit if unit in ("", "/s") else f"{shown} {unit}"


class Rows:
    """Rows with a name, a cell for each server, and a cell for each pair in `ratios`: the first's to the second's."""

    def __init__(self, found: Figures, ratios: Sequence[tuple[str, str]]) -> None:
        self._found = found
        self._ratios = ratios
        self._rows = [["", *found.servers, *(f"{one} / {other}" for one, other in ratios)]]

    def head(self, what: str) -> None:
        """Add a row without figures."""
        self._rows.append([what, *[""] * (len(self._rows[0]) - 1)])

    def add(self, what: str, phase: str, name: str, unit: str) -> None:
        """Add a row with the medians and ratios of a figure."""
        of = {server: self._found.median(phase, server, name) for server in self._found.order}
        cells = (cell(of[server], unit) for server in self._found.servers)
        self._rows.append([what, *cells, *(_ratio(of[one], of[other]) for one, other in self._ratios)])

    def lines(self) -> list[str]:
        """Return all rows as lines of text."""
        return columns(self._rows)


def _ratio(one: float | None, other: float | None) -> str:
    return "-" if one is None or not other else f"{one / other:.2f} x"
