"""Topics, which exist while they have publishers or another reason to be kept (NA29 to NA43)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import takewhile
from math import inf
from typing import TYPE_CHECKING, Any

from app.protocols.nt4 import messages
from app.protocols.nt4.messages import Subscribe
from app.protocols.nt4.names import is_reserved
from app.protocols.nt4.subscriptions import Interest
from app.protocols.nt4.types import number_of
from app.protocols.nt4.values import encode

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client, Publisher
    from app.protocols.nt4.pacing import Stream

_AHEAD_US = 1_000_000
"""The most that a value's time may count as ahead of now, so that one wrong clock cannot block a topic (G7)."""


class Topic:
    """One topic; `id` is its number on the wire, the same for all clients and never reused (NA36).

    shared       its canonical topic among all protocols, None if its name is NetworkTables' own
    ruled        its topic in access rules
    told         the clients that it was announced to
    streams      its pending values, by the options that clients want them with
    frame        the last value, encoded, or None if there is none; `time_us`, `value`, `origin` and `authid` belong
                 to it: `authid` is its publisher's, also when that has gone
    """

    __slots__ = (
        "announcement",
        "authid",
        "frame",
        "id",
        "is_cached",
        "kept_at",
        "last_us",
        "name",
        "number",
        "origin",
        "properties",
        "publishers",
        "ruled",
        "shared",
        "streams",
        "time_us",
        "told",
        "type",
        "value",
        "visited_at",
    )

    def __init__(
        self, name: str, topic_id: int, type_name: str, properties: dict[str, Any], shared: str | None, ruled: str
    ) -> None:
        self.name = name
        self.id = topic_id
        self.type = type_name
        self.number = number_of(type_name)
        self.shared = shared
        self.ruled = ruled
        self.publishers: dict[Publisher, None] = {}
        self.told: dict[Client, None] = {}
        self.streams: dict[Interest, Stream] = {}
        self.frame: bytes | None = None
        self.value: Any = None
        self.time_us = 0
        self.last_us = 0  # the time that the next value's time is compared with
        self.origin: object = None
        self.authid: str | None = None
        self.kept_at = -inf  # when a value of it was last recorded
        self.visited_at: float | None = None  # when a request without a session last published it, which keeps it
        self.properties: dict[str, Any] = {}
        self.is_cached = True
        self.announcement = b""
        self.set_properties(properties)

    @property
    def is_persistent(self) -> bool:
        """Whether the topic outlives its publishers and the server's run."""
        return self.properties.get("persistent") is True

    @property
    def is_wanted(self) -> bool:
        """Whether the topic has a reason to exist (NA34)."""
        kept = self.is_persistent or self.properties.get("retained") is True
        return bool(self.publishers) or kept or self.visited_at is not None

    def set_properties(self, update: dict[str, Any]) -> None:
        """Change properties; None deletes one (NA45)."""
        self.properties |= update
        self.properties = {name: value for name, value in self.properties.items() if value is not None}
        self.is_cached = self.properties.get("cached") is not False
        self.announcement = messages.announce(self.name, self.id, self.type, self.properties, None)

    def forget(self) -> None:
        """Drop the last value."""
        self.frame = self.value = self.origin = self.authid = None
        self.time_us = self.last_us = 0

    def write(self, time_us: int, value: object) -> bytes:
        """Return an encoded value of the topic; `time_us` is in microseconds."""
        return encode(self.id, time_us, self.number, value)

    def replaces(self, time_us: int, origin: object) -> bool:
        """Return whether a value replaces the last one (NA39 to NA41).

        A value does so if it is not older, or has the same publisher. A default value, of time 0, is replaced by any
        value, and replaces only a default or nothing.
        """
        if self.frame is None or self.last_us == 0:
            return True
        return time_us != 0 and (time_us >= self.last_us or origin is self.origin)

    def keep(self, time_us: int, value: object, frame: bytes, origin: object, authid: str | None, now_us: int) -> None:
        """Make a value the last one; `now_us` bounds the time that later values are compared with."""
        self.time_us, self.value, self.frame, self.origin, self.authid = time_us, value, frame, origin, authid
        self.last_us = min(time_us, now_us + _AHEAD_US)


class Topics:
    """All topics, by name, in the order of names, and by canonical topic."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._names: list[str] = []  # sorted
        self.shared: dict[str, Topic] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Topic | None:
        """Return the topic with a name; None if there is none."""
        return self._by_name.get(name)

    def add(self, topic: Topic) -> None:
        """Add a topic whose name is not in use."""
        self._by_name[topic.name] = topic
        insort(self._names, topic.name)
        if topic.shared is not None:
            self.shared[topic.shared] = topic

    def remove(self, topic: Topic) -> None:
        """Remove a topic."""
        del self._by_name[topic.name]
        del self._names[bisect_left(self._names, topic.name)]
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
        first = bisect_left(self._names, prefix)
        names = takewhile(lambda name: name.startswith(prefix), (self._names[at] for at in range(first, len(self))))
        return [self._by_name[name] for name in names]


def _widest(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that do not begin with another one of them; "" does not cover prefixes of meta topics."""
    widest: list[str] = []
    for prefix in sorted(prefixes):
        is_within = widest and prefix.startswith(widest[-1])
        if not is_within or (is_reserved(prefix) and not widest[-1]):
            widest.append(prefix)
    return widest
