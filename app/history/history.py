"""The public class of the event history: an open data folder, for appending and reading.

`append` and `keeping` are called on the event loop and never wait. Reading, retention and closing block, and are called
from threads.
"""

from __future__ import annotations

import errno
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock

from app.broker.erasure import Erasure
from app.broker.errors import HistoryUnavailable
from app.broker.events import Event
from app.broker.log import Keeping, Page, Query
from app.broker.topics import Pattern
from app.history import purge, segment
from app.history.backup import begin_anew
from app.history.connections import Connections
from app.history.consumers import Consumers
from app.history.folder import Damage, Folder, FolderUnusable, Segment, begin_of
from app.history.opened import is_passing
from app.history.ranges import joined, outside
from app.history.reader import Reader
from app.history.recent import RecentKey, recent_keys
from app.history.recovery import recover
from app.history.retention import Retention
from app.history.rows import walk
from app.history.rules import Rules
from app.history.sealer import Sealer
from app.history.stored import Stored
from app.history.writer import Report, Writer
from app.settings import History as Options

_SWITCH_S = 0.0005
_CLOSE_S = 30.0
_SEAL_S = 30.0
_SEAL_STEP_S = 0.02


class PurgeUnderWay(Exception):
    """Another purge of the same log is running."""


class _Haste:
    """Makes threads switch the interpreter ten times as often as Python's default while a log is open.

    The writer needs the interpreter again after every call into SQLite, and next to a busy event loop it waits a whole
    switch interval for it each time: at Python's 5 ms only a third of the groups would get through.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._logs = 0
        self._usual_s = 0.0

    def begin(self) -> None:
        with self._lock:
            if self._logs == 0:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(_SWITCH_S, self._usual_s))
            self._logs += 1

    def end(self) -> None:
        with self._lock:
            self._logs -= 1
            if self._logs == 0:
                sys.setswitchinterval(self._usual_s)


_haste = _Haste()


class History:
    """An open log; implements `broker.log.Log`."""

    def __init__(
        self,
        folder: Folder,
        options: Options,
        rules: Rules,
        writer: Writer,
        sealer: Sealer,
        clock: Callable[[], float],
    ) -> None:
        self.folder = folder
        self.options = options
        self._rules = rules
        self._writer = writer
        self._sealer = sealer
        self._connections = Connections(folder)
        self._reader = Reader(folder, rules, self._connections)
        self.consumers = Consumers(folder.path, options.consumers, options.consumer_grace_s)
        self._retention = Retention(folder, rules, self._connections, self.consumers, options, clock)
        self._is_closed = False
        with suppress(sqlite3.Error):  # events that are too old are hidden even before the first step of retention
            self._retention.hide(clock(), writer.head)
        self._purging = Lock()
        self._upkeep = Lock()  # only one thread at a time removes segments

    @classmethod
    def open(
        cls,
        folder: Path,
        options: Options,
        rules: Rules,
        report: Callable[[Report], None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> History:
        """Open the log in `folder`, which is created if it does not exist. Blocks.

        `report` is called on the writer's thread with each `Committed` or `Refused` group. `clock` returns the time of
        day in seconds since 1970. Raises `FolderLocked`, `FolderUnusable`.
        """
        opened = Folder(folder)
        try:
            begin_anew(opened)
            log = recover(opened)
        except OSError as error:
            opened.close()
            raise FolderUnusable(f"{folder} cannot be read: {error.strerror}") from error
        except BaseException:
            opened.close()
            raise
        with suppress(OSError):  # on an error the first group writes it
            opened.mark.write(log.head, log.last_number)  # it was lost, or is behind after a power loss
        _haste.begin()
        sealer = Sealer(opened)
        for each in log.unsealed:
            sealer.put(each)
        writer = Writer(
            opened, options, report, sealer, head=log.head, last_number=log.last_number, current=log.current
        )
        return cls(opened, options, rules, writer, sealer, clock)

    @property
    def log_id(self) -> str:
        """The random id of this log; a restored backup has another."""
        return self.folder.log_id

    @property
    def publication_key(self) -> int:
        """The key of the log's publication ids (`broker/publications.py`)."""
        return self.folder.identity.publication_key

    @property
    def last_number(self) -> int:
        """The number of the newest publication in the log (`broker/publications.py`)."""
        return self._writer.last_number

    @property
    def head(self) -> int:
        """The last committed offset; 0 in an empty log."""
        return self._writer.head

    @property
    def start(self) -> int:
        """The first offset that was not deleted; `head + 1` in an empty log."""
        segments = self.folder.segments
        return begin_of(segments[0].first if segments else self.head + 1, self.folder.identity.holes)

    @property
    def damage(self) -> Sequence[Damage]:
        """The damage that was found at start or later."""
        return self.folder.damage

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Ranges of offsets from `start` to `head` that are lost permanently, both ends included."""
        return joined(self.folder.identity.holes, self.start, self.head)

    @property
    def unsound(self) -> list[tuple[int, int]]:
        """Ranges of offsets at which events are, or may be, damaged or missing; without the holes, ends included."""
        holes = self.folder.identity.holes
        damage = (each for each in self.folder.damage if each.first)
        beside = (part for each in damage for part in outside(each.first, each.last, holes))
        return joined(beside, self.start, self.head)

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """The error that `append` raises for a recorded event at present; None while the log accepts events."""
        return self._writer.refusal

    @property
    def bytes(self) -> int:
        """Bytes that the segments use on disk."""
        return sum(each.disk_bytes for each in self.folder.segments)

    @property
    def held_bytes(self) -> int:
        """Bytes of segments that are kept only because consumers have not read them."""
        return self._retention.held_bytes

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.folder.segments)

    @property
    def groups(self) -> int:
        """The number of commits since the log was opened."""
        return self._writer.groups

    @property
    def failures(self) -> int:
        """The number of disk failures since the log was opened."""
        return self._writer.failures + self._sealer.failures

    @property
    def waiting_bytes(self) -> int:
        """Bytes of events that wait to be written or are being written."""
        return self._writer.waiting_bytes

    def keeping(self, topic: str) -> Keeping:
        """How a topic's events are kept."""
        return self._rules.keeping(topic)

    def append(self, event: Event) -> None:
        """Queue an event to be written; never waits. Its `Committed` or `Refused` is reported later.

        An event that is not recorded is only reported, in order. Raises `HistoryUnavailable`, `InboxFull`, `DiskFull`.
        """
        self._writer.append(event)

    def hand_over(self, later: Callable[[Callable[[], None]], object] | None) -> None:
        """Set `later`, which calls a function at the end of the event loop's turn, as `loop.call_soon` does.

        From now on appended events are handed to the writer once for each turn; with None, `append` does it itself.
        """
        self._writer.later = later
        self._writer.hand_over()

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on no event that `pattern` matches was removed."""
        return max(self.start, self._rules.start_of(pattern))

    def read(self, query: Query) -> Page:
        """The page for a query. Blocks; a few threads may call it concurrently.

        Raises `UnknownPublication`, and `sqlite3.Error` where the system is short of a resource (memory, file handles).
        """
        return self._reader.read(query)

    def retain(self, now_mono: float) -> bool:
        """Hide events that are too old, and delete segments that are not needed any more. Blocks; for one thread.

        `now_mono` is the monotonic clock in seconds. Returns True if there is more to do. Raises `OSError`,
        `sqlite3.Error`; the next call tries again.
        """
        if not self._upkeep.acquire(blocking=False):
            return False  # a purge is under way
        try:
            return self._retention.step(now_mono, self.head)
        finally:
            self._upkeep.release()

    def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase the events that are committed by now and that `erasure` concerns; returns how many. Blocks.

        `tell(done, total)` is called with offsets, as progress. Raises `PurgeUnderWay`, and `OSError` or
        `sqlite3.Error`; then some events are erased, and the call may be repeated.
        """
        with self.purging():
            self.roll()
            return self.rewrite(erasure, tell)

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
        if not self._writer.roll(_SEAL_S):
            raise OSError(errno.EBUSY, "the current segment cannot be ended")

    def rewrite(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase as `purge` does, from the segments that are ended; only within `purging`. Blocks."""

        def tell_on(done: int, of: int) -> None:
            self._check_open()
            tell(done, of)

        with self._upkeep:
            self._check_open()
            self._all_sealed()
            erased = purge.purge(self.folder, erasure, tell_on)
            self._connections.prune()
            return erased

    def _check_open(self) -> None:
        if self._is_closed:
            raise InterruptedError(errno.EINTR, "the log is being closed")

    def _all_sealed(self) -> None:
        """Wait until all ended segments are sealed. Raises `OSError`."""
        until = time.monotonic() + _SEAL_S
        while any(each.last is not None and each.is_sound and not each.is_sealed for each in self.folder.segments):
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, "a segment cannot be sealed; it may be open elsewhere")
            time.sleep(_SEAL_STEP_S)

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The intact rows between two offsets, both included, in order and in batches. Blocks. Raises `OSError`.

        A purged event is a tombstone. A missing row is damaged, which is noted in `damage`, or was deleted by
        retention, possibly while this runs.
        """
        at, last = first, min(last, self.head)
        while at <= last and (found := self._segment_from(at)) is not None:
            at, until = max(at, found.first), last if found.last is None else min(last, found.last)
            try:
                with closing(segment.read(found.path, is_sealed=found.is_sealed)) as connection:
                    for rows, reached in walk(connection, at, until):
                        for row in rows:
                            if row.offset != at:
                                self._miss(found, at, row.offset - 1)
                            at = row.offset + 1
                        self._miss(found, at, reached)
                        at = reached + 1
                        if rows:
                            yield rows
            except sqlite3.Error as error:
                if is_passing(error) and found in self.folder.segments and found.path.exists():
                    raise OSError(errno.EIO, str(error), str(found.path)) from error
                self._miss(found, at, until)
            at = until + 1

    def _miss(self, found: Segment, first: int, last: int) -> None:
        """Note that offsets have no intact row, unless that is known or the segment was removed meanwhile."""
        if first > last or found not in self.folder.segments:
            return
        if not any(each.first <= first and last <= each.last for each in self.folder.damage):
            self.folder.note(Damage(first, last, found.path.name, "cannot be read"))

    def recent_keys(self) -> list[RecentKey]:
        """The idempotency keys to remember from an earlier run (`recent.py`), oldest first. Blocks."""
        return recent_keys(self.folder.segments, self.head, self.options.keys, self.options.key_age_s)

    def _segment_from(self, offset: int) -> Segment | None:
        """The segment that has an offset, or the next one behind it."""
        return next((each for each in self.folder.segments if each.last is None or each.last >= offset), None)

    def written(self, timeout_s: float | None = None) -> bool:
        """Wait until everything appended before is committed or refused; False on a timeout. Blocks.

        `timeout_s` is in seconds; None: the setting `commit_s`.
        """
        return self._writer.written(self.options.commit_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Write the waiting events, and unlock the folder. Blocks."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._upkeep:  # wait for a purge, which stops after its current segment
            pass
        self._writer.close(_CLOSE_S)
        self._sealer.close(_CLOSE_S)
        self._connections.close()
        self.folder.close()
        _haste.end()
