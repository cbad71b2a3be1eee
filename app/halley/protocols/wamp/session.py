"""Sessions, and what they belong to: realms, the subscriptions of realms, and retained events (Basic Profile, 2.1).

A realm is a routing space with sessions, subscriptions and retained events of its own. The first realm is the space
that all protocols share. A subscription in WAMP's sense counts WAMP sessions only: it begins with the first subscriber
and ends with the last, regardless of subscribers of other protocols.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from halley.broker.broker import Broker
from halley.broker.events import Event, to_text
from halley.broker.names import REALM_MARK, Match, Pattern, matcher, span
from halley.broker.outbox import Outbox
from halley.broker.ports import Erasure
from halley.broker.remembered import remembered
from halley.broker.sessions import Session, SessionHandler
from halley.broker.shared_table import SharedTable, part_of
from halley.protocols.contract import Context
from halley.protocols.wamp import errors
from halley.protocols.wamp.authentication import AuthDetails
from halley.protocols.wamp.errors import WampError
from halley.protocols.wamp.messages import Goodbye, Message, Publish, Subscribe, Unsubscribe
from halley.protocols.wamp.names import MATCHES, Grammar, space_of, to_pattern, to_topic, uri_of
from halley.protocols.wamp.serializers import Format
from halley.settings import Limits, Verb, Wamp
from halley.settings import Realm as RealmOptions

_LARGEST_ID = 1 << 53
_MAX_OF_A_TOPIC = 32
"""The most retained events of one topic, for different audiences."""

_MATCH_NAMES = {match: name for name, match in MATCHES.items()}


def new_id() -> int:
    """Return an id in WAMP's global scope: uniformly random from 1 to 2^53 (Basic Profile, 2.1.2)."""
    return secrets.randbelow(_LARGEST_ID) + 1


class SessionEngine(SessionHandler, Protocol):
    """The engine of a session's connection, as those see it who handle the session's requests (`engine.WampEngine`).

    `session` is the session that the connection has now, and None before WELCOME and after GOODBYE.
    """

    session: WampSession | None
    format: Format
    context: Context

    def say(self, message: list[Any]) -> None:
        """Send a message at the end of the turn."""

    def write(self, frames: list[bytes]) -> None:
        """Send frames that are already encoded at the end of the turn."""

    def room_bytes(self) -> int:
        """Return how many more bytes may be queued for the peer; below 0 where it is too much already."""

    def take_events(self, session: Session, now: float) -> None:
        """Move the events in the session's outbox to what is to be written, behind earlier replies."""

    def refuse(self, request: Message, error: WampError, now: float) -> None:
        """Answer a request with ERROR, unless it is a publication that is not acknowledged."""

    def if_permitted(
        self,
        verb: Verb,
        what: str | Pattern,
        request: Message,
        then: Callable[[float], None],
        now: float,
        *,
        blocks: bool = True,
    ) -> None:
        """Call `then` with the time, now or later, if the program's policy allows it. Raises `WampError`."""

    def wait_for(
        self,
        request: Message,
        awaitable: Awaitable[Any],
        limit_s: float,
        then: Callable[[Any, Exception | None, float], None],
        *,
        needs: tuple[Verb, str | Pattern] | None,
        blocks: bool = False,
    ) -> None:
        """Await something for a request, then call `then` with its value or error, and the time.

        It is refused if the rules do not grant any more what it `needs`.
        """

    def dismiss(self, uri: str, message: str, now: float, *, reason: str) -> None:
        """End the session with GOODBYE."""

    def late(self, now: float) -> None:
        """Close the connection because the peer did not say in time what it had to."""

    def lost(self, now: float) -> None:
        """End the session, if it has not ended, because its connection was lost."""

    def drain(self, now: float) -> None:
        """End the session, or refuse the client one, because the server is draining."""


