"""Which rows of the log are wanted, for programs that read all of it: by topic, protocol and time.

In contrast to a client's query (`query.py`) it finds events for any audience and of any age, and erased ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from halley.broker.names import Match, Pattern, matches
from halley.history.rules import NEVER
from halley.history.stored import Stored

_PROTOCOL = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Conditions on a row, all of which must be true; None: no condition.

    pattern                      matches the topic; an erased event has none, so no pattern finds it
    protocol                     the publisher's
    from_time_us, until_time_us  bounds of the time, both included, in microseconds since 1970
    """

    pattern: Pattern | None = None
    protocol: str | None = None
    from_time_us: int | None = None
    until_time_us: int | None = None

    def matches(self, row: Stored) -> bool:
        """Whether a row meets all conditions."""
        return (
            (self.pattern is None or matches(self.pattern, row.topic))
            and (self.protocol is None or row.protocol == self.protocol)
            and (self.from_time_us is None or self.from_time_us <= row.time_us)
            and (self.until_time_us is None or row.time_us <= self.until_time_us)
        )

    # What `query.SegmentScan` needs

    @property
    def times_us(self) -> tuple[int | None, int | None]:
        """The bounds of the events' time, both included."""
        return self.from_time_us, self.until_time_us

    @property
    def has_patterns(self) -> bool:
        """Whether only some topics are wanted."""
        return self.pattern is not None

    @property
    def exact(self) -> list[str]:
        """The topic that is wanted by name, if there is one."""
        return [self.pattern.topic] if self.pattern is not None and self.pattern.match is Match.EXACT else []

    @property
    def wide(self) -> list[tuple[Pattern, int]]:
        """The pattern, if it is not an exact one, with the offset after which its events are wanted."""
        return [] if self.pattern is None or self.exact else [(self.pattern, 0)]

    def first_visible(self, topic: str) -> int:
        """The first offset at which a topic's event is wanted; `NEVER` if there is none."""
        return 1 if self.pattern is None or matches(self.pattern, topic) else NEVER

    def admits(self, audience: str | None) -> bool:  # noqa: ARG002 - as a client's query
        """Whether events for an audience are wanted: always."""
        return True


EVERY_ROW = RowFilter()
"""The filter that every row matches."""


def is_protocol(text: str) -> bool:
    """Whether a text can be the name of a publisher's protocol."""
    return _PROTOCOL.fullmatch(text) is not None
