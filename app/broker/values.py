"""Topics with a type and a last value, which NetworkTables clients share with the clients of all protocols.

The broker passes each publication of another protocol to the keeper of these values (`Values`). A value is delivered
immediately and recorded afterwards at a limited rate, even if its topic is durable otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Protocol

from app.broker.events import Event
from app.broker.sessions import Session
from app.broker.topics import Pattern


class Values(Protocol):
    """The keeper of typed topics and their last values. Its methods are called on the event loop and never block."""

    def takes(self, topic: str) -> bool:
        """Whether events that are published on a canonical topic become its value."""

    def publish(self, event: Event, now: float, without: Session | None, source: object) -> None:
        """Make an event of another protocol a value, and have it delivered to all protocols (`Broker.show`).

        The event has a time and a publication, and is not restricted to an audience. `source` is the publishing
        session, which may have ended (WAMP's testaments), or a request without one. Raises `WrongType` and
        `TooManyTopics`; then nothing is done.
        """

    def latest(self, patterns: Collection[Pattern], most: int) -> list[Event]:
        """The last values of topics that match any pattern, as new events: the newest `most`, oldest first."""

    def closed(self, session: Session) -> None:
        """Remove a session of another protocol, which has ended, from the publishers of its topics."""

    def subscribers_changed(self) -> None:
        """Note that a session of another protocol has subscribed or unsubscribed."""


def shown(event: Event) -> bytes:
    """A value's NetworkTables type and time in microseconds, as a JSON object."""
    type_name = json.dumps(event.nt4_type, ensure_ascii=False).encode()
    return b'{"type":%b,"time":%d}' % (type_name, event.nt4_time_us or 0)
