"""Ways to read one segment in the order of offsets; each yields the rows that may be wanted and how far it has read.

For few topics: along the index, one scan for each pair of topic and audience, merged. For many topics: over all
offsets. Both need an intact file; `salvage` reads a damaged one row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge as merged
from itertools import islice, pairwise
from time import monotonic
from typing import NamedTuple

from app.broker.topics import span
from app.history.opened import Opened
from app.history.rules import NEVER
from app.history.stored import Stored
from app.history.wanted import Wanted

MOST_PAIRS = 64
"""The maximum number of index scans at a time, one per topic and audience; for more, reading every row is faster."""

MOST_ROWS = 20_000
"""Rows that one call touches at most, about 30 ms; then it returns, so that no other call waits long."""

MOST_S = 1.0
"""Seconds that one call takes at most, where the disk is slow or digests are checked for the first time."""

_FEWEST, _MOST_AT_ONCE, _BYTES_AT_ONCE = 32, 128, 1_048_576
_WINDOW, _SALVAGED = 1_000, 256


class Batch(NamedTuple):
    """A part of a walk.

    rows     the rows that may be wanted, in the order of reading
    reached  the last offset that was read
    gaps     ranges of offsets that cannot be read, both ends included
    """

    rows: list[Stored]
    reached: int
    gaps: list[tuple[int, int]]


class Budget:
    """The work that one call may still do.

    limit    the page's limit of events
    fetched  how many rows the call has read from the table
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.fetched = 0
        self._rows = MOST_ROWS
        self._until = monotonic() + MOST_S

    def spend(self, rows: int) -> None:
        """Count `rows` rows of an index or the table as touched."""
        self._rows -= rows

    @property
    def is_spent(self) -> bool:
        """Whether the call has touched enough rows, or taken long enough, to return."""
        return self._rows <= 0 or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether the call has taken `MOST_S`."""
        return monotonic() >= self._until


class Pair(NamedTuple):
    """A topic's events for one audience; `floor` is the first wanted offset."""

    topic_id: int
    audience_id: int
    floor: int


