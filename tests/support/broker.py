"""What the broker's tests need: events, sessions, and an owner of sessions that only notes its calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halley.broker.events import Event
from halley.broker.outbox import Outbox
from halley.broker.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halley.broker.broker import Broker
    from halley.protocols.bayeux.session import Reply


class Owner:
    """An engine that does nothing: sessions stay unchanged, and `heard` has the calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, float]] = []  # occasion, session id, now

    def due(self, session: Session, now: float) -> None:
        """Note that a deadline has passed."""
        self.heard.append(("due", session.id, now))

    def flush_session(self, session: Session, now: float) -> tuple[()]:
        """Note that events wait."""
        if session.closed is None:
            self.heard.append(("flush", session.id, now))
        return ()

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Note that an outbox is full."""
        self.heard.append(("overflow", session.id, now))

    def too_slow(self, session: Session, now: float) -> None:
        """Note that too much waits for others."""
        self.heard.append(("too_slow", session.id, now))

    def rights_changed(self, session: Session, now: float) -> int:
        """Note that rights have changed, and take nothing away."""
        self.heard.append(("rights", session.id, now))
        return 0

    def fail(self, session: Session, now: float) -> None:
        """Note that one of the others has failed."""
        self.heard.append(("fail", session.id, now))


def event(payload: object = 0, topic: str = "a") -> Event:
    """Return an event that can be recognized by its payload."""
    return Event(topic, str(payload).encode())


def session(session_id: str = "s", owner: Owner | None = None, outbox: Outbox | None = None) -> Session:
    """Return a session of no particular protocol, which is not opened in a broker."""
    if outbox is None:
        outbox = Outbox(1_000, 1_000_000)
    return Session(session_id, "test", owner or Owner(), outbox)


def join(broker: Broker, session_id: str, owner: Owner | None = None, deadline: float = 1_000.0) -> Session:
    """Return a session that is open in the broker, with an outbox of the broker."""
    joined = session(session_id, owner, broker.outbox())
    broker.open(joined, deadline, 0.0)
    return joined


def waiting_bytes(broker: Broker, replies: Iterable[Reply] = (), beginning: Iterable[Session] = ()) -> int:
    """Return what `broker.waiting` must have counted: each event that is in any of the places where events wait, once.

    These are the outboxes, the lists of unacknowledged events, and those of the Bayeux `replies` that are on their way.
    Besides the open sessions there may be others whose handshakes are under way.
    """
    waiting = {event for session in (*broker.sessions.values(), *beginning) for event in session.outbox}
    for session in broker.sessions.values():
        waiting.update(getattr(session, "acks", None) or ())
        unsettled: Reply | None = getattr(session, "unsettled", None)
        waiting.update(() if unsettled is None else unsettled.events)
    for reply in replies:
        waiting.update(reply.events)
    return sum(event.nbytes for event in waiting)


def payloads(events: list[Event]) -> list[bytes]:
    """Return the events' payloads, in order."""
    return [event.payload for event in events]
