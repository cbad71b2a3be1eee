"""The port of the event history: a data folder that is open, for appending and for reading.

Appending and asking what is kept belong to the event loop and never wait. Reading, retention and closing block; they
are called from threads.
"""

from __future__ import annotations

import errno
import sqlite3
import sys
import time
from contextlib import closing, suppress
from threading import Lock
from typing import TYPE_CHECKING

from app.broker.keys import Published
from app.history import purge, segment
from app.history.backup import begin_anew
from app.history.connections import Connections
from app.history.consumers import Consumers
from app.history.folder import Damage, Folder, FolderUnusable
from app.history.opened import is_passing
from app.history.ranges import joined, outside
from app.history.reader import Reader
from app.history.recovery import recover
from app.history.retention import Retention
from app.history.rows import keyed, walk
from app.history.sealer import Sealer
from app.history.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from app.broker.errors import HistoryUnavailable
    from app.broker.events import Event
    from app.broker.log import Keeping, Page, Query
    from app.broker.topics import Pattern
    from app.history.folder import Segment
    from app.history.purge import Erasure
    from app.history.rules import Rules
    from app.history.stored import Stored
    from app.history.writer import Report
    from app.settings import History as Options

_SWITCH_S = 0.0005
_CLOSE_S = 30.0
_SEAL_S = 30.0
_SEAL_STEP_S = 0.02


class PurgeUnderWay(Exception):
    """Somebody else's purge must end first."""


