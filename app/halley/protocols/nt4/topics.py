"""Topics, which exist while they have publishers or another reason to be kept (NA29 to NA43).

A topic knows its publishers and its last value, but not its subscribers: those are in the streams of `pacing.py`, and
each client's session has the topics that were announced to it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from halley.broker.sessions import Session
from halley.protocols.nt4 import messages
from halley.protocols.nt4.messages import Subscribe
from halley.protocols.nt4.names import is_reserved
from halley.protocols.nt4.types import number_of

_AHEAD_US = 1_000_000
"""The most that a value's time may count as ahead of now, so that one wrong clock cannot block a topic (G7)."""


class Topic:
    """One topic; `id` is its number on the wire, the same for all clients and never reused (NA36).

    shared       its canonical topic among all protocols, None if its name is NetworkTables' own
    acl_name     its topic in access rules
    publishers   the sessions that publish it, of any protocol
    frame        the last value, encoded, or None if there is none; `time_us`, `value`, `origin` and `authid` belong
                 to it: `origin` is the session that published it, `authid` that of its publisher, also when the session
                 has ended
    """

    __slots__ = (
        "acl_name",
        "announcement",
        "authid",
        "frame",
        "id",
        "is_cached",
        "is_persistent",
        "is_visited",
        "last_us",
        "name",
        "number",
        "origin",
        "properties",
        "publishers",
        "recorded_at",
        "shared",
        "time_us",
        "type",
        "value",
    )

    def __init__(
        self, name: str, topic_id: int, type_name: str, properties: dict[str, Any], shared: str | None, acl_name: str
    ) -> None:
        self.name = name
        self.id = topic_id
        self.type = type_name
        self.number = number_of(type_name)
        self.shared = shared
        self.acl_name = acl_name
        self.publishers: dict[Publisher, None] = {}
        self.frame: bytes | None = None
        self.value: Any = None
        self.time_us = 0
        self.last_us = 0  # the time that the next value's time is compared with
        self.origin: object = None
        self.authid: str | None = None
        self.recorded_at = -inf  # when the history got a value of it
        self.is_visited = False  # published by a request without a session, which keeps it for a while
        self.properties: dict[str, Any] = {}
        self.is_cached = True
        self.is_persistent = False  # whether the topic outlives its publishers and the server's run
        self.announcement = b""
        self.set_properties(properties)

    @property
    def is_in_use(self) -> bool:
        """Whether the topic has a reason to exist (NA34)."""
        is_kept = self.is_persistent or self.properties.get("retained") is True
        return bool(self.publishers) or is_kept or self.is_visited

    def set_properties(self, update: dict[str, Any]) -> None:
        """Change properties; None deletes one (NA45)."""
        self.properties |= update
        self.properties = {name: value for name, value in self.properties.items() if value is not None}
        self.is_cached = self.properties.get("cached") is not False
        self.is_persistent = self.properties.get("persistent") is True
        self.announcement = messages.announce(self.name, self.id, self.type, self.properties, None)

    def replaces_last(self, time_us: int, origin: object) -> bool:
        """Return whether a value replaces the last one (NA39 to NA41).

        A value does so if it is not older, or has the same publisher. A default value, of time 0, is replaced by any
        value, and replaces only a default or nothing.
        """
        if self.frame is None or self.last_us == 0:
            return True
        return time_us != 0 and (time_us >= self.last_us or origin is self.origin)

    def set_last(
        self, time_us: int, value: object, frame: bytes, origin: object, authid: str | None, now_us: int
    ) -> None:
        """Make a value the last one; `now_us` bounds the time that later values are compared with."""
        self.time_us, self.value, self.frame, self.origin, self.authid = time_us, value, frame, origin, authid
        self.last_us = time_us
        if time_us > now_us + _AHEAD_US:
            self.last_us = now_us + _AHEAD_US

    def drop_last(self) -> None:
        """Drop the last value with its time and publisher; the next one is accepted with any time."""
        self.frame = self.value = self.origin = self.authid = None
        self.time_us = self.last_us = 0


class Publisher:
    """A publisher of a topic, which may set the topic's values and keeps the topic in existence.

    `owner` is a client's session, or a session of another protocol. `number` is the wire number of the declared type,
    or -1 if the topic has another type: then all its values are ignored (NA32).
    """

    __slots__ = ("number", "owner", "pubuid", "topic")

    def __init__(self, topic: Topic, owner: Session, pubuid: int, type_name: str) -> None:
        self.topic = topic
        self.owner = owner
        self.pubuid = pubuid
        self.number = topic.number if type_name == topic.type else -1


class Topics:
    """All topics, by name, in the order of names, and by canonical topic; `reserved` counts the meta topics."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._names: list[str] = []  # sorted
        self.shared: dict[str, Topic] = {}
        self.reserved = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def __contains__(self, topic: Topic) -> bool:
        """Return whether a topic exists; a deleted one does not, also if another has its name."""
        return self._by_name.get(topic.name) is topic

    def get(self, name: str) -> Topic | None:
        """Return the topic with a name; None if there is none."""
        return self._by_name.get(name)

    def add(self, topic: Topic) -> None:
        """Add a topic whose name is not in use."""
        self._by_name[topic.name] = topic
        insort(self._names, topic.name)
        self.reserved += is_reserved(topic.name)
        if topic.shared is not None:
            self.shared[topic.shared] = topic

    def remove(self, topic: Topic) -> None:
        """Remove a topic, which must exist, from the look-ups by name, prefix and canonical topic."""
        del self._by_name[topic.name]
        del self._names[bisect_left(self._names, topic.name)]
        self.reserved -= is_reserved(topic.name)
        if topic.shared is not None:
            del self.shared[topic.shared]

    def matching(self, subscription: Subscribe) -> list[Topic]:
        """Return the topics that a subscription matches, each once; the prefix "" does not match meta topics (NA49)."""
        if not subscription.options.is_prefix:
            found = map(self.get, subscription.topics)
            return list({topic: None for topic in found if topic is not None})
        matched: dict[Topic, None] = {}
        for prefix in _widest(subscription.topics):
            topics = self._beginning_with(prefix)
            matched |= {topic: None for topic in topics if prefix or not is_reserved(topic.name)}
        return list(matched)

    def _beginning_with(self, prefix: str) -> list[Topic]:
        topics = []
        for at in range(bisect_left(self._names, prefix), len(self)):
            name = self._names[at]
            if not name.startswith(prefix):
                break
            topics.append(self._by_name[name])
        return topics


def _widest(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that do not begin with another one of them; "" does not cover prefixes of meta topics."""
    widest: list[str] = []
    for prefix in sorted(prefixes):
        is_within = widest and prefix.startswith(widest[-1])
        if not is_within or (is_reserved(prefix) and not widest[-1]):
            widest.append(prefix)
    return widest
