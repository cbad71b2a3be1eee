"""What the engines of all connections share: realms, sessions and ids, and the meta events about them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from halley.broker.aging import TimeoutQueue
from halley.broker.broker import Broker
from halley.broker.events import Event, SessionFilter
from halley.broker.faults import notify
from halley.broker.limits import Meters
from halley.broker.names import Pattern
from halley.broker.policy import SERVER, Rights
from halley.broker.ports import Page, Query, Reader
from halley.broker.remembered import Remembered, bytes_of
from halley.protocols.contract import ProgramDecisions, WaitFor
from halley.protocols.wamp.authentication import Authentication
from halley.protocols.wamp.events import to_payload
from halley.protocols.wamp.messages import MOST_ID
from halley.protocols.wamp.names import is_meta, own_topic
from halley.protocols.wamp.serializers import JSON
from halley.protocols.wamp.session import LiveSubscription, Realm, SessionEngine, WampSession, new_id
from halley.settings import Realm as RealmOptions
from halley.settings import Wamp

META_EVENT = "wamp.meta_event"
"""The kind of news with [realm, URI, arguments, about]; `about` is null or a pattern, [match policy, topic]."""

SESSION = "wamp.session"
"""The kind of news about a session: [run, number, realm, `ON_JOIN` or `ON_LEAVE`, arguments] (`MetaEvents.reports`)."""

ON_JOIN, ON_LEAVE = "wamp.session.on_join", "wamp.session.on_leave"

RESERVED_AT_ONCE = 1_000

_IDS_BYTES = 4_000_000
"""Of all patterns with their ids: some 6,000 usual ones. Clients choose the patterns."""

_ID_BYTES = 300
"""Of an id, and of a pattern's place in the table of ids."""

Denied = Callable[[WampSession | None, str, str], None]
"""A listener for refused requests and sessions, called with the session (or None), what it was, and the error's URI."""


class Archive(Protocol):
    """The event history, as the router reads it."""

    def page(self, query_of: Callable[[int], Query | None], reader: Reader) -> Awaitable[Page | None]:
        """Read one page of the history after all earlier publications have been settled, when it is the reader's turn.

        `query_of` gets the log's last position at that time and returns the query; the page is None if the query is.
        Raises `UnknownPublication`, `NobodyReads`, and `OSError`: `TimeoutError` if it was too late.
        """


class Nodes(Protocol):
    """The other nodes of a cluster."""

    def notify(self, kind: str, body: Any) -> None:
        """Send a JSON value to all other nodes, which may not get it."""

    def ask(self, kind: str, body: Any) -> Awaitable[tuple[list[Any], bool]]:
        """The answers of the other nodes, within a second or so, and whether every one has answered."""

    def ask_one(self, node: str, kind: str, body: Any) -> Awaitable[Any]:
        """The answer of the node of that name, within a second or so; None if there is none."""

    def alive(self) -> Mapping[str, Mapping[str, Any]]:
        """What the other nodes that are alive report of themselves, by name."""


class SubscriptionIds:
    """Assigns subscription ids to patterns: small numbers in the order of first use, never reused.

    They are small because JavaScript's binary encoders write integers above 2^32 as floats, and not even reused after a
    restart. An id stands for a pattern in a realm, with or without subscribers: `wamp.subscription.lookup` returns it
    for reading the history.

    `reserve` reserves the next `RESERVED_AT_ONCE` ids permanently, and returns the first of them.
    """

    def __init__(self, reserve: Callable[[], int]) -> None:
        self._reserve = reserve
        self._next = 0
        self._end = 0
        self._patterns = Remembered[int, Pattern](_IDS_BYTES, _IDS_BYTES, _bytes_of_id)  # used longest ago first
        self._ids: dict[Pattern, int] = {}

    def of(self, pattern: Pattern) -> int:
        """Return the id of a pattern; a new one if it has none."""
        number = self._ids.get(pattern)
        if number is None:
            number = self._new(pattern)
            for _, oldest in self._patterns.remember(number, pattern):
                del self._ids[oldest]
            if number in self._patterns:  # else it is larger than all of the table
                self._ids[pattern] = number
        else:
            self._patterns.move_to_end(number)
        return number

    def _new(self, pattern: Pattern) -> int:  # noqa: ARG002 - see `CommonIds`
        if self._next == self._end:
            self._next = self._reserve()
            self._end = self._next + RESERVED_AT_ONCE
        number, self._next = self._next, self._next + 1
        return number

    def pattern(self, number: int) -> Pattern | None:
        """Return the pattern of an id; None for an unknown id and for one that was forgotten for newer ones."""
        return self._patterns.get(number)


def _bytes_of_id(_number: int, pattern: Pattern) -> int:
    return bytes_of(pattern) + _ID_BYTES


