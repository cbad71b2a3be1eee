"""Publishing: what clients do to topics as publishers, and the values that they send (NA29 to NA47).

Where ntcore deviates from the specification, the specification is followed, with one exception: as in ntcore, the
publisher of a topic's last value may replace it with an older one.
"""

from __future__ import annotations

import orjson

from halley.protocols.nt4 import messages, names, values
from halley.protocols.nt4.bridge import Bridge
from halley.protocols.nt4.messages import Publish, SetProperties, Unpublish
from halley.protocols.nt4.session import Client
from halley.protocols.nt4.tables import Tables
from halley.protocols.nt4.topics import Topic


class Publishing:
    """The requests of publishers, carried out on the tables; shared topics' values also go to the bridge."""

    def __init__(self, tables: Tables, bridge: Bridge) -> None:
        self._tables = tables
        self._bridge = bridge
        self._options = tables.options

    def publish(self, client: Client, message: Publish, now: float) -> None:
        """Make a client a publisher of a topic, which is created if needed and announced each time (NA29 to NA33)."""
        tables, options = self._tables, self._options
        name, pubuid = message.name, message.pubuid
        if names.is_reserved(name):
            tables.ignore("reserved")
        elif max(len(name.encode()), len(message.type.encode())) > options.name_bytes:
            tables.ignore("name_too_long")
        elif pubuid not in client.publishers and len(client.publishers) >= options.publishers:
            tables.ignore("too_many_publishers")
        elif not tables.rights.may(client, "publish", tables.acl_name(name)):
            tables.ignore("denied")
        else:
            topic = tables.topics.get(name) or self._new_topic(client, message)
            if topic is not None:
                before = client.publishers.get(pubuid)
                client.publishers[pubuid] = tables.add_publisher(topic, client, pubuid, message.type)
                if before is not None:
                    tables.remove_publisher(before, now)
                client.announced[topic] = None
                answer = messages.announce(name, topic.id, topic.type, topic.properties, pubuid)
                client.output.write_text(answer)

    def _new_topic(self, client: Client, message: Publish) -> Topic | None:
        if not self._tables.has_room():
            self._tables.ignore("too_many_topics")
        elif len(orjson.dumps(message.properties)) > self._options.properties_bytes:
            self._tables.ignore("properties_too_large")
        else:
            return self._tables.create(message.name, message.type, message.properties, client)
        return None

    def unpublish(self, client: Client, message: Unpublish, now: float) -> None:
        """End a client's publisher; its topic is deleted if it has no reason to exist any more (NA34)."""
        publisher = client.publishers.pop(message.pubuid, None)
        if publisher is None:
            self._tables.ignore("unknown_pubuid")
        else:
            self._tables.remove_publisher(publisher, now)

    def set_properties(self, client: Client, message: SetProperties, now: float) -> None:
        """Change a topic's properties, if the client may publish it (NA45 to NA47)."""
        tables, update = self._tables, message.update
        topic = tables.topics.get(message.name)
        if topic is None or names.is_reserved(message.name):
            tables.ignore("unknown_topic")
        elif not tables.rights.may(client, "publish", topic.acl_name):
            tables.ignore("denied")
        elif len(orjson.dumps(topic.properties | update)) > self._options.properties_bytes:
            tables.ignore("properties_too_large")
        elif update:
            tables.set_properties(topic, update, client, now)

    def set_values(self, client: Client, batch: list[values.Received], now: float) -> None:
        """Set the values that a client's publishers sent, and pass them to the bridge. This is the hot path."""
        tables, publishers, authid = self._tables, client.publishers, client.authid
        put, pass_on = tables.put, self._bridge.pass_on
        now_us = tables.time_us(now)
        if client.meter is not None:
            batch = batch[: self._admitted(client, len(batch), now)]
        tables.flow.published += len(batch)
        for pubuid, time_us, number, value in batch:
            publisher = publishers.get(pubuid)
            if publisher is None:
                tables.ignore("unknown_pubuid")
            elif number == values.TOO_LONG:
                tables.ignore("array_too_long")
            elif number != publisher.number:
                tables.ignore("wrong_type")
            else:
                topic = publisher.topic
                is_newest = put(topic, time_us, value, client, authid, now_us)
                if topic.shared is not None:
                    pass_on(topic, time_us, value, client, now, is_newest=is_newest)

    def _admitted(self, client: Client, count: int, now: float) -> int:
        """Return how many of `count` values the client's rate limit allows (`nt4.values_per_s`)."""
        assert client.meter is not None
        admitted = client.meter.admits_some(count, now)
        for _ in range(count - admitted):
            self._tables.ignore("too_fast")
        return admitted
