"""What was published on which topic lately: how often and when, of the topics that have been busy last.

Topics are made up by clients, so only so many are remembered. When there are more, those that have rested longest are
forgotten, half of them at once; their events stay counted among `forgotten`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Trace:
    """What one topic has seen: how many events, and when the last, in the loop's seconds."""

    __slots__ = ("last", "published")

    def __init__(self) -> None:
        self.published = 0
        self.last = 0.0


class Activity:
    """Remembers `most` topics."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.traces: dict[str, Trace] = {}  # by canonical topic
        self.forgotten = 0  # events of topics that are not remembered any more

    def note(self, topic: str, now: float) -> None:
        """Something was published. The hot path."""
        trace = self.traces.get(topic)
        if trace is None:
            if len(self.traces) >= self._most:
                self._forget()
            trace = self.traces[topic] = Trace()
        trace.published += 1
        trace.last = now

    def latest(self) -> Iterator[tuple[str, Trace]]:
        """All that are remembered, who was busy last first."""
        return iter(sorted(self.traces.items(), key=_busy_last, reverse=True))

    def _forget(self) -> None:
        """Let go of the half that has rested longest: sorting costs little for each topic that is new."""
        rested = sorted(self.traces.items(), key=_busy_last)[: max(1, self._most // 2)]
        for topic, trace in rested:
            self.forgotten += trace.published
            del self.traces[topic]


def _busy_last(entry: tuple[str, Trace]) -> float:
    return entry[1].last
