"""The writer's thread: events that arrive during a commit are the next group, which is one commit with fsync.

If a commit fails, its whole group is refused, and its segment is not written again: after an error it is unknown how
much of the group is on disk (fsync(2)), and its publishers are answered so. The next group is written to a new segment,
after the last good offset: from then on the failed group is not stored. While no segment can be created, every event is
refused immediately, and the failed group may be found at the next start; creating one is tried once a second.

What is written to a deleted file is lost with this process. So the writer looks once a second whether the log's files
are still where they were, and otherwise refuses every event.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread, get_native_id
from time import monotonic
from typing import Any, cast

from halley.broker.errors import (
    CommitFailed,
    DiskFull,
    HistoryUnavailable,
    InboxFull,
    LogMoved,
    Refusal,
    Unstorable,
)
from halley.broker.events import Publications
from halley.broker.pending import Entry
from halley.history import segment
from halley.history.folder import Folder, Segment, delete
from halley.history.key_digests import NONE, Digests
from halley.history.recovery import Recovery
from halley.history.seals import Sealer
from halley.history.segment import SegmentWriter
from halley.history.state import AT, Change, Name, SavedState, encoded
from halley.history.stored import Stored, row_of
from halley.settings import History as Options

_GROUP_ROWS = 4_096
_TURN_ROWS, _MOST_TURN_ROWS = 256, 2_048
_GROUP_BYTES = 4_194_304
_NICENESS = 5
_CHECK_S = 1.0
"""Seconds between two checks of the files and the free space, and between two tries after a disk failure.

