"""The history on the event loop: opened with the server, fed by the broker, read by threads, closed at the end.

The log's writer has its own thread. Its reports are carried from there to the loop, in order, once a turn
regardless of their number. Reads, and other work that blocks, are done by a few threads, each with a deadline.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeVar

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.errors import HistoryUnavailable, InvalidName, Refusal
from halley.broker.events import SECONDS_TO_2026, Event, Publications
from halley.broker.pending import Entry
from halley.broker.ports import Erasure, Page, Query
from halley.history.consumers import Overtaken
from halley.history.damage import Damage
from halley.history.history import History
from halley.history.rewriting import concerned_by
from halley.history.rules import NEVER, Rules, parse_age
from halley.history.stored import Stored
from halley.history.writer import Committed, Report
from halley.protocols.bayeux.names import Bounds, to_pattern
from halley.protocols.contract import Count
from halley.protocols.wamp.names import spaces_of, within
from halley.settings import Settings
from halley.transports.api.requests import KeptArchive, NoHistory

Result = TypeVar("Result")

_STEP_S = 1.0
"""How often retention takes a step."""

_EVENTS_AT_ONCE = 50
"""Events delivered before the time is looked at."""

_DELIVER_S = 0.003
"""How long is delivered in one turn of the loop."""


class BadRecord(Exception):
    """A [[record]] rule whose pattern, age or realm is invalid; the text names the rule and the field."""


def rules_of(settings: Settings) -> Rules:
    """The [[record]] rules of the settings, as the history uses them. Raises `BadRecord`."""
    bounds = Bounds(settings.limits.topic_chars, settings.limits.topic_segments)
    spaces = spaces_of(settings)
    records = []
    for number, record in enumerate(settings.record):
        try:
            pattern = within(to_pattern(record.pattern, bounds), spaces[record.realm])
            records.append((pattern, parse_age(record.age), record.durable))
        except KeyError:
            raise BadRecord(f"record[{number}].realm: there is no realm {record.realm!r}") from None
        except InvalidName:
            raise BadRecord(f"record[{number}].pattern: {record.pattern!r} is not a channel or pattern") from None
        except ValueError as error:
            raise BadRecord(f"record[{number}].age: {error}") from None
    return Rules(records, sorted({*spaces.values()} - {""}))


class Outcomes(Protocol):
    """Receives the outcome of each event, committed or refused, in the order of writing."""

    def committed(self, group: Sequence[Entry], first: int, now: float) -> None:
        """Learn that a group is on disk; see `Commits.committed`."""

    def refused(self, group: Sequence[Entry], refusal: Refusal, now: float) -> None:
        """Learn that a group is not on disk; see `Commits.refused`."""


class CannotJoin(Exception):
    """The server cannot be a node of the cluster; the text is a line for the operator who starts it."""


class OpenLog:
    """One server's log while it is open, as the event loop sees it: what its events come to is reported to the broker.

    Where the events are is for the classes below: in a data folder (`OpenHistory`), or at other servers.
    """

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None]) -> None:
        """`flush` is called in each turn that has reported commits to the broker."""
        self._options = settings.history
        self._broker = broker
        self._flush = flush
        self._outcomes: Outcomes = broker.commits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._reports: deque[Report] = deque()  # of the writer, not yet given to the broker
        self._is_told = False  # the loop has a call pending that takes them
        self._looked_at = 0.0
        self._reason_told = ""

    def listen(self) -> None:
        """Carry reports to the event loop from now on; call it on the running loop."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
        self._take_reports()

    async def close(self) -> None:
        """Report to the broker what has been written, and end."""
        while self._reports:
            self._take_reports()
        self._broker.commits.end()

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What a durable publish is refused with at present, if it is."""
        raise NotImplementedError

    # The interface `transports.api.requests.Archive`

    @property
    def start(self) -> int:
        """The first offset that is still there, even if it is too old to be shown to clients."""
        raise NotImplementedError

    @property
    def head(self) -> int:
        """The last committed offset that was reported to the broker."""
        return self._broker.commits.tail.head

    @property
    def kept(self) -> KeptArchive | None:
        """The log with all its rows, if they are on this server."""
        return None

    async def settle(self) -> None:
        """Return when every event published before is committed or refused, or its wait for the commit timed out."""
        commits = self._broker.commits
        latest = commits.pending[-1] if commits.pending else None
        if latest is not None and monotonic() < latest.since + self._options.commit_s:
            settled = _Settled()
            latest.waiters.append(settled)
            await settled.future

    async def read(self, query: Query) -> Page:
        """One page of the history. Raises `UnknownPublication`, and `TimeoutError` after `history.read_s`."""
        raise NotImplementedError

    # Periodic work

    def sweep(self, now: float) -> bool:
        """Answer publishers whose wait timed out, and once a second `look`; whether there is more."""
        has_more = self._broker.commits.expire(now)
        if now - self._looked_at >= _STEP_S:
            self._looked_at = now
            self.look(now)
        return has_more

    def look(self, now: float) -> None:  # noqa: ARG002 - for the classes below
        """Do what is due once a second: log when the log can no longer take events, and when it can again."""
        reason = refusal.cause if (refusal := self.refusal) is not None else ""
        if reason != self._reason_told:
            self._reason_told = reason
            if reason:
                telemetry.log.error("history_unavailable", reason=reason)
            else:
                telemetry.log.info("history_recovered")

    @property
    def is_ready(self) -> bool:
        """Whether new clients are welcome here, as far as the log is concerned."""
        return True

    @property
    def must_end(self) -> str:
        """Why the server has to end, as far as the log is concerned: a line for its operator; "" if it has not."""
        return ""

    def figures(self) -> dict[str, Any]:
        """The figures that ticks show of the log."""
        raise NotImplementedError

    def counts(self) -> Iterator[Count]:
        """Yield metrics of the log besides those of its folder."""
        yield from ()

    # From the writer's thread to the loop

    def _report(self, report: Report) -> None:
        with self._lock:
            self._reports.append(report)
            if not self._is_told:
                self._call_soon()

    def _call_soon(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has been closed: `close` takes the rest
                self._loop.call_soon_threadsafe(self._take_reports)
                self._is_told = True

    def _take_reports(self) -> None:
        """Give the writer's reports to the broker, for `_DELIVER_S` seconds in one turn of the loop."""
        until = monotonic() + _DELIVER_S
        while self._reports and monotonic() < until:
            report = self._reports.popleft()
            try:
                self._tell_broker(report, until)
            except Exception as error:  # noqa: BLE001 - the reports behind it must be taken
                telemetry.fault("history", error)
        self._flush()
        with self._lock:
            self._is_told = False
            if self._reports:
                self._call_soon()

    def _tell_broker(self, report: Report, until: float) -> None:
        """Give a report to the broker, or a part of it if the time is over before; the rest follows in later turns."""
        commits, given, now = self._broker.commits, 0, monotonic()
        try:
            while not given or (given < len(report.entries) and (now := monotonic()) < until):
                group = report.entries[given : given + _EVENTS_AT_ONCE]
                given += _EVENTS_AT_ONCE
                if not isinstance(report, Committed):
                    self._outcomes.refused(group, report.refusal, now)
                elif given == _EVENTS_AT_ONCE:
                    self._outcomes.committed(group, report.first, now)
                else:
                    self._outcomes.committed(group, commits.tail.head + 1, now)
        finally:
            rest = report.entries[given:]
            if rest and isinstance(report, Committed):
                self._reports.appendleft(Committed(rest, commits.tail.head + 1))
            elif rest:
                self._reports.appendleft(replace(report, entries=rest))


