"""Windows of event time: their lengths, when they are final, and the offset at which a restarted job begins.

An event lies in one window of each kind, by the time that the broker gave it. A window is open until it is final: then
it is published for the last time, and events for it that are read later are late. Windows become final in the order
of their ends, so one instant, the watermark, decides for all of them. It never decreases, even if a clock is set back.

Only arithmetic: nothing here uses Spark, the log or a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Kind(NamedTuple):
    """Windows of one length, aligned to 1970; `name` stands for the length in channels and tables."""

    name: str
    length_us: int

    def start_us(self, time_us: int) -> int:
        """Return the start of the window in which a time lies, both in microseconds since 1970."""
        return time_us - time_us % self.length_us


KINDS = (Kind("10s", 10_000_000), Kind("1m", 60_000_000))
"""The kinds of windows; each length is a multiple of the one before, so that long windows are made of short ones."""


class Watermark:
    """The instant `final_us`: windows that end at it or before are final.

    `late_us`: how long after its end a window stays open for events that are out of order.
    """

    def __init__(self, late_us: int, final_us: int) -> None:
        self.final_us = final_us
        self._late_us = late_us

    def move(self, newest_us: int | None, wall_us: int | None) -> None:
        """Move the watermark by the time of the newest event that was read, and by the wall clock (microseconds).

        `wall_us` is None unless the reader has read the whole log, and the clock has to be read *before* the log's end
        is. The wall clock makes windows final when there are no more events.
        """
        for now_us in (newest_us, wall_us):
            if now_us is not None:
                self.final_us = max(self.final_us, now_us - self._late_us)

    def is_final(self, end_us: int) -> bool:
        """Whether a window that ends at `end_us` is final."""
        return end_us <= self.final_us


def resume_at(first_offsets: Iterable[int], next_offset: int) -> int:
    """Return the offset at which to read again after a crash: the first event of any open window, or `next_offset`.

    The result never decreases: an event that opens a window is newer than all that were read before.
    """
    return min(first_offsets, default=next_offset)
