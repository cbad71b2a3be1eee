"""A real log in a folder, written by its own writer: for what operators do with one."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from app.broker.events import BARE, Event
from app.broker.publications import Publications
from app.history.history import History
from app.history.rules import Rules
from app.settings import History as Options
from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from app.broker.log import Page, Query
    from app.history.purge import Erasure
    from app.history.stored import Stored

Result = TypeVar("Result")

USUAL = Options(segment_bytes=65_536, free_bytes=0)
"""Small segments, so that a few hundred events make several."""


class Logbook:
    """An open log. `reports` are what its writer has said."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.reports: list[Any] = []
        self.history = History.open(folder, options, Rules(), self.reports.append)
        self._publications = Publications(self.history.publication_key, self.history.last_number)

    def write(
        self,
        topic: str,
        payload: str = '"x"',
        *,
        time_us: int = 0,
        shape: str = BARE,
        details: str | None = None,
        **fields: Any,
    ) -> int:
        """Append one event, of now unless told; it may not be on disk yet. Returns its publication."""
        event = Event(topic, payload.encode(), **fields)
        event.shape, event.details = shape, details
        event.time_us = time_us or time.time_ns() // 1_000
        event.publication = self._publications.next()
        event.is_recorded = event.is_durable = True
        self.history.append(event)
        return event.publication

    def fill(self, topics: int = 3, count: int = 600, first: int = 0) -> None:
        """Append many, in turn to a/0, a/1 ..., by user-0, user-1 ..., whose payloads name both."""
        for number in range(first, first + count):
            which = number % topics
            payload = f'{{"n":{number},"secret":"secret-{which}-{"x" * 400}"}}'
            self.write(f"a/{which}", payload, authid=f"user-{which}", idempotency_key=f"key-{which}-{number}")
            if number % 50 == 49:
                assert self.history.written(DEADLINE_S)

    def rows(self) -> list[Stored]:
        """All that is stored."""
        assert self.history.written(DEADLINE_S)
        return [row for batch in self.history.rows(1, self.history.head) for row in batch]


@contextmanager
def logbook(folder: Path, **options: Any) -> Iterator[Logbook]:
    """An open log in a folder, which is made if it is not there."""
    book = Logbook(folder, replace(USUAL, **options))
    try:
        yield book
    finally:
        book.history.close()


class DiskArchive:
    """A log on disk as the HTTP paths see it (`app/transports/archive.py`)."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.log_id = history.log_id
        self.settled = 0

    @property
    def start(self) -> int:
        """The first offset."""
        return self.history.start

    @property
    def head(self) -> int:
        """The last offset."""
        return self.history.head

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Those of the log."""
        return self.history.holes

    @property
    def damage(self) -> list[tuple[int, int]]:
        """What is unsound beside them."""
        return self.history.unsound

    @property
    def consumers(self) -> Mapping[str, int]:
        """Those of the log."""
        return self.history.consumers.positions

    async def report(self, consumer: str, offset: int) -> None:
        """By a thread."""
        await self.aside(lambda: self.history.consumers.report(consumer, offset))

    async def forget(self, consumer: str) -> bool:
        """By a thread."""
        return await self.aside(lambda: self.history.consumers.forget(consumer))

    async def settle(self) -> None:
        """Nothing waits; only counted."""
        self.settled += 1

    async def read(self, query: Query) -> Page:
        """One page."""
        return await self.aside(lambda: self.history.read(query))

    async def aside(self, work: Callable[[], Result]) -> Result:
        """By a thread."""
        return await asyncio.to_thread(work)

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """Those of the log."""
        return self.history.rows(first, last)

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """By a thread."""
        return await self.aside(lambda: self.history.purge(erasure, tell))
