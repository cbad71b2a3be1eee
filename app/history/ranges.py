"""Ranges of offsets for bounds in time and by publication, by binary search, since both grow with the offset.

The exception for times are a segment's `steps`, where the clock had been set back; between two steps times grow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from app.broker.log import Query, UnknownPublication
from app.broker.publications import Publications
from app.history.opened import Unsound
from app.history.rules import NEVER

if TYPE_CHECKING:
    from app.history.connections import Connections
    from app.history.folder import Segment
    from app.history.opened import Opened

MOST_STEPS = 256
"""Steps in one segment at most for a search; where a broken clock has made more, every row is looked at."""


def within_time(opened: Opened, low: int, high: int, query: Query) -> Iterator[tuple[int, int]]:
    """The ranges of a segment's offsets `low` to `high` in which every time is within the query's bounds.

    Where there are too many steps it is the whole range, and the caller checks each row's time. Raises `Unsound`.
    """
    since, until = query.from_time_us, query.until_time_us
    steps = [] if since is None and until is None else opened.steps(MOST_STEPS + 1)
    if not steps or len(steps) > MOST_STEPS:
        runs = [(low, high)]
    else:
        starts = [low, *(step for step in steps if low < step <= high)]
        runs = list(zip(starts, [start - 1 for start in starts[1:]] + [high], strict=True))
    if len(steps) > MOST_STEPS:
        since = until = None
    for run_low, run_high in runs:
        first = run_low if since is None else opened.first_since(run_low, run_high, since)
        last = run_high if until is None else opened.first_since(run_low, run_high, until + 1) - 1
        if first <= last:
            yield first, last


def place_of(
    publication: int,
    publications: Publications,
    segments: Sequence[Segment],
    connections: Connections,
) -> int:
    """The offset of a publication, regardless of rights. Raises `UnknownPublication`, `Unsound`, `Gone`."""
    number = publications.number_of(publication)

    def first_number(segment: Segment) -> int:
        with connections.open(segment) as opened:
            first = opened.publication_at(segment.first)
            return NEVER if first is None else publications.number_of(first)

    trusted = [segment for segment in segments if connections.trusts(segment)]
    at = bisect_right(trusted, number, key=first_number) - 1
    if at >= 0:
        offset = _search(trusted[at], number, publications, connections)
        if offset is not None:
            return offset
    for segment in segments:
        if not connections.trusts(segment):
            with suppress(Unsound), connections.open(segment) as opened:
                offset = opened.place_of(publication)
                if offset is not None:
                    return offset
    raise UnknownPublication(publication)


def _search(segment: Segment, number: int, publications: Publications, connections: Connections) -> int | None:
    with connections.open(segment) as opened:
        low, high = segment.first, opened.last
        while low <= high:
            middle = (low + high) // 2
            found = opened.publication_at(middle)
            found_number = NEVER if found is None else publications.number_of(found)
            if found_number == number:
                return middle
            if found_number < number:
                low = middle + 1
            else:
                high = middle - 1
    return None


def joined(ranges: Iterable[tuple[int, int]], low: int, high: int) -> list[tuple[int, int]]:
    """The parts of `ranges` between `low` and `high`, sorted; overlapping and adjacent ones are merged."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted((max(first, low), min(last, high)) for first, last in ranges):
        if first > last:
            continue
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def outside(first: int, last: int, known: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of the range `first` to `last` that lie in none of the `known` ranges."""
    at = first
    for low, high in joined(known, first, last):
        if at < low:
            yield at, low - 1
        at = high + 1
    if at <= last:
        yield at, last
