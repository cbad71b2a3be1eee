"""Meta topics: the clients, publishers and subscribers as values that clients can subscribe to (NA58, NA59).

Meta topics are created when a client first subscribes to a name that begins with `$`, to save their cost, two for each
client and topic, where they are not used. A value is computed only for subscribers, at the end of the turn in which it
changed.

Other protocols' publishers are shown as the server's own, as client "". So is the bridge as a subscriber while the
values have subscribers of other protocols or are recorded: some clients publish only what has subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from app.broker.sessions import Session
from app.protocols.nt4.clients import Client
from app.protocols.nt4.messages import Subscribe

if TYPE_CHECKING:
    from app.protocols.nt4.tables import Tables
    from app.protocols.nt4.topics import Topic

_CLIENTS, _SERVER_PUB, _SERVER_SUB = "$clients", "$serverpub", "$serversub"
_CLIENT_PUB, _CLIENT_SUB, _PUB, _SUB = "$clientpub$", "$clientsub$", "$pub$", "$sub$"
_BRIDGE_SUBUID = 1
_COST_OF_A_TURN = 500
"""The cost of the values that are computed in one turn of the loop; the others wait for the next turn."""


_BYTES_OF_A_COST = 10_000
"""The length of a value that costs as much as one more value."""

_pack = msgspec.msgpack.Encoder().encode


class Meta:
    """The meta topics of one NetworkTables server; `is_wanted` is true from the first subscription to one."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._topics: dict[str, Topic] = {}
        self._stale: dict[Topic, None] = {}  # changed, with subscribers or not yet examined
        self._unread: set[Topic] = set()  # changed, without subscribers
        self._has_other_hearers = False  # other protocols' subscriptions have changed since `$sub$` was computed
        self.is_wanted = False

    @property
    def count(self) -> int:
        """The number of meta topics."""
        return len(self._topics)

    def begin(self) -> None:
        """Create the meta topics, once, because a client subscribes to a name that begins with `$`."""
        if not self.is_wanted:
            self.is_wanted = True
            self._tables.chores.begin(self._begin())

    def _begin(self) -> Iterator[int]:
        tables = self._tables
        for name in (_CLIENTS, _SERVER_PUB, _SERVER_SUB):
            self._add(name)
        for client in tuple(tables.clients.values()):
            if tables.clients.get(client.name) is client:
                self.joined(client)
                yield 2
        for topic in tuple(tables.topics):
            if tables.topics.get(topic.name) is topic:
                self.created(topic)
                yield 2

    # What has happened

    def created(self, topic: Topic) -> None:
        """Note that a topic was created."""
        if self.is_wanted and not topic.name.startswith("$"):
            self._add(_PUB + topic.name)
            self._add(_SUB + topic.name)

    def deleted(self, topic: Topic) -> None:
        """Note that a topic was deleted."""
        self._remove(_PUB + topic.name)
        self._remove(_SUB + topic.name)

    def joined(self, client: Client) -> None:
        """Note that a client has connected."""
        if self.is_wanted:
            self._add(_CLIENT_PUB + client.name)
            self._add(_CLIENT_SUB + client.name)
            self._touch(_CLIENTS)

    def left(self, client: Client) -> None:
        """Note that a client's connection has ended."""
        self._remove(_CLIENT_PUB + client.name)
        self._remove(_CLIENT_SUB + client.name)
        self._touch(_CLIENTS)
        if self.is_wanted:
            for topic in self._tables.topics:
                if client.listens.hears(topic.name):
                    self._touch(_SUB + topic.name)

    def publishes(self, topic: Topic, owner: Session) -> None:
        """Note that a session has begun or ended to publish a topic."""
        self._touch(_PUB + topic.name)
        self._touch(_CLIENT_PUB + owner.name if isinstance(owner, Client) else _SERVER_PUB)

    def subscribes(self, client: Client, subscriptions: Sequence[Subscribe]) -> None:
        """Note that a client's subscriptions have begun or ended."""
        if self.is_wanted:
            self._touch(_CLIENT_SUB + client.name)
            for subscription in subscriptions:
                for topic in self._tables.topics.matching(subscription):
                    self._touch(_SUB + topic.name)

    def subscribers_changed(self) -> None:
        """Note that the subscriptions of other protocols' sessions have changed, and so those of the bridge."""
        if self.is_wanted and not self._has_other_hearers:
            self._has_other_hearers = True
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

    def _remove(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            self._stale.pop(topic, None)
            self._unread.discard(topic)
            self._tables.delete(topic)

    # Values

    def refresh(self, now: float) -> None:
        """Compute the values that have changed and have subscribers, as many as a turn allows."""
        if self._has_other_hearers:
            self._has_other_hearers = False
            for name in self._topics:
                if name.startswith(_SUB):
                    self._touch(name)
        cost_of_one = 1 + len(self._tables.clients) // 10  # each client's subscriptions are searched
        left = _COST_OF_A_TURN
        while self._stale and left > 0:
            topic = next(iter(self._stale))
            del self._stale[topic]
            left -= cost_of_one
            if topic.streams:
                left -= self._put(topic, now) // _BYTES_OF_A_COST
            else:
                self._unread.add(topic)

    @property
    def is_stale(self) -> bool:
        """Whether values have changed that `refresh` has not examined yet."""
        return bool(self._stale) or self._has_other_hearers

    def look_at(self, topic: Topic, now: float) -> None:
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
        return _VALUES[f"${kind}{dollar}"](self._tables, of)


def _clients(tables: Tables, _: str) -> list[dict[str, Any]]:
    return [{"id": each.name, "conn": each.connection, "ver": each.version} for each in tables.clients.values()]


def _server_pub(tables: Tables, _: str) -> list[dict[str, Any]]:
    return [{"uid": each.pubuid, "topic": each.topic.name} for each in tables.bridge.owned()]


def _server_sub(tables: Tables, _: str) -> list[dict[str, Any]]:
    is_recording = tables.broker.recording.log is not None
    return [{"uid": _BRIDGE_SUBUID, "topics": list(tables.options.bridge_out), "options": _BRIDGE_OPTIONS}][
        :is_recording
    ]


def _client_pub(tables: Tables, name: str) -> list[dict[str, Any]]:
    return [{"uid": uid, "topic": each.topic.name} for uid, each in tables.clients[name].publishers.items()]


def _client_sub(tables: Tables, name: str) -> list[dict[str, Any]]:
    return [
        {"uid": each.subuid, "topics": list(each.topics), "options": msgspec.Raw(each.options.shown())}
        for each in tables.clients[name].listens
    ]


def _pub(tables: Tables, name: str) -> list[dict[str, Any]]:
    topic = tables.topics.get(name)
    publishers = () if topic is None else topic.publishers
    return [
        {"client": each.owner.name if isinstance(each.owner, Client) else "", "pubuid": each.pubuid}
        for each in publishers
    ]


def _sub(tables: Tables, name: str) -> list[dict[str, Any]]:
    topic = tables.topics.get(name)
    bridge = [{"client": "", "subuid": _BRIDGE_SUBUID, "options": _BRIDGE_OPTIONS}]
    return (bridge if topic is not None and tables.bridge.wants(topic) else []) + [
        {"client": client.name, "subuid": each.subuid, "options": msgspec.Raw(each.options.shown())}
        for client in tables.clients.values()
        for each in client.listens.over(name)
    ]


_BRIDGE_OPTIONS = {"prefix": True, "all": True}
_VALUES: dict[str, Callable[[Tables, str], list[dict[str, Any]]]] = {
    _CLIENTS: _clients,
    _SERVER_PUB: _server_pub,
    _SERVER_SUB: _server_sub,
    _CLIENT_PUB: _client_pub,
    _CLIENT_SUB: _client_sub,
    _PUB: _pub,
    _SUB: _sub,
}
