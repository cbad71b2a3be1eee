"""The tables: all topics and clients of one NetworkTables server, and the operations on them (NA6 to NA9).

Where ntcore deviates from the specification, the specification is followed, with one exception: as in ntcore, the
publisher of a topic's last value may replace it with an older one. No operation fails; refused ones are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any

import orjson

from app.broker.broker import Broker
from app.broker.erasure import Erasure
from app.broker.policy import Rights
from app.broker.sessions import Session
from app.broker.topics import Match, Pattern
from app.protocols.nt4 import messages, names, subscribing
from app.protocols.nt4.bridge import Bridge
from app.protocols.nt4.chores import Chores
from app.protocols.nt4.clients import Publisher
from app.protocols.nt4.messages import Publish, Subscribe
from app.protocols.nt4.meta import Meta
from app.protocols.nt4.outgoing import Outgoing
from app.protocols.nt4.pacing import Pacing
from app.protocols.nt4.topics import Topic, Topics
from app.settings import Nt4

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client


class Tables:
    """The topics and clients of one server; `time_us` is its clock, in microseconds, which never decreases (NA28)."""

    def __init__(self, broker: Broker, options: Nt4, rights: Rights) -> None:
        self.broker = broker
        self.options = options
        self.rights = rights
        self.topics = Topics()
        self.clients: dict[str, Client] = {}  # by name
        self.outgoing = Outgoing(broker.mark_ready)
        self.flow = broker.flows["nt4"]  # counts values that clients sent, and that were written to clients
        self.pacing = Pacing(
            self.flow, options.queue_bytes, self.outgoing.say, broker.mark_ready, self.outgoing.pack, self._wake
        )
        self.chores = Chores(self._wake)
        self.bridge = Bridge(self)
        self.meta = Meta(self)
        self.has_unsaved = False  # a persistent topic has changed since this was last set back
        self._offset_s: float | None = None
        self._topic_ids = count(1)
        self._numbers = count(1)  # of values
        self._last_bytes = 0
        # listeners, called with the client, and the subscription or the reason of its end
        self.opened: list[Callable[[Client], None]] = []
        self.closed: list[Callable[[Client, str], None]] = []
        self.subscribed: list[Callable[[Client, Subscribe], None]] = []
        self.unsubscribed: list[Callable[[Client, Subscribe], None]] = []
        # plain counts, read by telemetry
        self._conflated = 0  # of clients that have disconnected
        self.ignored: Counter[str] = Counter()  # by reason

    def _wake(self) -> None:
        self.broker.wake()

    def time_us(self, now: float) -> int:
        """Return the server's time in microseconds since 1970 for a monotonic time in seconds.

        Wall clocks are adjusted; this one continues from the wall clock's time at the first call.
        """
        if self._offset_s is None:
            self._offset_s = self.broker.clock_offset_s
        return int((now + self._offset_s) * 1_000_000)

    @property
    def conflated(self) -> int:
        """The number of values that slow clients wanted and did not get."""
        return self._conflated + sum(client.backlog.conflated for client in self.clients.values())

    # What is due

    @property
    def due(self) -> float:
        """When `turn` is to be called next, in monotonic seconds; infinity if nothing waits for it."""
        if len(self.chores) or self.meta.is_stale or self.bridge.has_withdrawn:
            return -inf
        return min(self.pacing.due, self.bridge.due)

    def turn(self, now: float) -> None:
        """Do one turn's part of the long work, and hand out the values that are due."""
        self.bridge.withdraw(now)
        self.chores.work()
        self.meta.refresh(now)
        if self.pacing.due <= now:
            self.pacing.tick(now, self.time_us(now))
        self.bridge.record(now)

    def sweep(self, now: float) -> None:
        """Delete topics that only requests without a session published, `nt4.visitor_topic_s` ago or earlier."""
        for topic in tuple(self.topics):
            if topic.visited_at is not None and topic.visited_at + self.options.visitor_topic_s <= now:
                topic.visited_at = None
                self.release(topic, now)

    def ignore(self, reason: str, limit: str = "") -> None:
        """Count an operation that is not done; `limit` is the key of the setting that refused it, if any."""
        self.ignored[reason] += 1
        if limit:
            self.broker.hits[limit] += 1

    # Topics

    def ruled(self, name: str) -> str:
        """Return the topic in access rules for a name; a name that is NetworkTables' own is below `/$nt4` there."""
        limits = self.broker.limits
        return names.ruled(name, limits.topic_chars, limits.topic_segments)

    def shared(self, name: str) -> str | None:
        """Return the canonical topic of a name; None if the name is NetworkTables' own."""
        limits = self.broker.limits
        return names.to_topic(name, limits.topic_chars, limits.topic_segments)

    def exactly(self, name: str) -> Pattern | None:
        """Return the exact pattern of a name in other protocols; None if it is NetworkTables' own."""
        topic = self.shared(name)
        return None if topic is None else Pattern(Match.EXACT, topic)

    def below(self, prefix: str) -> Pattern | None:
        """Return the narrowest Bayeux pattern for the topics with a prefix; None if there is none."""
        above = prefix.rpartition("/")[0]
        topic = self.shared(above) if above else ""
        return None if topic is None else Pattern(Match.DESCENDANTS, topic)

    def create(self, name: str, type_name: str, properties: dict[str, Any], publisher: Client | None = None) -> Topic:
        """Create a topic and announce it to its subscribers except the publisher, which `publish` notifies (NA29)."""
        is_bridged = name.startswith((*self.options.bridge_out, *self.options.bridge_in))
        shared = self.shared(name)
        ruled = shared or names.to_own(name)
        topic = Topic(name, next(self._topic_ids), type_name, properties, shared if is_bridged else None, ruled)
        self.topics.add(topic)
        for client in self.clients.values():
            if client.listens.hears(name):
                subscribing.attend(self, client, topic, publisher)
        self.meta.created(topic)
        self.has_unsaved |= topic.is_persistent
        return topic

    def has_room(self) -> bool:
        """Return whether one more topic may be created (`nt4.topics`)."""
        return len(self.topics) - self.meta.count < self.options.topics

    def release(self, topic: Topic, now: float) -> None:
        """Delete a topic if it has no reason to exist any more (NA34)."""
        if not topic.is_wanted and self.topics.get(topic.name) is topic:
            self.bridge.forget(topic, now)
            self.delete(topic)

    def delete(self, topic: Topic) -> None:
        """Delete a topic: its clients get their waiting values, then the `unannounce` message (NA37)."""
        for stream in tuple(topic.streams.values()):
            stream.settle()
        gone = messages.unannounce(topic.name, topic.id)
        for client in topic.told:
            frames = client.backlog.drop(topic)
            if frames:
                self.outgoing.say(client, self.outgoing.pack(client, frames))
                self.flow.delivered += len(frames)
            if topic in client.streams:
                self.pacing.leave(client, topic)
            del client.announced[topic]
            self.outgoing.tell(client, gone)
        topic.told.clear()
        self._forget_last(topic)
        self.topics.remove(topic)
        self.meta.deleted(topic)

    def announce(self, client: Client, topic: Topic) -> None:
        """Announce a topic to a client, once (NA52)."""
        if topic not in client.announced:
            client.announced[topic] = topic.told[client] = None
            self.outgoing.tell(client, topic.announcement)

    def unannounce(self, client: Client, topic: Topic) -> None:
        """End a topic that goes on for others, for one client that gets no values of it."""
        del client.announced[topic], topic.told[client]
        self.outgoing.tell(client, messages.unannounce(topic.name, topic.id))

    # Publishers

    def publish(self, client: Client, message: Publish, now: float) -> None:
        """Make a client a publisher of a topic, which is created if needed and announced each time (NA29 to NA33)."""
        name, pubuid = message.name, message.pubuid
        if names.is_reserved(name):
            self.ignore("reserved")
        elif max(len(name.encode()), len(message.type.encode())) > self.options.name_bytes:
            self.ignore("name_too_long", "name_bytes")
        elif pubuid not in client.publishers and len(client.publishers) >= self.options.publishers:
            self.ignore("too_many_publishers", "publishers")
        elif not self.rights.may(client, "publish", self.ruled(name)):
            self.ignore("denied")
        else:
            topic = self.topics.get(name) or self._new(client, message)
            if topic is not None:
                before = client.publishers.get(pubuid)
                publisher = Publisher(topic, client, pubuid, message.type)
                topic.publishers[publisher] = None
                client.publishers[pubuid] = publisher
                if before is not None:
                    self.withdraw(before, now)
                client.announced[topic] = topic.told[client] = None
                self.outgoing.tell(client, messages.announce(name, topic.id, topic.type, topic.properties, pubuid))
                self.meta.publishes(topic, client)

    def _new(self, client: Client, message: Publish) -> Topic | None:
        if not self.has_room():
            self.ignore("too_many_topics", "topics")
        elif len(orjson.dumps(message.properties)) > self.options.properties_bytes:
            self.ignore("properties_too_large", "properties_bytes")
        else:
            return self.create(message.name, message.type, message.properties, client)
        return None

    def unpublish(self, client: Client, pubuid: int, now: float) -> None:
        """End a client's publisher."""
        publisher = client.publishers.pop(pubuid, None)
        if publisher is None:
            self.ignore("unknown_pubuid")
        else:
            self.withdraw(publisher, now)

    def withdraw_all(self, publishers: Iterable[Publisher], now: float) -> Iterator[int]:
        """Withdraw publishers as a chore: an iterator of the costs of its steps."""
        for publisher in publishers:
            told = len(publisher.topic.told)
            self.withdraw(publisher, now)
            yield 1 + told

    def withdraw(self, publisher: Publisher, now: float) -> None:
        """Remove a publisher from its topic, and delete the topic if it has no reason to exist any more."""
        topic, owner = publisher.topic, publisher.owner
        del topic.publishers[publisher]
        if topic.origin is owner and owner.closed is not None:  # a topic that stays must not keep it in memory
            topic.origin = None
        self.meta.publishes(topic, owner)
        self.release(topic, now)

    def set_properties(self, client: Client, name: str, update: dict[str, Any], now: float) -> None:
        """Change a topic's properties for a client, and notify all clients that know the topic (NA45 to NA47)."""
        topic = self.topics.get(name)
        if topic is None or names.is_reserved(name):
            self.ignore("unknown_topic")
        elif not self.rights.may(client, "publish", topic.ruled):
            self.ignore("denied")
        elif len(orjson.dumps(topic.properties | update)) > self.options.properties_bytes:
            self.ignore("properties_too_large", "properties_bytes")
        elif update:
            self.has_unsaved |= topic.is_persistent
            topic.set_properties(update)
            if not topic.is_cached:
                self._forget_last(topic)
            self.has_unsaved |= topic.is_persistent
            if not topic.is_wanted:
                self.release(topic, now)
                return
            for told in topic.told:
                self.outgoing.tell(told, messages.properties(name, update, ack=told is client))

    # Values

    def take(self, topic: Topic, time_us: int, value: Any, client: Client, now: float, now_us: int) -> None:
        """Set a topic's value from a client, and pass it to the bridge. This is the hot path.

        `time_us` is the value's time and `now_us` the server's, in microseconds.
        """
        is_newest = self.put(topic, time_us, value, client, client.authid, now_us)
        if topic.shared is not None:
            self.bridge.pass_on(topic, time_us, value, client, now, is_newest=is_newest)

    def put(
        self, topic: Topic, time_us: int, value: Any, origin: Session | None, authid: str | None, now_us: int
    ) -> bool:
        """Send a value to all clients that want it, and keep it as the last one if it is the newest.

        `origin` is the publishing session, if there is one, and `authid` its publisher's.
        Returns whether it is the newest; False also for a value that is too large, which is ignored.
        """
        frame = topic.write(time_us, value)
        if len(frame) > self.options.message_bytes:  # small integers as doubles grow to nine times their size
            self.ignore("value_too_large", "message_bytes")
            return False
        is_newest = topic.replaces(time_us, origin)
        if is_newest and topic.is_cached:
            self._keep(topic, time_us, value, frame, origin, authid, now_us)
        if topic.streams:
            entry = (next(self._numbers), frame, origin)
            for stream in topic.streams.values():
                stream.put(entry, now_us, is_newest=is_newest)
        return is_newest

    def restore(
        self, name: str, type_name: str, value: Any, properties: dict[str, Any], authid: str | None, now: float
    ) -> None:
        """Restore a persistent topic of an earlier run, with its value timestamped now (NA48)."""
        if self.topics.get(name) is None and self.has_room():
            topic = self.create(name, type_name, properties | {"persistent": True})
            if value is not None:
                time_us = self.time_us(now)
                self.put(topic, time_us, value, None, authid, time_us)

    def erase(self, erasure: Erasure, now: float) -> None:
        """Drop the last values that an erasure concerns, and the topics that then have no publisher.

        So a persistent topic goes too; one that still has a publisher stays, without a value.
        """
        self.bridge.erase(erasure)
        for topic in tuple(self.topics):
            if not names.is_reserved(topic.name) and erasure.concerns(topic.ruled, topic.authid):
                self.has_unsaved |= topic.is_persistent
                self._forget_last(topic)
                if not topic.publishers:
                    self.bridge.forget(topic, now)
                    self.delete(topic)

    def _keep(
        self, topic: Topic, time_us: int, value: Any, frame: bytes, origin: object, authid: str | None, now_us: int
    ) -> None:
        before = topic.frame
        self._last_bytes += len(frame) - (0 if before is None else len(before))
        topic.keep(time_us, value, frame, origin, authid, now_us)
        if self._last_bytes > self.options.last_bytes:
            self.broker.hits["last_bytes"] += 1
            self._forget_last(topic)
        if topic.is_persistent:
            self.has_unsaved = True

    def _forget_last(self, topic: Topic) -> None:
        if topic.frame is not None:
            self._last_bytes -= len(topic.frame)
            topic.forget()

    # Clients

    def join(self, client: Client, now: float, *, is_listed: bool) -> None:
        """Add a connection, which counts as a client if it `is_listed`. Raises `NoRoom`."""
        self.broker.open(client, inf, now)
        self.tell(self.opened, client)
        if is_listed:
            self.clients[client.name] = client
            self.meta.joined(client)

    def leave(self, client: Client, reason: str, now: float) -> None:
        """Remove a connection with its publishers and subscriptions (NA35); `reason` is why its session ended."""
        self.broker.close(client, reason)
        self._conflated += client.backlog.conflated
        for topic in tuple(client.streams):
            self.pacing.leave(client, topic)
        for topic in client.announced:
            del topic.told[client]
        client.announced.clear()
        publishers = tuple(client.publishers.values())
        client.publishers.clear()
        self.chores.begin(self.withdraw_all(publishers, now))
        if self.clients.get(client.name) is client:
            del self.clients[client.name]
            self.meta.left(client)
        self.tell(self.closed, client, reason)

    def unique(self, name: str) -> str:
        """Return a client's name, with `@` and a number appended if another client has that name (NA11)."""
        if name not in self.clients:
            return name
        return next(other for number in count(1) if (other := f"{name}@{number}") not in self.clients)

    def tell(self, listeners: list[Callable[..., None]], *news: object) -> None:
        """Call each listener with the arguments `news`."""
        for listener in listeners:
            listener(*news)
