"""A real log in a folder, written by its own writer: for what operators do with one."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.broker.events import Event
from app.broker.publications import Publications
from app.history.history import History
from app.history.rules import Rules
from app.settings import History as Options
from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.history.stored import Stored

USUAL = Options(segment_bytes=65_536, free_bytes=0)
"""Small segments, so that a few hundred events make several."""


class Logbook:
    """An open log. `reports` are what its writer has said."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.reports: list[Any] = []
        self.history = History.open(folder, options, Rules(), self.reports.append)
        self._publications = Publications(self.history.publication_key, self.history.last_number)

    def write(self, topic: str, payload: str = '"x"', **fields: Any) -> None:
        """Append one event; it may not be on disk yet."""
        event = Event(topic, payload.encode(), **fields)
        event.time_us, event.publication = time.time_ns() // 1_000, self._publications.next()
        event.is_recorded = event.is_durable = True
        self.history.append(event)

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
