"""What a session that replays must be told of beside its events: what it will not get, because it is no longer there.

A gap is told once, on a connect reply that leaves nothing behind that comes before it, and again if that reply did not
leave for its socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.broker.topics import Pattern
    from app.protocols.bayeux.exchanges import Hold

_GAPS = 300


class Replay:
    """What one session must be told of its replay: `gaps` not told yet, and those that ride on a reply, `told`.

    `told_to` is the connection of that reply. `in_data`: it finds positions in events' data too. `reader` is the newest
    connect that has waited for a page.
    """

    __slots__ = ("gaps", "in_data", "reader", "told", "told_to")

    def __init__(self, *, in_data: bool) -> None:
        self.in_data = in_data
        self.gaps: list[Gap] = []
        self.told: list[Gap] = []
        self.told_to: object = None
        self.reader: Hold | None = None

    def miss(self, gap: Gap) -> None:
        """Take note that events may be missing."""
        if gap in self.gaps:
            return
        if len(self.gaps) >= _GAPS:  # of too many the client is told as of one
            same = [known for known in self.gaps if known.pattern == gap.pattern]
            self.gaps = [known for known in self.gaps if known.pattern != gap.pattern]
            gap = span([*same, gap])
        self.gaps.append(gap)

    def tell_again(self) -> None:
        """Whoever was `told` may not have heard it."""
        told, self.told = self.told, []
        self.gaps = [*told, *(gap for gap in self.gaps if gap not in told)]

    def forget(self, pattern: Pattern) -> None:
        """Of a pattern nothing is to be told any more."""
        self.gaps = [gap for gap in self.gaps if gap.pattern != pattern]
        self.told = [gap for gap in self.told if gap.pattern != pattern]


class Gap(NamedTuple):
    """Offsets at which events of a pattern may be missing."""

    pattern: Pattern
    first: int
    last: int


def span(gaps: Iterable[Gap]) -> Gap:
    """One that covers all of a pattern's."""
    patterns, firsts, lasts = zip(*gaps, strict=True)
    return Gap(patterns[0], min(firsts), max(lasts))
