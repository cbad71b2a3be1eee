"""Reads a log: a query's page in bounded work, or all rows of a range.

Called from any thread. Segments may be sealed, rewritten or deleted meanwhile: the folder's list is read again for each
segment, and deleted events are reported as a gap. So are damaged segments (`damage.py`); no row is served whose
checksum does not match.
"""

from __future__ import annotations

import errno
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from halley.broker.events import Event, Publications
from halley.broker.names import Pattern
from halley.broker.ports import Page, Query, UnknownPublication
from halley.history.damage import Corrupt, joined, outside
from halley.history.folder import Folder, Segment, begin_of
from halley.history.query import Budget, Filter, QueryFilter, ScanBatch, SegmentScan
from halley.history.row_filter import RowFilter
from halley.history.rules import NEVER, Rules
from halley.history.segment_reader import OffsetRange, SegmentGone, SegmentPool
from halley.history.stored import Stored, event_of

_PART_ROWS, _PART_BYTES = 256, 1_048_576
"""The rows that `LogReader.next_rows` returns at a time, approximately, or the bytes of their payloads."""


class LogReader:
    """Answers queries from a folder; `rules` decide which events are visible.

    There is no index on publications. Their ids are a counter shown through a permutation, as WAMP wants them random,
    so an index over them takes each new entry at a random page. Measured with up to 200,000 events in a segment, in
    groups of 64 with fsync and in large groups, it costs the writer about 40 % of its events per second, and more than
    half as much processor time again; with one event a group the difference is lost in that of fsync. The order is
    there already: with the log's key an id becomes its number again (`broker/events.py`), and numbers grow with the
    offset. So the segment is found by the first row of each, and the row in it by bisection: some 20 rows are looked
    at, in less than a millisecond.
    """

    def __init__(self, folder: Folder, rules: Rules, pool: SegmentPool) -> None:
        self._folder = folder
        self._rules = rules
        self._pool = pool
        self._publications = Publications(folder.identity.publication_key)

    def read(self, query: Query) -> Page:
        """The page for a query. Blocks. Raises `UnknownPublication`; `OSError` where a resource is short."""
        try:
            return self._page(query)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, str(error), str(self._folder.path)) from error

    def _page(self, query: Query) -> Page:
        self._pool.prune()
        wanted = QueryFilter(query, self._rules)
        asked = self._bounds_of(query)
        firsts = [self._first_of(query, after, pattern) for pattern, after in query.wanted]
        start = min((first for _, first in firsts), default=1)
        bounds = all_of_it = asked.cut(start, asked.high)
        lapsed = [(low, first - 1) for low, first in firsts if 1 < low < first]  # "from the start" has no offset
        draft = _Draft(query, wanted, self._folder, lapsed, all_of_it)
        draft.is_cut_off = asked.low < start and self._is_lost(start, query.from_time_us)
        budget = Budget(query.limit)
        while not bounds.is_empty:
            try:
                for batch in self._batches(bounds, wanted, budget):
                    if not draft.add(batch):
                        return draft.page()
                    bounds = bounds.beyond(batch.reached)
                    if budget.is_spent and not bounds.is_empty:
                        latest = self._latest(all_of_it, batch.reached)
                        if latest is not None or draft.events or budget.is_late:
                            return draft.page(latest)
            except (SegmentGone, Corrupt):
                continue  # from the offset it has reached, in the segments of now
        return draft.page(is_end=True)

    def _bounds_of(self, query: Query) -> OffsetRange:
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
                place = self._offset_of(publication) + by
                low, high = (max(low, place), high) if is_lower else (low, min(high, place))
        return OffsetRange(low, high, query.is_reverse)

    def _offset_of(self, publication: int) -> int:
        """The offset of a publication, regardless of rights.

        If it can only have been in a damaged segment, it is the first offset of that: nothing there is served, so what
        precedes and follows the publication is the same. Raises `UnknownPublication`, `sqlite3.Error`.
        """
        number = self._publications.number_of(publication)
        while listed := self._folder.segments:
            try:
                segments = [segment for segment in listed if self._pool.is_intact(segment)]
                at = bisect_right(segments, number, key=self._first_number) - 1
                place, is_there = self._place_in(segments[at], number) if at >= 0 else (listed[0].first, False)
            except (SegmentGone, Corrupt):
                continue
            if is_there or any(not each.is_intact and each.first <= place <= (each.last or 0) for each in listed):
                return place
            break
        raise UnknownPublication(publication)

    def _first_number(self, segment: Segment) -> int:
        with self._pool.open(segment) as reader:
            return self._number_of(reader.end_row(segment.first, reader.last))

    def _place_in(self, segment: Segment, number: int) -> tuple[int, bool]:
        """The offset of a number in a segment and True, or the offset before which it would be and False."""
        with self._pool.open(segment) as reader:
            low, high = segment.first, reader.last
            while low <= high:
                middle = (low + high) // 2
                found = reader.end_row(middle, high)  # `middle` itself may be in a hole
                found_number = self._number_of(found)
                if found is None or found_number > number:
                    high = middle - 1
                elif found_number < number:
                    low = found[0] + 1
                else:
                    return found[0], True
        return low, False

    def _number_of(self, row: tuple[int, int] | None) -> int:
        """The number of the publication of an (offset, publication); `NEVER` for None."""
        return NEVER if row is None else self._publications.number_of(row[1])

    def _is_lost(self, start: int, since_us: int | None) -> bool:
        """Whether events at or after `since_us` may have been deleted before `start`, where the log begins now.

        Deleted events are taken to be older than the first one that exists, even if the clock was set back.
        """
        if since_us is None:
            return True
        try:
            with self._pool.part(OffsetRange(start, start, is_reverse=False)) as (reader, _):
                time_us = None if reader is None else reader.time_at(start)
        except (SegmentGone, Corrupt):
            return True
        return time_us is None or since_us <= time_us

    def _latest(self, bounds: OffsetRange, reached: int) -> int | None:
        """The publication id of the last row that was read, in the order of reading; None if no row is readable."""
        back = bounds._replace(low=reached) if bounds.is_reverse else bounds._replace(high=reached)
        back = back._replace(is_reverse=not bounds.is_reverse)
        while not back.is_empty:
            try:
                with self._pool.part(back) as (reader, part):
                    found = None if reader is None else reader.end_row(part.low, part.high, is_reverse=part.is_reverse)
                if found is not None:
                    return found[1]
                back = back.beyond(part.end)
            except (SegmentGone, Corrupt):
                continue
        return None

    def _first_of(self, query: Query, after: int, pattern: Pattern) -> tuple[int, int]:
        """The first offset asked for of a pattern, and the first at which an event may still exist."""
        asked = max(after + 1, query.first)
        segments = self._folder.segments
        begin = begin_of(segments[0].first, self._folder.identity.holes) if segments else 1
        start = max(self._rules.start_of(pattern), begin)
        return asked, max(asked, start)

    def _batches(self, bounds: OffsetRange, wanted: Filter, budget: Budget) -> Iterator[ScanBatch]:
        """The rows within the bounds, segment by segment. Raises `SegmentGone`, `Corrupt`."""
        while not bounds.is_empty:
            with self._pool.part(bounds) as (reader, part):
                if reader is not None:
                    scan = SegmentScan(reader, wanted, budget, is_reverse=part.is_reverse)
                    yield from scan.run(part.low, part.high)
            yield ScanBatch([], part.end, [(part.low, part.high)] if reader is None else [])
            bounds = bounds.beyond(part.end)

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The rows between two offsets, both included, in order and in batches. Blocks. Raises `OSError`.

        A purged event is a tombstone. What is missing is in a hole or in a damaged segment, which is listed as such
        from then on, or was deleted by retention, possibly while this runs.
        """
        at = first
        while at <= last:
            try:
                with self._pool.part(OffsetRange(at, last, is_reverse=False)) as (reader, part):
                    if reader is not None:
                        for rows in reader.rows_between(at, part.high):
                            self._check_holes(reader.segment, [at - 1, *(row.offset for row in rows)])
                            yield rows
                            at = rows[-1].offset + 1
                        self._check_holes(reader.segment, [at - 1, part.high + 1])
                at = part.high + 1
            except (SegmentGone, Corrupt):
                continue  # in the segments of now
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error), str(self._folder.path)) from error

    def next_rows(self, first: int, last: int, wanted: RowFilter) -> tuple[list[Stored], int]:
        """The next of the wanted rows between two offsets, both included, and the last offset that was read for them.

        There are few of them, or none, where reading goes on behind that offset. It takes bounded work, as a page does.

        What cannot be read is passed over: it is in a hole or in a damaged segment, which is listed as such from then
        on, or was deleted by retention. Blocks. Raises `OSError`.
        """
        self._pool.prune()
        budget = Budget(_PART_ROWS)
        rows: list[Stored] = []
        nbytes = 0
        bounds = OffsetRange(first, last, is_reverse=False)
        while not bounds.is_empty:
            try:
                for batch in self._batches(bounds, wanted, budget):
                    found = [row for row in batch.rows if wanted.matches(row)]
                    rows += found
                    nbytes += sum(len(row.payload or "") for row in found)
                    bounds = bounds.beyond(batch.reached)
                    if budget.is_spent or len(rows) >= _PART_ROWS or nbytes >= _PART_BYTES:
                        return rows, batch.reached
            except (SegmentGone, Corrupt):
                continue  # from the offset it has reached, in the segments of now
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error), str(self._folder.path)) from error
        return rows, last

    def erased(self, first: int, last: int) -> list[int]:
        """The offsets of erased events between two, both included. Blocks. Raises `OSError`."""
        found: list[int] = []
        at = first
        while at <= last:
            try:
                with self._pool.part(OffsetRange(at, last, is_reverse=False)) as (reader, part):
                    found += [] if reader is None else reader.erased(at, part.high)
                at = part.high + 1
            except (SegmentGone, Corrupt):
                continue  # in the segments of now
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error), str(self._folder.path)) from error
        return found

    def _check_holes(self, segment: Segment, offsets: list[int]) -> None:
        """Raise `Corrupt` unless all that is missing between two of the offsets is in a hole."""
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            return
        holes = self._folder.identity.holes
        for before, after in pairwise(offsets):
            if any(outside(before + 1, after - 1, holes)):
                raise Corrupt(segment.path)


class _Draft:
    """A page while it is being filled."""

    def __init__(
        self, query: Query, wanted: QueryFilter, folder: Folder, gaps: list[tuple[int, int]], bounds: OffsetRange
    ) -> None:
        self._query = query
        self._wanted = wanted
        self._folder = folder
        self._holes = folder.identity.holes  # one of them may be filled behind what is read
        self._bounds = bounds
        self.is_cut_off = False
        self._gaps = gaps
        self.events: list[Event] = []
        self._nbytes = 0
        self._reached = query.last + 1 if query.is_reverse else query.first - 1

    def add(self, batch: ScanBatch) -> bool:
        """Add the wanted rows; False if a row has no room any more, and then the page ends before that row."""
        self._gaps += batch.gaps
        for row in batch.rows:
            if not self._wanted.matches(row):
                continue
            event = event_of(row)
            self._nbytes += len(event.payload)
            if self.events and (len(self.events) >= self._query.limit or self._nbytes > self._query.max_bytes):
                self._reached = row.offset + 1 if self._query.is_reverse else row.offset - 1
                return False
            self.events.append(event)
        self._reached = batch.reached
        return True

    def page(self, latest: int | None = None, *, is_end: bool = False) -> Page:
        """The page; `is_end`: everything within the query's bounds was read.

        Otherwise `latest` is the publication of the last row that was read; None: that of the last event.
        """
        query = self._query
        if is_end:
            self._reached = query.first if query.is_reverse else query.last
        elif latest is None and self.events:
            latest = self.events[-1].publication
        low, high = (self._reached, query.last) if query.is_reverse else (query.first, self._reached)
        # The holes are read last: a purge records them before it removes rows.
        holes = joined((*self._holes, *self._folder.identity.holes), self._bounds.low, self._bounds.high)
        gaps = joined([*self._gaps, *holes], low, high)
        is_cut_off = self.is_cut_off and (is_end or not query.is_reverse)  # else reading has not reached the start
        return Page(self.events, self._reached, is_end, gaps, is_cut_off, latest)
