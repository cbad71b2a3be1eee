"""Subscription ids: small numbers in the order of first use, never reused, not even after a restart.

They are small because JavaScript's binary encoders write integers above 2^32 as floats. An id stands for a pattern in a
realm, with or without subscribers: `wamp.subscription.lookup` returns it for reading the history.
"""

from __future__ import annotations

from collections.abc import Callable

from app.broker.topics import Pattern

RESERVED_AT_ONCE = 1_000
_REMEMBERED = 100_000


class SubscriptionIds:
    """Assigns subscription ids to patterns.

    `reserve` reserves the next `RESERVED_AT_ONCE` ids permanently, and returns the first of them.
    """

    def __init__(self, reserve: Callable[[], int]) -> None:
        self._reserve = reserve
        self._next = 0
        self._end = 0
        self._patterns: dict[int, Pattern] = {}  # the one used longest ago first
        self._ids: dict[Pattern, int] = {}

    def of(self, pattern: Pattern) -> int:
        """Return the id of a pattern; a new one if it has none."""
        number = self._ids.get(pattern)
        if number is None:
            if self._next == self._end:
                self._next = self._reserve()
                self._end = self._next + RESERVED_AT_ONCE
            number, self._next = self._next, self._next + 1
            self._ids[pattern] = number
        else:
            del self._patterns[number]  # it becomes the one used last
        self._patterns[number] = pattern
        if len(self._patterns) > _REMEMBERED:  # clients choose the patterns, so their number must be bounded
            oldest = next(iter(self._patterns))
            del self._ids[self._patterns.pop(oldest)]
        return number

    def pattern(self, number: int) -> Pattern | None:
        """Return the pattern of an id; None for an unknown id and for one that was forgotten for newer ones."""
        return self._patterns.get(number)
