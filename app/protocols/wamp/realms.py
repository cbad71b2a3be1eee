"""Realms: routing spaces, each with its own sessions, subscriptions and retained events (Basic Profile, 2.1).

The first realm is the space that all protocols share. A subscription in WAMP's sense counts WAMP sessions only: it
begins with the first subscriber and ends with the last, regardless of subscribers of other protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.broker.names import SPACE
from app.broker.timestamps import to_text
from app.broker.topics import Match, Pattern
from app.protocols.wamp.retained import Retained
from app.protocols.wamp.uris import MATCHES, Grammar, space_of, to_pattern, to_topic, uri_of
from app.settings import Limits, Wamp
from app.settings import Realm as Options

if TYPE_CHECKING:
    from app.protocols.wamp.sessions import WampSession

_NAMES = {match: name for name, match in MATCHES.items()}


class LiveSubscription:
    """A topic or pattern with at least one subscriber in the realm.

    `number` is WAMP's subscription id; `created_us` is in microseconds since 1970, by the wall clock.
    """

    __slots__ = ("created_us", "number", "pattern", "sessions", "uri")

    def __init__(self, number: int, pattern: Pattern, created_us: int) -> None:
        self.number = number
        self.pattern = pattern
        self.uri = uri_of(pattern)
        self.created_us = created_us
        self.sessions: dict[WampSession, None] = {}  # a set that keeps the order of subscribing

    @property
    def match(self) -> str:
        """The match policy, as WAMP names it."""
        return _NAMES[self.pattern.match]

    def shown(self) -> dict[str, Any]:
        """Return the details of the subscription for the subscription meta API."""
        return {"id": self.number, "created": to_text(self.created_us), "uri": self.uri, "match": self.match}


class Realm:
    """One realm: its settings, sessions, live subscriptions and retained events; `space` prefixes its topics."""

    def __init__(self, options: Options, limits: Limits, wamp: Wamp, *, is_first: bool) -> None:
        self.name = options.name
        self.disclose = options.disclose
        self.is_shared = is_first
        self.space = "" if is_first else space_of(options.name)
        self.grammar = Grammar(limits.topic_chars, limits.topic_segments, options.strict_uris)
        self.sessions: dict[int, WampSession] = {}
        self.subscriptions: dict[Pattern, LiveSubscription] = {}
        self.numbers: dict[int, LiveSubscription] = {}  # the same subscriptions, by id
        self.retained = Retained(wamp.retained_topics, wamp.retained_bytes)

    def topic(self, uri: str) -> str:
        """Return the canonical topic of a URI in this realm. Raises `InvalidName`."""
        return to_topic(uri, self.space, self.grammar)

    def pattern(self, uri: str, match: Match) -> Pattern:
        """Return the pattern for a subscription to a URI with a match policy. Raises `InvalidName`."""
        return to_pattern(uri, match, self.space, self.grammar)

    def has(self, pattern: Pattern) -> bool:
        """Return whether a pattern belongs to this realm and not to another one."""
        first = pattern.topic.partition("/")[0]
        if not first.startswith(SPACE):
            return self.is_shared
        return first in (self.space, f"{SPACE}{self.space or SPACE}")


def is_meta(pattern: Pattern) -> bool:
    """Return whether a pattern is for the router's own topics, `wamp.…`."""
    return pattern.topic.startswith(SPACE * 2)
