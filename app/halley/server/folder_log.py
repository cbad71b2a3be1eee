"""The log in a server's data folder, on the event loop. What blocks is done by threads, a few of which read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeVar

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.events import SECONDS_TO_2026, Publications
from halley.broker.ports import Erasure, Page, Query, Reader
from halley.history.consumers import Overtaken
from halley.history.damage import Damage
from halley.history.folder import FolderUnusable, is_of_keeper
from halley.history.history import History
from halley.history.rewriting import concerned_by
from halley.history.rules import NEVER
from halley.protocols.contract import Count
from halley.server.commit_reports import CommitReports
from halley.server.readers import Readers
from halley.server.recording import rules_of
from halley.settings import Settings

Result = TypeVar("Result")

Progress = Callable[[int, int], None]
"""Called with how many offsets are done, and of how many."""


class Erasing(Protocol):
    """How events are erased from a log that several servers have; see `LocalArchive`."""

    async def purge(self, erasure: Erasure, on_progress: Progress) -> int:
        """Erase events at all of them; returns how many."""

    async def absent(self) -> Sequence[str]:
        """The other servers that have not erased what was erased."""


class FolderLog:
    """An open log in a data folder: the log of a single server (`history.AnyLog`), and what a keeper stores.

    It implements `transports.api.archive.LocalArchive`.
    """

    is_ready = True
    fatal_error = ""
    reasons: tuple[str, ...] = "disk", "free_bytes", "moved"

    def __init__(
        self, settings: Settings, broker: Broker, flush: Callable[[], None], erasing: Erasing | None = None
    ) -> None:
        """Open the log in `settings.data_dir`; `flush` is called in each turn that has reported commits to the broker.

        Raises `BadRecord`, `FolderLocked`, `FolderUnusable`.
        """
        self._options = settings.history
        self._broker = broker
        self._erasing = erasing
        self.reports = CommitReports(broker, flush, self._options.commit_s)
        self.readers = Readers(self._options.readers, self._options.read_s)
        # Retention and consumers wait for no reader: else who reads much would keep the disk full.
        self._upkeep = ThreadPoolExecutor(1, "history-upkeep")
        self._retaining: asyncio.Future[None] | None = None
        self._retention_fault = ""
        self._purges: set[asyncio.Task[int]] = set()  # the event loop itself does not keep its tasks alive
        self._logged_damage: frozenset[Damage] = frozenset()
        self.history = history = History(
            Path(settings.data_dir).resolve(),
            self._options,
            rules_of(settings),
            self.reports.put,
            is_replica=erasing is not None,  # other servers have what is lost here
        )
        self.folder = history.folder.path  # absolute
        # of `LocalArchive`, with the properties and methods below
        self.archive = self.local = self
        self.log_id, self.rows, self.next_rows = history.log_id, history.rows, history.next_rows
        self.flush = self.reports.flush
        now = monotonic()
        for each in history.recent_keys():
            broker.commits.keys.remember(each.authid, each.key, each.published, now - each.age_s)
        telemetry.log.info(
            "history_opened",
            folder=str(self.folder),
            log_id=history.log_id,
            first=history.start,
            next=history.head + 1,
            bytes=history.bytes,
        )
        self._log_changes()

    @classmethod
    def of_single_server(cls, settings: Settings, broker: Broker, flush: Callable[[], None]) -> FolderLog:
        """Open the log, and let the broker append to it. Raises what the constructor does."""
        folder = Path(settings.data_dir).resolve()
        if is_of_keeper(folder):
            raise FolderUnusable(
                f"{folder} is the folder of a keeper, whose log is its cluster's: start it with --cluster, or make a "
                "log of its own from it by halley history backup"
            )
        opened = cls(settings, broker, flush)
        history = opened.history
        broker.publications = Publications(history.publication_key, max(history.last_number, _number_of_now()))
        broker.commits.begin(history, history.head)
        return opened

    def __str__(self) -> str:
        """Where the history is, for the terminal."""
        return str(self.folder)

    @property
    def refusal(self) -> str:
        """Why durable publishes are refused at present; "" while they are taken."""
        refusal = self.history.refusal
        return "" if refusal is None else refusal.cause

    def listen(self) -> None:
        """Carry reports to the event loop from now on; call it on the running loop."""
        loop = asyncio.get_running_loop()
        self.history.set_executor(loop.call_soon)
        self.reports.listen(loop.call_soon_threadsafe)

    async def close(self) -> None:
        """Write the queued events, report them to the broker, and close the log."""
        self.history.set_executor(None)
        await asyncio.to_thread(self.history.close)
        self.readers.close()
        self._upkeep.shutdown(wait=False, cancel_futures=True)
        self.reports.end()

    # The interface `LocalArchive`

    @property
    def start(self) -> int:
        """The first offset that is still on disk, even if it is too old to be shown to clients."""
        return self.history.start

    @property
    def head(self) -> int:
        """The last committed offset that was reported to the broker."""
        return self.reports.head

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
        await self._in_upkeep(lambda: self.history.consumers.report(consumer, offset))

    async def forget(self, consumer: str) -> bool:
        """Delete a consumer, so that retention no longer waits for it; False if there is none of that name.

        Raises `TimeoutError`, `OSError`.
        """
        return await self._in_upkeep(lambda: self.history.consumers.forget(consumer))

    async def _in_upkeep(self, work: Callable[[], Result]) -> Result:
        """Do blocking `work` on the thread of retention. Raises `TimeoutError` after `read_s`."""
        async with asyncio.timeout(self._options.read_s):
            return await asyncio.get_running_loop().run_in_executor(self._upkeep, work)

    async def read(self, query: Query, reader: Reader) -> Page:
        """One page of the history, when it is the reader's turn; see `Archive.read`."""
        return await self.in_thread(reader, lambda: self.history.read(query), query)

    async def in_thread(self, reader: Reader, work: Callable[[], Result], query: Query | None = None) -> Result:
        """Have a reader thread do blocking `work`; see `LocalArchive.in_thread`, and `Readers.do` for `query`."""
        try:
            return await self.readers.do(reader, work, query)
        except TimeoutError:
            raise
        except OSError as error:  # no file descriptor is free, for example
            telemetry.log.error("history_unreadable", reason=str(error))
            raise

    async def absent(self) -> Sequence[str]:
        """Other servers with this log that have not erased what was erased; see `LocalArchive.absent`."""
        return () if self._erasing is None else await self._erasing.absent()

    async def purge(self, erasure: Erasure, on_progress: Progress) -> int:
        """Erase events from the log, and from everything else that has data of them; see `LocalArchive.purge`.

        Their idempotency keys are remembered nevertheless: a repeat must not bring back what was erased.
        """
        erase = self.erase if self._erasing is None else self._erasing.purge
        purge = asyncio.ensure_future(erase(erasure, on_progress))
        self._purges.add(purge)
        purge.add_done_callback(self._purges.discard)
        return await asyncio.shield(purge)

    async def erase(self, erasure: Erasure, on_progress: Progress, last: int = NEVER) -> int:
        """Erase the events up to the offset `last` from this folder and this server's memory; returns how many."""
        with self.history.purging():
            self._broker.erase(erasure)  # before the log: what waits there to be recorded must not be recorded later
            await asyncio.to_thread(self.history.roll)
            await self.flush()  # until then events that are erased from the log may still reach a holder
            works = self._broker.erase(erasure)
            erased = await asyncio.to_thread(self.history.rewrite, concerned_by(erasure, last), on_progress)
            for work in works:
                await asyncio.to_thread(work)
            return erased

    # Periodic work

    def sweep(self, now: float) -> None:
        """Do nothing: all periodic work is done once a second."""

    def check(self, now: float) -> None:
        """Log what has changed, have the broker know the log's size, and let retention take a step; once a second."""
        self._broker.commits.measured(self.history.bytes, self.start, now)
        self._log_changes()
        if self._retaining is None or self._retaining.done():
            self._retaining = asyncio.get_running_loop().run_in_executor(self._upkeep, self._retain, now)

    def _retain(self, now: float) -> None:
        try:
            self.history.retain(now)
            self._retention_fault = ""
        except Exception as error:  # noqa: BLE001 - the next step must run, and may succeed
            if repr(error) != self._retention_fault:  # logged once, not with every step
                telemetry.fault("retention", error)
            self._retention_fault = repr(error)

    def _log_changes(self) -> None:
        """Log new damage, and news of consumers."""
        history = self.history
        damage = history.folder.damage
        for each in damage:
            if each not in self._logged_damage:
                telemetry.log.error("history_damaged", first=each.first, last=each.last, file=each.file, what=each.what)
        self._logged_damage = frozenset(damage)
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
        for name, text, value in (
            ("first", "First offset in the log.", history.start),
            ("next", "Next offset to be assigned.", next_offset),
            ("bytes", "Disk space used by the log.", history.bytes),
            ("held_bytes", "Disk space that retention keeps only for consumers.", history.retention.held_bytes),
            ("segments", "Segments of the log.", len(history.folder.segments)),
            ("waiting_bytes", "Bytes of events that wait to be written to the log.", history.writer.waiting_bytes),
            ("waiting_reads", "Reads of the log that wait for a thread.", self.readers.waiting),
            ("damage", "Ranges of offsets that are damaged or lost.", len(history.folder.damage)),
        ):
            yield Count(f"halley_history_{name}", text, value, is_gauge=True)
        lags = {name: max(0, next_offset - offset) for name, offset in self.consumers.items()}
        text = "Offsets that a consumer has not read yet, by consumer."
        yield Count("halley_consumer_lag_events", text, lags, "consumer", is_gauge=True)
        yield Count("halley_history_groups", "Commits to the log.", history.writer.groups)
        yield Count("halley_history_failures", "Failed attempts to write or seal the log.", history.failures)


def lags_of(consumers: Mapping[str, int], head: int) -> dict[str, dict[str, int]]:
    """Each consumer of a log that ends at `head`, with the offset that it reads next and how many it is behind."""
    return {name: {"offset": offset, "behind": max(0, head + 1 - offset)} for name, offset in consumers.items()}


def _number_of_now() -> int:
    """A publication number that no earlier run can have reached: no server sustains a million publishes a second."""
    return int((time.time() - SECONDS_TO_2026) * 1_000_000)
