"""The backlog: values that wait for a client that does not keep up, all of them while they are few, then the newest.

A topic's newest value takes no additional memory, since the topic keeps it, so only older values count towards the
bound. Beyond the bound the backlog keeps only the newest value of each topic, until it is empty (NA56); dropped values
are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.protocols.nt4.topics import Topic


class Backlog:
    """The backlog of one client; `conflated` counts the values that the client wanted and will not get.

    `most_bytes` bounds the older values, in bytes.
    """

    __slots__ = ("_is_conflating", "_most_bytes", "_older_bytes", "_waiting", "conflated")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waiting: dict[Topic, list[bytes]] = {}  # oldest first, never empty
        self._older_bytes = 0
        self._is_conflating = False
        self.conflated = 0

    def __len__(self) -> int:
        """Return the number of topics with waiting values."""
        return len(self._waiting)

    def has_last(self, topic: Topic) -> bool:
        """Return whether a topic's last value waits."""
        return topic.frame in self._waiting.get(topic, ())

    def put(self, topic: Topic, frames: list[bytes], *, is_all: bool) -> None:
        """Add encoded values of a topic; unless `is_all`, only the newest value of the topic is kept."""
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
        """Remove and return waiting values until they are `most_bytes` or more; longest-waiting topics come first.

        The values of a topic are taken together.
        """
        taken: list[bytes] = []
        nbytes = 0
        for topic in list(self._waiting):  # finding the first key after many deletions is slow
            if nbytes >= most_bytes:
                break
            frames = self.drop(topic)
            nbytes += sum(map(len, frames))
            taken += frames
        return taken

    def drop(self, topic: Topic) -> list[bytes]:
        """Remove and return the waiting values of one topic."""
        frames = self._waiting.pop(topic, [])
        self._older_bytes -= sum(map(len, frames[:-1]))
        if not self._waiting:
            self._is_conflating = False
        return frames

    def _thin(self, topic: Topic, waiting: list[bytes]) -> int:
        """Keep only the newest of a topic's values, which need not be the last one; return the number of the others."""
        others = len(waiting) - 1
        if others:
            self._older_bytes -= sum(map(len, waiting[:-1]))
            newest = topic.frame if topic.frame in waiting else None
            waiting[:] = [newest or waiting[-1]]
        return others
