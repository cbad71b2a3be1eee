"""A measure of load with two marks: it is over from the high mark on until it has fallen below the low one.

A single mark would flap: at the limit each item that is removed would admit the next.
"""

from __future__ import annotations

_LOW_SHARE = 0.95


class Watermark:
    """A measured `value`, and whether it `is_over`, after the last `move_to`; `peak` is the highest value so far."""

    __slots__ = ("high", "is_over", "low", "peak", "value")

    def __init__(self, high: float) -> None:
        self.high = high
        self.low = high * _LOW_SHARE
        self.value = self.peak = 0
        self.is_over = False

    def move_to(self, value: int) -> None:
        """Set the present value."""
        self.value = value
        self.peak = max(self.peak, value)
        self.is_over = value > (self.low if self.is_over else self.high)
