"""Catching up: a folder that the stream cannot fill gets what it lacks from a keeper, before its node serves.

That is so for a new folder where the stream no longer has all events, or began behind some, and for one whose node was
away for longer than the stream keeps frames. First the node asks for the keeper's state, then for the rows up to there,
and then for what was erased meanwhile, which it erases too. It goes on with the state: what came after it is in the
stream. Meanwhile the others publish. Interrupted at any point, it goes on where it was.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from time import monotonic

from halley import telemetry
from halley.cluster.applied import Applied
from halley.cluster.copying import OtherEvents, compare, copied, erase_like, usable
from halley.cluster.keeper_client import KeeperRequests, KeeperState
from halley.cluster.requests import NobodyAnswers, Unanswered
from halley.history.folder import FolderLocked, delete, segment_files
from halley.history.history import History
from halley.history.rules import Rules
from halley.nats.jetstream import Connection
from halley.settings import Settings

_ANSWER_S = 10.0
_AGAIN_S = 0.3

STATE_FILE = "cluster.json"
"""The file in the data folder in which the version before this one has saved the state (`Applied.saved`)."""


class CannotCatchUp(Exception):
    """The folder cannot get what it lacks; the text says why. If `is_early` it may do so later."""

    def __init__(self, why: str, *, is_early: bool = False) -> None:
        super().__init__(why)
        self.is_early = is_early


async def catch_up(nats: Connection, settings: Settings, folder: Path, applied: Applied, needed: int) -> None:
    """Fill the folder from a keeper, and set `applied` to the state that goes with it.

    `needed` is how far that state must have come in the stream. Raises `CannotCatchUp`, `FolderUnusable`.
    """
    copy = await asyncio.to_thread(Copy, settings, folder)
    asked_at, head = monotonic(), copy.history.head
    try:
        while True:
            try:
                state = await KeeperRequests(nats, settings.cluster.space).state(_ANSWER_S)
                found = usable(state, applied, needed)
                if state.log_id != copy.history.log_id:
                    raise Unanswered("no node has a state with which it could go on")
                if found.offset < copy.history.head:
                    why = (
                        f"it has events up to position {copy.history.head}, and the cluster up to {found.offset}; see "
                        "halley cluster recover"
                    )
                else:
                    await _fill(nats, settings, copy, state, found.offset)
                    applied.restore(state.applied)
                    await asyncio.to_thread(copy.save, applied)
                    return
            except NobodyAnswers:
                why = (
                    "frames are missing from the stream and no keeper is running to copy their events from; start "
                    "another keeper, or run `halley cluster recover`"
                )
            except OtherEvents as error:
                raise CannotCatchUp(f"{error}; give the node an empty data_dir") from error
            except (Unanswered, OSError) as error:
                why = f"it does not get the events that it lacks ({str(error) or 'no answer'})"
            if copy.history.head != head:
                asked_at, head = monotonic(), copy.history.head
            if monotonic() - asked_at > settings.cluster.join_s:
                raise CannotCatchUp(why, is_early=True)
            await asyncio.sleep(_AGAIN_S)
    finally:
        await asyncio.to_thread(copy.history.close)


async def _fill(nats: Connection, settings: Settings, copy: Copy, state: KeeperState, last: int) -> None:
    """Compare the folder with a keeper's, copy what follows, and erase what is erased there.

    Raises `OtherEvents`, `Unanswered`, `NobodyAnswers`, and `OSError`, of which `TimeoutError` is that of a keeper.
    """
    keeper = KeeperRequests(nats, settings.cluster.space, state.node)
    own = copy.history.head
    if own == 0 and state.first > 1:
        await asyncio.to_thread(copy.begin_with, state.first)
    await compare(keeper, state, copy.history)
    telemetry.log.info("cluster_copying", keeper=state.node, first=copy.history.head + 1, last=last)
    async for rows, reached in copied(keeper, copy.history.head + 1, last):
        await asyncio.to_thread(copy.history.copy, rows, reached)
    await erase_like(keeper, copy.history, state.first, own)


class Copy:
    """A folder, locked, to which rows of a keeper are added (`history`). All of it blocks."""

    def __init__(self, settings: Settings, path: Path) -> None:
        """Open the folder. Raises `CannotCatchUp`, `FolderUnusable`."""
        self._options = settings.history
        self._path = path
        try:
            self.history = self._open()
        except FolderLocked as error:
            raise CannotCatchUp(str(error)) from error

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

    def save(self, applied: Applied) -> None:
        """Save the state that goes with the rows. Raises `OSError`."""
        self.history.restate(applied.values())
        (self._path / STATE_FILE).unlink(missing_ok=True)
