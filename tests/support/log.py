"""Logs on disk for tests: `OpenLog`, and `ClockedLog`, whose clock a test moves."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import orjson

from halley.broker.errors import OutcomeUnknown
from halley.broker.events import BARE, Event, Publications
from halley.broker.names import Match, Pattern
from halley.broker.pending import Entry
from halley.broker.ports import Query
from halley.history import checksummed_json
from halley.history.history import History
from halley.history.rules import Rules
from halley.history.writer import Committed, NotWritten
from halley.settings import History as Options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from halley.broker.ports import Page
    from halley.history.consumers import Ignored, Overtaken
    from halley.history.stored import Stored
    from halley.history.writer import Report

ALL = Pattern(Match.DESCENDANTS, "")
WRITTEN_S = 30
SEGMENT_BYTES = 65_536
SMALL: dict[str, Any] = {"segment_bytes": SEGMENT_BYTES, "free_bytes": 0}
"""Small segments, so that a few hundred events make several."""


@dataclass
class Reports:
    """What a log's writer has reported: payloads by offset, refused payloads, and all payloads in their order.

    `unknown` are those of the refused payloads of which it is unknown whether they are stored.
    """

    committed: dict[int, Any] = field(default_factory=dict)
    refused: list[Any] = field(default_factory=list)
    unknown: list[Any] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)

    def __call__(self, report: Report) -> None:
        events = [entry.event for entry in report.entries if isinstance(entry, Entry)]
        payloads = [orjson.loads(event.payload) for event in events]
        self.order += payloads
        if isinstance(report, NotWritten):
            self.refused += payloads
            if isinstance(report.refusal, OutcomeUnknown):
                self.unknown += payloads
            return
        assert isinstance(report, Committed)
        recorded = [orjson.loads(entry.event.payload) for entry in report.entries if entry.is_recorded]
        for offset, payload in enumerate(recorded, report.first):
            assert offset not in self.committed, f"offset {offset} was given twice"
            self.committed[offset] = payload


class OpenLog:
    """An open log in a folder, which is made if it does not exist. A `with` closes it.

    `history` is the log as the server uses it, `reports` are what its writer has reported. `options` are settings of
    the history; unless they have `free_bytes`, the log may fill the disk.
    """

    def __init__(
        self, folder: Path, rules: Rules | None = None, clock: Callable[[], float] = time.time, **options: Any
    ) -> None:
        self.reports = Reports()
        settings = Options(**{"free_bytes": 0} | options)
        self.history = History(folder, settings, rules or Rules(), self.reports, clock=clock)
        self._clock = clock
        self._publications = Publications(self.history.publication_key, self.history.last_number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.history.close()

    def event(self, payload: Any, topic: str = "news", **fields: Any) -> Event:
        """Return an event as the broker gives it to the log. `payload` is any value that JSON has."""
        event = Event(topic, orjson.dumps(payload), **fields)
        event.time_us = int(self._clock() * 1_000_000)
        event.publication = self._publications.next()
        return event

    def append(self, *payloads: Any, topic: str = "news") -> None:
        """Append an event for each payload, without waiting for the disk."""
        for payload in payloads:
            self.history.append(Entry(self.event(payload, topic)))

    def write(self, *payloads: Any, topic: str = "news") -> None:
        """Append an event for each payload, and wait until the log has reported all of them."""
        self.append(*payloads, topic=topic)
        assert self.history.written(WRITTEN_S)

    def until_sealed(self) -> None:
        """Wait until all segments but the newest are sealed."""
        until = time.monotonic() + WRITTEN_S
        while not all(segment.is_sealed for segment in self.history.folder.segments[:-1]):
            assert time.monotonic() < until
            time.sleep(0.01)

    def append_to(
        self,
        topic: str,
        payload: Any = "x",
        *,
        time_us: int = 0,
        shape: str = BARE,
        details: str | None = None,
        key_digest: bytes | None = None,
        **fields: Any,
    ) -> int:
        """Append one event with these fields, without waiting for the disk; return its publication.

        Its time is the present unless `time_us` is given.
        """
        event = self.event(payload, topic, **fields)
        event.shape, event.details, event.key_digest = shape, details, key_digest
        event.time_us = time_us or event.time_us
        self.history.append(Entry(event))
        return event.publication

    def write_many(self, topics: int = 3, count: int = 600, first: int = 0) -> None:
        """Write `count` events, in turn to about/0, about/1 ..., by user-0 ..., with secret-0 ... in them."""
        for number in range(first, first + count):
            which = number % topics
            payload = {"n": number, "secret": f"secret-{which}-{'x' * 400}"}
            self.append_to(f"about/{which}", payload, authid=f"user-{which}", idempotency_key=f"key-{which}-{number}")
            if number % 50 == 49:
                assert self.history.written(WRITTEN_S)
        assert self.history.written(WRITTEN_S)

    def rows(self) -> list[Stored]:
        """Return all rows that are on disk."""
        return [row for rows in self.history.rows(1, self.history.head) for row in rows]

    def stored(self) -> dict[int, Any]:
        """Return the payloads that are on disk, by offset."""
        rows = self.rows()
        stored = {row.offset: orjson.loads(row.payload or "null") for row in rows}
        assert list(stored) == sorted(stored)
        assert len(stored) == len(rows), "an offset was served twice"
        return stored


class Clock:
    """The time of day in seconds, and the seconds since the machine was started; only the time of day can be set."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.mono = 50.0

    def pass_(self, seconds: float) -> None:
        """Advance both times."""
        self.wall += seconds
        self.mono += seconds


