"""Subscribing and unsubscribing: the announcements and values that a client gets as a result (NA49 to NA55)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.protocols.nt4 import names
from app.protocols.nt4.clients import listed
from app.protocols.nt4.messages import Subscribe
from app.protocols.nt4.subscriptions import bytes_of, merged

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client
    from app.protocols.nt4.tables import Tables
    from app.protocols.nt4.topics import Topic

_OF_A_COST = 20
"""The number of subscriptions whose examination costs as much as one topic."""


def subscribe(tables: Tables, client: Client, message: Subscribe, now: float) -> None:
    """Subscribe a client: existing topics are announced to it, then it gets their last values (NA50).

    The subscription replaces the client's subscription with the same id, if there is one (NA53). A subscription beyond
    a limit is ignored and counted.
    """
    options = tables.options
    if any(len(name.encode()) > options.name_bytes for name in message.topics):
        tables.ignore("name_too_long", "name_bytes")
        return
    if len(message.options.others) > options.properties_bytes:
        tables.ignore("options_too_large", "properties_bytes")
        return
    if any(map(names.is_reserved, message.topics)):
        tables.meta.begin()
    listens = client.listens
    before = listens.remove(message.subuid)
    limit = _limit_reached(tables, client, message)
    if limit:
        tables.ignore("too_many_subscriptions", limit)
        if before is not None:
            listens.put(before)
        return
    listens.put(message)
    look(tables, client, tables.topics.matching(message), now, None if before is None else message.subuid)
    if before is not None:
        look(tables, client, tables.topics.matching(before), now)
        tables.tell(tables.unsubscribed, client, before)
        tables.broker.note_unsubscribed(client, listed(before))
    tables.tell(tables.subscribed, client, message)
    tables.broker.note_subscribed(client, listed(message))
    tables.meta.subscribes(client, [message] if before is None else [before, message])


def _limit_reached(tables: Tables, client: Client, message: Subscribe) -> str:
    """Return the key of the setting that one more subscription of a client would exceed, or an empty text."""
    listens = client.listens
    if listens.names + (len(message.topics) or 1) > tables.options.subscriptions:
        return "subscriptions"
    if listens.nbytes + bytes_of(message) > tables.broker.limits.subscription_bytes:
        return "subscription_bytes"
    return ""


def unsubscribe(tables: Tables, client: Client, subuid: int, now: float) -> None:
    """End a client's subscription; its topics stay announced (NA52)."""
    before = client.listens.remove(subuid)
    if before is None:
        tables.ignore("unknown_subuid")
        return
    look(tables, client, tables.topics.matching(before), now)
    tables.tell(tables.unsubscribed, client, before)
    tables.broker.note_unsubscribed(client, listed(before))
    tables.meta.subscribes(client, [before])


def look(tables: Tables, client: Client, topics: list[Topic], now: float, replaced: int | None = None) -> None:
    """Update what a client gets of these topics, whose subscriptions or rights have changed: now or, if many, later.

    `replaced` is the id of a subscription that has replaced another, which causes last values to be sent again (NA53).
    """
    is_idle = not client.unseen
    for topic in reversed(topics):
        client.unseen.setdefault(topic, replaced)
        client.unseen.move_to_end(topic, last=False)  # the latest subscription first
    chore = _see_all(tables, client, now)
    if not tables.chores.is_done(chore) and is_idle:
        tables.chores.put_off(chore)


def _see_all(tables: Tables, client: Client, now: float) -> Iterator[int]:
    """Update all unseen topics of a client, as a chore, by the client's subscriptions at that time."""
    while client.unseen and client.closed is None:
        topic, replaced = client.unseen.popitem(last=False)
        yield _see(tables, client, topic, replaced, now) if tables.topics.get(topic.name) is topic else 1


def _see(tables: Tables, client: Client, topic: Topic, replaced: int | None, now: float) -> int:
    """Update one topic for a client, send its last value if that is due, and return the cost."""
    listens, name = client.listens, topic.name
    is_covered = topic in client.streams
    attend(tables, client, topic)
    cost = 1
    if is_covered and replaced is not None:
        others = [each for each in listens.over(name) if each.subuid != replaced]
        is_covered = merged(others, tables.options.max_period_s) is not None
        cost += len(others) // _OF_A_COST
    if topic in client.streams and not is_covered:
        tables.meta.look_at(topic, now)
        _give_last(tables, client, topic)
    return cost


def attend(tables: Tables, client: Client, topic: Topic, publisher: Client | None = None) -> None:
    """Announce a topic to a client, except to its `publisher`, and send its values as the subscriptions want them now.

    Values that no subscription wants any more are no longer sent (NA54).
    """
    listens = client.listens
    interest = None
    if listens.hears(topic.name) and tables.rights.may(client, "subscribe", topic.ruled):
        interest = listens.interest(topic.name)
        if client is not publisher:
            tables.announce(client, topic)
    before = client.streams.get(topic)
    if interest is None:
        if before is not None:
            tables.pacing.leave(client, topic)
    elif before is None:
        tables.pacing.join(client, tables.pacing.stream(topic, interest))
    elif before.interest != interest:
        tables.pacing.move(client, tables.pacing.stream(topic, interest))


def _give_last(tables: Tables, client: Client, topic: Topic) -> None:
    """Send a topic's last value to a client, unless it already waits for it."""
    stream = client.streams[topic]
    tables.pacing.settle(stream)
    if topic.frame is not None and not client.backlog.has_last(topic):
        client.backlog.put(topic, [topic.frame], is_all=stream.interest.is_all)
        tables.broker.mark_ready(client)
