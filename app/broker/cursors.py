"""How far a session that replays has come in the log.

Such a session is a cursor, not a queue: below the committed head it reads pages of the history as its client polls.
When what it has read reaches the head it is live, and hears recorded events as they are committed; when its outbox
overflows it goes back to reading. Both happen in one step of the event loop, so nothing falls between the two.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from app.broker.topics import patterns_heard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.broker.events import Event
    from app.broker.topics import Pattern


class Cursor:
    """Which patterns a session hears, and up to which offset it has been given all that they match.

    `given` are the publications that the session was given before it began to replay and that the log had not committed
    by then: they come no second time.
    """

    __slots__ = ("_after", "_sought", "given", "is_live")

    def __init__(self, given: frozenset[int] = frozenset()) -> None:
        self.given = given
        self.is_live = True
        self._after: dict[Pattern, int] = {}
        self._sought: dict[Pattern, int] = {}  # where each began: what is before is nobody's debt

    def __contains__(self, pattern: object) -> bool:
        return pattern in self._after

    def seek(self, pattern: Pattern, after: int, head: int) -> None:
        """Hear `pattern` from the event after that offset on; `head` is the log's last."""
        if after < head:
            self.fall_back(head)
        self._after[pattern] = self._sought[pattern] = after

    def drop(self, pattern: Pattern) -> None:
        """Hear it no longer."""
        self._after.pop(pattern, None)
        self._sought.pop(pattern, None)

    def skip(self, pattern: Pattern, reached: int) -> None:
        """Of one pattern, nothing up to that offset can be given any more."""
        self._after[pattern] = max(self._after[pattern], reached)

    def fall_back(self, reached: int) -> None:
        """Go back to reading; everything up to `reached` has been given, if the session was live."""
        if self.is_live:
            self.is_live = False
            self.advance(reached)

    def advance(self, reached: int) -> None:
        """Everything up to that offset has been given."""
        for pattern, after in self._after.items():
            if after < reached:
                self._after[pattern] = reached

    def take_back(self, event: Event) -> bool:
        """An event that waits is to be read again; False, and nothing done, if that would not find it."""
        if not self.owes(event):
            return False
        for pattern in self._owing(event):
            self._after[pattern] = min(self._after[pattern], event.position - 1)
        return True

    def owes(self, event: Event) -> bool:
        """Whether an event that waits would be found by reading again."""
        return event.publication not in self.given and bool(self._owing(event))

    def wanted(self) -> tuple[tuple[Pattern, int], ...]:
        """Each pattern with the offset after which its events are still to come, if the session is not live."""
        return tuple(self._after.items())

    def after(self, topic: str) -> float:
        """Above which offset events of a topic are still to come; infinity where the session does not hear it."""
        return min((self._after.get(pattern, inf) for pattern in patterns_heard(topic)), default=inf)

    def reached(self, head: int, missing: Iterable[Event]) -> dict[Pattern, int]:
        """Up to which offset a client has all of each pattern, if `missing` are the events that it was given on paper.

        `head` is the log's last.
        """
        reached = {pattern: head if self.is_live else after for pattern, after in self._after.items()}
        for event in missing:
            for pattern in self._owing(event):
                reached[pattern] = min(reached[pattern], event.position - 1)
        return reached

    def _owing(self, event: Event) -> list[Pattern]:
        """For which patterns an event was given; none where it is on no disk."""
        heard = patterns_heard(event.topic)
        return [pattern for pattern in heard if event.position > self._sought.get(pattern, inf)]