class RequestQueue:
    """The requests of one session that wait for a policy, the disk or the history, and those behind them.

    Reading continues meanwhile. PUBLISH, SUBSCRIBE, UNSUBSCRIBE and GOODBYE that follow a blocking request are queued,
    so that they take effect in order; calls overtake them. Both kinds are bounded, and requests beyond a bound are
    refused.
    """

    __slots__ = ("_backlog", "_backlog_bytes", "_broker", "_max_pending", "_pending", "is_blocked")

    def __init__(self, broker: Broker, max_pending: int) -> None:
        self._broker = broker
        self._max_pending = max_pending
        self._pending = 0  # the number of requests that are answered later
        self.is_blocked = False
        self._backlog: deque[tuple[Message, int]] = deque()
        self._backlog_bytes = 0

    def check_capacity(self) -> None:
        """Check that one more request may be answered later (`wamp.waiting_calls`). Raises `WampError`."""
        if self._pending >= self._max_pending:
            raise self._full("waiting_calls")

    def begin(self, *, blocks: bool) -> None:
        """Note that a request will be answered later; `blocks` makes those behind it wait."""
        self._pending += 1
        self.is_blocked = self.is_blocked or blocks

    def end(self, *, blocks: bool) -> None:
        """Note that what a request has waited for is known."""
        self._pending -= 1
        if blocks:  # at most one blocking request is pending at a time
            self.is_blocked = False

    def must_wait(self, message: Message) -> bool:
        """Return whether a message must be queued behind a request that blocks."""
        return self.is_blocked and isinstance(message, Publish | Subscribe | Unsubscribe | Goodbye)

    def enqueue(self, message: Message, nbytes: int) -> None:
        """Queue a message of `nbytes`. Raises `WampError` at a bound; what follows a GOODBYE is ignored."""
        limits = self._broker.limits
        if self._backlog and isinstance(self._backlog[-1][0], Goodbye):
            return
        if isinstance(message, Goodbye):
            nbytes = 0
        elif len(self._backlog) >= limits.queue_events:
            raise self._full("queue_events")
        elif self._backlog and self._backlog_bytes + nbytes > limits.queue_bytes:
            raise self._full("queue_bytes")
        self._backlog.append((message, nbytes))
        self._backlog_bytes += nbytes

    def dequeue(self) -> Message | None:
        """Return the next queued message; None where there is none, or a request blocks it."""
        if self.is_blocked or not self._backlog:
            return None
        message, nbytes = self._backlog.popleft()
        self._backlog_bytes -= nbytes
        return message

    def _full(self, limit: str) -> WampError:
        self._broker.hits[limit] += 1
        return WampError(errors.UNAVAILABLE, "too many pending requests")


class WampSession(Session):
    """One client in one realm.

    `number` is its WAMP id, which is not secret; `id` is the same as text. Access rules apply to `role`, audiences to
    `role` and `authid`; `auth` is what WELCOME and the meta API show. `live` are its subscriptions by id, `testaments`
    its testaments by scope. `engine` is its owner.
    """

    __slots__ = (
        "announces_passthru",
        "announces_revocation",
        "auth",
        "engine",
        "live",
        "number",
        "realm",
        "requests",
        "testaments",
        "transport",
    )

    def __init__(
        self,
        number: int,
        realm: Realm,
        auth: AuthDetails,
        engine: SessionEngine,
        outbox: Outbox,
        requests: RequestQueue,
    ) -> None:
        super().__init__(str(number), "wamp", engine, outbox)
        self.engine = engine
        self.number = number
        self.realm = realm
        self.auth = auth
        self.role = auth.authrole
        self.requests = requests
        self.live: dict[int, LiveSubscription] = {}
        self.announces_passthru = False
        self.announces_revocation = False
        self.testaments: dict[str, list[tuple[Publish, Event]]] = {"detached": [], "destroyed": []}
        self.transport: dict[str, str] = {}

    def details(self) -> dict[str, Any]:
        """Return the details of the session for the session meta API, without anything of its HTTP request."""
        return {"session": self.number, **self.auth._asdict(), "transport": self.transport}


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
        return _MATCH_NAMES[self.pattern.match]

    def details(self) -> dict[str, Any]:
        """Return the details of the subscription for the subscription meta API."""
        return {"id": self.number, "created": to_text(self.created_us), "uri": self.uri, "match": self.match}


class Realm:
    """One realm: its settings, sessions, live subscriptions and retained events; `space` prefixes its topics."""

    def __init__(
        self, options: RealmOptions, limits: Limits, wamp: Wamp, hits: Counter[str], *, is_first: bool
    ) -> None:
        self.name = options.name
        self.disclose = options.disclose
        self.is_shared = is_first
        self.space = "" if is_first else space_of(options.name)
        self.grammar = Grammar(limits.topic_chars, limits.topic_segments, options.strict_uris)
        self.topic = remembered()(partial(to_topic, space=self.space, grammar=self.grammar))
        """Returns the canonical topic of a URI in this realm. Raises `InvalidName`."""
        self.sessions: dict[int, WampSession] = {}
        self.subscriptions: dict[Pattern, LiveSubscription] = {}
        self.numbers: dict[int, LiveSubscription] = {}  # the same subscriptions, by id
        self.retained = RetainedEvents(wamp.retained_topics, wamp.retained_bytes, hits)

    def pattern(self, uri: str, match: Match) -> Pattern:
        """Return the pattern for a subscription to a URI with a match policy. Raises `InvalidName`."""
        return to_pattern(uri, match, self.space, self.grammar)

    def has(self, pattern: Pattern) -> bool:
        """Return whether a pattern belongs to this realm and not to another one."""
        first = pattern.topic.partition("/")[0]
        if not first.startswith(REALM_MARK):
            return self.is_shared
        return first in (self.space, f"{REALM_MARK}{self.space or REALM_MARK}")


