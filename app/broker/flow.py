"""How much goes through, and how long it takes: for each protocol what its clients published and what they were given.

A delay is the time from a publication to the moment at which it left its receiver's outbox to be written: with the
commit that a durable event waits for, and with the time for which a client that polls had not asked yet.
"""

from __future__ import annotations

_EXACT_BITS = 4
_STEPS = 1 << _EXACT_BITS
"""Delays are counted in classes that are no wider than an eighth of themselves, whatever their size."""

_LONGEST_US = 600_000_000
"""Ten minutes; longer ones count as this."""


class Delays:
    """How often delays were how long: as many classes as a delay may need, however many delays there are."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts = [0] * (_class_of(_LONGEST_US) + 1)
        self.total_us = 0

    def note(self, us: int, times: int = 1) -> None:
        """Something took so many microseconds. The hot path: `_class_of`, written out."""
        if not 0 <= us <= _LONGEST_US:  # wall clocks can be set back
            us = 0 if us < 0 else _LONGEST_US
        shift = us.bit_length() - _EXACT_BITS
        self.counts[us if shift <= 0 else (shift << (_EXACT_BITS - 1)) + (us >> shift)] += times
        self.total_us += us * times

    def since(self, before: Delays) -> Delays:
        """What was noted after `before` was a copy of this."""
        later = Delays()
        later.counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        later.total_us = self.total_us - before.total_us
        return later

    def copy(self) -> Delays:
        """As it is now."""
        return self.since(Delays())

    def __len__(self) -> int:
        """How many were noted."""
        return sum(self.counts)

    def quantile_ms(self, share: float) -> float | None:
        """What so many of all delays did not exceed, in milliseconds, about; None where there were none."""
        left = len(self) * share
        if not left:
            return None
        last = 0
        for number, count in enumerate(self.counts):
            if count:
                last = number
                left -= count
                if left <= 0:
                    break
        return _top_of(last) / 1000

    def up_to(self, us: int) -> int:
        """How many were no longer than that, about."""
        return sum(self.counts[: _class_of(us) + 1])


class Flow:
    """What one protocol's clients have published, and what they were given, in events."""

    __slots__ = ("delays", "delivered", "published")

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.delays = Delays()


def _class_of(us: int) -> int:
    """The class that so many microseconds belong to: small ones have each their own, others share their first bits."""
    shift = us.bit_length() - _EXACT_BITS
    return us if shift <= 0 else (shift << (_EXACT_BITS - 1)) + (us >> shift)


def _top_of(number: int) -> int:
    """The most microseconds that belong to a class."""
    if number < _STEPS:
        return number
    shift = (number >> (_EXACT_BITS - 1)) - 1
    first = number - (shift << (_EXACT_BITS - 1))
    return ((first + 1) << shift) - 1
