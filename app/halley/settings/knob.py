"""The declaration of a setting."""

from dataclasses import field
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
    """Declare a setting as a dataclass field: its default, its unit, and the least and greatest allowed value.

    `why` describes it and gives the reason for the default; `halley check-config` prints it. With `MISSING` as the
    default, an entry of a list of tables must give the setting. `zero` and `minus_one` are the meaning of 0 and -1, if
    it is a special one.
    """
    documented = {"why": why, "unit": unit, "zero": zero, "minus_one": minus_one, "low": low, "high": high}
    return field(default=tuple(default) if isinstance(default, list) else default, metadata=documented)