class OpenHistory(OpenLog):
    """A log in the server's own data folder."""

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None]) -> None:
        """Open the log in `settings.data_dir`. Raises `BadRecord`, `FolderLocked`, `FolderUnusable`."""
        super().__init__(settings, broker, flush)
        self._pool = ThreadPoolExecutor(self._options.readers, "history-reader")
        self._step: asyncio.Future[None] | None = None
        self._purges: set[asyncio.Task[int]] = set()  # the event loop itself does not keep its tasks alive
        self._damage_told: frozenset[Damage] = frozenset()
        self._retention_fault = ""
        self.history = history = History(
            Path(settings.data_dir).resolve(), self._options, rules_of(settings), self._report
        )
        self._outcomes = self._begin(history)
        now = monotonic()
        for each in history.recent_keys():
            broker.commits.keys.remember(each.authid, each.key, each.published, now - each.age_s)
        telemetry.log.info(
            "history_opened",
            folder=str(history.folder.path),
            log_id=history.log_id,
            first=history.start,
            next=history.head + 1,
            bytes=history.bytes,
        )
        super().look(monotonic())
        self._tell()

    def _begin(self, history: History) -> Outcomes:
        """Let the broker use the log; returns the receiver of the writer's reports."""
        broker = self._broker
        broker.publications = Publications(history.publication_key, max(history.last_number, _number_of_now()))
        broker.commits.begin(history, history.head)
        return broker.commits

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What a durable publish is refused with at present, if it is."""
        return self.history.refusal

    def listen(self) -> None:
        """Carry reports to the event loop from now on; call it on the running loop."""
        self.history.hand_over(asyncio.get_running_loop().call_soon)
        super().listen()

    async def close(self) -> None:
        """Write the queued events, report them to the broker, and close the log."""
        self.history.hand_over(None)
        await asyncio.to_thread(self.history.close)
        self._pool.shutdown(wait=False, cancel_futures=True)
        await super().close()

    def __str__(self) -> str:
        """Where the history is, for the terminal."""
        return str(self.folder)

    # The interface `transports.api.requests.KeptArchive`

    @property
    def kept(self) -> KeptArchive:
        """This log itself: all of its rows are on this server."""
        return self

    @property
    def folder(self) -> Path:
        """The absolute path of the data folder, which has the segments."""
        return self.history.folder.path

    @property
    def log_id(self) -> str:
        """The unique id of this log."""
        return self.history.log_id

    @property
    def start(self) -> int:
        """The first offset that is still on disk, even if it is too old to be shown to clients."""
        return self.history.start

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of offsets, first and last, that were lost in an earlier accident and cannot be restored."""
        return self.history.holes

    @property
    def damage(self) -> list[tuple[int, int]]:
        """Ranges of offsets, first and last, in which rows are missing, or may be, for another reason than `holes`."""
        return self.history.damaged

    @property
    def consumers(self) -> Mapping[str, int]:
        """The consumers of the log, by name, each with the offset that it reads next."""
        return self.history.consumers.positions

    async def report(self, consumer: str, offset: int) -> None:
        """Note that `consumer` reads `offset` next. Raises `TooManyConsumers`, `TimeoutError`, `OSError`."""
        await self.aside(lambda: self.history.consumers.report(consumer, offset))

    async def forget(self, consumer: str) -> bool:
        """Delete a consumer, so that retention no longer waits for it; False if there is none of that name.

        Raises `TimeoutError`, `OSError`.
        """
        return await self.aside(lambda: self.history.consumers.forget(consumer))

    async def read(self, query: Query) -> Page:
        """One page of the history. Raises `UnknownPublication`, and `TimeoutError` after `history.read_s`."""
        return await self.aside(lambda: self.history.read(query))

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Run blocking `work` on a reader thread and return the result. Raises `TimeoutError` after `read_s`."""
        async with asyncio.timeout(self._options.read_s):
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The stored rows from offset `first` to `last`, in batches of bounded size. Blocks."""
        return self.history.rows(first, last)

    async def absent(self) -> Sequence[str]:
        """Other servers with this log that have not erased what was erased; see `Archive.absent`."""
        return ()

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase events from the log, and from everything else that has data of them; see `Archive.purge`.

        Their idempotency keys are remembered nevertheless: a repeat must not bring back what was erased.
        """
        purge = asyncio.get_running_loop().create_task(self._purge(erasure, tell))
        self._purges.add(purge)
        purge.add_done_callback(self._purges.discard)
        return await asyncio.shield(purge)

    async def _purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        return await self._erase(erasure, tell)

    async def _erase(self, erasure: Erasure, tell: Callable[[int, int], None], last: int = NEVER) -> int:
        """Erase the events up to the offset `last`."""
        with self.history.purging():
            self._broker.erase(erasure)  # before the log: what waits there to be recorded must not be recorded later
            await asyncio.to_thread(self.history.roll)
            await self.settle()  # until then events that are erased from the log may still reach a holder
            works = self._broker.erase(erasure)
            erased = await asyncio.to_thread(self.history.rewrite, concerned_by(erasure, last), tell)
            for work in works:
                await asyncio.to_thread(work)
            return erased

    # Periodic work

    def look(self, now: float) -> None:
        """Log what has changed, and let retention take a step."""
        super().look(now)
        self._tell()
        if self._step is None or self._step.done():
            self._step = asyncio.get_running_loop().run_in_executor(self._pool, self._retain, now)

    def _retain(self, now: float) -> None:
        try:
            self.history.retain(now)
            self._retention_fault = ""
        except Exception as error:  # noqa: BLE001 - the next step must run, and may succeed
            if repr(error) != self._retention_fault:  # logged once, not with every step
                telemetry.fault("retention", error)
            self._retention_fault = repr(error)

    def _tell(self) -> None:
        """Log what has changed: new damage, and news of consumers."""
        history = self.history
        damage = history.damage
        for each in damage:
            if each not in self._damage_told:
                telemetry.log.error("history_damaged", first=each.first, last=each.last, file=each.file, what=each.what)
        self._damage_told = frozenset(damage)
        while history.consumers.news:
            news = history.consumers.news.popleft()
            if isinstance(news, Overtaken):
                telemetry.log.warning(
                    "consumer_overtaken", consumer=news.consumer, offset=news.offset, first=news.first
                )
            else:
                telemetry.log.warning("consumer_ignored", file=news.file, reason=news.why)

    def figures(self) -> dict[str, Any]:
        """The figures that ticks show of the log."""
        return {
            "first": self.start,
            "head": self.head,
            "bytes": self.history.bytes,
            "consumers": lags_of(self.consumers, self.head),
        }

    def counts(self) -> Iterator[Count]:
        """Yield the metrics of the log."""
        history = self.history
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


def lags_of(consumers: Mapping[str, int], head: int) -> dict[str, dict[str, int]]:
    """Each consumer of a log that ends at `head`, with the offset that it reads next and how many it is behind."""
    return {name: {"offset": offset, "behind": max(0, head + 1 - offset)} for name, offset in consumers.items()}


Opening = Callable[[Settings, Broker, Callable[[], None]], OpenLog]


class _Settled:
    """A `Waiter` for one event; `future` is done when that event is settled."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:  # noqa: ARG002 - Waiter's form
        """Finish `future`; see `broker.pending.Waiter`."""
        if not self.future.done():
            self.future.set_result(None)


