"""What is too old is hidden at once, and deleted when all of its segment is; what is too much is deleted, oldest first.

Hiding is a number: each rule's `start`, moved along the log as time passes. It never deletes a single row, and never
the segment that is being written. Positions that are gone are told by whoever reads.
"""

from __future__ import annotations

from bisect import bisect_right
from time import monotonic
from typing import TYPE_CHECKING

from app.history.connections import Gone
from app.history.opened import Unsound
from app.history.ranges import MOST_STEPS
from app.history.segment import nbytes_with_wal

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.history.connections import Connections
    from app.history.folder import Folder, Segment
    from app.history.rules import Rules

GRACE_S = 600.0
"""What has lapsed stays on disk so long, in which a clock that was wrong when the server started can be set right."""

_MOST_S = 1.0
_SALVAGED = 1_000


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
        self._starts: dict[float, int] = {}  # by age
        self._lapsed_since: dict[Segment, float] = {}

    def step(self, now: float, head: int) -> bool:
        """Hide and delete what it is time for; `now` is monotonic. True if there is more to do at once.

        One thread calls it. Raises `OSError`, `sqlite3.Error`; the next step tries again.
        """
        is_done = self._hide(self._time_of_day(now), head)
        self._delete(self._lapsed(now) or self._superfluous())
        self._connections.prune()
        return not is_done

    def _time_of_day(self, now: float) -> float:
        wall_s = self._wall()
        if self._began is None:
            self._began = now, wall_s
        began, began_wall_s = self._began
        time_s = min(wall_s, began_wall_s + now - began)
        if time_s < self._latest_s and now < began + GRACE_S:  # it was wrong when the server started
            self._starts.clear()
            self._lapsed_since.clear()
        self._latest_s = time_s
        return time_s

    def _hide(self, time_s: float, head: int) -> bool:
        until = monotonic() + _MOST_S
        is_done = True
        for age_s in {rule.age_s for rule in self._rules.kept}:
            cutoff_us = int((time_s - age_s) * 1_000_000)
            start = self._starts.get(age_s, 1)
            try:
                while (further := self._advance(start, cutoff_us, head)) != start and monotonic() < until:
                    start = further
            except (Gone, Unsound):
                further = start + 1  # the next step looks at what is there then
            is_done = is_done and further == start
            self._starts[age_s] = start
        for rule in self._rules.kept:
            rule.start = self._starts[rule.age_s]
        return is_done

    def _advance(self, start: int, cutoff_us: int, head: int) -> int:
        """The first offset from `start` on that is younger, or one on the way to it; `start` if that is it."""
        segments = self._folder.segments
        if not segments or start < segments[0].first:
            return segments[0].first if segments else start
        index = bisect_right(segments, start, key=lambda segment: segment.first) - 1
        segment, following = segments[index], segments[index + 1 : index + 2]
        last = following[0].first - 1 if following else head
        if start > last:
            return start
        last_row = last if segment.last is None else min(last, segment.last)
        if start > last_row:
            return last + 1
        is_trusted = self._connections.trusts(segment)
        with self._connections.open(segment) as opened:
            steps = opened.steps(MOST_STEPS + 1) if is_trusted else []
            if not is_trusted or len(steps) > MOST_STEPS:
                last_row = min(last_row, start + _SALVAGED - 1)
                rows = opened.sound_rows(start, last_row)
                return next((row.offset for row in rows if row.time_us >= cutoff_us), last_row + 1)
            run_last = min([step - 1 for step in steps if step > start], default=last_row)
            return opened.first_since(start, min(run_last, last_row), cutoff_us)

    def _lapsed(self, now: float) -> list[Segment]:
        """The segments in which nothing can be seen, and could not for the grace."""
        start = min(rule.start for rule in self._rules.kept)
        lapsed = [each for each in self._folder.segments if each.last is not None and each.last < start]
        self._lapsed_since = {each: self._lapsed_since.get(each, now) for each in lapsed}
        return [each for each in lapsed if now >= self._lapsed_since[each] + GRACE_S]

    def _superfluous(self) -> list[Segment]:
        """The oldest segments, as many as are too much."""
        sizes = {each: each.nbytes or nbytes_with_wal(each.path) for each in self._folder.segments}
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