class Walk:
    """Reads one segment for one query."""

    def __init__(self, opened: Opened, wanted: Wanted, budget: Budget, *, is_reverse: bool) -> None:
        self._opened = opened
        self._wanted = wanted
        self._budget = budget
        self._is_reverse = is_reverse
        self._at_once = _FEWEST
        self._admitted: dict[int, bool] = {}  # by the number of each audience seen
        self._refused: list[int] = []  # audiences that the next windows leave out
        self._floors: dict[int, int] = {}  # by the number of each topic seen

    def pairs(self) -> list[Pair] | None:
        """The pairs of the wanted topics that the query may read; None if there are more than `MOST_PAIRS`."""
        opened, wanted = self._opened, self._wanted
        found = dict(opened.topics_named(wanted.exact)) if wanted.exact else {}
        for pattern, _ in wanted.wide:
            if len(found) > MOST_PAIRS:
                return None
            within = opened.topics_within(span(pattern), 2 * MOST_PAIRS)
            self._budget.spend(len(within))
            if len(within) == 2 * MOST_PAIRS:
                return None
            found.update(within)
        self._budget.spend(len(wanted.exact) + len(wanted.wide))
        floors = {number: floor for number, topic in found.items() if (floor := wanted.floor(topic)) != NEVER}
        if not floors:
            return []
        if len(floors) > MOST_PAIRS:
            return None
        pairs = opened.pairs([*floors], MOST_PAIRS)
        self._budget.spend(len(pairs))
        if len(pairs) > MOST_PAIRS:
            return None
        return [Pair(number, to, floors[number]) for number, to, audience in pairs if wanted.admits(audience)]

    def merge(self, pairs: list[Pair], low: int, high: int) -> Iterator[Batch]:
        """Read the pairs' events between two offsets along the index."""
        most = max(_MOST_AT_ONCE // len(pairs), 4)
        walks = [self._offsets(pair, low, high, most) for pair in pairs]
        offsets = walks[0] if len(walks) == 1 else merged(*walks, reverse=self._is_reverse)
        yield from self._fetch(offsets)

    def _fetch(self, offsets: Iterator[int]) -> Iterator[Batch]:
        """Read the rows at these offsets in chunks: first a few, then about as many as fit the page, fewer if large."""
        while chunk := list(islice(offsets, self._at_once)):
            rows = self._opened.rows(sorted(chunk))
            if self._is_reverse:
                rows.reverse()
            self._budget.fetched += len(rows)
            self._budget.spend(2 * len(rows))  # a row of the table costs much more than an index entry
            yield Batch(rows, chunk[-1], [])
            weight = sum(len(row.payload or "") for row in rows) // len(rows) + 1
            still = max(self._budget.limit + 1 - self._budget.fetched, _FEWEST)
            self._at_once = max(1, min(still, _MOST_AT_ONCE, _BYTES_AT_ONCE // weight))

    def _offsets(self, pair: Pair, low: int, high: int, most: int) -> Iterator[int]:
        low = max(low, pair.floor)
        while low <= high:
            found = self._opened.offsets(pair[:2], low, high, most, is_reverse=self._is_reverse)
            self._budget.spend(len(found) + 1)
            yield from found
            if len(found) < most:
                return
            if self._is_reverse:
                high = found[-1] - 1
            else:
                low = found[-1] + 1
            most = min(4 * most, 4 * _MOST_AT_ONCE)

    def scan(self, low: int, high: int) -> Iterator[Batch]:
        """Read the events of all wanted topics between two offsets by looking at every offset."""
        for first, last in _windows(low, high, 2 * _MOST_AT_ONCE, _WINDOW, is_reverse=self._is_reverse):
            window = self._opened.window(first, last, self._refused[:MOST_PAIRS])
            self._budget.spend(last - first + 1)
            offsets = self._candidates(window)
            if self._is_reverse:
                offsets.reverse()
            yield from self._fetch(iter(offsets))
            yield Batch([], first if self._is_reverse else last, [])

    def _candidates(self, window: list[tuple[int, int, int]]) -> list[int]:
        """The offsets of a window whose audience and topic are wanted; each audience and topic is decided once."""
        admitted, floors = self._admitted, self._floors
        unknown = {audience for _, _, audience in window} - admitted.keys()
        if unknown:
            self._budget.spend(2 * len(unknown))  # their texts are parsed
            admitted.update(dict.fromkeys(unknown, False))
            for number, audience in self._opened.audiences_numbered([*unknown]):
                admitted[number] = self._wanted.admits(audience)
            self._refused += [number for number in unknown if not admitted[number]]
        eligible = [(offset, topic) for offset, topic, audience in window if admitted[audience]]
        unknown = {topic for _, topic in eligible} - floors.keys()
        if unknown:
            self._budget.spend(len(unknown))
            floors.update(dict.fromkeys(unknown, NEVER))
            for number, topic in self._opened.topics_numbered([*unknown]):
                floors[number] = self._wanted.floor(topic)
        return [offset for offset, topic in eligible if floors[topic] <= offset]

    def salvage(self, low: int, high: int) -> Iterator[Batch]:
        """Read every intact row between two offsets of a damaged file; missing rows are gaps."""
        for first, last in _windows(low, high, _SALVAGED, _SALVAGED, is_reverse=self._is_reverse):
            rows = self._opened.sound_rows(first, last)
            self._budget.spend(last - first + 1)
            gaps = _missing([row.offset for row in rows], first, last)
            if self._is_reverse:
                rows.reverse()
            yield Batch(rows, first if self._is_reverse else last, gaps)


def _windows(low: int, high: int, size: int, most: int, *, is_reverse: bool) -> Iterator[tuple[int, int]]:
    while low <= high:
        if is_reverse:
            first = max(low, high - size + 1)
            yield first, high
            high = first - 1
        else:
            last = min(high, low + size - 1)
            yield low, last
            low = last + 1
        size = min(2 * size, most)


def _missing(offsets: list[int], first: int, last: int) -> list[tuple[int, int]]:
    borders = [first - 1, *offsets, last + 1]
    return [(one + 1, other - 1) for one, other in pairwise(borders) if one + 1 < other]
