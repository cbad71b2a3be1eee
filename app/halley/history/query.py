"""A query's filters, and the two ways to read one segment by them.

For few topics a segment is read along its index, one scan for each pair of topic and audience, merged; for many topics
over all offsets. Either way yields the rows that may be wanted, in the order of offsets, and how far it has read. The
kinds of patterns are defined in `halley/broker/names.py` alone (`matcher`, `span`).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge as merged
from itertools import islice
from time import monotonic
from typing import NamedTuple, Protocol

from halley.broker.names import Match, Pattern, matcher, span
from halley.broker.ports import Query
from halley.broker.remembered import remembered
from halley.history.rules import NEVER, Rules
from halley.history.segment_reader import SegmentReader
from halley.history.stored import Stored, audience_of

MOST_PAIRS = 64
"""The maximum number of index scans at a time, one per topic and audience; for more, reading every row is faster."""

MOST_ROWS = 20_000
"""Rows that one call touches at most, about 30 ms; then it returns, so that no other call waits long."""

MOST_S = 1.0
"""Seconds that one call takes at most, where the disk is slow or digests are checked for the first time."""

_FEWEST, _MOST_AT_ONCE, _BYTES_AT_ONCE = 32, 128, 1_048_576
_WINDOW = 1_000
_SEARCH_ROWS = 40
"""What finding the rows of a time counts as."""

_audience_of = remembered()(audience_of)


class Filter(Protocol):
    """What a scan of a segment needs to know of what is wanted: `QueryFilter`, or `row_filter.RowFilter`."""

    @property
    def times_us(self) -> tuple[int | None, int | None]:
        """The bounds of the events' time, both included; None where there is no bound."""

    @property
    def protocol(self) -> str | None:
        """The publishers' protocol; None: any."""

    @property
    def has_patterns(self) -> bool:
        """Whether only the topics of `exact` and `wide` are wanted."""

    @property
    def exact(self) -> list[str]:
        """The topics that are wanted by name."""

    @property
    def wide(self) -> list[tuple[Pattern, int]]:
        """The patterns other than exact ones, each with the offset after which its events are wanted."""

    def first_visible(self, topic: str) -> int:
        """The first offset at which a topic's event is wanted; `NEVER` if there is none."""

    def admits(self, audience: str | None) -> bool:
        """Whether events for an audience, given as its JSON text, are wanted."""


class QueryFilter:
    """The filters of one query that look at a single event.

    `wide` are its patterns other than exact ones, each with the offset after which its events are wanted.
    """

    protocol = None
    has_patterns = True

    def __init__(self, query: Query, rules: Rules) -> None:
        self._query = query
        self._rules = rules
        self._after: dict[str, int] = {}
        self.wide: list[tuple[Pattern, int]] = []
        for pattern, after in query.wanted:
            if pattern.match is Match.EXACT:
                self._after[pattern.topic] = min(after, self._after.get(pattern.topic, after))
            else:
                self.wide.append((pattern, after))
        self._matchers = [(matcher(pattern), after) for pattern, after in self.wide]
        self._first_visible: dict[str, int] = {}  # by topic seen; bounded by the rows that a call reads

    @property
    def times_us(self) -> tuple[int | None, int | None]:
        """The bounds of the events' time, in microseconds since 1970; None where there is no bound."""
        return self._query.from_time_us, self._query.until_time_us

    @property
    def exact(self) -> list[str]:
        """The topics that are wanted by name."""
        return list(self._after)

    def first_visible(self, topic: str) -> int:
        """The first offset at which a topic's event is wanted and still visible; `NEVER` if there is none."""
        first = self._first_visible.get(topic)
        if first is None:
            first = self._first_visible[topic] = self._find_first_visible(topic)
        return first

    def _find_first_visible(self, topic: str) -> int:
        if not topic:  # a purged event has no topic
            return NEVER
        afters = [after for matches, after in self._matchers if matches(topic)]
        if topic in self._after:
            afters.append(self._after[topic])
        if not afters:
            return NEVER
        return max(min(afters) + 1, self._query.first, self._rules.of(topic).start)

    def admits(self, audience: str | None) -> bool:
        """Whether the query's user belongs to an audience, given as its JSON text; None admits all users."""
        found = _audience_of(audience)
        return found is None or found.admits(self._query.authid, self._query.role)

    def matches(self, row: Stored) -> bool:
        """Whether an intact row matches the query."""
        query = self._query
        return (
            not row.is_purged
            and self.first_visible(row.topic) <= row.offset <= query.last
            and (query.from_time_us is None or query.from_time_us <= row.time_us)
            and (query.until_time_us is None or row.time_us <= query.until_time_us)
            and self.admits(row.audience)
        )


class ScanBatch(NamedTuple):
    """A part of what a scan yields.

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


class TopicAudience(NamedTuple):
    """A topic's events for one audience; `first_visible` is the first wanted offset."""

    topic_id: int
    audience_id: int
    first_visible: int


