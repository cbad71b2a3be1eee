"""What is too old is hidden at once, and deleted when all of its segment is; what is too much is deleted, oldest first.

Hiding is a number: each rule's `start`, moved along the log as time passes. It never deletes a single row, and never
the segment that is being written. Positions that are gone are told by whoever reads.
"""

from __future__ import annotations

from bisect import bisect_right
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from app.history.connections import Gone
from app.history.opened import Unsound
from app.history.ranges import MOST_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.history.connections import Connections
    from app.history.folder import Folder, Segment
    from app.history.opened import Opened
    from app.history.rules import Rules

GRACE_S = 600.0
"""What has lapsed stays on disk so long, in which a clock that was wrong when the server started can be set right."""

_MOST_S = 1.0
_SALVAGED = 1_000


class _Reach(NamedTuple):
    """How far an age reaches: all before `start` is known to be older, all before `at` not to be younger."""

    start: int
    at: int


class Retention:
    """Keeps a log within its rules' ages and `max_bytes`. `wall()`: the time of day, seconds since 1970.

    Its own clock begins with the time of day and goes on with the monotonic one, so setting the clock forward ages
    nothing; while the time of day is behind that, it counts. So a wrong clock keeps events for longer, never shorter;
    time that the machine sleeps does too.
    """

    def __init__(
        self, folder: Folder, rules: Rules, connections: Connections, max_bytes: int, wall: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._rules = rules
        self._connections = connections
        self._max_bytes = max_bytes
        self._wall = wall
        self._began: tuple[float, float] | None = None
        self._latest_s = 0.0
        self._reaches: dict[float, _Reach] = {}  # by age
        self._lapsed_since: dict[Segment, float] = {}

    def step(self, now: float, head: int) -> bool:
        """Hide and delete what it is time for; `now` is monotonic. True if there is more to do at once.

        One thread calls it. Raises `OSError`, `sqlite3.Error`; the next step tries again.
        """
        is_done = self.hide(self._time_of_day(now), head)
        self._delete(self._lapsed(now) or self._superfluous())
        self._connections.prune()
        return not is_done

    def hide(self, time_s: float, head: int) -> bool:
        """Move the rules' starts for that time of day, seconds since 1970; True when they are where they belong.

        Bounded: a second at most. Raises `sqlite3.Error`.
        """
        self._latest_s = time_s
        until = monotonic() + _MOST_S
        is_done = True
        for age_s in {rule.age_s for rule in self._rules.kept}:
            cutoff_us = int((time_s - age_s) * 1_000_000)
            reach = self._reaches.get(age_s, _Reach(1, 1))
            try:
                while (further := self._advance(reach, cutoff_us, head)) != reach and monotonic() < until:
                    reach = further
                is_done = is_done and further == reach
            except (Gone, Unsound):
                is_done = False  # the next step looks at what is there then
            self._reaches[age_s] = reach
        for rule in self._rules.kept:
            rule.start = self._reaches[rule.age_s].start
        return is_done

    def _advance(self, reach: _Reach, cutoff_us: int, head: int) -> _Reach:
        """A reach further along the log; the same if what comes next is younger, or nothing does."""
        segments, at = self._folder.segments, reach.at
        if not segments:
            return reach
        if at < segments[0].first:
            return _Reach(segments[0].first, segments[0].first)
        index = bisect_right(segments, at, key=lambda segment: segment.first) - 1
        segment, following = segments[index], segments[index + 1 : index + 2]
        last = following[0].first - 1 if following else head
        if at > last:
            return reach
        last_row = last if segment.last is None else min(last, segment.last)
        if at > last_row:
            return reach._replace(at=last + 1)
        is_trusted = self._connections.trusts(segment)
        with self._connections.open(segment) as opened:
            steps = opened.steps(MOST_STEPS + 1) if is_trusted else []
            if not is_trusted or len(steps) > MOST_STEPS:
                return _salvage(opened, reach, min(last_row, at + _SALVAGED - 1), cutoff_us)
            run_last = min([step - 1 for step in steps if step > at], default=last_row)
            further = opened.first_since(at, min(run_last, last_row), cutoff_us)
            return _Reach(further, further) if further > at else reach

    def _time_of_day(self, now: float) -> float:
        wall_s = self._wall()
        if self._began is None:
            self._began = now, wall_s
        began, began_wall_s = self._began
        time_s = min(wall_s, began_wall_s + now - began)
        if time_s < self._latest_s and now < began + GRACE_S:  # it was wrong when the server started
            self._reaches.clear()
            self._lapsed_since.clear()
        return time_s

    def _lapsed(self, now: float) -> list[Segment]:
        """The segments in which nothing can be seen, and could not for the grace."""
        start = min(rule.start for rule in self._rules.kept)
        lapsed = [each for each in self._folder.segments if each.last is not None and each.last < start]
        self._lapsed_since = {each: self._lapsed_since.get(each, now) for each in lapsed}
        return [each for each in lapsed if now >= self._lapsed_since[each] + GRACE_S]

    def _superfluous(self) -> list[Segment]:
        """The oldest segments, as many as are too much."""
        sizes = {each: each.disk_bytes for each in self._folder.segments}
        excess = sum(sizes.values()) - self._max_bytes
        superfluous = []
        for segment, nbytes in sizes.items():
            if excess <= 0 or segment.last is None:  # the newest is being written
                break
            superfluous.append(segment)
            excess -= nbytes
        return superfluous

    def _delete(self, segments: list[Segment]) -> None:
        if segments:
            self._folder.remove(segments)


def _salvage(opened: Opened, reach: _Reach, last: int, cutoff_us: int) -> _Reach:
    """A reach further along a segment that is read row by row; what cannot be read is of any age."""
    start = reach.start
    for row in opened.sound_rows(reach.at, last):
        if row.time_us >= cutoff_us:
            return _Reach(start, row.offset)
        start = row.offset + 1
    return _Reach(start, last + 1)
