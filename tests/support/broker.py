"""What the broker's tests need beside it: events, and an owner of sessions that only notes what it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.events import Event
from app.broker.outbox import Outbox
from app.broker.sessions import Session

if TYPE_CHECKING:
    from app.broker.broker import Broker


class Owner:
    """An engine that does nothing of its own accord: sessions stay as they are, and `heard` tells what was asked."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, float]] = []  # occasion, session id, now

    def due(self, session: Session, now: float) -> None:
        """A deadline has passed."""
        self.heard.append(("due", session.id, now))

    def flush(self, session: Session, now: float) -> None:
        """Events wait."""
        self.heard.append(("flush", session.id, now))

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """An outbox is full."""
        self.heard.append(("overflow", session.id, now))


def event(payload: object = 0, topic: str = "a") -> Event:
    """An event that can be told from others by its payload."""
    return Event(topic, str(payload).encode())


def session(session_id: str = "s", owner: Owner | None = None, outbox: Outbox | None = None) -> Session:
    """A session of no particular protocol, not opened anywhere."""
    if outbox is None:
        outbox = Outbox(1_000, 1_000_000)
    return Session(session_id, "test", owner or Owner(), outbox)


def join(broker: Broker, session_id: str, owner: Owner | None = None, deadline: float = 1_000.0) -> Session:
    """A session that has been opened, with the outbox that the broker gives."""
    joined = session(session_id, owner, broker.outbox())
    broker.open(joined, deadline, 0.0)
    return joined


def payloads(events: list[Event]) -> list[bytes]:
    """What tells events apart, in their order."""
    return [event.payload for event in events]
