"""Getting from keepers what a node lacks and the stream no longer has: before it serves, and while it runs.

First the node asks a keeper for its state (`usable`), then keepers for the rows up to there (`copied`), and then for
what was erased meanwhile, which it erases too (`erase_like`). It goes on with that state: what came after it is in the
stream. A node that runs does so in `missed.py`; a keeper gets rows that are damaged at its folder in `repair.py`.

`catch_up` fills a folder that the stream cannot fill: a new one where the stream no longer has all events, or began
behind some, and one whose node was away for longer than the stream keeps frames. Meanwhile the others publish.
Interrupted at any point, it goes on where it was.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from halley import telemetry
from halley.cluster.applied import AnotherVersion, StreamState
from halley.cluster.keeper_client import KeeperRequests, KeeperState
from halley.cluster.requests import NobodyAnswers, RequestRefused
from halley.cluster.stream import CannotJoin, NotReady
from halley.history.damage import outside
from halley.history.folder import delete, segment_files
from halley.history.history import History
from halley.history.rules import Rules
from halley.history.stored import Stored
from halley.nats.jetstream import Connection
from halley.settings import Settings

ANSWER_S = 10.0
"""For how long a keeper's state is waited for."""

_AGAIN_S = 0.3
_COMPARED = 100
"""Rows that are compared. Two copies of a log that differ do so from some event on to their ends."""

_ERASED_AT_ONCE = 1_000_000

STATE_FILE = "cluster.json"
"""The file in the data folder in which the version before this one has saved the state (`StreamState.saved`)."""

Source = Callable[[int, int], Awaitable[tuple[list[Stored], int]]]
"""Some of the rows between two offsets, and up to where those are all that it has (`KeeperRequests.rows`)."""


def usable(state: KeeperState, log_id: str, stream: str, needed: int) -> StreamState:
    """The state of a keeper, if a node with that log and stream can go on with it.

    `needed` is how far it must have come in the stream. Raises `RequestRefused`, which says why it cannot.
    """
    found = StreamState(1, 0)
    try:
        found.restore(state.applied)
    except AnotherVersion:
        raise RequestRefused("another version") from None
    if (state.log_id, found.stream) != (log_id, stream) or not needed <= found.sequence == state.erased:
        raise RequestRefused("no node has a state with which it could go on")
    return found


async def copied(sources: Sequence[Source], first: int, last: int) -> AsyncIterator[tuple[list[Stored], int]]:
    """Yield the rows between two offsets in pieces, each with the offset up to which those are all that there are.

    What the first source lacks is looked for in the others. Raises what they do.
    """
    rows_of, *others = sources
    while first <= last:
        rows, reached = await rows_of(first, last)
        if reached < first:
            raise RequestRefused("behind")
        at = 0
        for low, high in outside(first, reached, [(row.offset, row.offset) for row in rows]) if others else ():
            end = bisect_left(rows, low, at, key=lambda row: row.offset)
            yield rows[at:end], low - 1
            at = end
            async for piece in copied(others, low, high):
                yield piece
        yield rows[at:], reached
        first = reached + 1


async def erase_like(keeper: KeeperRequests, history: History, first: int, last: int) -> None:
    """Erase what is erased at the keeper between two offsets. Raises as `KeeperRequests.erased` and `purge` do."""
    for begin in range(max(first, 1), last + 1, _ERASED_AT_ONCE):
        erased = await keeper.erased(begin, min(last, begin + _ERASED_AT_ONCE - 1))
        await asyncio.to_thread(history.erase_at, erased)


async def catch_up(nats: Connection, settings: Settings, folder: Path, applied: StreamState, needed: int) -> None:
    """Fill the folder from a keeper, and set `applied` to the state that goes with it.

    `needed` is how far that state must have come in the stream. Raises `CannotJoin`, `FolderLocked`, `FolderUnusable`.
    """
    copy = await asyncio.to_thread(Copy, settings, folder)
    began_at, head = monotonic(), copy.history.head
    try:
        while why := await _why_not_filled(nats, copy, applied, needed):
            if copy.history.head != head:
                began_at, head = monotonic(), copy.history.head
            if monotonic() - began_at > settings.cluster.join_s:
                raise NotReady(f"{folder} cannot be used: {why}")
            await asyncio.sleep(_AGAIN_S)
    finally:
        await asyncio.to_thread(copy.history.close)


async def _why_not_filled(nats: Connection, copy: Copy, applied: StreamState, needed: int) -> str:
    """Fill a folder from a keeper; returns why that is not possible now, "" if it is done. Raises `CannotJoin`."""
    try:
        state = await KeeperRequests(nats).state(ANSWER_S)
        found = usable(state, copy.history.log_id, applied.stream, needed)
        if found.offset < copy.history.head:
            head, last = copy.history.head, found.offset
            return f"it has events up to position {head}, and the cluster up to {last}; see halley cluster recover"
        await _fill(KeeperRequests(nats, state.node), copy, state, found)
        applied.restore(state.applied)
        await asyncio.to_thread(copy.save, applied)
    except NobodyAnswers:
        return (
            "frames are missing from the stream and no keeper is running to copy their events from; start another "
            "keeper, or run `halley cluster recover`"
        )
    except (RequestRefused, OSError) as error:
        return f"it does not get the events that it lacks ({str(error) or 'no answer'})"
    return ""


async def _fill(keeper: KeeperRequests, copy: Copy, state: KeeperState, found: StreamState) -> None:
    """Compare the folder's last rows with the keeper's, copy what follows, and erase what is erased there.

    `found` is what the keeper has applied. Raises `CannotJoin`, `OSError`, and what `keeper` does.
    """
    own, last = copy.history.head, found.offset
    if own == 0 and state.first > 1:
        await asyncio.to_thread(copy.begin_with, state.first)
    elif state.first <= own:
        rows, _ = await keeper.rows(max(state.first, own - _COMPARED + 1), own)
        if not await asyncio.to_thread(copy.history.has, rows):
            why = f"it has other events than the cluster before position {own}; give the node an empty data_dir"
            raise CannotJoin(f"{copy.history.folder.path} cannot be used: {why}")
    telemetry.log.info("cluster_copying", keeper=state.node, first=copy.history.head + 1, last=last)
    async for rows, reached in copied([keeper.rows], copy.history.head + 1, last):
        await asyncio.to_thread(copy.history.copy, rows, reached, found.digests)
    await erase_like(keeper, copy.history, state.first, own)


class Copy:
    """A folder, locked, to which rows of a keeper are added (`history`). All of it blocks."""

    def __init__(self, settings: Settings, path: Path) -> None:
        """Open the folder. Raises `FolderLocked`, `FolderUnusable`."""
        self._options = settings.history
        self._path = path
        self.history = self._open()

    def _open(self) -> History:
        return History(self._path, self._options, Rules(), lambda _: None, is_replica=True)

    def begin_with(self, first: int) -> None:
        """Begin an empty folder with the offset `first`: what was before that exists nowhere any more."""
        identity = self.history.folder.identity
        self.history.close()
        for _, file in segment_files(self._path):
            delete(file)
        (self._path / "mark").unlink(missing_ok=True)
        replace(identity, first=first, holes=()).save(self._path / "log.json")
        self.history = self._open()

    def save(self, applied: StreamState) -> None:
        """Save the state that goes with the rows. Raises `OSError`."""
        self.history.restate(applied.values())
        (self._path / STATE_FILE).unlink(missing_ok=True)
