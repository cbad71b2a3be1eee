"""Subscribing, and changed rights: what a client is announced and sent as a result (NA49 to NA55).

NetworkTables cannot refuse anything. A topic that a client may no longer subscribe to ends for it with the `unannounce`
message, as a deleted one does, and without the values that wait. Its subscriptions stay, as with topics that it could
never see, so that a topic returns when the client may subscribe to it again.
"""

from __future__ import annotations

from collections.abc import Iterator

from halley.protocols.nt4 import names
from halley.protocols.nt4.messages import Subscribe, Unsubscribe
from halley.protocols.nt4.meta import MetaTopics
from halley.protocols.nt4.session import Client, bytes_of, listed, merged
from halley.protocols.nt4.tables import Tables
from halley.protocols.nt4.topics import Topic

_OF_A_COST = 20
"""The number of subscriptions whose examination costs as much as one topic."""


class Subscribing:
    """The requests of subscribers, carried out on the tables."""

    def __init__(self, tables: Tables, meta: MetaTopics) -> None:
        self._tables = tables
        self._meta = meta

    def subscribe(self, client: Client, message: Subscribe, now: float) -> None:
        """Subscribe a client: existing topics are announced to it, then it gets their last values (NA50).

        The subscription replaces the client's subscription with the same id, if there is one (NA53). A subscription
        beyond a limit is ignored and counted.
        """
        tables, options = self._tables, self._tables.options
        if any(len(name.encode()) > options.name_bytes for name in message.topics):
            tables.ignore("name_too_long")
            return
        if len(message.options.others) > options.properties_bytes:
            tables.ignore("options_too_large")
            return
        if any(map(names.is_reserved, message.topics)):
            self._meta.create()
        before = client.subscribed.remove(message.subuid)
        limit = self._limit_reached(client, message)
        if limit:
            tables.ignore("too_many_subscriptions", limit)
            if before is not None:
                client.subscribed.put(before)
            return
        client.subscribed.put(message)
        self._update(client, tables.topics.matching(message), now, None if before is None else message.subuid)
        if before is not None:
            self._update(client, tables.topics.matching(before), now)
            tables.broker.note_unsubscribed(client, listed(before))
        tables.broker.note_subscribed(client, listed(message))
        self._meta.subscriptions_changed(client, [message] if before is None else [before, message])

    def _limit_reached(self, client: Client, message: Subscribe) -> str:
        """Return the key of the setting that one more subscription of a client would exceed, or an empty text."""
        if client.subscribed.names + (len(message.topics) or 1) > self._tables.options.subscriptions:
            return "subscriptions"
        if client.subscribed.nbytes + bytes_of(message) > self._tables.broker.limits.subscription_bytes:
            return "subscription_bytes"
        return ""

    def unsubscribe(self, client: Client, message: Unsubscribe, now: float) -> None:
        """End a client's subscription; its topics stay announced (NA52)."""
        before = client.subscribed.remove(message.subuid)
        if before is None:
            self._tables.ignore("unknown_subuid")
            return
        self._update(client, self._tables.topics.matching(before), now)
        self._tables.broker.note_unsubscribed(client, listed(before))
        self._meta.subscriptions_changed(client, [before])

    def rights_changed(self, client: Client, now: float) -> int:
        """Take away what a client's rights no longer grant, and give what they newly grant.

        Returns the number of topics that the client may no longer subscribe to.
        """
        tables, may = self._tables, self._tables.rights.may
        lost = [each for each in client.publishers.values() if not may(client, "publish", each.topic.acl_name)]
        for publisher in lost:
            del client.publishers[publisher.pubuid]  # its further values are ignored, as those of an unknown publisher
        tables.remove_publishers(lost, now)
        own = {publisher.topic for publisher in client.publishers.values()}
        streams = client.output.streams
        given = [topic for topic in client.announced if topic in streams or topic not in own]
        denied = [topic for topic in given if not may(client, "subscribe", topic.acl_name)]
        for topic in denied:
            if topic in streams:
                tables.pacing.leave(client.output, topic)
            if topic not in own:  # a publisher needs the announcement
                tables.unannounce(client, topic)
        matching = {topic: None for each in client.subscribed for topic in tables.topics.matching(each)}
        self._update(client, [topic for topic in matching if topic not in streams], now)
        return len(denied)

    # What a client gets of topics whose subscriptions or rights have changed

    def _update(self, client: Client, topics: list[Topic], now: float, replaced: int | None = None) -> None:
        """Update what a client gets of these topics: now or, if many, later.

        `replaced` is the id of a subscription that has replaced another, which causes last values to be sent again
        (NA53).
        """
        is_idle = not client.unexamined
        for topic in reversed(topics):
            client.unexamined.setdefault(topic, replaced)
            client.unexamined.move_to_end(topic, last=False)  # the latest subscription first
        task = self._examine_all(client, now)
        if not self._tables.tasks.run_now(task) and is_idle:
            self._tables.tasks.defer(task)

    def _examine_all(self, client: Client, now: float) -> Iterator[int]:
        """Update all unexamined topics of a client, as a task, by the client's subscriptions at that time."""
        while client.unexamined and client.closed is None:
            topic, replaced = client.unexamined.popitem(last=False)
            yield self._examine(client, topic, replaced, now) if topic in self._tables.topics else 1

    def _examine(self, client: Client, topic: Topic, replaced: int | None, now: float) -> int:
        """Update one topic for a client, send its last value if that is due, and return the cost."""
        tables, streams = self._tables, client.output.streams
        is_covered = topic in streams
        tables.update_subscriber(client, topic)
        cost = 1
        if is_covered and replaced is not None:
            others = [each for each in client.subscribed.matching(topic.name) if each.subuid != replaced]
            is_covered = merged(others, tables.options.max_period_s) is not None
            cost += len(others) // _OF_A_COST
        if topic in streams and not is_covered:
            self._meta.refresh_one(topic, now)
            tables.pacing.send_last(client.output, topic)
        return cost
