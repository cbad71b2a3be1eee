"""The border between the history and live events, for sessions with a cursor (`sessions.Cursor`) in any protocol.

A session that is behind reads pages of the history. As soon as all that it still wants is in memory (`commits.Tail`),
it gets that and is live, in one step of the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.names import Match, Pattern
from halley.broker.ports import Log, Page
from halley.broker.sessions import Cursor, Session


class Gap(NamedTuple):
    """Positions, the first and the last, whose events a reader of `pattern` asked for and cannot get any more."""

    pattern: Pattern
    first: int
    last: int


def removed(log: Log, cursor: Cursor) -> list[Gap]:
    """The positions that were deleted before they were read; the cursor passes them."""
    found = []
    for pattern, after in cursor.wanted():
        start = log.start_of(pattern)
        if start > after + 1:
            found.append(Gap(pattern, after + 1, start - 1))
            cursor.skip(pattern, start - 1)
    return found


def gaps_of(page: Page, cursor: Cursor) -> Iterator[Gap]:
    """Yield the gaps of a page that was read for the cursor, for each pattern; call it before the page is given."""
    for pattern, after in cursor.wanted():
        for first, last in page.gaps:
            if last > after:
                yield Gap(pattern, max(first, after + 1), last)


def give_page(broker: Broker, session: Session, cursor: Cursor, page: Page) -> bool:
    """Put the events of a page that was read for the cursor into the outbox; False if there is no room for all."""
    events = [event for event in page.events if event.publication not in cursor.given]
    return _give(broker, session, cursor, events, page.reached)


def go_live(broker: Broker, session: Session, cursor: Cursor) -> bool:
    """Give a session all events up to the head from memory, if they are there and fit; True if it is live then.

    To be called after `removed`.
    """
    commits = broker.commits
    if cursor.is_live:
        return True
    events = commits.tail.after(min((after for _, after in cursor.wanted()), default=commits.tail.head))
    if events is None or commits.log is None:
        return False
    readable = _readable(commits.log, session, cursor, events)
    cursor.is_live = _give(broker, session, cursor, readable, commits.tail.head)
    return cursor.is_live


def _give(broker: Broker, session: Session, cursor: Cursor, events: list[Event], reached: int) -> bool:
    """Put all events up to `reached` into the outbox; False if there was no room for some of them."""
    for event in events:
        if not session.outbox.put(event):
            cursor.advance(event.position - 1)
            return False
        broker.delivered += 1
    cursor.advance(reached)
    return True


def _readable(log: Log, session: Session, cursor: Cursor, events: Iterable[Event]) -> list[Event]:
    """Those of the newest events that a session wants and may read, as a page of the history would have them."""
    after: dict[str, float] = {}  # by topic, since there are many events of few topics
    readable = []
    for event in events:
        begin_after = after.get(event.topic)
        if begin_after is None:
            start = log.start_of(Pattern(Match.EXACT, event.topic))
            begin_after = after[event.topic] = max(start - 1, cursor.after(event.topic))
        if event.position <= begin_after or event.publication in cursor.given:
            continue
        if event.audience is None or event.audience.admits(session.authid, session.role):
            readable.append(event)
    return readable
