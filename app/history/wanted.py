"""The filters of a query for single events: from which offset a topic is wanted, and whether the audience admits.

The kinds of patterns are defined in `app/broker/topics.py` alone (`matcher`, `span`).
"""

from __future__ import annotations

from functools import lru_cache

from app.broker.log import Query
from app.broker.topics import Match, Pattern, matcher
from app.history.rules import NEVER, Rules
from app.history.stored import Stored, audience_of

_audience_of = lru_cache(1_000)(audience_of)


class Wanted:
    """The filters of one query that look at a single event.

    `wide` are its patterns other than exact ones, each with the offset after which its events are wanted.
    """

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
        self._floors: dict[str, int] = {}  # by topic seen; bounded by the rows that a call reads

    @property
    def exact(self) -> list[str]:
        """The topics that are wanted by name."""
        return list(self._after)

    def floor(self, topic: str) -> int:
        """The first offset at which a topic's event is wanted and still visible; `NEVER` if there is none."""
        floor = self._floors.get(topic)
        if floor is None:
            floor = self._floors[topic] = self._find_floor(topic)
        return floor

    def _find_floor(self, topic: str) -> int:
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

    def has(self, row: Stored) -> bool:
        """Whether an intact row matches the query."""
        query = self._query
        return (
            not row.is_purged
            and self.floor(row.topic) <= row.offset <= query.last
            and (query.from_time_us is None or query.from_time_us <= row.time_us)
            and (query.until_time_us is None or row.time_us <= query.until_time_us)
            and self.admits(row.audience)
        )
