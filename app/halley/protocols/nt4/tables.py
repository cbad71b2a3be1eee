"""The tables: all topics and clients of one NetworkTables server, and the operations on them (NA6 to NA9).

No operation fails; refused ones are counted. What follows from a change elsewhere (meta topics, the values that wait
for the history) is the observers'.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from math import inf
from typing import Any

from halley.broker.aging import TimeoutQueue
from halley.broker.broker import Broker
from halley.broker.faults import notify
from halley.broker.names import Match, Pattern
from halley.broker.policy import Rights
from halley.broker.ports import Erasure
from halley.broker.sessions import Session
from halley.protocols.nt4 import messages, names
from halley.protocols.nt4.errors import LIMITS
from halley.protocols.nt4.pacing import Pacing
from halley.protocols.nt4.session import Client
from halley.protocols.nt4.topics import Publisher, Topic, Topics
from halley.protocols.nt4.values import encode
from halley.settings import Nt4

_COST_OF_A_TURN = 400
"""The cost of all tasks in one turn. A step for one topic and one client costs 1, some 10 to 20 microseconds."""

_CHECKS_OF_A_COST = 300
"""How many clients can be searched for those that know a topic, at the cost of one step."""


class TimeSlicedTasks:
    """Long work, done in parts over several turns of the loop, such as deleting or announcing 10,000 topics.

    NetworkTables clients disconnect from a server that is silent for a second, so no client may wait for such work. A
    task is an iterator that does one step for each item, and yields the step's cost. `wake` requests a further turn.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._deferred: deque[Iterator[int]] = deque()
        self._left = _COST_OF_A_TURN

    def __len__(self) -> int:
        """Return the number of unfinished tasks."""
        return len(self._deferred)

    def run(self, task: Iterator[int]) -> None:
        """Do as much of a task as this turn's cost allows, and the rest in later turns."""
        if not self.run_now(task):
            self.defer(task)

    def run_now(self, task: Iterator[int]) -> bool:
        """Do as much of a task as this turn's cost allows, and return whether it is done."""
        while self._left > 0:
            cost = next(task, None)
            if cost is None:
                return True
            self._left -= cost
        return False

    def defer(self, task: Iterator[int]) -> None:
        """Add a task behind those that wait, and request a further turn; none of it is done yet."""
        self._deferred.append(task)
        self._wake()

    def turn(self) -> None:
        """Continue the task that has waited longest; to be called once a turn."""
        self._left = _COST_OF_A_TURN
        if self._deferred:
            self.run(self._deferred.popleft())


class Observer:
    """Something that follows the changes of the tables. The methods here do nothing."""

    def created(self, topic: Topic) -> None:
        """Note that a topic was created."""

    def deleted(self, topic: Topic, now: float) -> None:
        """Note that a topic was deleted."""

    def publishers_changed(self, topic: Topic, owner: Session) -> None:
        """Note that a session has begun or ended to publish a topic."""

    def other_subscribers_changed(self) -> None:
        """Note that the subscriptions of other protocols' sessions have changed, and so those of the bridge."""

    def joined(self, client: Client) -> None:
        """Note that a client has connected."""

    def left(self, client: Client, now: float) -> None:
        """Note that a client's connection has ended."""


class SharedTopics(Observer):
    """Reports the shared topics that are created (True) and deleted (False)."""

    def __init__(self, report: Callable[[str, bool], None]) -> None:
        self._report = report

    def created(self, topic: Topic) -> None:
        """Report a topic if it is shared."""
        if topic.shared is not None:
            self._report(topic.shared, True)  # noqa: FBT003 - the only other argument is its name

    def deleted(self, topic: Topic, now: float) -> None:  # noqa: ARG002 - Observer's form
        """Report the end of a topic if it was shared."""
        if topic.shared is not None:
            self._report(topic.shared, False)  # noqa: FBT003


