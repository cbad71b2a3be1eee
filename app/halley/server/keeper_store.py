"""What a keeper has of the history: a data folder, from which it answers other nodes too.

Its place in the stream is saved next to the log, once all events up to there are on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from halley import telemetry
from halley.broker.errors import Refusal
from halley.broker.pending import Entry
from halley.broker.ports import Erasure, Page, Query
from halley.cluster.availability import Diverged, Healing
from halley.cluster.copying import erase_like
from halley.cluster.erasure import Erasures, delete_frames
from halley.cluster.frames import KeeperAnnouncement, erasure_to_json
from halley.cluster.keeper import Keeper
from halley.cluster.keeper_client import KeeperRequests, KeeperState
from halley.cluster.membership import STATE_FILE
from halley.cluster.repair import Repair
from halley.history import checksummed_json
from halley.history.history import CannotPurge
from halley.history.stored import Stored
from halley.server.cluster_node import LOOK_S, Node
from halley.server.folder_log import FolderLog, Progress

_SAVE_S = 10.0
"""How often the state is saved: what a node that was killed has to apply again."""

_KNOWN_S = 4.0
"""After which a node knows all others that are alive."""

_ANNOUNCE_S = 3_600.0
"""How often a node says in the stream that it has a folder: the others remember it for a day (`applied.py`)."""

_ROWS_BYTES, _ROW_BYTES = 1_048_576, 256
"""How much is sent at once to a node that copies rows, and what a row takes besides its payload."""


class KeeperStore:
    """The store of a node with a data folder (`ClusterHistory`).

    It receives the outcomes of commits for the node's log (`folder_log.Erasing`), and has what the keeper answers from
    (`keeper.KeeperStore`).
    """

    def __init__(self, node: Node) -> None:
        """Open the log in the node's data folder. Raises `BadRecord`, `FolderLocked`, `FolderUnusable`."""
        self.node = node
        self.archive = FolderLog(node.settings, node.broker, node.flush, self)
        self._reports = self.archive.reports
        self.erasures = Erasures(self._erase)
        self.log = node.log_of(self.archive.history, self.erasures, self)
        self._reports.deliver_to(self)
        self._keeper = Keeper(node.options, node.nats, self)
        began = node.applied.sequence
        self._repair = Repair(
            node.nats,
            node.members,
            node.options.space,
            self.archive.history,
            lambda: max(self.erasures.last, began),
        )
        self.heartbeat: Mapping[str, Callable[[], Any]] = {"kept": self._figures_for_fronts}
        self._saved = (node.applied.sequence, 0.0)  # what was saved last, and when
        self._snapshot: dict[str, Any] | None = None  # to be saved when its events are on disk
        self._saving: asyncio.Future[None] | None = None
        self._began_at = self._announced_at = 0.0

    def describe(self, name: str) -> str:
        """Where the history is, for the terminal; `name` is the node's."""
        return f"{self.archive.folder}, as {name}"

    def listen(self) -> None:
        """Carry reports to the event loop, and say in the stream that this node keeps the history."""
        self.archive.listen()
        self._began_at = self._announced_at = monotonic()
        self.log.sender.command(KeeperAnnouncement(self.node.options.node))

    async def close(self) -> None:
        """Stop answering, close the log, and save the state."""
        await self._keeper.close()
        await self._repair.close()
        await self._saving_ended()
        await self.archive.close()
        self.log.give_up(monotonic())
        if self._reports.head == self.node.applied.offset and not (self.log.is_diverged or self.erasures.is_busy):
            await asyncio.to_thread(self._save, self.node.applied.saved())

    def committed(self, group: Sequence[Entry], first: int, now: float) -> None:
        """Inform fronts that more is on disk, and let the node's log deliver it."""
        if not self.log.is_diverged:
            self._keeper.wrote()
        self.log.writer.committed(group, first, now)

    def refused(self, group: Sequence[Entry], refusal: Refusal, now: float) -> None:
        """Pass on to the node's log what could not be written."""
        self.log.writer.refused(group, refusal, now)

    @property
    def healing(self) -> dict[str, Any] | None:
        """What is to be repaired in the folder; see `Repair.figures`."""
        return self._repair.figures

    @property
    def healed(self) -> int:
        """How many events have been repaired in the folder."""
        return self._repair.events

    def look(self, now: float) -> None:
        """Do what is due of the log, announce that this node keeps it, and save the state from time to time."""
        self.archive.look(now)
        self._repair.look(now)
        if now - self._announced_at >= _ANNOUNCE_S:
            self._announced_at = now
            self.log.sender.command(KeeperAnnouncement(self.node.options.node))
        if not self.erasures.is_busy:
            self._save_when_due(now)

    # What the stream no longer has (`missed.Taker`)

    async def take_over(self, rows: list[Stored], reached: int) -> None:
        """Write the rows of another keeper, and inform fronts."""
        await asyncio.to_thread(self.archive.history.copy, rows, reached)
        self._keeper.wrote()

    async def erase_like(self, keeper: KeeperRequests, state: KeeperState, last: int) -> None:
        """Erase from the folder, and from memory, what is erased at another keeper."""
        await erase_like(keeper, self.archive.history, state.first, last)
        await self.node.forget(state)

    # What the keeper answers (`keeper.KeeperStore`)

    def _figures_for_fronts(self) -> dict[str, Any] | None:
        """What fronts need to know of this keeper; None if what it has is not what the stream has."""
        history = self.archive.history
        if self.log.is_diverged:
            return None
        return {
            "head": history.head,
            "starts": self.starts,
            "bytes": history.bytes,
            "consumers": history.consumers.positions,
            "takes": history.refusal is None,
        }

    def state(self) -> dict[str, Any]:
        """How far the node has come in the stream. Raises `Diverged`, `Healing`."""
        if self.log.is_diverged:
            raise Diverged
        if self.log.missed.figures is not None:  # the stream may not have what follows
            raise Healing
        return {
            "node": self.node.options.node,
            "log_id": self.archive.log_id,
            "publication_key": str(self.archive.history.publication_key),
            "first": self.archive.start,
            "applied": self.node.applied.saved(),
            "erased": self.erasures.done_to(self.node.applied.sequence),
            "erasures": [[sequence, erasure_to_json(each)] for sequence, each in self.node.erasures],
        }

    @property
    def written(self) -> int:
        """The last offset on disk; reads of later events by other nodes wait."""
        return self.archive.history.head

    @property
    def starts(self) -> list[int]:
        """The first offset on disk, and those of the rules."""
        return [self.archive.start, *self.archive.history.rules.starts]

    async def read(self, query: Query) -> Page:
        """A page, as other nodes ask for it; see `keeper.KeeperStore.read`."""
        return await self.archive.read(query)

    async def some_rows(self, first: int, last: int) -> tuple[list[Stored], int]:
        """Stored rows, as other nodes ask for them; see `keeper.KeeperStore.some_rows`."""
        history = self.archive.history

        def read() -> tuple[list[Stored], int]:
            found: list[Stored] = []
            nbytes = 0
            for rows in history.rows(first, last):
                found += rows
                nbytes += sum(len(row.payload or "") + _ROW_BYTES for row in rows)
                if nbytes > _ROWS_BYTES:
                    return found, found[-1].offset
            return found, min(last, history.head)

        return await self.archive.in_thread(read)

    async def erased(self, first: int, last: int) -> list[int]:
        """The offsets of erased events, as other nodes ask for them."""
        return await self.archive.in_thread(lambda: self.archive.history.erased(first, last))

    # The saved state

    def _save_when_due(self, now: float) -> None:
        sequence, saved_at = self._saved
        if self._snapshot is None and now - saved_at >= _SAVE_S and self.node.applied.sequence != sequence:
            self._snapshot = self.node.applied.saved()
        snapshot = self._snapshot
        if snapshot is not None and self._reports.head >= snapshot["offset"] and not self.log.is_diverged:
            self._snapshot, self._saved = None, (snapshot["sequence"], now)
            self._saving = self.archive.in_pool(lambda: self._save(snapshot))

    def _save(self, state: dict[str, Any]) -> None:
        """Save a state whose events are all on disk; after a failure the next start applies more of the stream."""
        try:
            self._save_now(state)
        except OSError as error:
            telemetry.fault("cluster_state", error)

    def _save_now(self, state: dict[str, Any]) -> None:
        checksummed_json.save(self.archive.folder / STATE_FILE, state)

    async def _saving_ended(self) -> None:
        if self._saving is not None:
            await self._saving

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
                    await asyncio.sleep(LOOK_S)
        if not await self.absent():
            await delete_frames(self.node.nats, options.space, erasure, sequence)
        return erased

    async def _erase(self, erasure: Erasure, last: int, on_progress: Progress) -> int:
        """Erase from the folder too, and save a state behind that: no frame with erased events is needed again."""
        await self.node.delivered(last)
        erased = await self.archive.erase(erasure, on_progress, last)
        await self._saving_ended()
        state = self.node.applied.saved()
        await self.node.delivered(state["offset"])
        await asyncio.to_thread(self._save_now, state)
        self._saved, self._snapshot = (state["sequence"], monotonic()), None
        return erased
