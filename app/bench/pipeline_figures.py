"""What a measurement of the data pipeline has found: of a log that Spark reads, and of a server beside it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.bench.result import Result
    from app.bench.rollups import Rollups

STAGES = "as ingested", "compacted"
"""What a table is when it is asked."""

QUANTILES = {"p50": 0.5, "p95": 0.95}
"""Of the times to a rollup."""

_SIZES = "rows", "files", "skipped"
_PHASES = {"rollups": "rollups", "off": "replies without the pipeline", "on": "replies with the pipeline"}


@dataclass(slots=True)
class PipelineFigures:
    """What was found. A figure that was not measured is None, and is no figure.

    cores        of the machine, and `is_pinned`: whether the server had one of them to itself while replies were timed
    lake         by name (`session`, `source`, `ingest`, `compact`, `query`) what each round has told
    rollup_ms    from a publish to the first rollup in which it is, at a subscriber; `rollups_missed` came in none
    reply_ms     of the load's publishes, by phase (`off`: without the pipeline, `on`: with it, `rollups`), by quantile
    publishes_per_s, unsent    of the load, by phase: what was reached, and what was due and could not be sent
    behind       events that ingest had yet to do when the load with the pipeline ended: to do nothing costs nothing
    wrong        what no healthy server and no healthy pipeline shows
    warnings     what must be known to believe the rest
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
        """Take note of a load on the server."""
        self.reply_ms[phase] = result.latency_ms
        self.publishes_per_s[phase] = result.publishes_per_s
        self.unsent[phase] = result.unsent
        name = _PHASES[phase]
        if not result.is_clean:
            self.wrong.append(f"{name}: {result.lost} lost, {result.repeated} repeated, errors {result.errors}")
        if result.unsent:
            self.warnings.append(f"{name}: {result.unsent:,} publishes that were due found no free publisher")
        if result.limit == "load":
            self.warnings.append(f"{name}: the load generator was the limit")

    def take_rollups(self, found: Rollups) -> None:
        """Take note of when rollups came."""
        self.rollup_ms, self.rollups_missed = found.took_ms, found.missed
        if found.missed:
            of = found.missed + len(found.took_ms)
            self.wrong.append(f"rollups: {found.missed} of {of} publishes were in none after {found.waited_s:g} s")

    def rate(self, name: str) -> float | None:
        """Rows a second: the median of the rounds; of ingest without the first batch, in which all is new to Spark."""
        rounds = self.lake.get(name, [])[1 if name == "ingest" else 0 :]
        rates = [each["rows"] / each["seconds"] for each in rounds if each["rows"] and each["seconds"]]
        return median(rates) if rates else None

    def query(self, stage: str) -> dict[str, Any] | None:
        """One query: the median of the rounds' seconds, and what was read, the same in each."""
        rounds = [each for each in self.lake.get("query", []) if each["stage"] == stage]
        if not rounds:
            return None
        return {"seconds": median(each["seconds"] for each in rounds)} | {name: rounds[0][name] for name in _SIZES}

    def rollup(self, name: str) -> float | None:
        """A quantile of the times to a rollup, in ms; those that never came were the slowest, and have no time."""
        ranked = sorted(self.rollup_ms)
        at = math.ceil(QUANTILES[name] * (len(ranked) + self.rollups_missed)) - 1
        return ranked[at] if 0 <= at < len(ranked) else None

    def as_json(self) -> dict[str, Any]:
        """As saved and compared."""
        medians: dict[str, Any] = {name: self.rate(name) for name in ("source", "ingest", "compact")}
        medians["query"] = {stage: self.query(stage) for stage in STAGES}
        medians["rollup_ms"] = {name: self.rollup(name) for name in QUANTILES}
        return {"verb": "pipeline", "load": self.plan, "medians": medians, **asdict(self)}
