"""Meta topics: the clients, publishers and subscribers as values that clients can subscribe to (NA58, NA59).

Meta topics are created when a client first subscribes to a name that begins with `$`, to save their cost, two for each
client and topic, where they are not used. A value is computed only for subscribers, at the end of the turn in which it
changed.

Other protocols' publishers are shown as the server's own, as client "". So is the bridge as a subscriber while the
values have subscribers of other protocols or are recorded: some clients publish only what has subscribers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from halley.broker.sessions import Session
from halley.protocols.nt4.bridge import Bridge
from halley.protocols.nt4.messages import Subscribe
from halley.protocols.nt4.session import Client
from halley.protocols.nt4.tables import Observer, Tables
from halley.protocols.nt4.topics import Publisher, Topic

_CLIENTS, _SERVER_PUB, _SERVER_SUB = "$clients", "$serverpub", "$serversub"
_CLIENT_PUB, _CLIENT_SUB, _PUB, _SUB = "$clientpub$", "$clientsub$", "$pub$", "$sub$"

_BRIDGE_SUBUID = 1
_BRIDGE_OPTIONS = {"prefix": True, "all": True}
"""The id and options of the subscription by which meta topics show the bridge."""

_COST_OF_A_TURN = 500
"""The cost of the values that are computed in one turn of the loop; the others wait for the next turn."""

_BYTES_OF_A_COST = 10_000
"""The length of a value that costs as much as one more value."""

_pack = msgspec.msgpack.Encoder().encode


class MetaTopics(Observer):
    """The meta topics of one NetworkTables server; `is_wanted` is true from the first subscription to one."""

    def __init__(self, tables: Tables, bridge: Bridge) -> None:
        self._tables = tables
        self._bridge = bridge
        self._topics: dict[str, Topic] = {}
        self._stale: OrderedDict[Topic, None] = OrderedDict()  # changed, with subscribers or not yet examined
        self._unread: set[Topic] = set()  # changed, without subscribers
        self._is_bridge_stale = False  # other protocols' subscriptions have changed since `$sub$` was computed
        self.is_wanted = False
        self._values: dict[str, Callable[[str], list[dict[str, Any]]]] = {
            _CLIENTS: self._clients,
            _SERVER_PUB: self._server_pub,
            _SERVER_SUB: self._server_sub,
            _CLIENT_PUB: self._client_pub,
            _CLIENT_SUB: self._client_sub,
            _PUB: self._pub,
            _SUB: self._sub,
        }

    def create(self) -> None:
        """Create the meta topics, once, because a client subscribes to a name that begins with `$`."""
        if not self.is_wanted:
            self.is_wanted = True
            self._tables.tasks.run(self._create_all())

    def _create_all(self) -> Iterator[int]:
        tables = self._tables
        for name in (_CLIENTS, _SERVER_PUB, _SERVER_SUB):
            self._add(name)
        for client in tuple(tables.clients.values()):
            if tables.clients.get(client.name) is client:
                self.joined(client)
                yield 2
        for topic in tuple(tables.topics):
            if topic in tables.topics:
                self.created(topic)
                yield 2

    # What has changed (`Observer`)

    def created(self, topic: Topic) -> None:
        """Add the meta topics of a new topic."""
        if self.is_wanted and not topic.name.startswith("$"):
            self._add(_PUB + topic.name)
            self._add(_SUB + topic.name)

    def deleted(self, topic: Topic, now: float) -> None:
        """Delete the meta topics of a deleted topic."""
        self._remove(_PUB + topic.name, now)
        self._remove(_SUB + topic.name, now)

    def joined(self, client: Client) -> None:
        """Add the meta topics of a new client."""
        if self.is_wanted:
            self._add(_CLIENT_PUB + client.name)
            self._add(_CLIENT_SUB + client.name)
            self._touch(_CLIENTS)

    def left(self, client: Client, now: float) -> None:
        """Delete the meta topics of a client that has disconnected."""
        self._remove(_CLIENT_PUB + client.name, now)
        self._remove(_CLIENT_SUB + client.name, now)
        self._touch(_CLIENTS)
        if self.is_wanted:
            for topic in self._tables.topics:
                if client.subscribed.matches(topic.name):
                    self._touch(_SUB + topic.name)

    def publishers_changed(self, topic: Topic, owner: Session) -> None:
        """Have what shows a topic's publishers computed again."""
        self._touch(_PUB + topic.name)
        self._touch(_CLIENT_PUB + owner.name if isinstance(owner, Client) else _SERVER_PUB)

    def subscriptions_changed(self, client: Client, subscriptions: Sequence[Subscribe]) -> None:
        """Have what shows these subscriptions of a client computed again, since they have begun or ended."""
        if self.is_wanted:
            self._touch(_CLIENT_SUB + client.name)
            for subscription in subscriptions:
                for topic in self._tables.topics.matching(subscription):
                    self._touch(_SUB + topic.name)

    def other_subscribers_changed(self) -> None:
        """Have what shows the bridge's subscription computed again."""
        if self.is_wanted and not self._is_bridge_stale:
            self._is_bridge_stale = True
            self._tables.broker.wake()

    def _touch(self, name: str) -> None:
        topic = self._topics.get(name)
        if topic is not None and topic not in self._unread and topic not in self._stale:
            self._stale[topic] = None
            if len(self._stale) == 1:
                self._tables.broker.wake()

    def _add(self, name: str) -> None:
        if name in self._topics:
            return
        self._topics[name] = self._tables.create(name, "msgpack", {"retained": True})
        self._touch(name)

    def _remove(self, name: str, now: float) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._stale.pop(topic, None)
            self._unread.discard(topic)
            self._tables.delete(topic, now)

    # Values

    def refresh(self, now: float) -> None:
        """Compute the values that have changed and have subscribers, as many as a turn allows."""
        if self._is_bridge_stale:
            self._is_bridge_stale = False
            for name in self._topics:
                if name.startswith(_SUB):
                    self._touch(name)
        cost_of_one = 1 + len(self._tables.clients) // 10  # each client's subscriptions are searched
        left = _COST_OF_A_TURN
        while self._stale and left > 0:
            topic, _ = self._stale.popitem(last=False)
            left -= cost_of_one
            if self._tables.pacing.has_subscribers(topic):
                left -= self._put(topic, now) // _BYTES_OF_A_COST
            else:
                self._unread.add(topic)

    @property
    def is_stale(self) -> bool:
        """Whether values have changed that `refresh` has not examined yet."""
        return bool(self._stale) or self._is_bridge_stale

    def refresh_one(self, topic: Topic, now: float) -> None:
        """Compute a topic's value, if it has changed, because a client is about to get it."""
        if topic in self._unread or topic in self._stale:
            self._stale.pop(topic, None)
            self._unread.discard(topic)
            self._put(topic, now)

    def _put(self, topic: Topic, now: float) -> int:
        """Compute a topic's value, and return its length in bytes."""
        time_us = self._tables.time_us(now)
        value = _pack(self._value(topic.name))
        self._tables.put(topic, time_us, value, None, None, time_us)
        return len(value)

    def _value(self, name: str) -> list[dict[str, Any]]:
        kind, dollar, of = name[1:].partition("$")
        return self._values[f"${kind}{dollar}"](of)

    def _clients(self, _: str) -> list[dict[str, Any]]:
        clients = self._tables.clients.values()
        return [{"id": each.name, "conn": each.connection, "ver": each.version} for each in clients]

    def _server_pub(self, _: str) -> list[dict[str, Any]]:
        return [_publisher(each) for each in self._bridge.external_publishers()]

    def _server_sub(self, _: str) -> list[dict[str, Any]]:
        if self._tables.broker.commits.log is None:
            return []
        names = list(self._tables.options.bridge_out)
        return [{"uid": _BRIDGE_SUBUID, "topics": names, "options": _BRIDGE_OPTIONS}]

    def _client_pub(self, name: str) -> list[dict[str, Any]]:
        return [_publisher(each) for each in self._tables.clients[name].publishers.values()]

    def _client_sub(self, name: str) -> list[dict[str, Any]]:
        return [
            {"uid": each.subuid, "topics": list(each.topics), "options": msgspec.Raw(each.options.to_msgpack())}
            for each in self._tables.clients[name].subscribed
        ]

    def _pub(self, name: str) -> list[dict[str, Any]]:
        topic = self._tables.topics.get(name)
        publishers = () if topic is None else topic.publishers
        return [
            {"client": each.owner.name if isinstance(each.owner, Client) else "", "pubuid": each.pubuid}
            for each in publishers
        ]

    def _sub(self, name: str) -> list[dict[str, Any]]:
        topic = self._tables.topics.get(name)
        is_bridged = topic is not None and self._bridge.wants(topic)
        bridge = [{"client": "", "subuid": _BRIDGE_SUBUID, "options": _BRIDGE_OPTIONS}] if is_bridged else []
        return bridge + [
            {"client": client.name, "subuid": each.subuid, "options": msgspec.Raw(each.options.to_msgpack())}
            for client in self._tables.clients.values()
            for each in client.subscribed.matching(name)
        ]


def _publisher(publisher: Publisher) -> dict[str, Any]:
    return {"uid": publisher.pubuid, "topic": publisher.topic.name}