def _number_of_now() -> int:
    """A publication number that no earlier run can have reached: no server sustains a million publishes a second."""
    return int((time.time() - SECONDS_TO_2026) * 1_000_000)


class HistoryService:
    """The history of one server (`protocols.Service`); every reader has it, also where the settings turn it off.

    `flush` is called in each turn that has reported commits to the broker. `opening` opens the log.
    """

    def __init__(
        self, settings: Settings, broker: Broker, flush: Callable[[], None], opening: Opening | None = None
    ) -> None:
        self._opening = opening or OpenHistory
        self._settings = settings
        self._broker = broker
        self._flush = flush
        self._recorder: OpenLog | None = None
        self._is_heard = False  # the writer's reports are carried to the event loop

    @property
    def archive(self) -> OpenLog:
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
        return None if self._recorder is None else self._recorder.figures()

    @property
    def is_ready(self) -> bool:
        """Whether new clients are welcome: it is false for a node that has lost its cluster for long."""
        return self._recorder is None or self._recorder.is_ready

    @property
    def must_end(self) -> str:
        """Why the server has to end, a line for its operator; "" if it has not."""
        return "" if self._recorder is None else self._recorder.must_end

    def __str__(self) -> str:
        """Where the history is, for the terminal."""
        return "off, events are kept in memory only" if self._recorder is None else str(self._recorder)

    # protocols.Service

    def open(self) -> None:
        """Open the log, if the history is on; on the running event loop, begin to carry reports to it.

        Raises `BadRecord`, `CannotJoin`, `FolderLocked`, `FolderUnusable`.
        """
        if self._recorder is None and self._settings.history.enabled:
            self._recorder = self._opening(self._settings, self._broker, self._flush)
        if self._recorder is not None and not self._is_heard:
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # a server opens the log before its event loop runs, and calls again on it
                return
            self._recorder.listen()
            self._is_heard = True

    def sweep(self, now: float) -> bool:
        """Forget old keys, answer who has waited too long, and let retention take a step; whether there is more."""
        has_keys = self._broker.commits.keys.sweep(now)  # which are remembered without a log, too
        return (self._recorder is not None and self._recorder.sweep(now)) or has_keys

    async def close(self) -> None:
        """Write the queued events, report them to the broker, and close the log."""
        recorder, self._recorder, self._is_heard = self._recorder, None, False
        if recorder is not None:
            await recorder.close()

    def counts(self) -> Iterator[Count]:
        """Yield the log's own metrics, while it is open."""
        if self._recorder is not None:
            yield from self._recorder.counts()
