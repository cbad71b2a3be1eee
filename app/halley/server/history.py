"""The log of a server while it is open, in a data folder or at other servers, and what stands for it otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.ports import Page, Query, Reader
from halley.protocols.contract import Count, Part
from halley.server.folder_log import FolderLog
from halley.settings import Settings
from halley.transports.api.archive import Archive, NoHistory

if TYPE_CHECKING:  # a server that runs alone imports nothing of clusters
    from halley.server.cluster_history import ClusterHistory

_CHECK_S = 1.0


class ClosedLog:
    """The log of a server whose history is off, or not open: it has nothing and refuses nothing.

    Every log has these members; `str()` says where the history is, for the terminal.
    """

    is_ready = True
    """Whether new clients are welcome: it is false for a node that has lost its cluster for long."""

    fatal_error = ""
    """Why the server has to end, a line for its operator; "" if it has not."""

    refusal = ""
    """Why durable publishes are refused at present, as one word; "" while they are taken."""

    reasons: tuple[str, ...] = ()
    """What `refusal` may be; exported as 0 too: an alert must be able to distinguish "none" from "unknown"."""

    def __str__(self) -> str:
        return "off, events are kept in memory only"

    @property
    def archive(self) -> Archive:
        """What can be read of the log. Raises `NoHistory` while it is not open."""
        raise NoHistory

    def figures(self) -> dict[str, Any] | None:
        """The figures that ticks show of the log; None while it is not open."""
        return None

    def counts(self) -> Iterator[Count]:
        """Yield the log's own metrics."""
        yield from ()

    def listen(self) -> None:
        """Carry reports to the running event loop from now on."""

    def sweep(self, now: float) -> None:
        """Do what is due a few times a second."""

    def check(self, now: float) -> None:
        """Do what is due once a second."""

    async def close(self) -> None:
        """Write the queued events, report them to the broker, and close the log."""


AnyLog: TypeAlias = "FolderLog | ClusterHistory | ClosedLog"

Opening = Callable[[Settings, Broker, Callable[[], None]], AnyLog]

_CLOSED = ClosedLog()


class HistoryService(Part):
    """Opens and closes the log with the server (`contract.Part`); `log` is the one that there is at present.

    `flush` is called in each turn that has reported commits to the broker. `opening` opens the log.
    """

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None], opening: Opening) -> None:
        self.log: AnyLog = _CLOSED
        self._opening = opening
        self._settings = settings
        self._broker = broker
        self._flush = flush
        self._is_listening = False  # the writer's reports are carried to the event loop
        self._checked_at = 0.0
        self._logged_reason = ""

    # For what is composed before the log is open

    async def read(self, query: Query, reader: Reader) -> Page:
        """One page of the history; see `Archive.read`. Raises `NoHistory` too."""
        return await self.log.archive.read(query, reader)

    async def page(self, query_of: Callable[[int], Query | None], reader: Reader) -> Page | None:
        """One page after all earlier publications have been settled, as WAMP reads it. Raises `NoHistory` too.

        `query_of` gets the last position at that time and returns the query; the page is None if the query is.
        """
        archive = self.log.archive
        await archive.flush()
        query = query_of(archive.head)
        return None if query is None else await archive.read(query, reader)

    # contract.Part

    def open(self) -> None:
        """Open the log, if the history is on; on the running event loop, begin to carry reports to it.

        Raises `BadRecord`, `CannotJoin`, `FolderLocked`, `FolderUnusable`.
        """
        if self.log is _CLOSED and self._settings.history.enabled:
            self.log = self._opening(self._settings, self._broker, self._flush)
            self._log_refusal()
        if not self._is_listening:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # a server opens the log before its event loop runs, and calls again on it
                return
            self.log.listen()
            self._is_listening = True

    def sweep(self, now: float) -> bool:
        """Forget old keys, answer who has waited too long, and let the log do what is due; whether there is more."""
        has_more = self._broker.commits.keys.sweep(now)  # which are remembered without a log, too
        has_more = self._broker.commits.expire(now) or has_more
        self.log.sweep(now)
        if now - self._checked_at >= _CHECK_S:
            self._checked_at = now
            self.log.check(now)
            self._log_refusal()
        return has_more

    def _log_refusal(self) -> None:
        """Log when the log can no longer take events, and when it can again."""
        reason = self.log.refusal
        if reason != self._logged_reason:
            self._logged_reason = reason
            if reason:
                telemetry.log.error("history_unavailable", reason=reason)
            else:
                telemetry.log.info("history_recovered")

    async def close(self) -> None:
        """Close the log; nothing is read of it any more."""
        log, self.log, self._is_listening, self._logged_reason = self.log, _CLOSED, False, ""
        await log.close()

    def counts(self) -> Iterator[Count]:
        """Yield the log's own metrics, while it is open."""
        yield from self.log.counts()
        refusal = self.log.refusal
        refused = dict.fromkeys(self.log.reasons, 0) | ({refusal: 1} if refusal else {})
        if refused:
            text = "Whether durable publishes are refused, by the reason."
            yield Count("halley_history_unavailable", text, refused, "reason", is_gauge=True)
