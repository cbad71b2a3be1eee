"""Counts of recent publishes by topic: how many, and the time of the last, for the most recently active topics.

Clients make up topics, so the number that is remembered is bounded. When it is reached, the half that has been idle
longest is forgotten in one step; its events stay counted in `forgotten`.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.broker.erasure import Erasure


class Trace:
    """One topic's count of published events, and the time of the last one in the event loop's seconds."""

    __slots__ = ("last", "published")

    def __init__(self) -> None:
        self.published = 0
        self.last = 0.0


class Activity:
    """The traces of at most `most` topics."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.traces: dict[str, Trace] = {}  # by canonical topic
        self.forgotten = 0  # events of topics that are no longer remembered

    def note(self, topic: str, now: float) -> None:
        """Count a publish on `topic` at `now` (monotonic seconds). On the hot path."""
        trace = self.traces.get(topic)
        if trace is None:
            if len(self.traces) >= self._most:
                self._forget()
            trace = self.traces[topic] = Trace()
        trace.published += 1
        trace.last = now

    def latest(self) -> Iterator[tuple[str, Trace]]:
        """All remembered topics with their traces, the most recently active first."""
        return iter(sorted(self.traces.items(), key=_busy_last, reverse=True))

    def erase(self, erasure: Erasure) -> None:
        """Forget the topics of events that are erased (`erasure.Holder`); their publishers are not known here."""
        for topic in [topic for topic in self.traces if erasure.concerns(topic, None)]:
            self.forgotten += self.traces.pop(topic).published

    def _forget(self) -> None:
        """Forget the half that has been idle longest; the cost of sorting is small for each new topic."""
        rested = sorted(self.traces.items(), key=_busy_last)[: max(1, self._most // 2)]
        for topic, trace in rested:
            self.forgotten += trace.published
            del self.traces[topic]


def _busy_last(entry: tuple[str, Trace]) -> float:
    return entry[1].last
