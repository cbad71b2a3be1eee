"""Idempotency keys: a publisher that got no reply can repeat its publish, and the event is published once.

A key belongs to an authid, so one client cannot use up another's keys; all anonymous clients share theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from app.broker.errors import KeyReused
from app.broker.events import Event


class Published(NamedTuple):
    """What is remembered of a published event; `position` is 0 if it was not recorded, or is not recorded yet."""

    topic: str
    position: int
    publication: int


class Keys:
    """The keys used recently: at most `most`, each for `age_s` seconds.

    Times are those of the monotonic clock: a wall clock can be set, and keys would be forgotten too early. A key of an
    earlier run has a time before the start of this one.
    """

    def __init__(self, most: int, age_s: float) -> None:
        self._most = most
        self._age_s = age_s
        self._known: dict[tuple[str | None, str], tuple[float, Event | Published]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, authid: str | None, key: str, topic: str, now: float) -> Event | Published | None:
        """What was published with that key, an `Event` while it is pending; None if the key is unknown or expired.

        Raises `KeyReused` if the key belongs to another topic.
        """
        if not self.has(authid, key, now):
            return None
        found = self._known[authid, key]
        if found[1].topic != topic:
            raise KeyReused
        return found[1]

    def has(self, authid: str | None, key: str, now: float) -> bool:
        """Whether an event was published with that key, or is pending."""
        found = self._known.get((authid, key))
        return found is not None and now - found[0] <= self._age_s

    def remember(self, authid: str | None, key: str, what: Event | Published, now: float) -> None:
        """Store a key that is used now, or whose event is settled; the oldest are dropped when there are too many."""
        self._known.pop((authid, key), None)  # so that the dictionary is in the order of use
        self._known[authid, key] = (now, what)
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def forget(self, authid: str | None, key: str) -> None:
        """Remove a key whose event was refused: a repeat is a new attempt."""
        self._known.pop((authid, key), None)

    def sweep(self, now: float) -> None:
        """Remove the keys that are expired."""
        while self._known:
            name = next(iter(self._known))
            if now - self._known[name][0] <= self._age_s:
                return
            del self._known[name]
