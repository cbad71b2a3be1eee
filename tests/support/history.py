"""A log for a test: open, with its reports kept, and events to put into it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from app.broker.events import Event
from app.broker.log import Keeping
from app.broker.publications import Publications
from app.history.history import History
from app.history.rules import Rules
from app.history.writer import Committed, Refused
from app.settings import History as Options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from app.history.stored import Stored
    from app.history.writer import Report

SMALL: dict[str, Any] = {"segment_bytes": 65_536, "free_bytes": 0}


class EverythingDurable(Rules):
    """Rules that keep all, whatever its topic."""

    def keeping(self, topic: str) -> Keeping:
        return Keeping.DURABLE


@dataclass
class Reports:
    """What a log has reported: payloads by offset, refused payloads, and everything in its order."""

    committed: dict[int, Any] = field(default_factory=dict)
    refused: list[Any] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)

    def __call__(self, report: Report) -> None:
        payloads = [orjson.loads(event.payload) for event in report.events]
        self.order += payloads
        if isinstance(report, Refused):
            self.refused += payloads
            return
        assert isinstance(report, Committed)
        recorded = [orjson.loads(event.payload) for event in report.events if event.is_recorded]
        for offset, payload in enumerate(recorded, report.first):
            assert offset not in self.committed, f"offset {offset} was given twice"
            self.committed[offset] = payload


class OpenLog:
    """A `History` with its reports; closed at the end of a `with`."""

    def __init__(
        self, folder: Path, rules: Rules | None = None, clock: Callable[[], float] = time.time, **options: Any
    ) -> None:
        self.reports = Reports()
        settings = Options(**{"free_bytes": 0} | options)
        self.history = History.open(folder, settings, rules or EverythingDurable(), self.reports, clock=clock)
        self._clock = clock
        self._publications = Publications(self.history.publication_key, self.history.last_number)

    def __enter__(self) -> OpenLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.history.close()

    def event(self, payload: Any, topic: str = "news", **fields: Any) -> Event:
        """An event as the broker hands it to the log."""
        event = Event(topic, orjson.dumps(payload), **fields)
        event.time_us = int(self._clock() * 1_000_000)
        event.publication = self._publications.next()
        event.is_recorded = event.is_durable = True
        return event

    def append(self, *payloads: Any, topic: str = "news") -> None:
        """Append events."""
        for payload in payloads:
            self.history.append(self.event(payload, topic))

    def write(self, *payloads: Any, topic: str = "news") -> None:
        """Append events, and wait until the log has said what became of them."""
        self.append(*payloads, topic=topic)
        assert self.history.written(30)

    def rows(self) -> list[Stored]:
        """All there is."""
        return [row for rows in self.history.rows(1, self.history.head) for row in rows]

    def stored(self) -> dict[int, Any]:
        """The payloads there are, by offset."""
        rows = self.rows()
        stored = {row.offset: orjson.loads(row.payload or "null") for row in rows}
        assert list(stored) == sorted(stored)
        assert len(stored) == len(rows), "an offset was served twice"
        return stored