class SegmentScan:
    """Reads one segment for one query, or for a part of the whole log."""

    def __init__(self, reader: SegmentReader, wanted: Filter, budget: Budget, *, is_reverse: bool) -> None:
        self._reader = reader
        self._wanted = wanted
        self._budget = budget
        self._is_reverse = is_reverse
        self._at_once = _FEWEST
        self._admitted: dict[int, bool] = {}  # by the number of each audience seen
        self._refused: list[int] = []  # audiences that the next windows leave out
        self._firsts: dict[int, int] = {}  # by the number of each topic seen

    def run(self, low: int, high: int) -> Iterator[ScanBatch]:
        """Read the wanted events between two offsets. Raises `Corrupt`."""
        found = self.topic_audiences() if self._wanted.has_patterns else None
        if found == []:
            return
        if self._wanted.times_us != (None, None):
            low, high = self._reader.within_time(low, high, *self._wanted.times_us)
            self._budget.spend(_SEARCH_ROWS)
        if found is None:
            yield from self._over_all(low, high)
        else:
            yield from self._along_index(found, low, high)

    def topic_audiences(self) -> list[TopicAudience] | None:
        """The wanted topics with the audiences that the query may read; None if there are more than `MOST_PAIRS`."""
        reader, wanted = self._reader, self._wanted
        topics = dict(reader.topics_named(wanted.exact)) if wanted.exact else {}
        for pattern, _ in wanted.wide:
            if len(topics) > MOST_PAIRS:
                return None
            within = reader.topics_within(span(pattern), 2 * MOST_PAIRS)
            self._budget.spend(len(within))
            if len(within) == 2 * MOST_PAIRS:
                return None
            topics.update(within)
        self._budget.spend(len(wanted.exact) + len(wanted.wide))
        firsts = {number: first for number, topic in topics.items() if (first := wanted.first_visible(topic)) != NEVER}
        if not firsts:
            return []
        if len(firsts) > MOST_PAIRS:
            return None
        found = reader.topic_audiences([*firsts], MOST_PAIRS)
        self._budget.spend(len(found))
        if len(found) > MOST_PAIRS:
            return None
        return [TopicAudience(number, to, firsts[number]) for number, to, audience in found if wanted.admits(audience)]

    def _along_index(self, pairs: list[TopicAudience], low: int, high: int) -> Iterator[ScanBatch]:
        most = max(_MOST_AT_ONCE // len(pairs), 4)
        scans = [self._offsets(pair, low, high, most) for pair in pairs]
        offsets = scans[0] if len(scans) == 1 else merged(*scans, reverse=self._is_reverse)
        yield from self._fetch(offsets)

    def _fetch(self, offsets: Iterator[int]) -> Iterator[ScanBatch]:
        """Read the rows at these offsets in chunks: first a few, then about as many as fit the page, fewer if large."""
        while chunk := list(islice(offsets, self._at_once)):
            rows = self._reader.rows(sorted(chunk))
            if self._is_reverse:
                rows.reverse()
            self._budget.fetched += len(rows)
            self._budget.spend(2 * len(rows))  # a row of the table costs much more than an index entry
            yield ScanBatch(rows, chunk[-1], [])
            weight = sum(len(row.payload or "") for row in rows) // len(rows) + 1
            still = max(self._budget.limit + 1 - self._budget.fetched, _FEWEST)
            self._at_once = max(1, min(still, _MOST_AT_ONCE, _BYTES_AT_ONCE // weight))

    def _offsets(self, pair: TopicAudience, low: int, high: int, most: int) -> Iterator[int]:
        low = max(low, pair.first_visible)
        while low <= high:
            found = self._reader.offsets(pair[:2], low, high, most, is_reverse=self._is_reverse)
            self._budget.spend(len(found) + 1)
            yield from found
            if len(found) < most:
                return
            if self._is_reverse:
                high = found[-1] - 1
            else:
                low = found[-1] + 1
            most = min(4 * most, 4 * _MOST_AT_ONCE)

    def _over_all(self, low: int, high: int) -> Iterator[ScanBatch]:
        for first, last in _windows(low, high, 2 * _MOST_AT_ONCE, _WINDOW, is_reverse=self._is_reverse):
            window = self._reader.window(first, last, self._refused[:MOST_PAIRS], self._wanted.protocol)
            self._budget.spend(last - first + 1)
            offsets = self._candidates(window)
            if self._is_reverse:
                offsets.reverse()
            yield from self._fetch(iter(offsets))
            yield ScanBatch([], first if self._is_reverse else last, [])

    def _candidates(self, window: list[tuple[int, int, int]]) -> list[int]:
        """The offsets of a window whose audience and topic are wanted; each audience and topic is decided once."""
        admitted, firsts = self._admitted, self._firsts
        unknown = {audience for _, _, audience in window} - admitted.keys()
        if unknown:
            self._budget.spend(2 * len(unknown))  # their texts are parsed
            admitted.update(dict.fromkeys(unknown, False))
            for number, audience in self._reader.audiences_numbered([*unknown]):
                admitted[number] = self._wanted.admits(audience)
            self._refused += [number for number in unknown if not admitted[number]]
        eligible = [(offset, topic) for offset, topic, audience in window if admitted[audience]]
        unknown = {topic for _, topic in eligible} - firsts.keys()
        if unknown:
            self._budget.spend(len(unknown))
            firsts.update(dict.fromkeys(unknown, NEVER))
            for number, topic in self._reader.topics_numbered([*unknown]):
                firsts[number] = self._wanted.first_visible(topic)
        return [offset for offset, topic in eligible if firsts[topic] <= offset]


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
