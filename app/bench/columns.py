"""Tables of text for the terminal: columns and the cells in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
