"""WAMP sessions: the router's state of one client, in addition to the broker's."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from app.broker.events import Event
from app.broker.outbox import Outbox
from app.broker.sessions import Session
from app.protocols.wamp.messages import Publish

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine


from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from app.broker.erasure import Erasure
from app.broker.names import SPACE
from app.broker.timestamps import to_text
from app.broker.topics import Match, Pattern, matcher, span
from app.protocols.wamp.names import MATCHES, Grammar, space_of, to_pattern, to_topic, uri_of
from app.settings import Limits, Wamp
from app.settings import Realm as Options

_LARGEST = 1 << 53


def new_id() -> int:
    """Return an id in WAMP's global scope: uniformly random from 1 to 2^53 (Basic Profile, 2.1.2)."""
    return secrets.randbelow(_LARGEST) + 1


class Standing(NamedTuple):
    """The authentication details of a session in WELCOME and the meta API; an anonymous `authid` is random."""

    authid: str
    authrole: str
    authmethod: str
    authprovider: str


class WampSession(Session):
    """One client in one realm.

    `number` is its WAMP id, which is not secret; `id` is the same as text. Access rules apply to `role`, audiences to
    `role` and `authid`; `standing` is what WELCOME and the meta API show. `testaments` are by scope.
    """

    owner: Engine

    __slots__ = (
        "announces_passthru",
        "announces_revocation",
        "live",
        "number",
        "realm",
        "standing",
        "testaments",
        "transport",
    )

    def __init__(self, number: int, realm: Realm, standing: Standing, owner: Engine, outbox: Outbox) -> None:
        super().__init__(str(number), "wamp", owner, outbox)
        self.number = number
        self.realm = realm
        self.standing = standing
        self.role = standing.authrole
        self.live: dict[int, LiveSubscription] = {}  # the session's subscriptions, by id
        self.announces_passthru = False
        self.announces_revocation = False
        self.testaments: dict[str, list[tuple[Publish, Event]]] = {"detached": [], "destroyed": []}
        self.transport: dict[str, str] = {}

    def shown(self) -> dict[str, Any]:
        """Return the details of the session for the session meta API, without anything of its HTTP request."""
        return {"session": self.number, **self.standing._asdict(), "transport": self.transport}


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


_MOST_OF_A_TOPIC = 32
"""The most events of one topic, for different audiences."""


class Retained:
    """The retained events of one realm; `dropped` counts the topics that were dropped at a limit."""

    def __init__(self, most_topics: int, most_bytes: int) -> None:
        self._most_topics = most_topics
        self._most_bytes = most_bytes
        self._nbytes = 0
        self._events: dict[str, list[Event]] = {}  # by topic, the one retained longest ago first
        self._topics: list[str] = []  # the same topics, sorted
        self.dropped = 0  # topics that were dropped at a limit

    def __len__(self) -> int:
        return len(self._events)

    def keep(self, event: Event) -> None:
        """Retain an event that has been published."""
        before = self._events.pop(event.topic, None)
        if before is None:
            insort(self._topics, event.topic)
            before = []
        is_for_all = event.audience is None and event.chosen is None
        kept = [event] if is_for_all else [*before[1 - _MOST_OF_A_TOPIC :], event]
        self._events[event.topic] = kept
        self._nbytes += sum(each.nbytes for each in kept) - sum(each.nbytes for each in before)
        while len(self._events) > self._most_topics or (self._nbytes > self._most_bytes and len(self._events) > 1):
            self._drop(next(iter(self._events)))

    def of(self, pattern: Pattern, session: WampSession, most: int) -> list[Event]:
        """Return the retained events for a new subscriber: the latest that it may receive of each matching topic.

        These are the youngest `most`, oldest first.
        """
        first, end = span(pattern)
        topics = self._topics[bisect_left(self._topics, first) : bisect_left(self._topics, end)]
        found = (self._latest(topic, session) for topic in filter(matcher(pattern), topics))
        events = sorted((event for event in found if event is not None), key=lambda event: event.time_us)
        return events[-most:]

    def erase(self, erasure: Erasure) -> None:
        """Drop the events that an erasure concerns (`broker.erasure.Holder`)."""
        for topic, events in tuple(self._events.items()):
            left = [each for each in events if not erasure.concerns(topic, each.authid, each.payload)]
            self._nbytes += sum(each.nbytes for each in left) - sum(each.nbytes for each in events)
            self._events[topic] = left
            if not left:
                self._remove(topic)

    def _latest(self, topic: str, session: WampSession) -> Event | None:
        for event in reversed(self._events[topic]):
            is_among = event.audience is None or event.audience.admits(session.authid, session.role)
            if is_among and (event.chosen is None or event.chosen.admits(session.id)):
                return event
        return None

    def _drop(self, topic: str) -> None:
        self._remove(topic)
        self.dropped += 1

    def _remove(self, topic: str) -> None:
        self._nbytes -= sum(event.nbytes for event in self._events.pop(topic))
        del self._topics[bisect_left(self._topics, topic)]