class CommonIds(SubscriptionIds):
    """Assigns ids that are the same at all nodes of a cluster, without any agreement: hashes of the patterns.

    They are as large as ids can be, since small ones would not be unique.
    """

    def _new(self, pattern: Pattern) -> int:
        name = f"{pattern.match.name} {pattern.topic}".encode()
        number = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) % MOST_ID + 1
        while number in self._patterns:
            number = number % MOST_ID + 1
        return number


@dataclass(slots=True)
class Environment:
    """What the router needs of the server around it.

    `reserve` reserves the next `RESERVED_AT_ONCE` subscription ids (`SubscriptionIds`). `wait` awaits something and
    calls back. `policy` is the program's own; its decisions are awaited for `policy_s` seconds at most. `archive` is
    the history, where there is one. `nodes` are the other nodes, where the server is a node of a cluster. `agent` is
    the software's name in WELCOME; `denied` are the listeners for refusals.
    """

    reserve: Callable[[], int]
    wait: WaitFor
    policy: ProgramDecisions
    policy_s: float
    archive: Archive | None = None
    nodes: Nodes | None = None
    agent: str = "Halley"
    denied: tuple[Denied, ...] = ()


class MetaEvents:
    """The router's own publications about sessions and subscriptions (Advanced Profile, 13 and 14).

    They are published to topics of the realm that clients cannot publish to, at all nodes of a cluster. Subscriptions
    to these topics cause no meta events. An event about a subscription is sent only to sessions that may subscribe to
    the same topic or pattern. The order is the same where a connection is lost: on_create, on_subscribe;
    on_unsubscribe, on_delete; on_leave.

    Sessions are reported to the other nodes by numbered news, so that a node notices which it has missed
    (`remote_sessions.py`): `reports` is how many there were since this start of the server, for which `run` stands.
    """

    def __init__(self, broker: Broker, rights: Rights, nodes: Nodes | None) -> None:
        self.run = new_id()
        self.reports = 0
        self._broker = broker
        self._rights = rights
        self._nodes = nodes

    def joined(self, session: WampSession, now: float) -> None:
        """Publish that a session has begun."""
        self._publish_session(session, ON_JOIN, [session.details()], now)

    def left(self, session: WampSession, now: float) -> None:
        """Publish that a session has ended."""
        args = [session.number, session.auth.authid, session.auth.authrole]
        self._publish_session(session, ON_LEAVE, args, now)

    def subscribed(self, session: WampSession, live: LiveSubscription, now: float, *, is_new: bool) -> None:
        """Publish that a session has subscribed; `is_new` says whether it is the first subscriber."""
        if is_meta(live.pattern):
            return
        if is_new:
            created = [session.number, live.details()]
            self._publish(session, live, "wamp.subscription.on_create", created, now)
        self._publish(session, live, "wamp.subscription.on_subscribe", [session.number, live.number], now)

    def unsubscribed(self, session: WampSession, live: LiveSubscription, now: float, *, is_last: bool) -> None:
        """Publish that a session has unsubscribed; `is_last` says whether it was the last subscriber."""
        if is_meta(live.pattern):
            return
        args = [session.number, live.number]
        self._publish(session, live, "wamp.subscription.on_unsubscribe", args, now)
        if is_last:
            self._publish(session, live, "wamp.subscription.on_delete", args, now)

    def arrived(self, realm: Realm, uri: str, args: list[Any], about: Pattern | None, now: float) -> int:
        """Publish what is news of another node; returns the number of subscribers here."""
        return self._deliver(realm, uri, args, about, now, None)

    def _publish_session(self, session: WampSession, uri: str, args: list[Any], now: float) -> None:
        """Publish an event about a session to the subscribers in its realm, except the session itself, at all nodes."""
        self._deliver(session.realm, uri, args, None, now, session)
        if self._nodes is not None:
            self.reports += 1
            self._nodes.notify(SESSION, [self.run, self.reports, session.realm.name, uri, args])

    def _publish(self, session: WampSession, live: LiveSubscription, uri: str, args: list[Any], now: float) -> None:
        """Publish an event about a session's subscription to those who may subscribe to its pattern, at all nodes."""
        self._deliver(session.realm, uri, args, live.pattern, now, session)
        if self._nodes is not None:
            self._nodes.notify(META_EVENT, [session.realm.name, uri, args, [live.match, live.pattern.topic]])

    def _deliver(
        self, realm: Realm, uri: str, args: list[Any], about: Pattern | None, now: float, without: WampSession | None
    ) -> int:
        topic, may = own_topic(uri, realm.space), self._rights.may
        subscribers = [
            each for each in self._broker.index.subscribers(topic) if about is None or may(each, "subscribe", about)
        ]
        if not subscribers:
            return 0
        payload, shape = to_payload(args, None, JSON)
        event = Event(topic, payload, protocol="wamp", role=SERVER)
        event.shape = shape
        event.chosen = None if about is None else SessionFilter(frozenset(each.id for each in subscribers))
        self._broker.announce(event, now, without=without)
        return len(subscribers)


