"""Catching up: a folder that the stream cannot fill gets what it lacks from a keeper, before its node serves.

That is so for a new folder where the stream no longer has all events, or began behind some, and for one whose node was
away for longer than the stream keeps frames. First the node asks for the keeper's state, then for the rows up to there,
and then for what was erased meanwhile, which it erases too. It goes on with the state: what came after it is in the
stream. Meanwhile the others publish. Interrupted at any point, it goes on where it was.
"""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from time import monotonic

from halley import telemetry
from halley.cluster.applied import AnotherVersion, Applied
from halley.cluster.keeper_client import KeeperRequests, KeeperState
from halley.cluster.requests import NobodyAnswers, Unanswered
from halley.history.folder import FolderLocked, HighWaterMark, delete, segment_files
from halley.history.history import History
from halley.history.rules import Rules
from halley.history.stored import Stored
from halley.nats.jetstream import Connection
from halley.settings import Settings

_ANSWER_S = 10.0
_AGAIN_S = 0.3
_COMPARED = 100
"""Rows that are compared. Two copies of a log that differ do so from some event on to their ends."""

_ERASED_AT_ONCE = 1_000_000


class CannotCatchUp(Exception):
    """The folder cannot get what it lacks; the text says why."""


async def catch_up(nats: Connection, settings: Settings, folder: Path, applied: Applied, needed: int) -> None:
    """Fill the folder from a keeper, and set `applied` to the state that goes with it.

    `needed` is how far that state must have come in the stream. Raises `CannotCatchUp`, `FolderUnusable`.
    """
    copy = await asyncio.to_thread(Copy, settings, folder)
    asked_at, head = monotonic(), copy.head
    try:
        while True:
            try:
                state = await KeeperRequests(nats, settings.cluster.space).state(_ANSWER_S)
                found = _restored(settings, state)
                is_same = found.stream == applied.stream and state.log_id == copy.log_id
                if not is_same or not needed <= found.sequence == state.erased:
                    why = "no node has a state with which it could go on"
                elif found.offset < copy.head:
                    why = (
                        f"it has events up to position {copy.head}, and the cluster up to {found.offset}; see halley "
                        "cluster recover"
                    )
                else:
                    await _fill(nats, settings, copy, state, found)
                    applied.restore(state.applied)
                    return
            except NobodyAnswers:
                why = (
                    "frames are missing from the stream and no keeper is running to copy their events from; start "
                    "another keeper, or run `halley cluster recover`"
                )
            except (Unanswered, OSError) as error:
                why = f"it does not get the events that it lacks ({error or 'no answer'})"
            if copy.head != head:
                asked_at, head = monotonic(), copy.head
            if monotonic() - asked_at > settings.cluster.join_s:
                raise CannotCatchUp(why)
            await asyncio.sleep(_AGAIN_S)
    finally:
        await asyncio.to_thread(copy.close)


def _restored(settings: Settings, state: KeeperState) -> Applied:
    """The state of a keeper. Raises `Unanswered`."""
    found = Applied(settings.history.keys, 0)
    try:
        found.restore(state.applied)
    except AnotherVersion:
        raise Unanswered("another version") from None
    return found


async def _fill(nats: Connection, settings: Settings, copy: Copy, state: KeeperState, found: Applied) -> None:
    """Compare the folder with a keeper's, copy what follows, and erase what is erased there.

    Raises `CannotCatchUp`, `Unanswered`, `NobodyAnswers`, and `OSError`, of which `TimeoutError` is that of a keeper.
    """
    keeper = KeeperRequests(nats, settings.cluster.space, state.node)
    own, last = copy.head, found.offset
    if own == 0 and state.first > 1:
        await asyncio.to_thread(copy.begin_with, state.first)
    if state.first <= own:
        first = max(state.first, own - _COMPARED + 1)
        rows, _ = await keeper.rows(first, own)
        if not await asyncio.to_thread(copy.has, rows):
            raise CannotCatchUp(
                f"it has other events than the cluster before position {own}; give the node an empty data_dir"
            )
    telemetry.log.info("cluster_copying", keeper=state.node, first=copy.head + 1, last=last)
    while copy.head < last:
        rows, reached = await keeper.rows(copy.head + 1, last)
        if reached <= copy.head:
            raise Unanswered("behind")
        await asyncio.to_thread(copy.take, rows, reached)
    for first in range(max(state.first, 1), own + 1, _ERASED_AT_ONCE):
        until = min(own, first + _ERASED_AT_ONCE - 1)
        erased = await keeper.erased(first, until)
        await asyncio.to_thread(copy.erase, erased)


class Copy:
    """A folder, locked, to which rows of a keeper are added. Its methods block."""

    def __init__(self, settings: Settings, path: Path) -> None:
        """Open the folder. Raises `CannotCatchUp`, `FolderUnusable`."""
        self._options = settings.history
        self._path = path
        try:
            self._history = self._open()
        except FolderLocked as error:
            raise CannotCatchUp(str(error)) from error

    def _open(self) -> History:
        return History(self._path, self._options, Rules(), lambda _: None, is_replica=True)

    @property
    def log_id(self) -> str:
        """The id of the folder's log."""
        return self._history.log_id

    @property
    def head(self) -> int:
        """The last offset that the folder has."""
        return self._history.head

    def has(self, rows: list[Stored]) -> bool:
        """Whether the folder has no others at their offsets; one that is erased on one side counts as equal."""
        first, last = (rows[0].offset, rows[-1].offset) if rows else (1, 0)
        own = {row.offset: row for found in self._history.rows(first, last) for row in found}
        return all(_is_equal(own.get(row.offset, row), row) for row in rows)

    def take(self, rows: list[Stored], reached: int) -> None:
        """Add rows, which are all up to the offset `reached`: what is missing among them is lost for ever.

        Raises `OSError`.
        """
        if self._history.refusal is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        for _, run in groupby(enumerate(rows), lambda item: item[1].offset - item[0]):
            group = [row for _, row in run]
            if group[0].offset > self.head + 1:
                self._skip_to(group[0].offset - 1)
            self._history.copy(group)
        if reached > self.head:
            self._skip_to(reached)

    def _skip_to(self, offset: int) -> None:
        """Go on behind an offset: those up to it are recorded as lost."""
        number = self._history.last_number + offset - self.head
        self._history.close()
        mark = HighWaterMark(self._path / "mark")
        mark.write(offset, number)
        mark.close()
        self._history = self._open()

    def begin_with(self, first: int) -> None:
        """Begin an empty folder with the offset `first`: what was before that exists nowhere any more."""
        identity = self._history.folder.identity
        self._history.close()
        for _, file in segment_files(self._path):
            delete(file)
        (self._path / "mark").unlink(missing_ok=True)
        replace(identity, first=first, holes=()).save(self._path / "log.json")
        self._history = self._open()

    def erase(self, offsets: list[int]) -> None:
        """Erase the rows at these offsets."""
        chosen = set(offsets) - set(self._history.erased(min(offsets), max(offsets))) if offsets else set()
        if chosen:
            with self._history.purging():
                self._history.roll()
                self._history.rewrite(lambda row: row.offset in chosen and not row.is_purged, lambda *_: None)

    def close(self) -> None:
        """Close the history and unlock its folder, so that a server can open it. Blocks."""
        self._history.close()


def _is_equal(one: Stored, other: Stored) -> bool:
    return one.crc == other.crc or ((one.is_purged or other.is_purged) and one.publication == other.publication)
