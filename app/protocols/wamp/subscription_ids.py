"""Subscription ids: small numbers in order of first use, never used twice, not after a restart either.

Small, since JavaScript's binary encoders write integers above 2^32 as floats. One id stands for a pattern in a realm,
subscribed or not: `wamp.subscription.lookup` gives it out for the history's sake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.broker.topics import Pattern

RESERVED_AT_ONCE = 1_000
_REMEMBERED = 100_000


class SubscriptionIds:
    """Gives them out. `reserve` makes the next `RESERVED_AT_ONCE` ids ours for ever, and returns the first of them."""

    def __init__(self, reserve: Callable[[], int]) -> None:
        self._reserve = reserve
        self._next = 0
        self._end = 0
        self._patterns: dict[int, Pattern] = {}  # the one used longest ago first
        self._ids: dict[Pattern, int] = {}

    def of(self, pattern: Pattern) -> int:
        """The id of a pattern; a new one if it has none."""
        number = self._ids.get(pattern)
        if number is None:
            if self._next == self._end:
                self._next = self._reserve()
                self._end = self._next + RESERVED_AT_ONCE
            number, self._next = self._next, self._next + 1
            self._ids[pattern] = number
        else:
            del self._patterns[number]  # it becomes the last
        self._patterns[number] = pattern
        if len(self._patterns) > _REMEMBERED:  # patterns are made up by clients: never without end
            oldest = next(iter(self._patterns))
            del self._ids[self._patterns.pop(oldest)]
        return number

    def pattern(self, number: int) -> Pattern | None:
        """What an id stands for; None where it stands for nothing, or has not been used for long."""
        return self._patterns.get(number)
