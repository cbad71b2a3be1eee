"""Steps that are done for many sessions or events, of which none must keep the others from theirs.

A step that fails is noted, the others are done, and then everything that was noted is raised as one group. The log has
a line for each exception of it (`telemetry.fault`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Each = TypeVar("Each")


def for_each(items: Iterable[Each], step: Callable[[Each, float], None], now: float) -> None:
    """Call `step` for each of the items, with the time `now`. On the hot path.

    Raises an `ExceptionGroup` of its exceptions, when it was called for all.
    """
    faults: list[Exception] = []
    for each in items:
        try:
            step(each, now)
        except Exception as fault:  # noqa: BLE001 - raised below
            faults.append(fault)
    raise_all(faults)


def raise_all(faults: Sequence[Exception]) -> None:
    """Raise an `ExceptionGroup` of these exceptions, if there are any."""
    if faults:
        raise ExceptionGroup("some of many steps have failed", faults)
