"""The broker: sessions come and go, subscribe and publish; events end up in the outboxes of those who hear them.

Every method is one atomic step. The broker calls nobody but a session's own engine (`sessions.Owner`): it marks
sessions `ready` when events wait for them, and `wake` (given by whoever runs the event loop) says that a flush is due,
so that however many events come in one turn of the loop, each session is woken once.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from app.broker.deadlines import Deadlines
from app.broker.errors import TooManyPatterns, TooManySessions, TooManySubscriptions
from app.broker.outbox import Outbox
from app.broker.topics import Match, TopicIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.broker.events import Event
    from app.broker.sessions import Session
    from app.broker.topics import Pattern
    from app.settings import Limits

FLUSHED_AT_ONCE = 500
"""Sessions flushed in one turn of the loop; the others wait for the next, so that no burst delays reading."""


class Broker:
    """Who is here, who hears what, and what waits for whom."""

    def __init__(self, limits: Limits, wake: Callable[[], None] = lambda: None) -> None:
        self.limits = limits
        self.wake = wake
        self.clock_offset_s = 0.0  # wall clock minus the clock of `now`; kept true by whoever has the clocks
        self.sessions: dict[str, Session] = {}
        self.index = TopicIndex()
        self.deadlines = Deadlines()
        self.ready: deque[Session] = deque()
        # plain counts, read by telemetry
        self.published = 0
        self.delivered = 0
        self.overflows = 0
        self.dropped = 0  # events that still waited when their session ended
        self.opened: Counter[str] = Counter()  # by protocol
        self.closed: Counter[str] = Counter()  # by reason

    def outbox(self) -> Outbox:
        """A new outbox with the bounds that hold for each session."""
        return Outbox(self.limits.queue_events, self.limits.queue_bytes)

    def open(self, session: Session, deadline: float) -> None:
        """Admit a session. Raises `TooManySessions`."""
        if len(self.sessions) >= self.limits.sessions:
            raise TooManySessions
        self.sessions[session.id] = session
        self.deadlines.add(session, deadline)
        self.opened[session.protocol] += 1

    def close(self, session: Session, reason: str) -> bool:
        """End a session and all it held, for `reason`; False if it had ended before."""
        if session.closed is not None:
            return False
        session.closed = reason
        for pattern in session.subscriptions:
            self.index.remove(pattern, session)
        session.subscriptions.clear()
        self.dropped += len(session.outbox)
        session.outbox.clear()
        del self.sessions[session.id]
        self.deadlines.remove(session)
        self.closed[reason] += 1
        return True

    def touch(self, session: Session, deadline: float) -> None:
        """Give a session another deadline."""
        if session.closed is None:
            self.deadlines.move(session, deadline)

    def due(self, now: float) -> None:
        """Turn to the owner of each session whose deadline has come."""
        for session in self.deadlines.due(now):
            if session.closed is None:
                session.owner.due(session, now)

    def check_room(self, session: Session, patterns: list[Pattern]) -> None:
        """Whether a session may have these subscriptions as well.

        Raises `TooManySubscriptions` or `TooManyPatterns`.
        """
        wanted = session.subscriptions.keys() | patterns
        if len(wanted) > self.limits.subscriptions:
            raise TooManySubscriptions
        if sum(pattern.match is not Match.EXACT for pattern in wanted) > self.limits.patterns:
            raise TooManyPatterns

    def subscribe(self, session: Session, pattern: Pattern) -> bool:
        """Let a session hear `pattern`; False if it did already, or has ended."""
        if session.closed is not None or pattern in session.subscriptions:
            return False
        session.subscriptions[pattern] = self.index.add(pattern, session)
        return True

    def unsubscribe(self, session: Session, pattern: Pattern) -> bool:
        """Undo `subscribe`; False if there was nothing to undo."""
        if session.subscriptions.pop(pattern, None) is None:
            return False
        self.index.remove(pattern, session)
        return True

    def publish(self, event: Event, now: float, *, without: Session | None = None) -> None:
        """Stamp an event and put it into the outbox of everyone who hears its topic (but `without`)."""
        self.published += 1
        event.publication = self.published
        event.time_us = int((now + self.clock_offset_s) * 1_000_000)
        for session in self.index.hearers(event.topic):
            if session is not without:
                self.deliver(session, event, now)

    def deliver(self, session: Session, event: Event, now: float) -> bool:
        """Put an event into one session's outbox, subscribed or not; False if the session has ended."""
        if session.closed is not None:
            return False
        if not session.outbox.put(event):
            self.overflows += 1
            session.owner.overflow(session, event, now)
            is_kept = session.closed is None
            self.delivered += is_kept
            return is_kept
        self.delivered += 1
        self.mark_ready(session)
        return True

    def mark_ready(self, session: Session) -> None:
        """Have a session flushed in the next turn."""
        if not session.is_ready:
            session.is_ready = True
            self.ready.append(session)
            if len(self.ready) == 1:
                self.wake()

    def flush(self, now: float) -> None:
        """Turn to the owners of the sessions that are ready, at most `FLUSHED_AT_ONCE`."""
        try:
            for _ in range(min(len(self.ready), FLUSHED_AT_ONCE)):
                session = self.ready.popleft()
                session.is_ready = False
                if session.closed is None:
                    session.owner.flush(session, now)
        finally:  # else one owner's fault would leave the sessions behind it unflushed for ever
            if self.ready:
                self.wake()
