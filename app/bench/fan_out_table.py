"""The table of a `FanOut`: a column for each server, and one for each pair of servers that is compared."""

from __future__ import annotations

from collections.abc import Sequence

from app.bench.columns import cell, columns
from app.bench.fan_out import FanOut


class Rows:
    """Rows with a name, a cell for each server, and a cell for each pair in `ratios`: the first's to the second's."""

    def __init__(self, found: FanOut, ratios: Sequence[tuple[str, str]]) -> None:
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
