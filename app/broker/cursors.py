"""How far a session that replays has come in the log.

Such a session is a cursor, not a queue: below the committed head it reads pages of the history as its client polls.
When what it has read reaches the head it is live, and hears recorded events as they are committed; when its outbox
overflows it goes back to reading. Both happen in one step of the event loop, so nothing falls between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.broker.topics import Pattern


class Cursor:
    """Which patterns a session hears, and up to which offset it has been given all that they match.

    `since` is how many publications there had been when it began: what was delivered before comes no second time.
    """

    __slots__ = ("_after", "is_live", "since")

    def __init__(self, since: int) -> None:
        self.since = since
        self.is_live = True
        self._after: dict[Pattern, int] = {}

    def seek(self, pattern: Pattern, after: int, head: int) -> None:
        """Hear `pattern` from the event after that offset on; `head` is the log's last."""
        if after < head:
            self.fall_back(head)
        self._after[pattern] = after

    def drop(self, pattern: Pattern) -> None:
        """Hear it no longer."""
        self._after.pop(pattern, None)

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

    def wanted(self) -> tuple[tuple[Pattern, int], ...]:
        """Each pattern with the offset after which its events are still to come, if the session is not live."""
        return tuple(self._after.items())
