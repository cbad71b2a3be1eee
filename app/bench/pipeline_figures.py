"""The results of measuring the data pipeline: of Spark on a stored log, and of a server next to the pipeline."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from app.bench.result import Result
from app.bench.rollups import Rollups

STAGES = "as ingested", "compacted"
"""The states in which the lake's table is queried."""

QUANTILES = {"p50": 0.5, "p95": 0.95}
"""The quantiles of the times from publish to rollup."""

_SIZES = "rows", "files", "skipped"
_PHASES = {"rollups": "rollups", "off": "replies without the pipeline", "on": "replies with the pipeline"}


@dataclass(slots=True)
class PipelineFigures:
    """The figures that were measured. A figure that was not measured is missing, or None.

    cores        cores of the machine; `is_pinned`: whether the server had its own core while replies were timed
    lake         each round's report, by name (`session`, `source`, `ingest`, `compact`, `query`)
    rollup_ms    times from a publish until a subscriber received the first rollup that includes it; `rollups_missed`
                 is the number of publishes that were in no rollup
    reply_ms     times of the load's publishes, by phase (`off`: without the pipeline, `on`: with it, `rollups`), by
                 quantile
    publishes_per_s, unsent    of the load, by phase: the rate reached, and the publishes that were due but not sent
    behind       events not yet ingested when the load with the pipeline ended: an idle pipeline costs nothing
    wrong        faults, which a healthy server with a healthy pipeline does not have
    warnings     reasons to doubt figures
    """

    plan: dict[str, Any]
    date: str
    is_in_memory: bool
    cores: int
    is_pinned: bool = False
    lake: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    rollup_ms: list[float] = field(default_factory=list)
    rollups_missed: int = 0
    reply_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    publishes_per_s: dict[str, float] = field(default_factory=dict)
    unsent: dict[str, int] = field(default_factory=dict)
    behind: int | None = None
    wrong: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether everything went as it should; speed does not count."""
        return not self.wrong

    def take_load(self, phase: str, result: Result) -> None:
        """Add the result of a load on the server."""
        self.reply_ms[phase] = result.latency_ms
        self.publishes_per_s[phase] = result.publishes_per_s
        self.unsent[phase] = result.unsent
        name = _PHASES[phase]
        if not result.is_clean:
            self.wrong.append(f"{name}: {result.lost} lost, {result.repeated} repeated, errors {result.errors}")
        if result.unsent:
            self.warnings.append(
                f"{name}: {result.unsent:,} due publishes were not sent, because no publisher was free"
            )
        if result.limit == "load":
            self.warnings.append(f"{name}: the load generator was the limit")

    def take_rollups(self, found: Rollups) -> None:
        """Add the times of rollups."""
        self.rollup_ms, self.rollups_missed = found.took_ms, found.missed
        if found.missed:
            of = found.missed + len(found.took_ms)
            self.wrong.append(
                f"rollups: {found.missed} of {of} publishes were not in a rollup after {found.waited_s:g} s"
            )

    def rate(self, name: str) -> float | None:
        """Return rows per second, the median of the rounds; without ingest's first batch, in which Spark warms up."""
        rounds = self.lake.get(name, [])[1 if name == "ingest" else 0 :]
        rates = [each["rows"] / each["seconds"] for each in rounds if each["rows"] and each["seconds"]]
        return median(rates) if rates else None

    def query(self, stage: str) -> dict[str, Any] | None:
        """Return the median time of the queries at a stage, and what they read, which is the same in each round."""
        rounds = [each for each in self.lake.get("query", []) if each["stage"] == stage]
        if not rounds:
            return None
        return {"seconds": median(each["seconds"] for each in rounds)} | {name: rounds[0][name] for name in _SIZES}

    def rollup(self, name: str) -> float | None:
        """Return a quantile of the times to a rollup, in ms; missed rollups rank as the slowest, and have no time."""
        ranked = sorted(self.rollup_ms)
        at = math.ceil(QUANTILES[name] * (len(ranked) + self.rollups_missed)) - 1
        return ranked[at] if 0 <= at < len(ranked) else None

    def as_json(self) -> dict[str, Any]:
        """Return the results as they are saved and compared."""
        medians: dict[str, Any] = {name: self.rate(name) for name in ("source", "ingest", "compact")}
        medians["query"] = {stage: self.query(stage) for stage in STAGES}
        medians["rollup_ms"] = {name: self.rollup(name) for name in QUANTILES}
        return {"verb": "pipeline", "load": self.plan, "medians": medians, **asdict(self)}
