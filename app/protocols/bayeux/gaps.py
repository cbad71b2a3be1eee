"""Gaps: the events that a replaying session misses because they no longer exist, and how they are reported to it.

A gap is reported once, on a connect reply after which no earlier event is outstanding, and again if that reply was not
written to its socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from app.broker.topics import Pattern

if TYPE_CHECKING:
    from app.protocols.bayeux.exchanges import Hold

_GAPS = 300


class Replay:
    """The gaps of one session's replay: `gaps` are not reported yet, `told` are part of a reply not yet written.

    `told_to` is the connection of that reply. `in_data`: positions are added to the events' data too. `reader` is the
    newest connect that has waited for a page.
    """

    __slots__ = ("gaps", "in_data", "reader", "told", "told_to")

    def __init__(self, *, in_data: bool) -> None:
        self.in_data = in_data
        self.gaps: list[Gap] = []
        self.told: list[Gap] = []
        self.told_to: object = None
        self.reader: Hold | None = None

    def miss(self, gap: Gap) -> None:
        """Add a gap, unless it is already known; too many gaps of a pattern are merged into one."""
        if gap in self.gaps:
            return
        if len(self.gaps) >= _GAPS:
            same = [known for known in self.gaps if known.pattern == gap.pattern]
            self.gaps = [known for known in self.gaps if known.pattern != gap.pattern]
            gap = span([*same, gap])
        self.gaps.append(gap)

    def tell_again(self) -> None:
        """Queue the gaps in `told` again: the reply with them may not have arrived."""
        told, self.told = self.told, []
        self.gaps = [*told, *(gap for gap in self.gaps if gap not in told)]

    def forget(self, pattern: Pattern) -> None:
        """Drop the gaps of a pattern."""
        self.gaps = [gap for gap in self.gaps if gap.pattern != pattern]
        self.told = [gap for gap in self.told if gap.pattern != pattern]


class Gap(NamedTuple):
    """A range of offsets in which events of a pattern may be missing."""

    pattern: Pattern
    first: int
    last: int


def span(gaps: Iterable[Gap]) -> Gap:
    """A gap that covers all of `gaps`, which are of one pattern."""
    patterns, firsts, lasts = zip(*gaps, strict=True)
    return Gap(patterns[0], min(firsts), max(lasts))
