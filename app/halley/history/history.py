"""The public class of the event history: an open data folder, for appending and reading.

`append` and `durability_of` are called on the event loop and never wait. All else blocks, and is called from threads.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from halley.broker.errors import DiskFull, HistoryUnavailable
from halley.broker.names import Pattern
from halley.broker.pending import Entry
from halley.broker.ports import Durability, Erasure, Page, Query
from halley.history import rewriting
from halley.history.backup import identify_copy
from halley.history.consumers import Consumers
from halley.history.damage import joined, outside
from halley.history.folder import Folder, FolderUnusable, begin_of
from halley.history.key_digests import NONE, Digests
from halley.history.reader import LogReader
from halley.history.recent_keys import RecentKey, recent_keys
from halley.history.recovery import Recovery
from halley.history.retention import Retention
from halley.history.rewriting import Salvaged
from halley.history.row_filter import RowFilter
from halley.history.rules import NEVER, Rules
from halley.history.seals import Sealer
from halley.history.segment_reader import SegmentGone, SegmentPool
from halley.history.state import AT, Name
from halley.history.stored import Stored
from halley.history.writer import LogWriter, Report
from halley.settings import History as Options

_CLOSE_S = 30.0
_SEAL_S = 30.0
_SEAL_STEP_S = 0.02

_Result = TypeVar("_Result")


class CannotPurge(Exception):
    """Nothing can be erased from the log; the text says why."""


class PurgeUnderWay(CannotPurge):
    """Another purge of the same log is running."""

    def __init__(self) -> None:
        super().__init__("another purge is under way")


class History:
    """An open log; implements `broker.ports.Log`."""

    def __init__(
        self,
        folder: Path,
        options: Options,
        rules: Rules,
        report: Callable[[Report], None],
        *,
        clock: Callable[[], float] = time.time,
        is_replica: bool = False,
    ) -> None:
        """Open the log in `folder`, which is created if it does not exist. Blocks.

        `report` is called on the writer's thread with the outcome of each group. `clock` returns the time of day in
        seconds since 1970. A log that `is_replica` is one of several copies: a backup does not become another log, and
        what is lost at its end does not become a hole (`Recovery`). Raises `FolderLocked`, `FolderUnusable`.
        """
        self.folder = Folder(folder)
        self.options = options
        self.rules = rules
        try:
            if not is_replica:
                identify_copy(self.folder)
            end = Recovery(self.folder, goes_back=is_replica)
        except OSError as error:
            self.folder.close()
            raise FolderUnusable(f"{folder} cannot be read: {error.strerror}") from error
        except BaseException:
            self.folder.close()
            raise
        if end.head >= self.folder.mark.offset:
            with suppress(OSError):  # on an error the first group writes it
                self.folder.mark.write(end.head, end.last_number)  # it was lost, or is behind after a power loss
        self._sealer = Sealer(self.folder)
        for each in end.unsealed:
            self._sealer.put(each)
        self.writer = LogWriter(self.folder, options, report, self._sealer, end)
        # of `ports.Log`; not methods that call these, which every publish would pay for
        self.append: Callable[[Entry], None] = self.writer.append
        self.durability_of: Callable[[str], Durability] = rules.durability_of
        self.state = self.writer.state  # what is saved with the rows (`state.py`)
        self.change = self.writer.change
        self._pool = SegmentPool(self.folder)
        self._reader = LogReader(self.folder, rules, self._pool)
        self.consumers = Consumers(folder, options.consumers, options.consumer_grace_s)
        self.retention = Retention(self.folder, rules, self._pool, self.consumers, options, clock)
        self._is_closed = False
        with suppress(sqlite3.Error):  # events that are too old are hidden even before the first step of retention
            self.retention.hide(clock(), end.head)
        self._purging = Lock()
        self._upkeep = Lock()  # only one thread at a time removes segments

    @property
    def log_id(self) -> str:
        """The random id of this log; a restored backup has another."""
        return self.folder.log_id

    @property
    def publication_key(self) -> int:
        """The key of the log's publication ids (`broker/events.py`)."""
        return self.folder.identity.publication_key

    @property
    def last_number(self) -> int:
        """The number of the newest publication in the log (`broker/events.py`)."""
        return self.writer.last_number

    @property
    def head(self) -> int:
        """The last committed offset; 0 in an empty log."""
        return self.writer.head

    @property
    def start(self) -> int:
        """The first offset that was not deleted; `head + 1` in an empty log."""
        segments = self.folder.segments
        return begin_of(segments[0].first if segments else self.head + 1, self.folder.identity.holes)

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of offsets from `start` to `head` that are lost permanently, both ends included."""
        return joined(self.folder.identity.holes, self.start, self.head)

    @property
    def damaged(self) -> list[tuple[int, int]]:
        """Ranges of offsets at which events are, or may be, damaged or missing; without the holes, ends included."""
        ranges = [(each.first, each.last) for each in self.folder.damage if each.first]
        segments = (each for each in self.folder.segments if not each.is_intact)
        ranges += [(each.first, self.head if each.last is None else each.last) for each in segments]
        holes = self.folder.identity.holes
        parts = (part for first, last in ranges for part in outside(first, last, holes))
        return joined(parts, self.start, self.head)

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """The error that `append` raises for a recorded event at present; None while the log accepts events."""
        return self.writer.refusal

    @property
    def bytes(self) -> int:
        """Bytes that the segments use on disk."""
        return sum(each.disk_bytes for each in self.folder.segments)

    @property
    def failures(self) -> int:
        """The number of disk failures since the log was opened."""
        return self.writer.failures + self._sealer.failures

    def set_executor(self, later: Callable[[Callable[[], None]], object] | None) -> None:
        """Set `later`, which calls a function at the end of the event loop's turn, as `loop.call_soon` does.

        From now on appended events are handed to the writer once for each turn; with None, `append` does it itself.
        """
        self.writer.later = later
        self.writer.set_executor()

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on no event that `pattern` matches was removed."""
        return max(self.start, self.rules.start_of(pattern))

    def read(self, query: Query) -> Page:
        """The page for a query; see `LogReader.read`. A few threads may call it at the same time."""
        return self._reader.read(query)

    def retain(self, now: float) -> bool:
        """Let retention take a step, unless a purge is under way; see `Retention.step`."""
        if not self._upkeep.acquire(blocking=False):
            return False
        try:
            return self.retention.step(now, self.head)
        finally:
            self._upkeep.release()

    def check_next_segment(self, first: int) -> int:
        """Compare a sealed segment with its digests, the next one from the offset `first` on; returns where it ends.

        Returns 0 where there is none. Damage is listed then, though nobody has read there. Blocks.
        """
        following = next((each for each in self.folder.segments if each.is_sealed and each.first >= first), None)
        if following is None:
            return 0
        with suppress(SegmentGone, OSError):  # what a resource was short for is looked at in the next round
            self._pool.check_again(following)
        return following.last or 0

    def purge(self, erasure: Erasure, on_progress: rewriting.Progress, last: int = NEVER) -> int:
        """Erase the events up to the offset `last`, committed by now, that `erasure` concerns; returns how many.

        Blocks. Damaged events are erased and counted too (`rewriting.purge`).

        Raises `PurgeUnderWay`, and `OSError` or `sqlite3.Error`; then some events are erased, and the call may be
        repeated.
        """
        with self.purging():
            self.roll()
            return self.rewrite(rewriting.concerned_by(erasure, last), on_progress)

    @contextmanager
    def purging(self) -> Iterator[None]:
        """A context manager within which no other purge of this log begins. Raises `PurgeUnderWay`."""
        if not self._purging.acquire(blocking=False):
            raise PurgeUnderWay
        try:
            yield
        finally:
            self._purging.release()

    def roll(self) -> None:
        """End the current segment, so that `rewrite` erases from all events committed by now. Blocks.

        Raises `OSError`.
        """
        if not self.folder.is_in_place:
            raise OSError(errno.ESTALE, "the folder was deleted or moved", str(self.folder.path))
        if not self.writer.roll(_SEAL_S):
            raise OSError(errno.EBUSY, "the current segment cannot be ended")

    def rewrite(self, is_chosen: rewriting.Chosen, on_progress: rewriting.Progress) -> int:
        """Erase rows as `purge` does, from the segments that are ended; only within `purging`. Blocks."""
        return self._rewriting(partial(rewriting.purge, is_chosen), on_progress)

    def salvage(self, on_progress: rewriting.Progress) -> Salvaged:
        """Rewrite each damaged segment with the rows that are intact, and record the others as holes. Blocks.

        Raises `PurgeUnderWay`, `OSError`, `sqlite3.Error`; it may be repeated.
        """
        with self.purging():
            return self._rewriting(rewriting.salvage, on_progress)

    def fill(self, supply: rewriting.Supply) -> int:
        """Fill a damaged segment or a hole with rows of another copy of the log; see `rewriting.fill`. Blocks.

        Call it until it returns 0. A purge that begins meanwhile goes on behind it, and erases from what was filled in.
        """

        def checked(first: int, last: int) -> Iterator[list[Stored]]:
            for rows in supply(first, last):
                self._check_open()
                yield rows

        return self._rewriting(partial(rewriting.fill, checked, self.options.segment_bytes), lambda *_: None)

    def _rewriting(
        self, work: Callable[[Folder, rewriting.Progress], _Result], on_progress: rewriting.Progress
    ) -> _Result:
        """Do `work` on ended segments, which alone may remove or replace segments meanwhile."""

        def on_step(done: int, of: int) -> None:
            self._check_open()
            on_progress(done, of)

        with self._upkeep:
            self._check_open()
            self._all_sealed()
            result = work(self.folder, on_step)
            self._pool.prune()
            return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise InterruptedError(errno.EINTR, "the log is being closed")

    def _all_sealed(self) -> None:
        """Wait until all ended segments are sealed. Raises `OSError`."""
        until = time.monotonic() + _SEAL_S
        while any(each.last is not None and each.is_intact and not each.is_sealed for each in self.folder.segments):
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, "a segment cannot be sealed; it may be open elsewhere")
            time.sleep(_SEAL_STEP_S)

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The rows between two offsets, both included; see `LogReader.rows`."""
        return self._reader.rows(first, min(last, self.head))

    def next_rows(self, first: int, last: int, wanted: RowFilter) -> tuple[list[Stored], int]:
        """The next of the wanted rows between two offsets, and how far that was read; see `LogReader.next_rows`."""
        return self._reader.next_rows(first, min(last, self.head), wanted)

    def erased(self, first: int, last: int) -> list[int]:
        """The offsets of erased events between two, both included. Blocks. Raises `OSError`."""
        return self._reader.erased(first, min(last, self.head))

    def copy(self, rows: list[Stored], reached: int, digests: Digests = NONE) -> None:
        """Write rows of another folder with the same log, all that it has behind `head` up to the offset `reached`.

        `digests` are those of their idempotency keys, as far as they are known (`key_digests.py`). What is missing
        among the rows becomes a hole, and what the log has already is passed over. Blocks. Nothing may be appended
        meanwhile. Raises `OSError`.
        """
        fresh = [row for row in rows if row.offset > self.head]
        for _, numbered in groupby(enumerate(fresh), lambda item: item[1].offset - item[0]):
            run = [row for _, row in numbered]
            self._skip_to(run[0].offset - 1)
            if not self.writer.copy(run, _CLOSE_S, digests):
                raise self._not_written()
        self._skip_to(reached)

    def _skip_to(self, offset: int) -> None:
        if offset > self.head and not self.writer.skip_to(offset, _CLOSE_S):
            raise self._not_written()

    def _not_written(self) -> OSError:
        if isinstance(self.refusal, DiskFull):
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder.path))
        return OSError(errno.EIO, "the rows cannot be written", str(self.folder.path))

    def has(self, rows: list[Stored]) -> bool:
        """Whether the log has no others at their offsets; one that is erased on one side counts as equal. Blocks."""
        first, last = (rows[0].offset, rows[-1].offset) if rows else (1, 0)
        own = {row.offset: row for found in self.rows(first, last) for row in found}
        return all(_is_equal(own.get(row.offset, row), row) for row in rows)

    def erase_at(self, offsets: list[int]) -> None:
        """Erase the rows at these offsets, if they are not erased yet. Blocks. Raises what `purge` does."""
        chosen = set(offsets) - set(self.erased(min(offsets), max(offsets))) if offsets else set()
        if chosen:
            with self.purging():
                self.roll()
                self.rewrite(lambda row: row.offset in chosen and not row.is_purged, lambda *_: None)

    def restate(self, values: dict[Name, Any]) -> None:
        """Save a state in the place of the one that there is, unless that is the same. Blocks. Raises `OSError`."""
        if self.state.is_at(values[AT]):
            return
        if not self.writer.restate(values, _CLOSE_S):
            raise OSError(errno.EIO, "the state cannot be written", str(self.folder.path))

    def recent_keys(self) -> list[RecentKey]:
        """The idempotency keys to remember from an earlier run (`recent_keys.py`), oldest first. Blocks."""
        return recent_keys(self.folder.segments, self.head, self.options.keys, self.options.key_age_s)

    def written(self, timeout_s: float) -> bool:
        """Wait until everything appended before is committed or refused; False after `timeout_s`. Blocks."""
        return self.writer.written(timeout_s)

    def close(self) -> None:
        """Write the waiting events, and unlock the folder. Blocks."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._upkeep:  # wait for a purge, which stops after its current segment
            pass
        self.writer.close(_CLOSE_S)
        self._sealer.close(_CLOSE_S)
        self._pool.close()
        self.folder.close()


def _is_equal(one: Stored, other: Stored) -> bool:
    return one.crc == other.crc or ((one.is_purged or other.is_purged) and one.publication == other.publication)
