"""The bridge: values to the other protocols and the history, and the other protocols' publications as values.

Outwards, every value of a shared topic goes to its current subscribers; the history gets the newest value of each
topic, at most once every `nt4.record_every_s`. Inwards, an event becomes a value if its topic already exists here or
is below one of `nt4.bridge_in`; it must be of the topic's type. A publishing session counts as a publisher of the topic
until it ends; a request without a session keeps the topic for `nt4.visitor_topic_s`.

Where a program listens to a topic's values, they pass outwards one by one, no more often than they are recorded: the
program is asked about the newest, which then goes to the subscribers and the history alike, as it has left it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from heapq import nlargest
from itertools import count, islice, takewhile
from math import inf, isfinite
from typing import Any, NamedTuple

from halley.broker.errors import TooManyTopics, Vetoed, WrongType
from halley.broker.events import BARE, Event
from halley.broker.names import Match, Pattern, matcher
from halley.broker.ports import Durability, Erasure
from halley.broker.sessions import Session
from halley.protocols.contract import ProgramDecisions
from halley.protocols.nt4 import names, types
from halley.protocols.nt4.errors import BadValue, Unportable
from halley.protocols.nt4.session import Client
from halley.protocols.nt4.tables import Observer, Tables
from halley.protocols.nt4.topics import Publisher, Topic

_RECORDED_AT_ONCE = 500
"""The most values that are recorded in one turn of the loop."""


class _Value(NamedTuple):
    """A value from which an event is made only when it is needed."""

    time_us: int
    value: Any
    origin: Session | None


class Bridge(Observer):
    """The bridge of one NetworkTables server (`broker.ports.Values`), which also observes its tables."""

    def __init__(self, tables: Tables, program: ProgramDecisions) -> None:
        self._tables = tables
        self._program = program
        self._broker = tables.broker
        self._every_s = tables.options.record_every_s
        self._unrecorded: dict[Topic, Event | _Value] = {}  # the newest value of each, until it may be recorded
        self._recent: OrderedDict[Topic, None] = OrderedDict()  # by when they were recorded, the longest ago first
        self._invites = tuple(tables.options.bridge_in)
        self._external: dict[Session, dict[Topic, Publisher]] = {}  # the publishers of other protocols, by session
        self._ended: list[Publisher] = []  # of sessions that have ended
        self._passed: dict[Topic, Event] = {}  # the newest value that listeners have let pass, where there are any
        self._uids = count(1)
        # plain counts, read by telemetry
        self.shed = 0  # values that were not recorded because a newer one of their topic was
        self.unshared: Counter[str] = Counter()  # values that other protocols cannot carry, by reason

    # Outwards

    def pass_on(
        self, topic: Topic, time_us: int, value: Any, origin: Session | None, now: float, *, is_newest: bool
    ) -> None:
        """Deliver a client's value to other protocols' subscribers, and record it now or later. This is a hot path.

        `time_us` is the value's time in microseconds, `origin` the publishing session.
        """
        assert topic.shared is not None
        self._broker.activity.note(topic.shared, now)
        if type(value) is float and not isfinite(value):  # and must not replace a value that waits to be recorded
            self.unshared["no_json"] += 1
            return
        if self._program.value_listeners and self._has_listeners(topic):
            self._record(topic, _Value(time_us, value, origin), now, is_newest=is_newest)  # and deliver it then
            return
        event = None
        if self._broker.index.match(topic.shared).subscribers:
            event = self._event(topic, time_us, value, origin)
            if event is None:
                return
        if self._broker.commits.log is not None:
            self._record(topic, event or _Value(time_us, value, origin), now, is_newest=is_newest)
        if event is not None:
            self._broker.values.deliver(event, now)

    def _record(self, topic: Topic, what: Event | _Value, now: float, *, is_newest: bool) -> None:
        if topic.recorded_at + self._every_s <= now:
            self.shed += self._unrecorded.pop(topic, None) is not None
            self._keep(topic, what, now)
        elif is_newest or topic not in self._unrecorded:
            self.shed += topic in self._unrecorded
            if not self._unrecorded:
                self._broker.wake()  # otherwise `due` might not be checked again
            self._unrecorded[topic] = what
            self._recent.setdefault(topic, None)
        else:
            self.shed += 1

    def _keep(self, topic: Topic, what: Event | _Value, now: float) -> None:
        event = what if isinstance(what, Event) else self._event(topic, *what)
        if event is None:
            return
        topic.recorded_at = now
        self._recent[topic] = None
        self._recent.move_to_end(topic)
        broker = self._broker
        if isinstance(what, Event) or not self._has_listeners(topic):
            broker.values.record(event, now)
        elif self._passes(topic, event, what.origin):
            if broker.commits.log is not None:
                broker.values.record(event, now)
            broker.values.deliver(event, now)

    # Listeners of the program

    def _has_listeners(self, topic: Topic) -> bool:
        """Whether there are listeners for a topic's values: then only those that they let pass leave the tables."""
        are_some = bool(self._program.value_listeners)
        return are_some and topic.shared is not None and self._program.listens_to(topic.shared)

    def _passes(self, topic: Topic, event: Event, origin: Session | None) -> bool:
        """Whether the listeners let a client's value pass to the other protocols; they may have changed it."""
        payload = event.payload
        assert isinstance(origin, Client)
        try:
            self._program.listen(event, origin, origin.context)
            if event.payload is not payload:
                types.from_json(topic.type, event.payload)
        except Vetoed:
            self.unshared["vetoed"] += 1
        except BadValue:
            self.unshared["wrong_type"] += 1
        else:
            if len(event.payload) <= self._broker.limits.data_bytes:
                self._passed[topic] = event
                return True
            self.unshared["too_large"] += 1
        return False

    @property
    def due(self) -> float:
        """When `record` is to be called next, in monotonic seconds; infinity if no value waits to be recorded."""
        return next(iter(self._recent)).recorded_at + self._every_s if self._unrecorded else inf

    def record(self, now: float) -> None:
        """Record the waiting values of topics that were not recorded for `nt4.record_every_s`."""
        if self.due <= now:
            due = takewhile(lambda topic: topic.recorded_at + self._every_s <= now, self._recent)
            for topic in list(islice(due, _RECORDED_AT_ONCE)):
                del self._recent[topic]
                self._record_waiting(topic, now)

    def _record_waiting(self, topic: Topic, now: float) -> None:
        what = self._unrecorded.pop(topic, None)
        if what is not None:
            self._keep(topic, _again(what) if isinstance(what, Event) else what, now)

    def deleted(self, topic: Topic, now: float) -> None:
        """Record the waiting value of a topic that was deleted (`Observer.deleted`)."""
        self._record_waiting(topic, now)
        self._recent.pop(topic, None)
        self._passed.pop(topic, None)

    def erase(self, erasure: Erasure) -> None:
        """Drop the waiting values that an erasure concerns, so that they are not recorded."""
        for topic, what in tuple(self._unrecorded.items()):
            publisher = what if isinstance(what, Event) else what.origin
            if erasure.concerns(topic.acl_name, publisher.authid if publisher is not None else None):
                del self._unrecorded[topic]
                self.shed += 1
        for topic, event in tuple(self._passed.items()):
            if erasure.concerns(topic.acl_name, event.authid):
                del self._passed[topic]

    def record_all(self, now: float) -> None:
        """Record all waiting values, because the history is about to close."""
        for topic in tuple(self._unrecorded):
            self.deleted(topic, now)

    def _event(self, topic: Topic, time_us: int, value: Any, origin: Session | None) -> Event | None:
        assert topic.shared is not None
        try:
            payload = types.to_json(topic.type, value)
        except Unportable:
            self.unshared["no_json"] += 1
            return None
        event = Event(topic.shared, payload, protocol="nt4")
        if len(payload) > self._broker.limits.data_bytes:
            self.unshared["too_large"] += 1
            return None
        if origin is not None:
            event.publisher, event.authid, event.role = origin.id, origin.lasting_authid, origin.role
            event.protocol = origin.protocol
        event.nt4_type, event.nt4_time_us = topic.type, time_us
        return event

    # Inwards

    def accepts(self, topic: str) -> bool:
        """Return whether an event on a canonical topic is to become a value (`Values.accepts`)."""
        return topic in self._tables.topics.shared or (bool(self._invites) and self._is_invited(topic))

    def _is_invited(self, topic: str) -> bool:
        name = names.to_name(topic)
        return name is not None and name.startswith(self._invites) and self._tables.shared(name) == topic

    def publish(self, event: Event, now: float, without: Session | None, source: object) -> None:
        """Make another protocol's event a value, and deliver it to all protocols (`Values.publish`).

        Raises `WrongType`, `TooManyTopics`, and then nothing has changed.
        """
        tables = self._tables
        topic = tables.topics.shared.get(event.topic)
        type_name = types.type_of(event.payload) if topic is None else topic.type
        try:
            value = types.from_json(type_name, event.payload)
        except BadValue:
            raise WrongType(type_name) from None
        if event.shape != BARE and type_name != "json":
            raise WrongType(type_name)
        if topic is None:
            if not tables.has_room():
                raise TooManyTopics
            topic = tables.create(names.to_name(event.topic) or "", type_name, {})
        session = source if isinstance(source, Session) and source.closed is None else None
        self._add_publisher(topic, session, now)
        time_us = tables.time_us(now)
        event.nt4_type, event.nt4_time_us = topic.type, time_us
        is_newest = tables.put(topic, time_us, value, session, event.authid, time_us)
        if self._has_listeners(topic):
            self._passed[topic] = event  # listeners of publishes have let it pass
        if self._broker.commits.log is not None:
            self._record(topic, event, now, is_newest=is_newest)  # before delivery, so that all get the same id
        self._broker.values.deliver(event, now, without=without)

    def _add_publisher(self, topic: Topic, session: Session | None, now: float) -> None:
        published = {} if session is None else self._external.setdefault(session, {})
        if topic in published:
            return
        if session is None or len(published) >= self._tables.options.publishers:
            self._tables.visit(topic, now)
        else:
            published[topic] = self._tables.add_publisher(topic, session, next(self._uids), topic.type)

    def external_publishers(self) -> list[Publisher]:
        """Return the publishers of other protocols, which meta topics show as the server's own."""
        return [publisher for published in self._external.values() for publisher in published.values()]

    def subscribers_changed(self) -> None:
        """Note that other protocols' subscriptions have changed (`Values.subscribers_changed`)."""
        self._tables.notify(lambda observer: observer.other_subscribers_changed())

    def wants(self, topic: Topic) -> bool:
        """Return whether a session of another protocol or the history gets the topic's values."""
        if topic.shared is None:
            return False
        log = self._broker.commits.log
        is_recorded = log is not None and log.durability_of(topic.shared) is not Durability.NONE
        return is_recorded or bool(self._broker.index.subscribers(topic.shared))

    def closed(self, session: Session) -> None:
        """Note that a session of another protocol has ended, so that its publishers end (`Values.closed`)."""
        if session.former_subscriptions:
            self.subscribers_changed()
        published = self._external.pop(session, None)
        if published is not None:
            self._ended += published.values()
            self._broker.wake()

    @property
    def has_ended_publishers(self) -> bool:
        """Whether `remove_ended_publishers` has something to do."""
        return bool(self._ended)

    def remove_ended_publishers(self, now: float) -> None:
        """Remove the publishers whose sessions have ended."""
        if self._ended:
            ended, self._ended = self._ended, []
            self._tables.remove_publishers(ended, now)

    def latest(self, patterns: Collection[Pattern], most: int) -> list[Event]:
        """Return the last values of topics that match any pattern, as new events (`Values.latest`).

        These are the youngest `most`, oldest first.
        """
        shared = self._tables.topics.shared
        wanted = dict.fromkeys(pattern.topic for pattern in patterns if pattern.match is Match.EXACT)
        for is_wanted in [matcher(pattern) for pattern in patterns if pattern.match is not Match.EXACT]:
            wanted.update(dict.fromkeys(filter(is_wanted, shared)))
        found = [topic for topic in map(shared.get, wanted) if topic is not None and topic.frame is not None]
        youngest = nlargest(most, found, key=lambda topic: topic.last_us)
        return [event for event in map(self._last, reversed(youngest)) if event is not None]

    def _last(self, topic: Topic) -> Event | None:
        """The last value of a topic as a new event; where there are listeners, the last that they let pass."""
        if self._has_listeners(topic):
            passed = self._passed.get(topic)
            return None if passed is None else _again(passed)
        return self._event(topic, topic.time_us, topic.value, _session(topic.origin))


def _again(event: Event) -> Event:
    """Return an unstamped copy of an event: a value that is recorded after its delivery has its own position."""
    again = Event(
        event.topic,
        event.payload,
        publisher=event.publisher,
        protocol=event.protocol,
        authid=event.authid,
        role=event.role,
    )
    again.shape, again.details = event.shape, event.details
    again.nt4_type, again.nt4_time_us = event.nt4_type, event.nt4_time_us
    again.chosen = event.chosen
    return again


def _session(origin: object) -> Session | None:
    return origin if isinstance(origin, Session) else None
