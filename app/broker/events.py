"""An event: what was published, once, for all who hear it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.broker.watermark import Watermark

_OBJECTS_BYTES = 512
"""What Python needs for an event beside its texts, about."""


class Event:
    """One publication on its way through the broker.

    `topic` is canonical, `payload` the value as JSON text, `time_us` wall-clock microseconds, `publication` a number
    of its own in this server's life, `publisher` the id of the publishing session if it had one.
    `frames` keeps the bytes each protocol has made of it: written at the first delivery, read at all others.
    """

    __slots__ = ("_waiting", "frames", "payload", "publication", "publisher", "time_us", "topic")

    def __init__(self, topic: str, payload: bytes, *, publisher: str | None = None) -> None:
        self.topic = topic
        self.payload = payload
        self.publisher = publisher
        self.publication = 0
        self.time_us = 0
        self.frames: dict[str, bytes] = {}
        self._waiting: Watermark | None = None

    def weigh_on(self, waiting: Watermark) -> None:
        """Count towards what waits, once for all who hear it, until the last of them lets go of it."""
        if self._waiting is None:
            self._waiting = waiting
            waiting.move_to(waiting.value + self.nbytes)

    def __del__(self) -> None:
        if self._waiting is not None:
            self._waiting.move_to(self._waiting.value - self.nbytes)

    @property
    def nbytes(self) -> int:
        """What it takes of the memory, about: the payload, what a protocol makes of it, and Python's objects."""
        return 2 * len(self.payload) + _OBJECTS_BYTES

    def __repr__(self) -> str:
        return f"<Event {self.publication} on {self.topic}>"
