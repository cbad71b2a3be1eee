"""Retention: hides events that are too old, and deletes segments that are all hidden or beyond `max_bytes`.

Events are hidden by a number: each rule's `start`, an offset that moves along the log as time passes. Only whole
segments are deleted, oldest first, and never the one that is being written. The reader reports deleted positions.
Deleting, not hiding, waits for consumers (`consumers.py`), within bounds of time and size, and never at a publisher's
cost.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import NamedTuple

from halley.history.consumers import Consumers
from halley.history.damage import Corrupt
from halley.history.folder import Folder, Segment, begin_of
from halley.history.rules import GRACE_S, NEVER, Rules
from halley.history.segment_reader import OffsetRange, SegmentGone, SegmentPool, SegmentReader
from halley.settings import History as Options

_MOST_S = 1.0


class _ScanPosition(NamedTuple):
    """How far an age reaches: all rows before `start` are known to be older, all before `at` not to be younger.

    Between the two are the rows of damaged segments and those that are later than the present. Both are as old as the
    next row whose age is known.
    """

    start: int
    at: int


class Retention:
    """Keeps a log within its rules' ages and `max_bytes`. `wall()` is the time of day, in seconds since 1970.

    Segments that a consumer has yet to read stay for at most `consumer_grace_s` seconds more, as long as the log is
    below 1.5 times `max_bytes` and the disk has room. `held_bytes` is the size of those segments.

    Ages are counted by a separate clock, which starts at the time of day and continues with the monotonic clock, so
    setting the clock forward ages nothing. While the time of day is behind it, the time of day counts. So a wrong clock
    keeps events longer, never shorter; so does time in which the machine sleeps. An event that is later than the
    present was recorded while the clock was ahead: it is hidden with the event behind it, and keeps no other.
    """

    def __init__(
        self,
        folder: Folder,
        rules: Rules,
        pool: SegmentPool,
        consumers: Consumers,
        options: Options,
        wall: Callable[[], float],
    ) -> None:
        self.held_bytes = 0
        self._folder = folder
        self._rules = rules
        self._pool = pool
        self._consumers = consumers
        self._options = options
        self._wall = wall
        self._began: tuple[float, float] | None = None
        self._latest_s = 0.0
        self._first = 0  # the first offset that is not deleted, once anything was; else 0
        self._reaches: dict[float, _ScanPosition] = {}  # by age
        self._lapsed_since: dict[int, float] = {}  # by a segment's first offset: a purge replaces the object
        self._superfluous_since: dict[int, float] = {}  # by a segment's first offset, too

    def step(self, now: float, head: int) -> bool:
        """Hide and delete what is due; True if there is more to do. Blocks. One thread calls it.

        `now` is monotonic, in seconds; `head` is the log's last offset. Raises `OSError`, `sqlite3.Error`; the next
        step tries again.
        """
        time_s = self._time_of_day(now)
        is_done = self.hide(time_s, head)
        self._delete(self._over(now, self._consumers.unread_from(now, time_s)))
        self._pool.prune()
        return not is_done

    def hide(self, time_s: float, head: int) -> bool:
        """Move the rules' starts to where they belong at `time_s` (seconds since 1970); True when all are there.

        Takes about a second at most. Raises `sqlite3.Error`.
        """
        self._latest_s = time_s
        present_us = int(max(time_s, self._wall()) * 1_000_000)
        until = monotonic() + _MOST_S
        is_done = True
        for age_s in {rule.age_s for rule in self._rules.recording}:
            span_us = int((time_s - age_s) * 1_000_000), present_us
            reach = self._reaches.get(age_s, _ScanPosition(1, 1))
            try:
                while (further := self._advance(reach, span_us, head)) != reach and monotonic() < until:
                    reach = further
                is_done = is_done and further == reach
            except (SegmentGone, Corrupt):
                is_done = False  # the next step looks at the segments of then
            self._reaches[age_s] = reach
        for rule in self._rules.recording:
            rule.start = self._reaches[rule.age_s].start
        return is_done

    def _advance(self, reach: _ScanPosition, span_us: tuple[int, int], head: int) -> _ScanPosition:
        """A reach further along the log; the same one if the next row is young, or there is none.

        Young are rows of the times `span_us`, which is from the age's cutoff to the present.
        """
        segments, at = self._folder.segments, reach.at
        if not segments or at > head:
            return reach
        if at < (first := segments[0].first):
            return _ScanPosition(max(reach.start, begin_of(first, self._folder.identity.holes)), first)
        with self._pool.part(OffsetRange(at, head, is_reverse=False)) as (reader, part):
            if reader is None:
                return reach._replace(at=part.high + 1)  # a damaged segment is as old as what follows it
            is_newest = self._folder.segments[-1].first == reader.segment.first
            return _within(reader, reach, part.high, span_us, is_newest=is_newest)

    def _time_of_day(self, now: float) -> float:
        wall_s = self._wall()
        if self._began is None:
            self._began = now, wall_s
        began, began_wall_s = self._began
        time_s = min(wall_s, began_wall_s + now - began)
        if time_s < self._latest_s and now < began + GRACE_S:  # the clock was wrong when the server started
            self._reaches.clear()
            self._lapsed_since.clear()
        return time_s

    def _over(self, now: float, unread_from: int) -> list[Segment]:
        """The oldest segments that may be deleted now; also updates `held_bytes`.

        `unread_from` is the first offset that a consumer has yet to read.
        """
        segments, max_bytes = self._folder.segments, self._options.max_bytes
        spare = max((each.disk_bytes for each in segments), default=0)  # what may be written before the next step
        start = min((rule.start for rule in self._rules.recording), default=NEVER)
        lapsed = [each for each in segments if each.last is not None and each.last < start]  # all events are hidden
        superfluous = _superfluous(segments, max_bytes)
        released = _superfluous(segments, max(max_bytes, max_bytes * 3 // 2 - spare))
        self._lapsed_since = _since(self._lapsed_since, lapsed, now)
        self._superfluous_since = _since(self._superfluous_since, superfluous, now)
        if self._folder.free_bytes < self._options.free_bytes + 2 * spare:  # soon publishes would be refused
            unread_from = NEVER
        over = held_bytes = 0
        for at, segment in enumerate(segments[: max(len(lapsed), len(superfluous))]):
            grace_s = self._options.consumer_grace_s if (segment.last or 0) >= unread_from else 0.0
            if over == at and (at < len(released) or self._is_over(segment, now, grace_s)):
                over += 1
            elif self._is_over(segment, now, 0):
                held_bytes += segment.disk_bytes
        self.held_bytes = held_bytes
        return list(segments[:over])

    def _is_over(self, segment: Segment, now: float, grace_s: float) -> bool:
        """Whether a segment is to be deleted, by its age or by the log's size, if it stays `grace_s` seconds longer."""
        lapsed_since = self._lapsed_since.get(segment.first, inf)
        superfluous_since = self._superfluous_since.get(segment.first, inf)
        return now >= lapsed_since + max(GRACE_S, grace_s) or now >= superfluous_since + grace_s

    def _delete(self, segments: list[Segment]) -> None:
        if segments:
            before, self._first = self._first or segments[0].first, (segments[-1].last or 0) + 1
            self._consumers.overtaken(before, self._first)
            self._folder.remove(segments)  # afterwards none is listed, even if a file could not be deleted


