"""What others do when something has changed, of which nothing may undo the change or keep the others from theirs.

The broker calls observers, owners of sessions, waiters and keepers of values when its own state is complete. What they
raise is reported, and the next is called. So nothing but a `Refusal` is ever raised by the broker, and that only before
anything has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Each = TypeVar("Each")

Report = Callable[[str, Exception], None]
"""Receives what was raised, with the name of the part that failed; it raises nothing itself."""


def raise_fault(_what: str, fault: Exception) -> None:
    """Raise what would be reported: for who drives a broker without a server, and wants to learn of every fault."""
    raise fault


def notify(followers: Iterable[Each], note: Callable[[Each], object], report: Report, what: str) -> None:
    """Have each of those that follow changes note one of them, and report their exceptions."""
    for follower in followers:
        try:
            note(follower)
        except Exception as fault:  # noqa: BLE001 - none must keep the others from noting it
            report(what, fault)


def for_each(items: Iterable[Each], step: Callable[[Each, float], None], now: float, report: Report, what: str) -> None:
    """Call `step` for each of the items, with the time `now`, and report its exceptions. On the hot path."""
    for each in items:
        try:
            step(each, now)
        except Exception as fault:  # noqa: BLE001 - none must keep the others from their step
            report(what, fault)
