"""A measure of load with two marks: above the high one it is too much, until it has fallen below the low one.

One mark would flap: at the limit each thing that went would let one in.
"""

from __future__ import annotations

_LOW_SHARE = 0.95


class Watermark:
    """The `value` of something, and whether it `is_over`, as of the last `move_to`; `peak` is the most it ever was."""

    __slots__ = ("high", "is_over", "low", "peak", "value")

    def __init__(self, high: float) -> None:
        self.high = high
        self.low = high * _LOW_SHARE
        self.value = self.peak = 0
        self.is_over = False

    def move_to(self, value: int) -> None:
        """It is so much now."""
        self.value = value
        self.peak = max(self.peak, value)
        self.is_over = value > (self.low if self.is_over else self.high)
