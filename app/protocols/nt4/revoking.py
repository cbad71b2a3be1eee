"""What a client's changed rights no longer grant is taken away from it, and what they newly grant is given.

NetworkTables cannot refuse anything. A topic that a client may no longer subscribe to ends for it with the `unannounce`
message, as a deleted one does, and without the values that wait. Its subscriptions stay, as with topics that it could
never see, so that a topic returns when the client may subscribe to it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.protocols.nt4.subscribing import look

if TYPE_CHECKING:
    from app.protocols.nt4.clients import Client
    from app.protocols.nt4.tables import Tables
    from app.protocols.nt4.topics import Topic


def rights_changed(tables: Tables, client: Client, now: float) -> int:
    """Apply a client's changed rights; return the number of topics that it may no longer subscribe to."""
    may = tables.rights.may
    lost = [each for each in client.publishers.values() if not may(client, "publish", each.topic.ruled)]
    for publisher in lost:
        del client.publishers[publisher.pubuid]  # its further values are ignored, as those of an unknown publisher
    tables.chores.begin(tables.withdraw_all(lost, now))
    own = {publisher.topic for publisher in client.publishers.values()}
    given = [topic for topic in client.announced if topic in client.streams or topic not in own]
    denied = [topic for topic in given if not may(client, "subscribe", topic.ruled)]
    for topic in denied:
        if topic in client.streams:
            tables.pacing.leave(client, topic)
        if topic not in own:  # a publisher needs the announcement
            tables.unannounce(client, topic)
    look(tables, client, _unseen(tables, client), now)
    return len(denied)


def _unseen(tables: Tables, client: Client) -> list[Topic]:
    """The topics that match the client's subscriptions, and of which it gets no values."""
    matching = {topic: None for each in client.listens for topic in tables.topics.matching(each)}
    return [topic for topic in matching if topic not in client.streams]
