"""The values that wait for a client which does not keep up: all that it wants while they are few, then the newest.

A topic's newest value costs nothing, as it is the one that the topic keeps; so only older ones count towards the bound.
Beyond it each topic keeps the newest alone, until all has left (nt4.md A56); what is dropped is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.protocols.nt4.topics import Topic


class Backlog:
    """One client's. `conflated` counts the values that it wanted and will not get."""

    __slots__ = ("_is_conflating", "_most_bytes", "_older_bytes", "_waiting", "conflated")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waiting: dict[Topic, list[bytes]] = {}  # oldest first, never empty
        self._older_bytes = 0
        self._is_conflating = False
        self.conflated = 0

    def __len__(self) -> int:
        """How many topics have something waiting."""
        return len(self._waiting)

    def has_last(self, topic: Topic) -> bool:
        """Whether a topic's last value waits."""
        return topic.frame in self._waiting.get(topic, ())

    def put(self, topic: Topic, frames: list[bytes], *, is_all: bool) -> None:
        """Have encoded values of a topic wait; `is_all`: each counts, else the newest of them."""
        if not frames:
            return
        waiting = self._waiting.setdefault(topic, [])
        self._older_bytes += (len(waiting[-1]) if waiting else 0) + sum(map(len, frames[:-1]))
        waiting += frames
        if not is_all:
            self._thin(topic, waiting)
        elif self._is_conflating:
            self.conflated += self._thin(topic, waiting)
        elif self._older_bytes > self._most_bytes:
            self._is_conflating = True
            self.conflated += sum(self._thin(*each) for each in self._waiting.items())

    def take(self, most_bytes: int) -> list[bytes]:
        """What waits, until it is so many bytes or more; the topic that has waited longest first."""
        taken: list[bytes] = []
        nbytes = 0
        for topic in list(self._waiting):  # asked for one by one, the first of many is found ever more slowly
            if nbytes >= most_bytes:
                break
            frames = self.drop(topic)
            nbytes += sum(map(len, frames))
            taken += frames
        return taken

    def drop(self, topic: Topic) -> list[bytes]:
        """What waits of one topic, which then does not any more."""
        frames = self._waiting.pop(topic, [])
        self._older_bytes -= sum(map(len, frames[:-1]))
        if not self._waiting:
            self._is_conflating = False
        return frames

    def _thin(self, topic: Topic, waiting: list[bytes]) -> int:
        """Keep the newest of a topic's values, which may have come before an older one; how many others there were."""
        others = len(waiting) - 1
        if others:
            self._older_bytes -= sum(map(len, waiting[:-1]))
            newest = topic.frame if topic.frame in waiting else None
            waiting[:] = [newest or waiting[-1]]
        return others
