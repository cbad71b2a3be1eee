"""Realms: each a routing space with sessions, subscriptions and retained events of its own (Basic Profile, 2.1).

The first is the space that all protocols share. What WAMP calls a subscription is one for its sessions only: it begins
with the first of them and ends with the last, whoever else hears that pattern by another protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.broker.names import SPACE
from app.broker.timestamps import to_text
from app.protocols.wamp.retained import Retained
from app.protocols.wamp.uris import MATCHES, Grammar, space_of, to_pattern, to_topic, uri_of

if TYPE_CHECKING:
    from app.broker.topics import Match, Pattern
    from app.protocols.wamp.sessions import WampSession
    from app.settings import Limits, Wamp
    from app.settings import Realm as Options

_NAMES = {match: name for name, match in MATCHES.items()}


class LiveSubscription:
    """A topic or pattern that at least one session of the realm is subscribed to. `created_us` is the wall clock."""

    __slots__ = ("created_us", "number", "pattern", "sessions", "uri")

    def __init__(self, number: int, pattern: Pattern, created_us: int) -> None:
        self.number = number
        self.pattern = pattern
        self.uri = uri_of(pattern)
        self.created_us = created_us
        self.sessions: dict[WampSession, None] = {}  # a set that keeps the order of subscribing

    @property
    def match(self) -> str:
        """As WAMP calls it."""
        return _NAMES[self.pattern.match]

    def shown(self) -> dict[str, Any]:
        """What the subscription meta API tells of it."""
        return {"id": self.number, "created": to_text(self.created_us), "uri": self.uri, "match": self.match}


class Realm:
    """One of them."""

    def __init__(self, options: Options, limits: Limits, wamp: Wamp, *, is_first: bool) -> None:
        self.name = options.name
        self.disclose = options.disclose
        self.is_shared = is_first
        self.space = "" if is_first else space_of(options.name)
        self.grammar = Grammar(limits.topic_chars, limits.topic_segments, options.strict_uris)
        self.sessions: dict[int, WampSession] = {}
        self.subscriptions: dict[Pattern, LiveSubscription] = {}
        self.numbers: dict[int, LiveSubscription] = {}  # the same, by id
        self.retained = Retained(wamp.retained_topics, wamp.retained_bytes)

    def topic(self, uri: str) -> str:
        """The canonical topic of a URI in this realm. Raises `InvalidName`."""
        return to_topic(uri, self.space, self.grammar)

    def pattern(self, uri: str, match: Match) -> Pattern:
        """The pattern that a subscription to it stands for. Raises `InvalidName`."""
        return to_pattern(uri, match, self.space, self.grammar)

    def has(self, pattern: Pattern) -> bool:
        """Whether a pattern is one of this realm's, and not another's."""
        first = pattern.topic.partition("/")[0]
        if not first.startswith(SPACE):
            return self.is_shared
        return first in (self.space, f"{SPACE}{self.space or SPACE}")


def is_meta(pattern: Pattern) -> bool:
    """Whether it is about the router's own topics, `wamp.…`."""
    return pattern.topic.startswith(SPACE * 2)
