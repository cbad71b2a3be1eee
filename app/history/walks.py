"""Ways through one segment, in the order of offsets: what each has looked at, and which rows may be wanted.

Of few topics: along the index, a walk for each topic and audience, merged. Of many: over all offsets. Both believe the
file; `salvage` does not, and takes each row for itself.
"""

from __future__ import annotations

from heapq import merge as merged
from itertools import islice, pairwise
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from app.broker.topics import span
from app.history.rules import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.history.opened import Opened
    from app.history.stored import Stored
    from app.history.wanted import Wanted

MOST_PAIRS = 64
"""Walks at once, of a topic and an audience each: beyond, a look at every row costs less."""

MOST_ROWS = 20_000
"""That a call touches, about 30 ms; then it says how far it has come, so that nobody waits behind it for long."""

MOST_S = 1.0
"""That a call takes, where the disk is slow or much has to be checked for the first time."""

_FEWEST, _MOST_AT_ONCE, _BYTES_AT_ONCE = 32, 128, 1_048_576
_WINDOW, _SALVAGED = 1_000, 256


class Batch(NamedTuple):
    """A part of a walk: the rows that may be wanted, how far it has come, and the offsets that cannot be read."""

    rows: list[Stored]
    reached: int
    gaps: list[tuple[int, int]]


class Budget:
    """What one call may still do; `limit` is of its page, `fetched` how many rows it has had from the table."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.fetched = 0
        self._rows = MOST_ROWS
        self._until = monotonic() + MOST_S

    def spend(self, rows: int) -> None:
        """So many rows, of an index or the table, have been touched."""
        self._rows -= rows

    @property
    def is_spent(self) -> bool:
        """Whether it is time to answer."""
        return self._rows <= 0 or self.is_late

    @property
    def is_late(self) -> bool:
        """Whether it has taken as long as it may."""
        return monotonic() >= self._until


class Pair(NamedTuple):
    """A topic's events for one audience, and the first of them that is wanted."""

    topic_id: int
    audience_id: int
    floor: int


class Walk:
    """One query's way through one segment."""

    def __init__(self, opened: Opened, wanted: Wanted, budget: Budget, *, is_reverse: bool) -> None:
        self._opened = opened
        self._wanted = wanted
        self._budget = budget
        self._is_reverse = is_reverse
        self._at_once = _FEWEST
        self._admitted: dict[int, bool] = {}  # the audiences met
        self._refused: list[int] = []  # those of them that the next windows can do without
        self._floors: dict[int, int] = {}  # the topics met

    def pairs(self) -> list[Pair] | None:
        """What there is of the wanted topics for who asks; None if that is too much to walk one by one."""
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
        """The pairs' events, from one end to the other."""
        most = max(_MOST_AT_ONCE // len(pairs), 4)
        walks = [self._offsets(pair, low, high, most) for pair in pairs]
        offsets = walks[0] if len(walks) == 1 else merged(*walks, reverse=self._is_reverse)
        yield from self._fetch(offsets)

    def _fetch(self, offsets: Iterator[int]) -> Iterator[Batch]:
        """The rows at these offsets: a few, then about as many as the page may still take, unless they are large."""
        while chunk := list(islice(offsets, self._at_once)):
            rows = self._opened.rows(sorted(chunk))
            if self._is_reverse:
                rows.reverse()
            self._budget.fetched += len(rows)
            self._budget.spend(2 * len(rows))  # which cost much more than what an index has of them
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
        """The events of all wanted topics, by looking at every offset."""
        for first, last in _windows(low, high, 2 * _MOST_AT_ONCE, _WINDOW, is_reverse=self._is_reverse):
            window = self._opened.window(first, last, self._refused[:MOST_PAIRS])
            self._budget.spend(last - first + 1)
            offsets = self._candidates(window)
            if self._is_reverse:
                offsets.reverse()
            yield from self._fetch(iter(offsets))
            yield Batch([], first if self._is_reverse else last, [])

    def _candidates(self, window: list[tuple[int, int, int]]) -> list[int]:
        """The offsets of a window whose audience and topic are wanted; each of both is looked at once."""
        admitted, floors = self._admitted, self._floors
        unknown = {audience for _, _, audience in window} - admitted.keys()
        if unknown:
            self._budget.spend(2 * len(unknown))  # whose texts are parsed
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
        """Every row that is sound, of a file that is not; what is missing is a gap."""
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
