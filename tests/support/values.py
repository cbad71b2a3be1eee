"""A stand-in for the keeper of values (`broker/ports.py`), with a type and a last value for each topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from halley.broker.errors import TooManyTopics, WrongType
from halley.broker.events import Event
from halley.broker.names import matches

if TYPE_CHECKING:
    from collections.abc import Collection

    from halley.broker.broker import Broker
    from halley.broker.names import Pattern
    from halley.broker.sessions import Session

_FITTING: dict[str, tuple[type, ...]] = {
    "double": (int, float),
    "string": (str,),
    "raw": (str,),
    "json": (object,),
    "struct:<b>{}": (),
}


class FakeValues:
    """Takes the topics of `types`; one whose type is "" is over the limit of topics.

    It notes its calls: `sources` are those of publications, `ended` the sessions that were closed.
    """

    def __init__(self, broker: Broker, **types: str) -> None:
        self.broker = broker
        self.types = types
        self.last: dict[str, Event] = {}
        self.sources: list[object] = []
        self.ended: list[Session] = []
        broker.values.keep_in(self)

    # broker.ports.Values

    def accepts(self, topic: str) -> bool:
        """See `Values`."""
        return topic in self.types

    def publish(self, event: Event, now: float, without: Session | None, source: object) -> None:
        """Show the event itself, and keep it as the last value."""
        type_name = self.types[event.topic]
        if not type_name:
            raise TooManyTopics
        if not isinstance(orjson.loads(event.payload), _FITTING[type_name]):
            raise WrongType(type_name)
        self.sources.append(source)
        event.nt4_type, event.nt4_time_us = type_name, event.time_us
        self.last[event.topic] = event
        self.broker.values.deliver(event, now, without=without)

    def subscribers_changed(self) -> None:
        """See `Values`."""

    def latest(self, patterns: Collection[Pattern], most: int) -> list[Event]:
        """See `Values`."""
        found = (event for topic, event in self.last.items() if any(matches(pattern, topic) for pattern in patterns))
        return list(found)[-most:]

    def closed(self, session: Session) -> None:
        """See `Values`."""
        self.ended.append(session)

    # What a test does

    def put(self, topic: str, payload: bytes, now: float, time_us: int = 7) -> Event:
        """Publish a value as a client of NetworkTables does: it is recorded, shown, and kept as the last."""
        event = self.last[topic] = value(topic, payload, self.types[topic], time_us)
        self.broker.values.record(event, now)
        self.broker.values.deliver(event, now)
        return event

    def put_and_keep_later(self, topic: str, payload: bytes, now: float, time_us: int = 7) -> Event:
        """Publish a value that is shown first, and recorded as a separate event."""
        shown = self.last[topic] = value(topic, payload, self.types[topic], time_us)
        self.broker.values.deliver(shown, now)
        self.broker.values.record(value(topic, payload, self.types[topic], time_us), now)
        return shown


def value(topic: str, payload: bytes, type_name: str = "double", time_us: int = 7) -> Event:
    """Return a value as an event."""
    event = Event(topic, payload, protocol="nt4", role="nt4")
    event.nt4_type, event.nt4_time_us = type_name, time_us
    return event
