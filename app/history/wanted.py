"""What a query asks for, topic by topic: from which offset on, if at all, and whether its rights reach.

Whatever kinds of patterns there are, they are known to `app/broker/topics.py` alone (`matcher`, `span`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from app.broker.topics import Match, matcher
from app.history.rules import NEVER
from app.history.stored import audience_of

if TYPE_CHECKING:
    from app.broker.log import Query
    from app.broker.topics import Pattern
    from app.history.rules import Rules
    from app.history.stored import Stored

_audience_of = lru_cache(1_000)(audience_of)


class Wanted:
    """The filters of one query that look at a single event."""

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
        self._floors: dict[str, int] = {}  # of the topics met, at most as many as a call reads rows

    @property
    def exact(self) -> list[str]:
        """The topics that are wanted by name."""
        return list(self._after)

    def floor(self, topic: str) -> int:
        """The first offset at which an event of that topic is wanted and can still be seen; `NEVER`: at none."""
        floor = self._floors.get(topic)
        if floor is None:
            floor = self._floors[topic] = self._find_floor(topic)
        return floor

    def _find_floor(self, topic: str) -> int:
        if not topic:  # what was purged has none
            return NEVER
        afters = [after for matches, after in self._matchers if matches(topic)]
        if topic in self._after:
            afters.append(self._after[topic])
        if not afters:
            return NEVER
        return max(min(afters) + 1, self._query.first, self._rules.of(topic).start)

    def admits(self, audience: str | None) -> bool:
        """Whether who asks is among that audience."""
        found = _audience_of(audience)
        return found is None or found.admits(self._query.authid, self._query.role)

    def has(self, row: Stored) -> bool:
        """Whether a sound row is one that was asked for."""
        query = self._query
        return (
            not row.is_purged
            and self.floor(row.topic) <= row.offset <= query.last
            and (query.from_time_us is None or query.from_time_us <= row.time_us)
            and (query.until_time_us is None or row.time_us <= query.until_time_us)
            and self.admits(row.audience)
        )
