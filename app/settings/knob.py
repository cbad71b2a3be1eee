"""How a setting is declared."""

from dataclasses import MISSING, field
from typing import Any


def knob(
    default: Any,
    *,
    why: str,
    unit: str = "",
    zero: str = "",
    minus_one: str = "",
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """One setting: its `default`, the reason for it, its unit, and the least and the greatest allowed value.

    `MISSING` as the default means that it must be given, as some must in each entry of a list of tables. `zero` and
    `minus_one` say what these values mean where that is something special.
    """
    documented = {"why": why, "unit": unit, "zero": zero, "minus_one": minus_one, "low": low, "high": high}
    if default is MISSING:
        return field(metadata=documented)
    if isinstance(default, list | tuple):
        return field(default=tuple(default), metadata=documented)
    return field(default=default, metadata=documented)
