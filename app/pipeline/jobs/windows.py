"""Windows of event time: which there are, which are final, and where a job that starts again has to begin.

An event lies in one window of each kind, by the time that the broker gave it. A window is open until it is final: then
it is said for the last time, and whatever comes for it later is late. Windows become final in the order of their ends,
so one instant, the horizon, tells of all of them. It never goes back, whatever clocks do.

Only arithmetic: nothing here knows Spark, the log or a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Kind(NamedTuple):
    """Windows of one length, aligned to 1970; `name` is what channels and tables call it."""

    name: str
    length_us: int

    def start_us(self, time_us: int) -> int:
        """The start of the window in which that time lies."""
        return time_us - time_us % self.length_us


KINDS = (Kind("10s", 10_000_000), Kind("1m", 60_000_000))
"""Each length is a multiple of the one before, so that the long windows are made of the short ones."""


class Horizon:
    """Windows that end at `final_us` or before are final.

    `late_us`: how long after its end a window stays open for events that come out of order.
    """

    def __init__(self, late_us: int, final_us: int) -> None:
        self.final_us = final_us
        self._late_us = late_us

    def move(self, newest_us: int | None, wall_us: int | None) -> None:
        """Take note of how late it is: by the newest event that was read, and by the clock on the wall.

        The clock counts only for a reader that has read all there is (else None), and has to be looked at *before* the
        log is asked for its end. It makes windows final where nothing comes any more.
        """
        for now_us in (newest_us, wall_us):
            if now_us is not None:
                self.final_us = max(self.final_us, now_us - self._late_us)

    def is_final(self, end_us: int) -> bool:
        """Whether a window that ends then is."""
        return end_us <= self.final_us


def resume_at(first_offsets: Iterable[int], next_offset: int) -> int:
    """Where to read again after a crash: the first event of any open window; where none is open, just go on.

    It never decreases: an event that opens a window is newer than all that were read before.
    """
    return min(first_offsets, default=next_offset)
