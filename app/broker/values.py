"""Topics that have a type and a last value, which NetworkTables' clients share with everybody (nt4.md G).

The broker asks whoever keeps them (`Values`) about each publication of another protocol: a value is delivered at once
and recorded afterwards, so many and no more, however durable its topic is otherwise (design 7.13).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from app.broker.events import Event
    from app.broker.sessions import Session
    from app.broker.topics import Pattern


class Values(Protocol):
    """Whoever keeps them. Called on the event loop; none of it waits."""

    def takes(self, topic: str) -> bool:
        """Whether what is published on a canonical topic is to be a value."""

    def publish(self, event: Event, now: float, without: Session | None, source: object) -> None:
        """Make an event of another protocol a value, and have it delivered to all protocols (`Broker.show`).

        It is for everybody, and has its time and publication. `source` is the publishing session, which may have ended
        (WAMP's testaments), or a request without one. Raises `WrongType`, `TooManyTopics`, and then nothing is done.
        """

    def latest(self, patterns: Collection[Pattern], most: int) -> list[Event]:
        """The last values of topics that match any, the youngest `most`, oldest first, as events of their own."""

    def closed(self, session: Session) -> None:
        """A session of another protocol has ended, and what topics it published with it."""

    def hearers_changed(self) -> None:
        """Some session of another protocol hears something now, or no longer."""


def shown(event: Event) -> bytes:
    """What NetworkTables says of a value beside it, as a JSON object: its type, and its time in microseconds."""
    type_name = json.dumps(event.nt4_type, ensure_ascii=False).encode()
    return b'{"type":%b,"time":%d}' % (type_name, event.nt4_time_us or 0)
