"""The position in the log that a replaying session has reached.

Such a session has a cursor instead of a queue: below the committed head it reads pages of the history as its client
polls. When it has read up to the head it is live, and receives recorded events as they are committed; when its outbox
overflows it reads pages again. Each change happens in one step of the event loop, so no event is missed between.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from app.broker.events import Event
from app.broker.topics import Pattern, patterns_heard


class Cursor:
    """The patterns that a session replays, each with the offset up to which it has been given all matching events.

    `given` are the publications that the session received before it began to replay and that the log had not committed
    by then: they are not delivered a second time.
    """

    __slots__ = ("_after", "_sought", "given", "is_live")

    def __init__(self, given: frozenset[int] = frozenset()) -> None:
        self.given = given
        self.is_live = True
        self._after: dict[Pattern, int] = {}
        self._sought: dict[Pattern, int] = {}  # where each began: earlier events are not owed to the session

    def __contains__(self, pattern: object) -> bool:
        return pattern in self._after

    def seek(self, pattern: Pattern, after: int, head: int) -> None:
        """Replay `pattern` from the event after offset `after` on; `head` is the log's last offset."""
        if after < head:
            self.fall_back(head)
        self._after[pattern] = self._sought[pattern] = after

    def drop(self, pattern: Pattern) -> None:
        """Stop replaying `pattern`."""
        self._after.pop(pattern, None)
        self._sought.pop(pattern, None)

    def skip(self, pattern: Pattern, reached: int) -> None:
        """Note that no event of `pattern` up to offset `reached` can be given any more."""
        self._after[pattern] = max(self._after[pattern], reached)

    def fall_back(self, reached: int) -> None:
        """Go back to reading the history; if the session was live, it has been given everything up to `reached`."""
        if self.is_live:
            self.is_live = False
            self.advance(reached)

    def advance(self, reached: int) -> None:
        """Note that everything up to offset `reached` has been given."""
        for pattern, after in self._after.items():
            if after < reached:
                self._after[pattern] = reached

    def take_back(self, event: Event) -> bool:
        """Have a waiting event read again from the history; False, and nothing changed, if that would not find it."""
        if not self.owes(event):
            return False
        for pattern in self._owing(event):
            self._after[pattern] = min(self._after[pattern], event.position - 1)
        return True

    def owes(self, event: Event) -> bool:
        """Whether a waiting event would be found by reading the history again."""
        return event.publication not in self.given and bool(self._owing(event))

    def wanted(self) -> tuple[tuple[Pattern, int], ...]:
        """Each pattern with the offset after which its events are still to be read, if the session is not live."""
        return tuple(self._after.items())

    def after(self, topic: str) -> float:
        """The offset above which events of a topic are still to be given; infinity if no pattern matches the topic."""
        return min((self._after.get(pattern, inf) for pattern in patterns_heard(topic)), default=inf)

    def reached(self, head: int, missing: Iterable[Event]) -> dict[Pattern, int]:
        """The offset of each pattern up to which a client has everything.

        `head` is the log's last offset. `missing` are events that were counted as given but have not arrived.
        """
        reached = {pattern: head if self.is_live else after for pattern, after in self._after.items()}
        for event in missing:
            for pattern in self._owing(event):
                reached[pattern] = min(reached[pattern], event.position - 1)
        return reached

    def _owing(self, event: Event) -> list[Pattern]:
        """The patterns for which an event was given; none if the event is not on disk."""
        heard = patterns_heard(event.topic)
        return [pattern for pattern in heard if event.position > self._sought.get(pattern, inf)]
