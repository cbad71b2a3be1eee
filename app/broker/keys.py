"""Idempotency keys: a publisher that got no answer repeats its publish, and nothing happens twice.

A key belongs to an identity, so nobody can use up another's; all without one share theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from app.broker.errors import KeyReused

if TYPE_CHECKING:
    from app.broker.events import Event


class Published(NamedTuple):
    """What is known of an event after it has gone; `position` is 0 where it was not recorded, or is not yet."""

    topic: str
    position: int
    publication: int


class Keys:
    """The keys used lately: at most `most`, each for `age_s`.

    Times are seconds of the wall clock, since some keys come from a log that another run has written.
    """

    def __init__(self, most: int, age_s: float) -> None:
        self._most = most
        self._age_s = age_s
        self._known: dict[tuple[str | None, str], tuple[float, Event | Published]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, authid: str | None, key: str, topic: str, wall_s: float) -> Event | Published | None:
        """What was published with that key: an `Event` while it is pending. Raises `KeyReused`."""
        if not self.has(authid, key, wall_s):
            return None
        found = self._known[authid, key]
        if found[1].topic != topic:
            raise KeyReused
        return found[1]

    def has(self, authid: str | None, key: str, wall_s: float) -> bool:
        """Whether something was published with that key, or is about to be."""
        found = self._known.get((authid, key))
        return found is not None and abs(wall_s - found[0]) <= self._age_s

    def remember(self, authid: str | None, key: str, what: Event | Published, wall_s: float) -> None:
        """It has been used now, or its event is through; the oldest go when there are too many."""
        self._known.pop((authid, key), None)  # the order is that of use
        self._known[authid, key] = (wall_s, what)
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def forget(self, authid: str | None, key: str) -> None:
        """Its event was refused: a repeat is a new attempt."""
        self._known.pop((authid, key), None)

    def sweep(self, wall_s: float) -> None:
        """Let go of the old ones."""
        while self._known:
            name = next(iter(self._known))
            if abs(wall_s - self._known[name][0]) <= self._age_s:
                return
            del self._known[name]
