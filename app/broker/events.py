"""An event: what was published, once, for all who hear it."""

from __future__ import annotations


class Event:
    """One publication on its way through the broker.

    `topic` is canonical, `payload` the value as JSON text, `time_us` wall-clock microseconds, `publication` a number
    of its own in this server's life, `publisher` the id of the publishing session if it had one.
    `frames` keeps the bytes each protocol has made of it: written at the first delivery, read at all others.
    """

    __slots__ = ("frames", "payload", "publication", "publisher", "time_us", "topic")

    def __init__(self, topic: str, payload: bytes, *, publisher: str | None = None) -> None:
        self.topic = topic
        self.payload = payload
        self.publisher = publisher
        self.publication = 0
        self.time_us = 0
        self.frames: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"<Event {self.publication} on {self.topic}>"