def _within(
    reader: SegmentReader, reach: _ScanPosition, last: int, span_us: tuple[int, int], *, is_newest: bool
) -> _ScanPosition:
    """A reach further along one segment, of which `last` is the last offset; see `Retention._advance`."""
    at = reach.at
    first_us, last_us = reader.time_at(at), reader.time_at(last)
    if first_us is not None and span_us[0] <= first_us <= span_us[1]:
        return reach
    if is_newest and first_us is not None and last_us is not None and min(first_us, last_us) > span_us[1]:
        return reach  # nothing has been recorded since the clock was ahead
    young, _ = reader.within_time(at, last, *span_us)  # `last + 1` where no row is young
    first_old, last_old = reader.within_time(at, young - 1, None, span_us[0] - 1)
    start = last_old + 1 if first_old <= last_old else reach.start
    if is_newest and young > last:
        return _ScanPosition(
            start, max(start, at)
        )  # rows later than the present may be left, and wait for what follows them
    return _ScanPosition(start, young)


def _superfluous(segments: tuple[Segment, ...], max_bytes: int) -> list[Segment]:
    """The oldest segments by which the log exceeds `max_bytes`."""
    sizes = {each: each.disk_bytes for each in segments}
    excess = sum(sizes.values()) - max_bytes
    superfluous = []
    for segment, nbytes in sizes.items():
        if excess <= 0 or segment.last is None:  # the newest is being written
            break
        superfluous.append(segment)
        excess -= nbytes
    return superfluous


def _since(before: dict[int, float], segments: list[Segment], now: float) -> dict[int, float]:
    """Since when each of `segments` is in such a list, by its first offset."""
    return {each.first: before.get(each.first, now) for each in segments}
