"""Reads a query's page from as many segments as it needs, in bounded work.

Called from any thread. Segments may be sealed, rewritten or deleted meanwhile: the folder's list is read again for each
segment, and deleted events are reported as a gap. No row is served whose checksum does not match.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from app.broker.events import Event
from app.broker.log import Page, Query
from app.broker.publications import Publications
from app.broker.topics import Pattern
from app.history.connections import Connections, Gone
from app.history.folder import Damage, Folder, Segment, begin_of
from app.history.opened import Unsound
from app.history.ranges import joined, place_of, within_time
from app.history.rules import Rules
from app.history.stored import event_of
from app.history.walks import Batch, Budget, Walk
from app.history.wanted import Wanted


class Bounds(NamedTuple):
    """A range of offsets to read, both ends included, and from which end."""

    low: int
    high: int
    is_reverse: bool

    def cut(self, low: int, high: int) -> Bounds:
        """The part of the range between `low` and `high`."""
        return Bounds(max(self.low, low), min(self.high, high), self.is_reverse)

    def beyond(self, reached: int) -> Bounds:
        """The rest of the range after everything up to the offset `reached` was read."""
        return self._replace(high=reached - 1) if self.is_reverse else self._replace(low=reached + 1)

    @property
    def end(self) -> int:
        """The last offset in the order of reading."""
        return self.low if self.is_reverse else self.high

    @property
    def is_empty(self) -> bool:
        """Whether the range has no offsets."""
        return self.low > self.high


class Reader:
    """Answers queries from a folder; `rules` decide which events are visible."""

    def __init__(self, folder: Folder, rules: Rules, connections: Connections) -> None:
        self._folder = folder
        self._rules = rules
        self._connections = connections

    def read(self, query: Query) -> Page:
        """The page for a query. Blocks. Raises `UnknownPublication`; `sqlite3.Error` where a resource is short."""
        self._connections.prune()
        wanted = Wanted(query, self._rules)
        asked = self._asked(query)
        start = self._start(query)
        draft = _Draft(query, wanted, self._lapsed(query))
        draft.is_cut_off = asked.low < start and self._is_lost(start, query.from_time_us)
        budget = Budget(query.limit)
        bounds = all_of_it = asked.cut(start, asked.high)
        while not bounds.is_empty:
            try:
                for batch in self._batches(bounds, wanted, query, budget):
                    if not draft.take(batch):
                        return draft.page()
                    bounds = bounds.beyond(batch.reached)
                    if budget.is_spent and not bounds.is_empty:
                        latest = self._latest(all_of_it, batch.reached)
                        if latest is not None or draft.events or budget.is_late:
                            return draft.page(latest)
            except (Gone, Unsound):
                continue  # from the offset it has reached, in the segments of now, or row by row
        return draft.finished()

    def _asked(self, query: Query) -> Bounds:
        """The offsets that the query asks for, deleted or not. Raises `UnknownPublication`."""
        low = max(query.first, min((after for _, after in query.wanted), default=0) + 1)
        high = query.last
        for publication, by, is_lower in (
            (query.from_publication, 0, True),
            (query.after_publication, 1, True),
            (query.until_publication, 0, False),
            (query.before_publication, -1, False),
        ):
            if publication is not None:
                place = self._place_of(publication) + by
                low, high = (max(low, place), high) if is_lower else (low, min(high, place))
        return Bounds(low, high, query.is_reverse)

    def _start(self, query: Query) -> int:
        """The first offset at which a wanted event may still exist."""
        return min((self._first_of(query, after, pattern)[1] for pattern, after in query.wanted), default=1)

    def _is_lost(self, start: int, since_us: int | None) -> bool:
        """Whether events at or after `since_us` may have been deleted before `start`, where the log begins now.

        Deleted events are taken to be older than the first one that exists, even if the clock was set back.
        """
        if since_us is None:
            return True
        segment, _ = self._piece(Bounds(start, start, is_reverse=False))
        try:
            if segment is None or not self._connections.trusts(segment):
                return True
            with self._connections.open(segment) as opened:
                time_us = opened.time_at(start)
        except (Gone, Unsound):
            return True
        return time_us is None or since_us <= time_us

    def _latest(self, bounds: Bounds, reached: int) -> int | None:
        """The publication id of the last row that was read, in the order of reading; None if no row is readable."""
        back = bounds._replace(low=reached) if bounds.is_reverse else bounds._replace(high=reached)
        back = back._replace(is_reverse=not bounds.is_reverse)
        while not back.is_empty:
            try:
                segment, part = self._piece(back)
                if segment is not None:
                    with self._connections.open(segment) as opened:
                        is_sound = self._connections.trusts(segment)
                        found = opened.next_publication(*part, is_sound=is_sound)
                    if found is not None:
                        return found
                back = back.beyond(part.end)
            except (Gone, Unsound):
                continue
        return None

    def _place_of(self, publication: int) -> int:
        publications = Publications(self._folder.identity.publication_key)
        while True:
            try:
                return place_of(publication, publications, self._folder.segments, self._connections)
            except (Gone, Unsound):
                continue

    def _first_of(self, query: Query, after: int, pattern: Pattern) -> tuple[int, int]:
        """The first offset asked for of a pattern, and the first at which an event may still exist."""
        asked = max(after + 1, query.first)
        segments = self._folder.segments
        begin = begin_of(segments[0].first, self._folder.identity.holes) if segments else 1
        start = max(self._rules.start_of(pattern), begin)
        return asked, max(asked, start)

    def _lapsed(self, query: Query) -> list[tuple[int, int]]:
        """The deleted ranges among the offsets that were asked for; none for "from the start", which has no offset."""
        firsts = (self._first_of(query, after, pattern) for pattern, after in query.wanted)
        return [(asked, first - 1) for asked, first in firsts if 1 < asked < first]

    def _batches(self, bounds: Bounds, wanted: Wanted, query: Query, budget: Budget) -> Iterator[Batch]:
        """The rows within the bounds, segment by segment. Raises `Gone`, `Unsound`."""
        while not bounds.is_empty:
            segment, part = self._piece(bounds)
            if segment is None:
                yield Batch([], part.end, [(part.low, part.high)])
            elif self._connections.trusts(segment):
                yield from self._walk(segment, part, wanted, query, budget)
            else:
                yield from self._salvage(segment, part, wanted, budget)
            bounds = bounds.beyond(part.end)

    def _piece(self, bounds: Bounds) -> tuple[Segment | None, Bounds]:
        """The next segment, or None for a hole between two, and the part of the bounds that lies there."""
        segments = self._folder.segments
        at = bounds.high if bounds.is_reverse else bounds.low
        index = bisect_right(segments, at, key=lambda segment: segment.first) - 1
        end = segments[index + 1].first - 1 if index + 1 < len(segments) else bounds.high
        if index < 0:
            return None, bounds.cut(1, end)
        segment = segments[index]
        last = end if segment.last is None else min(segment.last, end)
        if at > last:
            return None, bounds.cut(last + 1, end)
        return segment, bounds.cut(segment.first, last)

    def _walk(self, segment: Segment, part: Bounds, wanted: Wanted, query: Query, budget: Budget) -> Iterator[Batch]:
        with self._connections.open(segment) as opened:
            walk = Walk(opened, wanted, budget, is_reverse=part.is_reverse)
            pairs = walk.pairs()
            if pairs is None or pairs:
                ranges = list(within_time(opened, part.low, part.high, query))
                budget.spend(40 * len(ranges))
                for low, high in reversed(ranges) if part.is_reverse else ranges:
                    yield from walk.scan(low, high) if pairs is None else walk.merge(pairs, low, high)
        yield Batch([], part.end, [])

    def _salvage(self, segment: Segment, part: Bounds, wanted: Wanted, budget: Budget) -> Iterator[Batch]:
        try:
            with self._connections.open(segment) as opened:
                for batch in Walk(opened, wanted, budget, is_reverse=part.is_reverse).salvage(part.low, part.high):
                    for first, last in batch.gaps:
                        self._folder.note(Damage(first, last, segment.path.name, "cannot be read"))
                    yield batch
        except Unsound:
            self._folder.note(Damage(part.low, part.high, segment.path.name, "cannot be opened"))
            yield Batch([], part.end, [(part.low, part.high)])


class _Draft:
    """A page while it is being filled."""

    def __init__(self, query: Query, wanted: Wanted, gaps: list[tuple[int, int]]) -> None:
        self._query = query
        self._wanted = wanted
        self.is_cut_off = False
        self._gaps = gaps
        self.events: list[Event] = []
        self._nbytes = 0
        self._reached = query.last + 1 if query.is_reverse else query.first - 1

    def take(self, batch: Batch) -> bool:
        """Add the wanted rows; False if a row has no room any more, and then the page ends before that row."""
        self._gaps += batch.gaps
        for row in batch.rows:
            if not self._wanted.has(row):
                continue
            event = event_of(row)
            self._nbytes += len(event.payload)
            if self.events and (len(self.events) >= self._query.limit or self._nbytes > self._query.max_bytes):
                self._reached = row.offset + 1 if self._query.is_reverse else row.offset - 1
                return False
            self.events.append(event)
        self._reached = batch.reached
        return True

    def finished(self) -> Page:
        """The page, after everything within the query's bounds was read."""
        self._reached = self._query.first if self._query.is_reverse else self._query.last
        return self._page(is_end=True, publication=None)

    def page(self, latest: int | None = None) -> Page:
        """The page, with more left to read. `latest`: publication of the last row read; None: of the last event."""
        if self._query.is_reverse:
            self.is_cut_off = False  # reading has not reached the start
        if latest is None and self.events:
            latest = self.events[-1].publication
        return self._page(is_end=False, publication=latest)

    def _page(self, *, is_end: bool, publication: int | None) -> Page:
        low, high = self._query.first, self._query.last
        low, high = (self._reached, high) if self._query.is_reverse else (low, self._reached)
        gaps = joined(self._gaps, low, high)
        return Page(self.events, self._reached, is_end, gaps, self.is_cut_off, publication)
