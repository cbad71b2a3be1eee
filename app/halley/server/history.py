"""The history as the other parts of a server have it, whether it is in a data folder, at other servers, or off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.ports import Page, Query, Reader
from halley.protocols.contract import Count
from halley.server.folder_log import FolderLog
from halley.settings import Settings
from halley.transports.api.archive import Archive, NoHistory

if TYPE_CHECKING:  # a server that runs alone imports nothing of clusters
    from halley.server.cluster_history import ClusterHistory

_LOOK_S = 1.0

_OF_ANY = "disk", "free_bytes", "moved"
_OF_NODES = "auth", "cluster_diverged", "nats_away", "no_keeper", "no_leader", "stream_full"
"""Reasons that are exported as 0 too: an alert must be able to distinguish "none" from "unknown"."""


OpenLog: TypeAlias = "FolderLog | ClusterHistory"
"""The log of a server while it is open; `str()` says where the history is, for the terminal."""

Opening = Callable[[Settings, Broker, Callable[[], None]], OpenLog]


class HistoryService:
    """The history of one server (`protocols.Service`); every reader has it, also where the settings turn it off.

    `flush` is called in each turn that has reported commits to the broker. `opening` opens the log.
    """

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None], opening: Opening) -> None:
        self._opening = opening
        self._settings = settings
        self._broker = broker
        self._flush = flush
        self._log: OpenLog | None = None
        self._is_listening = False  # the writer's reports are carried to the event loop
        self._looked_at = 0.0
        self._logged_reason = ""

    @property
    def log(self) -> OpenLog:
        """The log. Raises `NoHistory` while it is not open."""
        if self._log is None:
            raise NoHistory
        return self._log

    @property
    def archive(self) -> Archive:
        """What can be read of the log. Raises `NoHistory` while it is not open."""
        return self.log.archive

    async def read(self, query: Query, reader: Reader) -> Page:
        """One page of the history; see `Archive.read`. Raises `NoHistory` too."""
        return await self.archive.read(query, reader)

    async def page(self, query_of: Callable[[int], Query | None], reader: Reader) -> Page | None:
        """One page after all earlier publications have been settled, as WAMP reads it. Raises `NoHistory` too.

        `query_of` gets the last position at that time and returns the query; the page is None if the query is.
        """
        archive = self.archive
        await archive.settle()
        query = query_of(archive.head)
        return None if query is None else await archive.read(query, reader)

    def figures(self) -> dict[str, Any] | None:
        """The figures that ticks show of the log; None while it is not open."""
        return None if self._log is None else self._log.archive.figures()

    @property
    def is_ready(self) -> bool:
        """Whether new clients are welcome: it is false for a node that has lost its cluster for long."""
        return self._log is None or self._log.is_ready

    @property
    def refusal(self) -> str:
        """Why durable publishes are refused at present, as one word; "" while they are taken."""
        refusal = None if self._log is None else self._log.refusal
        return "" if refusal is None else refusal.cause

    @property
    def must_end(self) -> str:
        """Why the server has to end, a line for its operator; "" if it has not."""
        return "" if self._log is None else self._log.must_end

    def __str__(self) -> str:
        """Where the history is, for the terminal."""
        return "off, events are kept in memory only" if self._log is None else str(self._log)

    # protocols.Service

    def open(self) -> None:
        """Open the log, if the history is on; on the running event loop, begin to carry reports to it.

        Raises `BadRecord`, `CannotJoin`, `FolderLocked`, `FolderUnusable`.
        """
        if self._log is None and self._settings.history.enabled:
            self._log = self._opening(self._settings, self._broker, self._flush)
            self._logged_reason = ""
            self._log_refusal()
        if self._log is not None and not self._is_listening:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # a server opens the log before its event loop runs, and calls again on it
                return
            self._log.listen()
            self._is_listening = True

    def sweep(self, now: float) -> bool:
        """Forget old keys, answer who has waited too long, and let the log do what is due; whether there is more."""
        has_more = self._broker.commits.keys.sweep(now)  # which are remembered without a log, too
        if self._log is None:
            return has_more
        has_more = self._broker.commits.expire(now) or has_more
        self._log.sweep(now)
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._log.look(now)
            figures = self._log.archive.figures()
            self._broker.commits.measured(figures["bytes"], figures["first"], now)
            self._log_refusal()
        return has_more

    def _log_refusal(self) -> None:
        """Log when the log can no longer take events, and when it can again."""
        reason = self.refusal
        if reason != self._logged_reason:
            self._logged_reason = reason
            if reason:
                telemetry.log.error("history_unavailable", reason=reason)
            else:
                telemetry.log.info("history_recovered")

    async def close(self) -> None:
        """Write the queued events, report them to the broker, and close the log."""
        log, self._log, self._is_listening = self._log, None, False
        if log is not None:
            await log.close()

    def counts(self) -> Iterator[Count]:
        """Yield the log's own metrics, while it is open."""
        if self._log is not None:
            yield from self._log.counts()
            reasons = dict.fromkeys((*_OF_ANY, *(_OF_NODES if self._settings.cluster.urls else ())), 0)
            reason = self.refusal
            now = reasons | ({reason: 1} if reason else {})
            text = "Whether durable publishes are refused, by the reason."
            yield Count("halley_history_unavailable", text, now, "reason", is_gauge=True)
