"""What has become of events in the log, carried from the thread that writes them to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import Any, Protocol

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.errors import Refusal
from halley.broker.events import Event
from halley.broker.pending import Entry
from halley.history.writer import Committed, NotWritten, Report

_EVENTS_AT_ONCE = 50
"""Events delivered before the time is looked at."""

_DELIVER_S = 0.003
"""How long is delivered in one turn of the loop."""


class Outcomes(Protocol):
    """Receives the outcome of each event, committed or refused, in the order of writing."""

    def committed(self, group: Sequence[Entry], first: int, now: float) -> None:
        """Learn that a group is on disk; see `Commits.committed`."""

    def refused(self, group: Sequence[Entry], refusal: Refusal, now: float) -> None:
        """Learn that a group is not on disk; see `Commits.refused`."""


class CommitReports:
    """The reports of a log that are not delivered yet, in their order.

    The loop is called once for all reports of a turn, and delivers events for `_DELIVER_S` in one turn.
    """

    def __init__(self, broker: Broker, flush: Callable[[], None], commit_s: float) -> None:
        """`flush` is called in each turn that has delivered reports. `commit_s` is the setting of the history."""
        self._commits = broker.commits
        self._flush = flush
        self._commit_s = commit_s
        self._outcomes: Outcomes = broker.commits
        self._lock = Lock()
        self._call_soon: Callable[[Callable[[], None]], object] | None = None
        self._reports: deque[Report] = deque()
        self._is_scheduled = False

    def deliver_to(self, outcomes: Outcomes) -> None:
        """Deliver to a cluster's log, which has the place of the broker's commits."""
        self._outcomes = outcomes

    def put(self, report: Report) -> None:
        """Queue a report; for the writer's thread."""
        with self._lock:
            self._reports.append(report)
            if not self._is_scheduled:
                self._schedule()

    def listen(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        """Deliver on the running loop from now on; `call_soon` calls a function there, from the thread of `put`."""
        with self._lock:
            self._call_soon = call_soon
        self._deliver_some()

    def end(self) -> None:
        """Deliver all that is queued, and let the broker go on without a log."""
        while self._reports:
            self._deliver_some()
        self._commits.end()

    @property
    def head(self) -> int:
        """The last committed offset that was delivered."""
        return self._commits.tail.head

    async def flush(self) -> None:
        """Return when every event published before is committed or refused, or its wait for the commit timed out."""
        latest = self._commits.pending[-1] if self._commits.pending else None
        if latest is not None and monotonic() < latest.since + self._commit_s:
            settled = _Settled()
            latest.waiters.append(settled)
            await settled.future

    def _schedule(self) -> None:
        if self._call_soon is not None:
            with suppress(RuntimeError):  # the loop has been closed: `end` delivers the rest
                self._call_soon(self._deliver_some)
                self._is_scheduled = True

    def _deliver_some(self) -> None:
        until = monotonic() + _DELIVER_S
        while self._reports and monotonic() < until:
            report = self._reports.popleft()
            try:
                self._deliver(report, until)
            except Exception as error:  # noqa: BLE001 - the reports behind it must be delivered
                telemetry.fault("history", error)
        self._flush()
        with self._lock:
            self._is_scheduled = False
            if self._reports:
                self._schedule()

    def _deliver(self, report: Report, until: float) -> None:
        """Deliver a report, or a part of it if the time is over before; the rest follows in later turns."""
        given, now = 0, monotonic()
        entries: list[Any] = report.entries  # changes of the state among those of a cluster's log
        try:
            while not given or (given < len(entries) and (now := monotonic()) < until):
                group, is_first = entries[given : given + _EVENTS_AT_ONCE], not given
                given += _EVENTS_AT_ONCE
                if isinstance(report, Committed):
                    self._outcomes.committed(group, report.first if is_first else self.head + 1, now)
                else:
                    self._outcomes.refused(group, report.refusal, now)
        finally:
            rest = entries[given:]
            if rest and isinstance(report, Committed):
                self._reports.appendleft(Committed(rest, self.head + 1))
            elif rest and isinstance(report, NotWritten):
                self._reports.appendleft(NotWritten(rest, report.refusal))


class _Settled:
    """A `Waiter` for one event; `future` is done when that event is settled."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:  # noqa: ARG002 - Waiter's form
        """Finish `future`; see `broker.pending.Waiter`."""
        if not self.future.done():
            self.future.set_result(None)
