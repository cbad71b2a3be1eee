"""The rows of a `FanOut` for a person: a column for each server, and one for each two that are held together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.bench.columns import cell, columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.bench.fan_out import FanOut


class Rows:
    """A row has a name, and a cell for each server and each pair of servers in `ratios`, one held against the other."""

    def __init__(self, found: FanOut, ratios: Sequence[tuple[str, str]]) -> None:
        self._found = found
        self._ratios = ratios
        self._rows = [["", *found.servers, *(f"{one} / {other}" for one, other in ratios)]]

    def head(self, what: str) -> None:
        """Add a row with no figures."""
        self._rows.append([what, *[""] * (len(self._rows[0]) - 1)])

    def add(self, what: str, phase: str, name: str, unit: str) -> None:
        """Add a row with the medians of a figure."""
        of = {server: self._found.median(phase, server, name) for server in self._found.order}
        cells = (cell(of[server], unit) for server in self._found.servers)
        self._rows.append([what, *cells, *(_ratio(of[one], of[other]) for one, other in self._ratios)])

    def lines(self) -> list[str]:
        """All rows."""
        return columns(self._rows)


def _ratio(one: float | None, other: float | None) -> str:
    return "-" if one is None or not other else f"{one / other:.2f} x"