class _Retained(NamedTuple):
    """The retained events of a topic, oldest first; `turn` counts when one was retained last."""

    turn: int
    events: list[Event]


class RetainedEvents:
    """The latest event of each topic of one realm, for later subscribers (Advanced Profile, 5.9.5).

    For each topic the latest event without an audience and the later ones with an audience are kept, so that each
    subscriber gets the latest event that it may receive. They are in memory, bounded by topics and bytes: the topic
    that was retained longest ago is dropped first, or that of those on which the anonymous have retained
    (`broker/shared_table.py`). `hits` counts dropped topics, by the setting of the bound.
    """

    def __init__(self, max_topics: int, max_bytes: int, hits: Counter[str]) -> None:
        self._max_topics = max_topics
        self._max_bytes = max_bytes
        self._hits = hits
        self._nbytes = self._anonymous_nbytes = self._turn = 0
        self._retained: SharedTable[str, _Retained] = SharedTable(lambda retained: retained.turn)  # by topic
        self._topics: list[str] = []  # the same topics, sorted

    def __len__(self) -> int:
        return len(self._retained)

    def keep(self, event: Event) -> None:
        """Retain an event that has been published."""
        before = self._take(event.topic)
        if not before:
            insort(self._topics, event.topic)
        is_for_all = event.audience is None and event.chosen is None
        self._add(event.topic, [event] if is_for_all else [*before[1 - _MAX_OF_A_TOPIC :], event])
        table = self._retained
        while len(table) > self._max_topics:
            if self._max_topics:
                self._hits["retained_topics"] += 1
            self._drop(has_excess=len(table.anonymous) > part_of(self._max_topics))
        while self._nbytes > self._max_bytes and len(table) > 1:
            self._hits["retained_bytes"] += 1
            self._drop(has_excess=self._anonymous_nbytes > part_of(self._max_bytes))

    def of(self, pattern: Pattern, session: Session, limit: int) -> list[Event]:
        """Return the retained events for a new subscriber: the latest that it may receive of each matching topic.

        These are the youngest `limit`, oldest first.
        """
        first, end = span(pattern)
        topics = self._topics[bisect_left(self._topics, first) : bisect_left(self._topics, end)]
        found = (self._latest(topic, session) for topic in filter(matcher(pattern), topics))
        events = sorted((event for event in found if event is not None), key=lambda event: event.time_us)
        return events[-limit:]

    def erase(self, erasure: Erasure) -> None:
        """Drop the events that an erasure concerns (`broker.ports.Erasable`)."""
        for topic, (_, events) in tuple(self._retained.items()):
            left = [each for each in events if not erasure.concerns(topic, each.authid, each.payload)]
            if len(left) < len(events):
                self._take(topic)
                if left:
                    self._add(topic, left)
                else:
                    self._unlist(topic)

    def _latest(self, topic: str, session: Session) -> Event | None:
        retained = self._retained.anonymous.get(topic) or self._retained.others[topic]
        for event in reversed(retained.events):
            is_among = event.audience is None or event.audience.admits(session.authid, session.role)
            if is_among and (event.chosen is None or event.chosen.admits(session.id)):
                return event
        return None

    def _add(self, topic: str, events: list[Event]) -> None:
        """Add a topic, as the one that was retained last; one of the anonymous if any of the events is theirs."""
        self._turn += 1
        is_anonymous = any(event.authid is None for event in events)
        self._retained.of(is_anonymous=is_anonymous)[topic] = _Retained(self._turn, events)
        self._count(events, 1, is_anonymous=is_anonymous)

    def _take(self, topic: str) -> list[Event]:
        """Remove the events of a topic, which stays listed, and return them; none if it has none."""
        is_anonymous = topic in self._retained.anonymous
        retained = self._retained.of(is_anonymous=is_anonymous).pop(topic, None)
        if retained is None:
            return []
        self._count(retained.events, -1, is_anonymous=is_anonymous)
        return retained.events

    def _drop(self, *, has_excess: bool) -> None:
        """Drop the topic whose turn it is: one of the anonymous where they have more than their part."""
        of_them = len(self._retained.anonymous)
        topic, retained = self._retained.lose(of_the_anonymous=has_excess)
        self._count(retained.events, -1, is_anonymous=len(self._retained.anonymous) < of_them)
        self._unlist(topic)

    def _unlist(self, topic: str) -> None:
        del self._topics[bisect_left(self._topics, topic)]

    def _count(self, events: list[Event], sign: int, *, is_anonymous: bool) -> None:
        nbytes = sign * sum(event.nbytes for event in events)
        self._nbytes += nbytes
        self._anonymous_nbytes += nbytes if is_anonymous else 0