class _Haste:
    """While a log is open, threads hand the interpreter over ten times as often as usual.

    The writer takes it back after every call into SQLite, and beside a busy event loop waits a whole interval for it
    each time: at Python's 5 ms a third of the groups would get through.
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
    """An open log; see `broker.log.Log` for what the broker wants of it."""

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
        self._clock = clock
        self._connections = Connections(folder)
        self._reader = Reader(folder, rules, self._connections)
        self.consumers = Consumers(folder.path, options.consumers, options.consumer_grace_s)
        self._retention = Retention(folder, rules, self._connections, self.consumers, options, clock)
        self._is_closed = False
        with suppress(sqlite3.Error):  # what is too old is not served even before the first step of retention
            self._retention.hide(clock(), writer.head)
        self._purging = Lock()
        self._upkeep = Lock()  # segments are removed by one at a time

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
        """Open the log in `folder`, which is made if it is not there. `clock` gives seconds since 1970.

        Raises `FolderLocked`, `FolderUnusable`.
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
        with suppress(OSError):  # or with the first group
            opened.mark.write(log.head, log.last_number)  # it was lost, or a power loss has left it behind
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
        """Names this log among all; a restored copy has another."""
        return self.folder.log_id

    @property
    def publication_key(self) -> int:
        """What its publication ids are made with (`broker/publications.py`)."""
        return self.folder.identity.publication_key

    @property
    def last_number(self) -> int:
        """Of the newest publication in the log."""
        return self._writer.last_number

    @property
    def head(self) -> int:
        """The last committed offset; 0 where there is none."""
        return self._writer.head

    @property
    def start(self) -> int:
        """The first offset that is still there; `head + 1` where nothing is."""
        segments = self.folder.segments
        return segments[0].first if segments else self.head + 1

    @property
    def damage(self) -> Sequence[Damage]:
        """What is lost or unsound, found at start or later."""
        return self.folder.damage

    @property
    def holes(self) -> list[tuple[int, int]]:
        """Offsets, first and last, above the start, that were lost in an earlier accident and never come back."""
        return joined(self.folder.identity.holes, self.start, self.head)

    @property
    def unsound(self) -> list[tuple[int, int]]:
        """Likewise those, beside the holes, at which events are known to be damaged or missing, or may be."""
        holes = self.folder.identity.holes
        damage = (each for each in self.folder.damage if each.first)
        beside = (part for each in damage for part in outside(each.first, each.last, holes))
        return joined(beside, self.start, self.head)

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """Why it takes nothing at the moment, if so."""
        return self._writer.refusal

    @property
    def bytes(self) -> int:
        """What its segments take of the disk."""
        return sum(each.disk_bytes for each in self.folder.segments)

    @property
    def held_bytes(self) -> int:
        """Of them, what would be gone if nobody waited for consumers."""
        return self._retention.held_bytes

    @property
    def segments(self) -> int:
        """How many segments it has."""
        return len(self.folder.segments)

    @property
    def groups(self) -> int:
        """How many commits there were since it was opened."""
        return self._writer.groups

    @property
    def failures(self) -> int:
        """How often the disk has failed since it was opened."""
        return self._writer.failures + self._sealer.failures

    @property
    def waiting_bytes(self) -> int:
        """Of events that wait to be written."""
        return self._writer.waiting_bytes

    def keeping(self, topic: str) -> Keeping:
        """What is to become of a topic's events."""
        return self._rules.keeping(topic)

    def append(self, event: Event) -> None:
        """Have an event written, or passed on in its turn. Raises `HistoryUnavailable`, `InboxFull`, `DiskFull`."""
        self._writer.append(event)

    def hand_over(self, later: Callable[[Callable[[], None]], object] | None) -> None:
        """From now on have what is appended handed to the writer by what `later` calls at the end of a turn."""
        self._writer.later = later
        self._writer.hand_over()

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on nothing that `pattern` matches has been removed."""
        return max(self.start, self._rules.start_of(pattern))

    def read(self, query: Query) -> Page:
        """A query's page. Blocks; for a few threads at once.

        Raises `UnknownPublication`; `sqlite3.Error` where the system is short of something.
        """
        return self._reader.read(query)

    def retain(self, now_mono: float) -> bool:
        """Hide what is too old, and delete segments of which nothing is left to be seen. Blocks; for one thread.

        True if there is more to do at once. Raises `OSError`, `sqlite3.Error`; the next call tries again.
        """
        if not self._upkeep.acquire(blocking=False):
            return False  # a purge is under way
        try:
            return self._retention.step(now_mono, self.head)
        finally:
            self._upkeep.release()

    def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase events that are committed by now; how many those were. `tell`: offsets done, and of how many.

        Blocks. Raises `PurgeUnderWay`; `OSError`, `sqlite3.Error`, and then some is erased and it may be repeated.
        """
        if not self._purging.acquire(blocking=False):
            raise PurgeUnderWay

        def tell_on(done: int, of: int) -> None:
            if self._is_closed:
                raise InterruptedError(errno.EINTR, "the log is being closed")
            tell(done, of)

        try:
            with self._upkeep:
                self._all_sealed()
                erased = purge.purge(self.folder, erasure, tell_on)
                self._connections.prune()
                return erased
        finally:
            self._purging.release()

    def _all_sealed(self) -> None:
        """Have the current segment ended, and all that are ended sealed. Raises `OSError`."""
        until = time.monotonic() + _SEAL_S
        is_rolled = self._writer.roll(_SEAL_S)
        while any(each.last is not None and each.is_sound and not each.is_sealed for each in self.folder.segments):
            if time.monotonic() > until:
                is_rolled = False
                break
            time.sleep(_SEAL_STEP_S)
        if not is_rolled:
            raise OSError(errno.EBUSY, "a segment cannot be sealed; it may be open elsewhere")

    def rows(self, first: int, last: int) -> Iterator[list[Stored]]:
        """The sound rows between two offsets, both included, in order and in batches; what is purged is a tombstone.

        What is missing is damaged, which is noted, or was removed, also while this goes on. Blocks. Raises `OSError`.
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
        """Note that offsets of a segment have no sound row, unless that is known, or it was removed meanwhile."""
        if first > last or found not in self.folder.segments:
            return
        if not any(each.first <= first and last <= each.last for each in self.folder.damage):
            self.folder.note(Damage(first, last, found.path.name, "cannot be read"))

    def recent_keys(self) -> list[tuple[str | None, str, Published, float]]:
        """The idempotency keys in the log that may still be repeated, oldest first: whose, which, what, and when.

        Blocks.
        """
        since_us = int((self._clock() - self.options.key_age_s) * 1_000_000)
        found: list[tuple[str | None, str, Published, float]] = []
        rows: list[Stored]
        latest: list[Stored]
        for each in reversed(self.folder.segments):
            last = self.head if each.last is None else each.last
            rows, latest = [], []
            with suppress(sqlite3.Error), closing(segment.read(each.path, is_sealed=each.is_sealed)) as connection:
                rows = keyed(connection, last, since_us, self.options.keys - len(found))
                latest = next(iter(walk(connection, last, last)))[0]
            for row in rows:
                assert row.idempotency_key is not None
                published = Published(row.topic, row.offset, row.publication)
                found.append((row.authid, row.idempotency_key, published, row.time_us / 1_000_000))
            if len(found) >= self.options.keys or (latest and latest[0].time_us < since_us):
                break
        return found[::-1]

    def _segment_from(self, offset: int) -> Segment | None:
        """The segment in which to look for an offset, and what comes after it."""
        return next((each for each in self.folder.segments if each.last is None or each.last >= offset), None)

    def written(self, timeout_s: float | None = None) -> bool:
        """Wait until everything appended before is committed or refused; False if that takes too long."""
        return self._writer.written(self.options.commit_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Write what waits, and let go of the folder. Blocks."""
        if self._is_closed:
            return
        self._is_closed = True
        with self._upkeep:  # a purge ends with its segment
            pass
        self._writer.close(_CLOSE_S)
        self._sealer.close(_CLOSE_S)
        self._connections.close()
        self.folder.close()
        _haste.end()
