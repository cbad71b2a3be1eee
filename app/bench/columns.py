"""Columns of text for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row: its name to the left, its cells to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        f"  {name:<{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        for name, *cells in rows
    )
    return [line.rstrip() for line in lines]


def rounds_of(plan: dict[str, Any]) -> str:
    """How many there were, and how long."""
    rounds = "1 round" if plan["rounds"] == 1 else f"{plan['rounds']} rounds"
    return f"medians of {rounds} of {plan['seconds']:g} s"


def cell(value: float | None, unit: str) -> str:
    """A figure with its unit; "share" is shown in per cent, "" is none. A dash where it is not known."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{value:.1%}"
    shown = f"{value:,.0f}" if value >= 1_000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    return shown + unit if unit in ("", "/s") else f"{shown} {unit}"
