"""What a keeper has of the history: a data folder, from which it answers other nodes too.

What it has applied of the stream is saved with the rows, in the same transactions (`history/state.py`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import orjson

from halley.broker.pending import Entry
from halley.broker.ports import Erasure
from halley.cluster.applied import document, due_erasures, name_of_erasure
from halley.cluster.availability import Diverged, Healing
from halley.cluster.continuity import InSyncKeepers
from halley.cluster.copying import STATE_FILE, erase_like
from halley.cluster.erasure import Erasures, PendingErasure, delete_frames
from halley.cluster.frames import DIGESTS, KeeperAnnouncement, digests_to_json, erasure_to_json
from halley.cluster.keeper import OF_NODES, Keeper
from halley.cluster.keeper_client import KeeperRequests, KeeperState
from halley.cluster.repair import Repair
from halley.history.folder import FolderUnusable
from halley.history.history import CannotPurge
from halley.history.key_digests import Digests
from halley.history.state import Change, Name, decoded
from halley.history.stored import Stored
from halley.server.cluster_node import CHECK_S, ClusterNode
from halley.server.folder_log import FolderLog, Progress

_KNOWN_S = 4.0
"""After which a node knows all others that are alive."""

_ANNOUNCE_S = 3_600.0
"""How often a node says in the stream that it has a folder: one of the version before forgets it after a day."""


class KeeperStore:
    """The store of a node with a data folder (`ClusterHistory`).

    It receives the outcomes of commits for the node's log, and erases at all nodes (`folder_log.Erasing`).
    """

    def __init__(self, node: ClusterNode) -> None:
        """Open the log in the node's data folder, and erase what is due. Blocks.

        Raises `BadRecord`, `FolderLocked`, `FolderUnusable`.
        """
        self.node = node
        self.archive = FolderLog(node.settings, node.broker, node.flush, self)
        self._history = self.archive.history
        try:
            self._begin()
        except (OSError, sqlite3.Error, CannotPurge) as error:
            self._history.close()
            raise FolderUnusable(f"{self.archive.folder} cannot be used as data folder: {error}") from error
        self.erasures = Erasures(self._erase)
        self.log = node.log_of(self._history, self.erasures, self)
        self.refused = self.log.writer.refused  # of `commit_reports.Outcomes`, as `committed`
        self.archive.reports.deliver_to(self)
        self._keeper = Keeper(node.nats, self._history, self.archive.in_thread, self.state)
        began = node.applied.sequence
        self._repair = Repair(node.members, self._history, lambda: max(self.erasures.last, began))
        self.healers = self.log.missed, self._repair
        self.heartbeat: Mapping[str, Callable[[], Any]] = {
            "kept": lambda: (
                None if self.log.is_diverged else self._keeper.status()
            ),  # it is not what the stream has then
            "saved": lambda: self._history.state.sequence,
        }
        self._began_at = self._announced_at = 0.0
        self._companions = InSyncKeepers(self.archive.folder, node.applied, node.members, self.log.sender)

    def _begin(self) -> None:
        """Save the state with which the node begins, if it is not that of the folder, and erase what is due."""
        self.node.applied.know(self.node.broker.commits.keys.digests())
        self._history.restate(self.node.applied.values())
        (self.archive.folder / STATE_FILE).unlink(missing_ok=True)  # of the version before
        for sequence, erasure, last in due_erasures(self._history.state.named()):
            self._history.purge(erasure, lambda *_: None, last)
            self._forget(sequence)

    def _forget(self, sequence: int) -> None:
        self._history.change(Change(None, 0, 0, {name_of_erasure(sequence): None}))

    def describe(self, name: str) -> str:
        """Where the history is, for the terminal; `name` is the node's."""
        return f"{self.archive.folder}, as {name}"

    def listen(self) -> None:
        """Carry reports to the event loop, and say in the stream that this node keeps the history."""
        self.archive.listen()
        self._began_at = self._announced_at = monotonic()
        self.log.sender.command(KeeperAnnouncement(self.node.options.node))

    async def leave(self) -> None:
        """Do what needs the other nodes, before this one leaves the cluster."""
        if not self.log.is_diverged:
            await self._companions.leave()

    async def close(self) -> None:
        """Stop answering, and close the log."""
        await self._keeper.close()
        await self._repair.close()
        await self.archive.close()
        self.log.give_up(monotonic())

    def committed(self, group: Sequence[Entry], first: int, now: float) -> None:
        """Inform fronts that more is on disk, and let the node's log deliver it."""
        if not self.log.is_diverged:
            self._keeper.announce_saved()
        self.log.writer.committed(group, first, now)

    def check(self, now: float) -> None:
        """Do what is due of the log, and announce that this node keeps it."""
        self.archive.check(now)
        self._repair.check(now)
        if now - self._announced_at >= _ANNOUNCE_S:
            self._announced_at = now
            self.log.sender.command(KeeperAnnouncement(self.node.options.node))
        if not self.log.is_diverged:
            self._companions.check(now)

    # What the stream no longer has (`missed.CatchUpTarget`)

    async def take_over(self, rows: list[Stored], reached: int, digests: Digests) -> None:
        """Write the rows of another keeper, and inform fronts."""
        await asyncio.to_thread(self._history.copy, rows, reached, digests)
        self._keeper.announce_saved()

    async def erase_like(self, keeper: KeeperRequests, state: KeeperState, last: int) -> None:
        """Erase from the folder, and from memory, what is erased at another keeper."""
        await erase_like(keeper, self._history, state.first, last)
        await self.node.forget(state)

    async def save(self) -> None:
        """Save the state that was taken over with the rows."""
        await asyncio.to_thread(lambda: self._history.restate(self.node.applied.values()))

    async def state(self) -> bytes:
        """What is on disk, for other nodes. Raises `HistoryUnavailable`, `TimeoutError`."""
        if self.log.is_diverged:
            raise Diverged
        if self.log.missed.figures is not None:  # the stream may not have what follows
            raise Healing
        values, erased = self._history.state.copy(), self.erasures.done_to(self.node.applied.sequence)
        erasures = [[sequence, erasure_to_json(each)] for sequence, each in self.node.erasures]
        digests = self.node.applied.digests.copy()
        return await self.archive.in_thread(
            OF_NODES, lambda: orjson.dumps(self._state(values, erased, erasures, digests))
        )

    def _state(self, values: Mapping[Name, str], erased: int, erasures: list[Any], digests: Digests) -> dict[str, Any]:
        named: dict[Name, str] = {name: value for name, value in values.items() if isinstance(name, str)}
        keys = [values[offset] for offset in sorted(name for name in values if isinstance(name, int))]
        applied = document(decoded(named)) | {"keys": orjson.Fragment(f"[{','.join(keys)}]")}  # there may be very many
        applied[DIGESTS] = digests_to_json(digests)
        return {
            "node": self.node.options.node,
            "log_id": self.archive.log_id,
            "publication_key": str(self._history.publication_key),
            "first": self.archive.start,
            "applied": applied,
            "erased": min(erased, applied["sequence"]),
            "erasures": erasures,
        }

    # Erasing

    async def absent(self) -> Sequence[str]:
        """The other nodes that have not erased what was erased until now; see `LocalArchive.absent`.

        A node that has just begun waits until it must know all others that are alive.
        """
        await asyncio.sleep(self._began_at + _KNOWN_S - monotonic())
        done = self._done_by_others()
        late = {name for name, sequence in done.items() if sequence < self.erasures.last}
        silent = {*self.node.applied.keepers} - {self.node.options.node, *done}
        return sorted(late | silent)

    def _done_by_others(self) -> dict[str, int]:
        """Up to where in the stream each other node that is alive has erased."""
        others = self.node.members.others()
        done = {each.name: each.heartbeat.get("erased", each.heartbeat.get("sequence")) for each in others}
        return {name: sequence if isinstance(sequence, int) else 0 for name, sequence in done.items()}

    async def purge(self, erasure: Erasure, on_progress: Progress) -> int:
        """Erase on all nodes, and from the stream; see `LocalArchive.purge`."""
        if self.log.availability.refusal is not None:
            raise CannotPurge("the cluster takes nothing at present")
        options = self.node.options
        try:
            async with asyncio.timeout(self.node.settings.history.commit_s):
                sequence = await self.log.sender.command(erasure)
        except TimeoutError:
            raise CannotPurge("the stream does not take it at present; it may be erased nevertheless") from None
        async with asyncio.timeout(options.erase_s):
            erased = await self.erasures.finished(sequence, on_progress)
        with suppress(TimeoutError):
            async with asyncio.timeout(options.erase_s):
                while any(done < sequence for done in self._done_by_others().values()):  # noqa: ASYNC110 - they are far
                    await asyncio.sleep(CHECK_S)
        await delete_frames(self.node.nats, erasure, sequence)
        return erased

    async def _erase(self, due: PendingErasure) -> int:
        """Erase from the folder too, when no key of what is erased is saved, and no frame with it is needed again."""
        await self.node.delivered(due.last)
        while self._history.state.sequence < due.sequence:  # noqa: ASYNC110 - the writer waits for nobody
            await asyncio.sleep(CHECK_S)
        erased = await self.archive.erase(due.erasure, due.report, due.last)
        self._forget(due.sequence)
        return erased
