"""A log whose clock a test moves, kept within its bounds when the test says so, and its consumers."""

from __future__ import annotations

import os
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from app.broker.log import Query
from app.broker.topics import Match, Pattern
from app.history import documents
from app.history.rules import Rules
from support.history import OpenLog

if TYPE_CHECKING:
    from pathlib import Path

    from app.broker.log import Page
    from app.history.consumers import Ignored, Overtaken

ALL = Pattern(Match.DESCENDANTS, "")
SEGMENT_BYTES = 65_536


class Clock:
    """The time of day, and the time since the machine was started; only the first can be set."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.mono = 50.0

    def pass_(self, seconds: float) -> None:
        """Time goes on."""
        self.wall += seconds
        self.mono += seconds


class Kept:
    """A log with rules and a clock of a test's own."""

    def __init__(
        self, path: Path, *records: tuple[Pattern, float, bool], wall: float = 1_700_000_000.0, **options: Any
    ) -> None:
        self.clock = Clock(wall)
        self.rules = Rules(records)
        self.log = OpenLog(path, self.rules, lambda: self.clock.wall, **{"segment_bytes": SEGMENT_BYTES} | options)
        self.history = self.log.history

    def publish(self, topic: str = "news", times: int = 1, size: int = 10, every_s: float = 1.0) -> None:
        """Publish, and wait until it is on disk."""
        for _ in range(times):
            self.clock.pass_(every_s)
            self.log.append("x" * size, topic=topic)
        assert self.history.written(30)

    def fill(self, segments: int, topic: str = "news", every_s: float = 1.0) -> None:
        """Publish until so many more segments have been begun."""
        most = self.history.segments + segments
        while self.history.segments < most:
            self.publish(topic, times=10, size=2_000, every_s=every_s)
        until = monotonic() + 30
        while not all(segment.is_sealed for segment in self.history.folder.segments[:-1]):
            assert monotonic() < until
            sleep(0.01)

    def retain(self) -> None:
        """Have retention do all that it is time for."""
        while self.history.retain(self.clock.mono):
            pass

    def read(self, pattern: Pattern = ALL, after: int = 0, **more: Any) -> Page:
        """What a client sees."""
        return self.history.read(Query(((pattern, after),), self.history.head, **{"limit": 300} | more))

    def offsets(self, pattern: Pattern = ALL, **more: Any) -> list[int]:
        """Likewise, its offsets."""
        return [event.position for event in self.read(pattern, **more).events]

    # Consumers

    @property
    def firsts(self) -> list[int]:
        """Where its segments begin."""
        return [segment.first for segment in self.history.folder.segments]

    def consumer(self, name: str) -> Path:
        """A consumer's file."""
        return self.history.folder.path / "consumers" / f"{name}.json"

    def consume(self, name: str, offset: Any) -> None:
        """A consumer on this host says what it reads next, at the time that the test's clock shows."""
        file = self.consumer(name)
        file.parent.mkdir(exist_ok=True)
        documents.save(file, {"offset": offset})
        os.utime(file, (self.clock.wall, self.clock.wall))

    def news(self) -> list[Overtaken | Ignored]:
        """What operators are told of consumers, since this was asked."""
        news = self.history.consumers.news
        return [news.popleft() for _ in range(len(news))]