Changes of the state that go with no event are written by then too, if no event comes before.
"""


class _Task(Flag):
    """Work for the writer's thread when all before it is written; the flag is set when it is done."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a group: the recorded ones of `entries` are on disk, with the offsets from `first` on.

    Those that are not recorded have only had their turn.
    """

    entries: list[Entry]
    first: int


@dataclass(frozen=True, slots=True)
class NotWritten:
    """The outcome of a group that failed: none of `entries` counts as stored, for the reason `refusal`.

    Among them are the changes of the state that would have been written with them.

    If that is an `OutcomeUnknown`, they may count when the log is opened again.
    """

    entries: list[Entry | Change]
    refusal: Refusal


Report = Committed | NotWritten


class LogWriter:
    """Writes a log, going on where `end` says.

    An event that has a `position` already, which a cluster gives, is only written there: it is refused while another is
    missing before it.

    `append` is for one thread, the event loop's. `report` is called on the writer's thread. `last_number` is the number
    of the newest publication; `groups` and `failures` count commits and disk failures, for telemetry.
    """

    def __init__(
        self,
        folder: Folder,
        options: Options,
        report: Callable[[Report], None],
        sealer: Sealer,
        end: Recovery,
    ) -> None:
        self.head = end.head
        self.last_number = end.last_number
        self.groups = 0
        self.failures = 0
        self.state = SavedState(end.state)
        self._waiting: dict[Name, Any] = {}  # values of the state that go with no event: they are written with the next
        self._sequence = self.state.sequence  # of the state with these
        self._folder = folder
        self._options = options
        self._report = report
        self._sealer = sealer
        self._publications = Publications(folder.identity.publication_key)
        self.later: Callable[[Callable[[], None]], object] | None = None
        """Calls a function at the end of the event loop's turn (`loop.call_soon`); None without a loop."""
        self._ended: tuple[Segment, SegmentWriter] | None = None  # to be sealed when another one has the state
        self._turn: deque[Entry | Change] = deque()  # not yet in the inbox
        self._latest: object = None  # the source of its last event
        self._handing_over = Lock()
        self._inbox: SimpleQueue[tuple[list[Entry | Change], int] | _Task] = SimpleQueue()  # events and their bytes
        self._taken_bytes = 0  # by `append` alone
        self._handed_bytes = 0
        self._done_bytes = 0  # by the writer alone
        self._is_full = self._is_broken = self._is_moved = self._is_closed = self._is_over = False
        self._current = end.current
        self._checked_at = self._tried_at = -_CHECK_S
        self._check_files()
        self._ensure_segment()
        self._thread = Thread(target=self._run, name="history-writer", daemon=True)
        self._thread.start()

    @property
    def _listed(self) -> Segment | None:
        """The current segment as the folder lists it; None until it has a row."""
        newest = self._folder.segments[-1] if self._folder.segments else None
        is_current = newest is not None and self._current is not None and newest.path == self._current.path
        return newest if is_current else None

    @property
    def waiting_bytes(self) -> int:
        """Bytes of events that wait to be written or are being written."""
        return self._taken_bytes - self._done_bytes

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """The error that `append` raises for a recorded event at present; None while it accepts events."""
        if self._is_moved:
            return LogMoved()
        if self._is_broken or self._is_closed:
            return HistoryUnavailable()
        return DiskFull() if self._is_full else None

    def append(self, entry: Entry) -> None:
        """Queue an event to be written, as `broker.ports.Log.append` says; never waits.

        The events of one turn of the event loop are handed over together at its end: a writer that is woken by the
        first event takes the interpreter, or the core, from the loop, and writes a small group. The events of one
        source in a turn are in one group: either all of them are stored or none. Raises `HistoryUnavailable`,
        `DiskFull`, `InboxFull`.
        """
        if entry.is_recorded and (self._is_broken or self._is_full or self._is_closed) and (refusal := self.refusal):
            raise refusal
        nbytes = entry.event.nbytes
        waiting_bytes = self._taken_bytes - self._done_bytes
        if waiting_bytes and waiting_bytes + nbytes > self._options.inbox_bytes:
            raise InboxFull
        self._taken_bytes += nbytes
        if len(self._turn) >= _TURN_ROWS and (entry.source is not self._latest or len(self._turn) >= _MOST_TURN_ROWS):
            self.set_executor()
        self._latest = entry.source
        self._turn.append(entry)
        if self.later is None:
            self.set_executor()
        elif len(self._turn) == 1:
            self.later(self.set_executor)

    def change(self, change: Change) -> None:
        """Queue a change of the state, behind the events that were appended before; never waits.

        It is reported only if it is not written.
        """
        self._taken_bytes += change.nbytes
        self._turn.append(change)
        if self.later is None:
            self.set_executor()
        elif len(self._turn) == 1:
            self.later(self.set_executor)

    def set_executor(self) -> None:
        """Hand the appended events over to the writer's thread. For any thread."""
        with self._handing_over:
            self._latest = None  # it may be as large as a request
            turn = [self._turn.popleft() for _ in range(len(self._turn))]
            if turn:
                nbytes = self._taken_bytes - self._handed_bytes
                self._handed_bytes += nbytes
                self._inbox.put((turn, nbytes))

    def written(self, timeout_s: float) -> bool:
        """Wait until everything appended before is reported; False after `timeout_s` seconds. For any thread."""
        return self._done(lambda: None, timeout_s)

    def roll(self, timeout_s: float) -> bool:
        """Wait as `written` does, and end the current segment there, so that it is sealed."""
        return self._done(self._roll, timeout_s)

    def copy(self, rows: list[Stored], timeout_s: float, digests: Digests = NONE) -> bool:
        """Write rows of another folder with the same log, which follow `head`; False if they are not on disk.

        `digests` are those of their idempotency keys, as far as they are known.
        """

        def work() -> None:
            if rows[0].offset == self.head + 1:
                self._commit([], rows, {}, self._sequence, digests)

        return self._done(work, timeout_s) and self.head == rows[-1].offset

    def restate(self, values: dict[Name, Any], timeout_s: float) -> bool:
        """Write another state in the place of the one that there is; False if it is not on disk."""
        written = Flag()

        def restate() -> None:
            gone: dict[Name, Any] = dict.fromkeys(self.state.values)
            self._waiting, self._sequence = gone | values, values[AT]["sequence"]
            if self._save():
                written.set()

        return self._done(restate, timeout_s) and written.is_set()

    def skip_to(self, offset: int, timeout_s: float) -> bool:
        """Record what follows `head` up to an offset as lost, and go on behind it; False if that failed."""
        return self._done(lambda: self._skip_to(offset), timeout_s) and self.head == offset

    def _done(self, work: Callable[[], object], timeout_s: float) -> bool:
        if self._is_closed:
            return True
        self.set_executor()
        task = _Task(work)
        self._inbox.put(task)
        return task.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write the waiting events and stop the thread; waits at most `timeout_s` seconds."""
        self._is_closed = True
        self.set_executor()
        self._inbox.put(_Task(self._stop))
        self._thread.join(timeout_s)

    def _stop(self) -> None:
        self._is_over = True

    def _run(self) -> None:
        _lower_priority()
        while not self._is_over:
            group: list[Entry | Change] = []
            task, nbytes = self._collect(group)
            if group:
                self._write(group)
                self._done_bytes += nbytes
            if task is not None:
                task.work()
                task.set()
            self._check_files()
            if self._is_broken:
                self._ensure_segment()
        self._save()
        if self._ended is not None:  # another start seals it
            self._sealer.abandon(self._ended[1])
        if self._current is not None:
            with suppress(sqlite3.Error):
                if self._is_moved:  # SQLite would delete the WAL of a file that has taken its place
                    self._current.abandon().close()
                else:
                    self._current.close()

    def _collect(self, group: list[Entry | Change]) -> tuple[_Task | None, int]:
        """Fill `group` with the waiting events; returns the task behind them, if there is one, and their bytes."""
        nbytes = 0
        try:
            item = self._inbox.get(timeout=_CHECK_S)
            while isinstance(item, tuple):
                group += item[0]
                nbytes += item[1]
                if len(group) >= _GROUP_ROWS or nbytes > _GROUP_BYTES:
                    return None, nbytes
                item = self._inbox.get_nowait()
        except Empty:
            return None, nbytes
        return item, nbytes

    def _write(self, group: list[Entry | Change]) -> None:
        """Write a group and report it; an event that cannot be made into a row is refused, in order.

        So is a change behind one that was refused, or behind such an event: all of them come again.
        """
        part: list[Entry | Change] = []
        rows: list[Stored] = []
        digests: dict[int, bytes] = {}
        changed: dict[Name, Any] = {}
        if self.state.values and not next((entry.position for entry in group if entry.is_recorded), 1):
            self._waiting, self._sequence = dict.fromkeys(self.state.values), 0  # from now on it is another log
        sequence = self._sequence
        for entry in group:
            try:
                if entry.is_recorded:
                    event, offset = entry.event, self.head + 1 + len(rows)
                    if event.position and event.position != offset:
                        raise HistoryUnavailable
                    rows.append(row_of(event, offset))
                    if event.key_digest is not None:
                        digests[offset] = event.key_digest
                elif isinstance(entry, Change):
                    sequence = entry.behind(sequence, self.head + len(rows))
                    changed.update(entry.values)
            except (TypeError, ValueError, HistoryUnavailable) as error:
                self._commit(part, rows, changed, sequence, digests)
                self._report(NotWritten([entry], error if isinstance(error, HistoryUnavailable) else Unstorable()))
                part, rows, changed, sequence, digests = [], [], {}, self._sequence, {}
                continue
            part.append(entry)
        self._commit(part, rows, changed, sequence, digests)

    def _commit(
        self,
        entries: list[Entry | Change],
        rows: list[Stored],
        changed: dict[Name, Any],
        sequence: int,
        digests: Digests,
    ) -> None:
        """Write and report a group, with what it changes of the state, which makes that the state of `sequence`.

        `digests` are those of the idempotency keys in its rows.
        """
        first = self.head + 1
        values = self._waiting | changed if self._waiting else changed
        if rows:
            refusal = self._stored(rows, values, sequence, digests)
            if refusal is not None:
                self._report(NotWritten(entries, refusal))
                return
            self._committed(rows)
        else:
            self._waiting, self._sequence = values, sequence
        if changed:
            entries = [entry for entry in entries if not isinstance(entry, Change)]
        if entries:
            self._report(Committed(cast("list[Entry]", entries), first))
        if rows:
            self._checkpoint()

    def _stored(
        self, rows: list[Stored], values: dict[Name, Any], sequence: int, digests: Digests = NONE
    ) -> Refusal | None:
        """Commit rows and changed values of the state to the current segment; why not, if that fails."""
        if (self._current is None or self._is_moved) and not self._ensure_segment():
            return self._why()
        assert self._current is not None
        changed = encoded(values) if values else segment.NO_STATE
        try:
            self._current.write(rows, changed, digests)
        except (sqlite3.Error, OSError, OverflowError) as error:  # OverflowError: a number beyond 64 bits
            self._abandon()
            return CommitFailed() if isinstance(error, segment.CommitUncertain) else self._why()
        if changed:
            self.state.committed(changed, sequence)
            self._waiting, self._sequence = {}, sequence
        return None

    def _save(self) -> bool:
        """Write the change of the state that waits for an event; whether none waits any more."""
        if self._waiting and self._stored([], self._waiting, self._sequence) is None:
            self._checkpoint()
        return not self._waiting

    def _committed(self, rows: list[Stored]) -> None:
        assert self._current is not None
        if self._listed is None:
            self._folder.add(Segment(self._current.path, self._current.first, None))
        self.head = rows[-1].offset
        self.last_number = self._publications.number_of(rows[-1].publication)
        self.groups += 1
        try:
            self._mark()
        except OSError:  # the mark is too low then, which is allowed
            self.failures += 1

    def _why(self) -> Refusal:
        return LogMoved() if self._is_moved else DiskFull() if self._is_full else HistoryUnavailable()

    def _mark(self) -> None:
        """Raise the mark; it stays while the log gets again what was lost of it. Raises `OSError`."""
        if self.head >= self._folder.mark.offset:
            self._folder.mark.write(self.head, self.last_number)

    def _skip_to(self, offset: int) -> None:
        """Go on in another segment, which has the hole in its table `meta` too."""
        lost = (self.head + 1, offset)
        with suppress(sqlite3.Error, OSError):
            self._folder.add_holes([lost])
            self._roll()
            if self._current is not None:  # it is empty, and its name would be within the hole
                self._current.close()
                delete(self._current.path)
                self._current = None
            self.last_number += offset - self.head
            self.head = offset
            self._mark()
            self._ensure_segment()

    def _roll(self) -> None:
        self._save()  # what is deleted of the state must not get into the next segment
        if self._listed is not None and not self._is_moved:
            self._checkpoint(is_over=True)
        elif self._current is not None and self.state.values:  # nor stay in this one, which has no events
            try:
                self._current.empty_wal()
            except sqlite3.Error:
                self._abandon()

    def _checkpoint(self, *, is_over: bool = False) -> None:
        """Keep the WAL short, and begin the next segment when this one is full or `is_over`. Called between groups."""
        current, segment_bytes = self._current, self._options.segment_bytes
        assert current is not None
        if not is_over and current.wal_bytes < min(segment.WAL_BYTES, segment_bytes):
            return
        try:
            current.checkpoint()
            if not is_over and (current.nbytes < segment_bytes or self._listed is None):
                return
        except (sqlite3.Error, OSError):
            self._abandon()
            return
        ended = self._end_segment(current.nbytes)
        if ended.is_intact:
            self._ended = ended, current
        else:
            with suppress(sqlite3.Error):
                current.close()
        self._ensure_segment()

    def _ensure_segment(self) -> bool:
        """Create a segment to write to if there is none, once a second after a failure; whether there is one."""
        if self._current is None and not self._is_moved and monotonic() - self._tried_at >= _CHECK_S:
            first = self.head + 1
            path = self._folder.segment_path(first)
            try:
                # in the place of a failed segment without a row that counts, which readers never saw
                meta = self._folder.identity.meta(first)
                self._current = segment.create(
                    path, self._folder.log_id, first, self.state.values, replaces=True, **meta
                )
                if self._ended is not None:
                    self._sealer.put(*self._ended)
                    self._ended = None
            except (sqlite3.Error, OSError):
                self.failures += 1
                self._tried_at = monotonic()
        self._is_broken = self._current is None or self._is_moved
        return not self._is_broken

    def _end_segment(self, nbytes: int) -> Segment:
        """List the current segment as full; afterwards there is no current one."""
        assert self._current is not None
        ended = self._folder.change(self._current.first, last=self.head, nbytes=nbytes)
        self._current = None
        return ended

    def _abandon(self) -> None:
        """Leave the current segment unchanged after a failure, and continue in another one."""
        current = self._current
        assert current is not None
        self.failures += 1
        self._sealer.abandon(current)
        if self._listed is None:
            self._current, self._tried_at = None, monotonic()  # the disk fails: wait before the next try
        else:
            self._end_segment(current.nbytes)
        self._ensure_segment()

    def _check_files(self) -> None:
        """Check once a second at most that the files are good and in place, and how much of the disk is free."""
        now = monotonic()
        if now - self._checked_at < _CHECK_S:
            return
        self._checked_at = now
        is_moved = self._is_moved
        with suppress(OSError):
            is_moved = not ((self._current is None or self._current.is_in_place) and self._folder.is_in_place)
        if is_moved:
            self._folder.put_back_identity()
        if is_moved != self._is_moved:
            self._is_moved = is_moved
            self.failures += is_moved
            self._ensure_segment()
        if self._listed is not None and not self._listed.is_intact:
            self._roll()  # a reader has found damage: what is written to it would not be read
        self._is_full = self._folder.free_bytes < self._options.free_bytes
        if not self._is_full:
            self._save()


def _lower_priority() -> None:
    """Lower this thread's priority: on a shared core the event loop has precedence, and groups only grow meanwhile."""
    with suppress(AttributeError, OSError):  # only Linux has priorities for threads
        thread = get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread)  # the server's own, such as systemd's Nice=
        os.setpriority(os.PRIO_PROCESS, thread, niceness + _NICENESS)