class ClockedLog(OpenLog):
    """An open log with small segments, whose clock a test moves and whose retention runs when the test calls it.

    Each of `records` is a rule: a pattern, an age in seconds, and whether the events are durable.
    """

    def __init__(
        self, path: Path, *records: tuple[Pattern, float, bool], wall: float = 1_700_000_000.0, **options: Any
    ) -> None:
        self.clock = Clock(wall)
        super().__init__(path, Rules(records), lambda: self.clock.wall, **SMALL | options)

    def publish(self, topic: str = "news", times: int = 1, size: int = 10, every_s: float = 1.0) -> None:
        """Publish `times` events `every_s` seconds apart, and wait until they are on disk."""
        for _ in range(times):
            self.clock.pass_(every_s)
            self.append("x" * size, topic=topic)
        assert self.history.written(WRITTEN_S)

    def fill(self, segments: int, topic: str = "news", every_s: float = 1.0) -> None:
        """Publish until the log has this number of further segments, and all but the newest are sealed."""
        most = len(self.history.folder.segments) + segments
        while len(self.history.folder.segments) < most:
            self.publish(topic, times=10, size=2_000, every_s=every_s)
        self.until_sealed()

    def retain(self) -> None:
        """Let retention do everything that is due."""
        while self.history.retain(self.clock.mono):
            pass

    def read(self, pattern: Pattern = ALL, after: int = 0, **more: Any) -> Page:
        """Return the page of at most 300 events that a client receives. `more` are fields of the `Query`."""
        return self.history.read(Query(((pattern, after),), self.history.head, **{"limit": 300} | more))

    def offsets(self, pattern: Pattern = ALL, **more: Any) -> list[int]:
        """Return the offsets of the events that `read` finds."""
        return [event.position for event in self.read(pattern, **more).events]

    @property
    def firsts(self) -> list[int]:
        """The first offset of each segment."""
        return [segment.first for segment in self.history.folder.segments]

    # Consumers

    def consumer(self, name: str) -> Path:
        """Return the path of a consumer's file."""
        return self.history.folder.path / "consumers" / f"{name}.json"

    def consume(self, name: str, offset: Any) -> None:
        """Write a consumer's file, by which it reports that it reads `offset` next, at the time of the test's clock."""
        file = self.consumer(name)
        file.parent.mkdir(exist_ok=True)
        checksummed_json.save(file, {"offset": offset})
        os.utime(file, (self.clock.wall, self.clock.wall))

    def news(self) -> list[Overtaken | Ignored]:
        """Return, and forget, what operators are to learn about consumers since the previous call."""
        news = self.history.consumers.news
        return [news.popleft() for _ in range(len(news))]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file below a folder, by name; files that go meanwhile are left out.

    A server replaces files, and a segment that is being sealed loses its companions.
    """
    found = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            found[file.name] = file.read_bytes()
    return found


def copy_of(folder: Path, copy: Path) -> None:
    """Copy the folder of an open log, as it is for whoever starts after a kill.

    Only the newest segment has companion files by then: a sealed one loses them a moment after it is listed so.
    """
    until = time.monotonic() + WRITTEN_S
    while any(len([*folder.glob(f"seg-*-{end}")]) > 1 for end in ("wal", "shm")):
        assert time.monotonic() < until
        time.sleep(0.01)
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("lock"))