class RouterState:
    """The state that the engines of all connections share (Basic Profile, 2.2): realms, sessions, ids and counts.

    `archive` is the history, if there is one. `hellos` are the engines whose peers must send HELLO and AUTHENTICATE in
    time, `goodbyes` those whose peers must send GOODBYE. `refused` counts requests and sessions, and
    `unacknowledged` publications that were refused without an answer, both by the error's URI.
    """

    def __init__(
        self,
        broker: Broker,
        options: Wamp,
        realms: tuple[RealmOptions, ...],
        rights: Rights,
        authentication: Authentication,
        environment: Environment,
    ) -> None:
        self.broker = broker
        self.options = options
        self.rights = rights
        self.authentication = authentication
        self.environment = environment
        self.archive = environment.archive
        self.is_draining = False
        self.realms = {
            each.name: Realm(each, broker.limits, options, broker.hits, is_first=not number)
            for number, each in enumerate(realms)
        }
        for realm in self.realms.values():
            broker.add_holder(realm.retained)
        self.meta = MetaEvents(broker, rights, environment.nodes)
        self.hellos: TimeoutQueue[SessionEngine] = TimeoutQueue(options.hello_s)
        self.goodbyes: TimeoutQueue[SessionEngine] = TimeoutQueue(options.kill_s)
        self.refused: Counter[str] = Counter()
        self.unacknowledged: Counter[str] = Counter()
        ids = SubscriptionIds if environment.nodes is None else CommonIds
        self._subscription_ids = ids(environment.reserve)
        self._session_ids: set[int] = set()  # of sessions that exist or are about to
        self._meters = Meters(options.publishes_per_s, options.publish_burst)

    def wall_s(self, now: float) -> float:
        """Return the seconds since 1970 at the monotonic time `now`."""
        return now + self.broker.clock_offset_s

    # Sessions

    def new_session_id(self) -> int:
        """Return a new session id that no other session has, and reserve it."""
        while (number := new_id()) in self._session_ids:
            pass
        self._session_ids.add(number)
        return number

    def release_session_id(self, number: int) -> None:
        """Release a session id that was reserved."""
        self._session_ids.discard(number)

    def join(self, session: WampSession, now: float) -> None:
        """Admit a session, and publish the meta event. Raises `AtCapacity`.

        The session has no deadline but its token's: it ends with its connection, which has its own deadlines.
        """
        self.broker.open(session, inf, now)
        session.meter = self._meters.new() if session.account is not None else None
        session.realm.sessions[session.number] = session
        self.meta.joined(session, now)

    def leave(self, session: WampSession, reason: str, now: float) -> None:
        """End a session and its subscriptions; `on_leave` is published later, after its testaments."""
        self.broker.close(session, reason)  # unless the broker has done so itself after a fault
        del session.realm.sessions[session.number]
        self.release_session_id(session.number)
        for live in tuple(session.live.values()):
            self.remove_subscriber(session, live, now)

    def note_refusal(self, session: WampSession | None, what: str, uri: str, *, is_logged: bool = True) -> None:
        """Count an ERROR or ABORT, and notify the listeners if it `is_logged`."""
        self.refused[uri] += 1
        denied = self.environment.denied if is_logged else ()
        notify(denied, lambda listener: listener(session, what, uri), self.broker.commits.report, "listener")

    def await_nothing(self, engine: SessionEngine) -> None:
        """End the deadlines of an engine: its peer has a session, or its connection is over."""
        self.hellos.forget(engine)
        self.goodbyes.forget(engine)

    # Subscriptions

    def subscription_id(self, realm: Realm, pattern: Pattern) -> int:
        """Return the subscription id of a pattern in a realm, whether or not it has subscribers."""
        live = realm.subscriptions.get(pattern)
        return self._subscription_ids.of(pattern) if live is None else live.number

    def pattern_of(self, session: WampSession, number: int) -> Pattern | None:
        """Return the pattern of a subscription id; None where the id is unknown in the session's realm."""
        live = session.realm.numbers.get(number)
        pattern = self._subscription_ids.pattern(number) if live is None else live.pattern
        return pattern if pattern is not None and session.realm.has(pattern) else None

    def add_subscriber(self, session: WampSession, pattern: Pattern, number: int, now: float) -> None:
        """Add a session to the subscription with the id `number`, which begins with its first subscriber."""
        realm = session.realm
        live = realm.subscriptions.get(pattern)
        is_new = live is None
        if live is None:
            live = LiveSubscription(number, pattern, int(self.wall_s(now) * 1_000_000))
            realm.subscriptions[pattern] = realm.numbers[number] = live
        live.sessions[session] = None
        session.live[number] = live
        self.meta.subscribed(session, live, now, is_new=is_new)

    def remove_subscriber(self, session: WampSession, live: LiveSubscription, now: float) -> None:
        """Remove a session from a subscription, which ends with its last subscriber."""
        del session.live[live.number]
        del live.sessions[session]
        if not live.sessions:
            del session.realm.subscriptions[live.pattern], session.realm.numbers[live.number]
        self.meta.unsubscribed(session, live, now, is_last=not live.sessions)