class Tables:
    """The topics and clients of one server."""

    def __init__(self, broker: Broker, options: Nt4, rights: Rights) -> None:
        self.broker = broker
        self.options = options
        self.rights = rights
        self.topics = Topics()
        self.clients: dict[str, Client] = {}  # by name
        self.flow = broker.flows["nt4"]  # counts values that clients sent, and that were written to clients
        self.pacing = Pacing(self.flow, options.queue_bytes, self._wake)
        self.tasks = TimeSlicedTasks(self._wake)
        self.observers: list[Observer] = []  # in the order in which they are called
        self.until = inf  # what clients send from then on is not taken any more, in monotonic seconds
        self.has_unsaved = False  # a persistent topic has changed since this was last set back
        self._visited: TimeoutQueue[Topic] = TimeoutQueue(options.visitor_topic_s)  # by requests without a session
        self._offset_s: float | None = None
        self._topic_ids = count(1)
        self._last_bytes = 0  # of all last values
        # plain counts, read by telemetry
        self._conflated = 0  # of clients that have disconnected
        self.ignored: Counter[str] = Counter()  # by reason

    def add_observer(self, observer: Observer) -> None:
        """Report changes to `observer` from now on, after those that were added before."""
        self.observers.append(observer)

    def notify(self, note: Callable[[Observer], None]) -> None:
        """Have all observers note a change, which is complete."""
        notify(self.observers, note, self.broker.commits.report, "nt4")

    def _wake(self) -> None:
        self.broker.wake()

    def time_us(self, now: float) -> int:
        """Return the server's time in microseconds since 1970 for a monotonic time in seconds (NA28).

        Wall clocks are adjusted; this one continues from the wall clock's time at the first call, and never decreases.
        """
        if self._offset_s is None:
            self._offset_s = self.broker.clock_offset_s
        return int((now + self._offset_s) * 1_000_000)

    @property
    def conflated(self) -> int:
        """The number of values that slow clients wanted and did not get."""
        return self._conflated + sum(client.output.backlog.conflated for client in self.clients.values())

    def ignore(self, reason: str, limit: str | None = None) -> None:
        """Count an operation that is not done, and the limit that refused it, if one did (`errors.LIMITS`)."""
        self.ignored[reason] += 1
        limit = limit or LIMITS.get(reason)
        if limit is not None:
            self.broker.hits[limit] += 1

    # Names

    def acl_name(self, name: str) -> str:
        """Return the topic in access rules for a name; a name that is NetworkTables' own is below `/$nt4` there."""
        limits = self.broker.limits
        return names.acl_name(name, limits.topic_chars, limits.topic_segments)

    def shared(self, name: str) -> str | None:
        """Return the canonical topic of a name; None if the name is NetworkTables' own."""
        limits = self.broker.limits
        return names.to_topic(name, limits.topic_chars, limits.topic_segments)

    def exact_pattern(self, name: str) -> Pattern | None:
        """Return the exact pattern of a name in other protocols; None if it is NetworkTables' own."""
        topic = self.shared(name)
        return None if topic is None else Pattern(Match.EXACT, topic)

    def prefix_pattern(self, prefix: str) -> Pattern | None:
        """Return the narrowest Bayeux pattern for the topics with a prefix; None if there is none."""
        above = prefix.rpartition("/")[0]
        topic = self.shared(above) if above else ""
        return None if topic is None else Pattern(Match.DESCENDANTS, topic)

    # Topics

    def has_room(self) -> bool:
        """Return whether one more topic may be created (`nt4.topics`); meta topics do not count."""
        return len(self.topics) - self.topics.reserved < self.options.topics

    def create(self, name: str, type_name: str, properties: dict[str, Any], publisher: Client | None = None) -> Topic:
        """Create a topic and announce it to its subscribers except the publisher, which gets its own answer (NA29)."""
        is_bridged = name.startswith((*self.options.bridge_out, *self.options.bridge_in))
        shared = self.shared(name)
        acl_name = shared or names.to_own(name)
        topic = Topic(name, next(self._topic_ids), type_name, properties, shared if is_bridged else None, acl_name)
        self.topics.add(topic)
        for client in self.clients.values():
            if client.subscribed.matches(name):
                self.update_subscriber(client, topic, publisher)
        self.notify(lambda observer: observer.created(topic))
        self.has_unsaved |= topic.is_persistent
        return topic

    def delete(self, topic: Topic, now: float) -> int:
        """Delete a topic: its clients get their waiting values, then the `unannounce` message (NA37).

        Returns what it costs as a step of a task.
        """
        self.pacing.end(topic)
        known_to = self.known_to(topic)
        for client in known_to:
            self.unannounce(client, topic)
        self._drop_last(topic)
        self.topics.remove(topic)
        self._visited.forget(topic)
        self.notify(lambda observer: observer.deleted(topic, now))
        return len(known_to) + len(self.clients) // _CHECKS_OF_A_COST

    def delete_if_unused(self, topic: Topic, now: float) -> int:
        """Delete a topic if it has no reason to exist any more (NA34); return what that costs."""
        return self.delete(topic, now) if not topic.is_in_use and topic in self.topics else 0

    def set_properties(self, topic: Topic, update: dict[str, Any], client: Client, now: float) -> None:
        """Change a topic's properties for a client, and notify all clients that know the topic (NA45 to NA47)."""
        self.has_unsaved |= topic.is_persistent
        topic.set_properties(update)
        if not topic.is_cached:
            self._drop_last(topic)
        self.has_unsaved |= topic.is_persistent
        if not topic.is_in_use:
            self.delete_if_unused(topic, now)
            return
        for each in self.known_to(topic):
            each.output.write_text(messages.properties(topic.name, update, ack=each is client))

    def visit(self, topic: Topic, now: float) -> None:
        """Keep a topic for `nt4.visitor_topic_s`, because a request without a session has published it."""
        topic.is_visited = True
        self._visited.restart(topic, now)

    def delete_expired(self, now: float) -> None:
        """Delete topics that only requests without a session published, `nt4.visitor_topic_s` ago or earlier."""
        if self._visited.has_overdue(now):
            self.tasks.run(self._expiries(now))

    def _expiries(self, now: float) -> Iterator[int]:
        for topic in self._visited.overdue(now, len(self._visited)):
            topic.is_visited = False
            yield 1 + self.delete_if_unused(topic, now)

    # Publishers

    def add_publisher(self, topic: Topic, owner: Session, pubuid: int, type_name: str) -> Publisher:
        """Make a session a publisher of a topic."""
        publisher = Publisher(topic, owner, pubuid, type_name)
        topic.publishers[publisher] = None
        self.notify(lambda observer: observer.publishers_changed(topic, owner))
        return publisher

    def remove_publisher(self, publisher: Publisher, now: float) -> int:
        """Remove a publisher from its topic, and delete the topic if it has no reason to exist any more.

        Returns what the topic's end costs as a step of a task.
        """
        topic, owner = publisher.topic, publisher.owner
        del topic.publishers[publisher]
        if topic.origin is owner and owner.closed is not None:  # a topic that stays must not keep it in memory
            topic.origin = None
        self.notify(lambda observer: observer.publishers_changed(topic, owner))
        return self.delete_if_unused(topic, now)

    def remove_publishers(self, publishers: Iterable[Publisher], now: float) -> None:
        """Remove publishers, some in later turns if they are many."""
        self.tasks.run(self._removals(publishers, now))

    def _removals(self, publishers: Iterable[Publisher], now: float) -> Iterator[int]:
        for publisher in publishers:
            yield 1 + self.remove_publisher(publisher, now)

    # Subscribers

    def known_to(self, topic: Topic) -> list[Client]:
        """Return the clients that a topic was announced to."""
        return [client for client in self.clients.values() if topic in client.announced]

    def announce(self, client: Client, topic: Topic) -> None:
        """Announce a topic to a client, once (NA52)."""
        if topic not in client.announced:
            client.announced[topic] = None
            client.output.write_text(topic.announcement)

    def unannounce(self, client: Client, topic: Topic) -> None:
        """Send the `unannounce` message of a topic to a client, which gets no values of it any more."""
        del client.announced[topic]
        client.output.write_text(messages.unannounce(topic.name, topic.id))

    def update_subscriber(self, client: Client, topic: Topic, publisher: Client | None = None) -> None:
        """Announce a topic to a client, except to its `publisher`, and send its values as the subscriptions want now.

        Values that no subscription wants any more are no longer sent (NA54).
        """
        interest = None
        if client.subscribed.matches(topic.name) and self.rights.may(client, "subscribe", topic.acl_name):
            interest = client.subscribed.interest(topic.name)
            if client is not publisher:
                self.announce(client, topic)
        self.pacing.set_interest(client.output, topic, interest)

    # Values

    def put(
        self, topic: Topic, time_us: int, value: Any, origin: Session | None, authid: str | None, now_us: int
    ) -> bool:
        """Send a value to all clients that want it, and keep it as the last one if it is the newest. The hot path.

        `origin` is the publishing session, if there is one, and `authid` its publisher's; `time_us` is the value's
        time and `now_us` the server's, in microseconds. Returns whether the value is the newest; False also for a
        value that is too large, which is ignored.
        """
        frame = encode(topic.id, time_us, topic.number, value)
        if len(frame) > self.options.message_bytes:  # small integers as doubles grow to nine times their size
            self.ignore("value_too_large")
            return False
        is_newest = topic.replaces_last(time_us, origin)
        if is_newest and topic.is_cached:
            self._last_bytes += len(frame) - (0 if topic.frame is None else len(topic.frame))
            topic.set_last(time_us, value, frame, origin, authid, now_us)
            if self._last_bytes > self.options.last_bytes:
                self.broker.hits["last_bytes"] += 1
                self._drop_last(topic)
            if topic.is_persistent:
                self.has_unsaved = True
        self.pacing.put(topic, frame, origin, now_us, is_newest=is_newest)
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
        for topic in tuple(self.topics):
            if not names.is_reserved(topic.name) and erasure.concerns(topic.acl_name, topic.authid):
                self.has_unsaved |= topic.is_persistent
                self._drop_last(topic)
                if not topic.publishers:
                    self.delete(topic, now)

    def _drop_last(self, topic: Topic) -> None:
        if topic.frame is not None:
            self._last_bytes -= len(topic.frame)
            topic.drop_last()

    # Clients

    def unique(self, name: str) -> str:
        """Return a client's name, with `@` and a number appended if another client has that name (NA11)."""
        if name not in self.clients:
            return name
        return next(other for number in count(1) if (other := f"{name}@{number}") not in self.clients)

    def join(self, client: Client, now: float, *, is_listed: bool) -> None:
        """Add a connection, which counts as a client if it `is_listed`. Raises `AtCapacity`."""
        self.broker.open(client, inf, now)
        if is_listed:
            self.clients[client.name] = client
            self.notify(lambda observer: observer.joined(client))

    def leave(self, client: Client, reason: str, now: float) -> None:
        """Remove a connection with its publishers and subscriptions (NA35); `reason` is why its session ended."""
        self.broker.close(client, reason)
        self._conflated += client.output.backlog.conflated
        self.pacing.leave_all(client.output)
        client.announced.clear()
        publishers = tuple(client.publishers.values())
        client.publishers.clear()
        self.remove_publishers(publishers, now)
        if self.clients.get(client.name) is client:
            del self.clients[client.name]
            self.notify(lambda observer: observer.left(client, now))
        client.forget()
