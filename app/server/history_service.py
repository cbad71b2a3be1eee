"""The history as a service of the server: the log that readers ask for, whether it is open or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from app.broker.broker import Broker
from app.broker.log import Page, Query
from app.protocols.contract import Count
from app.server.history import OpenHistory
from app.settings import Settings
from app.transports.api.requests import NoHistory


class HistoryService:
    """The history of one server (`protocols.Service`); every reader has it, also where the settings turn it off.

    `flush` is called in each turn that has reported commits to the broker.
    """

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None]) -> None:
        self._settings = settings
        self._broker = broker
        self._flush = flush
        self._recorder: OpenHistory | None = None
        self._is_heard = False  # the writer's reports are carried to the event loop

    @property
    def archive(self) -> OpenHistory:
        """The log. Raises `NoHistory` while it is not open."""
        if self._recorder is None:
            raise NoHistory
        return self._recorder

    async def read(self, query: Query) -> Page:
        """One page of the history; see `Archive.read`. Raises `NoHistory` too."""
        return await self.archive.read(query)

    async def page(self, query_of: Callable[[int], Query | None]) -> Page | None:
        """One page after all earlier publications have been settled, as WAMP reads it. Raises `NoHistory` too.

        `query_of` gets the last position at that time and returns the query; the page is None if the query is.
        """
        archive = self.archive
        await archive.settle()
        query = query_of(archive.head)
        return None if query is None else await archive.read(query)

    def figures(self) -> dict[str, Any] | None:
        """The figures that ticks show of the log; None while it is not open."""
        if self._recorder is None:
            return None
        archive = self._recorder
        head = archive.head
        return {
            "first": archive.start,
            "head": head,
            "bytes": archive.history.bytes,
            "consumers": {
                name: {"offset": offset, "behind": max(0, head + 1 - offset)}
                for name, offset in archive.consumers.items()
            },
        }

    def __str__(self) -> str:
        """Where the history is, for the terminal."""
        return "off, events are kept in memory only" if self._recorder is None else str(self._recorder.folder)

    # protocols.Service

    def open(self) -> None:
        """Open the log, if the history is on; on the running event loop, begin to carry reports to it.

        Raises `BadRecord`, `FolderLocked`, `FolderUnusable`.
        """
        if self._recorder is None and self._settings.history.enabled:
            self._recorder = OpenHistory(self._settings, self._broker, self._flush)
        if self._recorder is not None and not self._is_heard:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # a server opens the log before its event loop runs, and calls again on it
                return
            self._recorder.listen()
            self._is_heard = True

    def sweep(self, now: float) -> None:
        """Answer publishers whose wait timed out, and let retention take a step."""
        if self._recorder is not None:
            self._recorder.sweep(now)

    async def close(self) -> None:
        """Write the queued events, report them to the broker, and close the log."""
        recorder, self._recorder, self._is_heard = self._recorder, None, False
        if recorder is not None:
            await recorder.close()

    def counts(self) -> Iterator[Count]:
        """Yield the log's own metrics, while it is open."""
        if self._recorder is None:
            return
        history = self._recorder.history
        next_offset = history.head + 1
        lags = {name: max(0, next_offset - offset) for name, offset in history.consumers.positions.items()}
        for name, text, value in (
            ("first", "First offset in the log.", history.start),
            ("next", "Next offset to be assigned.", next_offset),
            ("bytes", "Disk space used by the log.", history.bytes),
            ("held_bytes", "Disk space that retention keeps only for consumers.", history.held_bytes),
            ("segments", "Segments of the log.", history.segments),
            ("waiting_bytes", "Bytes of events that wait to be written to the log.", history.waiting_bytes),
            ("damage", "Ranges of offsets that are damaged or lost.", len(history.damage)),
        ):
            yield Count(f"halley_history_{name}", text, value, is_gauge=True)
        text = "Offsets that a consumer has not read yet, by consumer."
        yield Count("halley_consumer_lag_events", text, lags, "consumer", is_gauge=True)
        yield Count("halley_history_groups", "Commits to the log.", history.groups)
        yield Count("halley_history_failures", "Failed attempts to write or seal the log.", history.failures)
