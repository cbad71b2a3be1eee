"""The history of a node of a cluster, filled from the stream that all nodes share; a keeper has it in a data folder."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.errors import HistoryUnavailable
from halley.broker.events import LAST_PUBLICATION, Publications
from halley.broker.ports import Erasure
from halley.cluster.applied import Applied
from halley.cluster.availability import Diverged
from halley.cluster.broker_log import ClusterLog
from halley.cluster.consistency import digests
from halley.cluster.erasure import Erasures, Progress, delete_frames
from halley.cluster.exchange import Exchange
from halley.cluster.frames import Control, KeeperAnnouncement
from halley.cluster.keeper import Keeper
from halley.cluster.members import Members
from halley.cluster.membership import SETTINGS, STATE_FILE, join, name_taken
from halley.cluster.status import ClusterStatus
from halley.cluster.store import Store
from halley.cluster.stream import CannotJoin as NotJoined
from halley.history import checksummed_json
from halley.history.history import CannotPurge
from halley.history.stored import Stored
from halley.history.writer import Report
from halley.nats.jetstream import Connection
from halley.protocols.contract import Count
from halley.server.history import CannotJoin, OpenHistory, OpenLog, Outcomes
from halley.server.nt4_home import Nt4Home
from halley.server.whole import Whole
from halley.settings import Settings

Result = TypeVar("Result")

_SAVE_S = 10.0
"""How often the state is saved: what a node that was killed has to apply again."""

_CLOSE_S = 5.0

_LOOK_S = 0.05
_KNOWN_S = 4.0
"""After which a node knows all others that are alive."""

_KEEPS_S = 3_600.0
"""How often a node says in the stream that it has a folder: the others remember it for a day (`applied.py`)."""

_ROWS_BYTES, _ROW_BYTES = 1_048_576, 256
"""How much is sent at once to a node that copies rows, and what a row takes besides its payload."""

_PARTIAL = "WAMP's retained events and rate limits are those of one node"


class SharedHistory(OpenLog):
    """The log of a node while it is open. Raises `CannotJoin`."""

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None], applied: Applied) -> None:
        """`applied` is the state from which the node goes on."""
        self._settings = settings
        self._cluster = cluster = settings.cluster
        self._nt4: Nt4Home | None = None
        self._applied = applied
        self._nats = Connection(cluster)
        self._erasures = Erasures(self._erase_here)
        self.members = Members(cluster, self._nats, monotonic())
        self.members.heartbeat |= {
            "sequence": lambda: applied.sequence,
            "offset": lambda: applied.offset,
            "sessions": lambda: len(broker.sessions),
            "erased": lambda: self._erasures.done_to(applied.sequence),
            "went_back": lambda: self._log.availability.is_stream_replaced,
            "keeps": lambda: not cluster.front,
        }
        super().__init__(settings, broker, flush)
        telemetry.log.info(
            "cluster_joined",
            space=cluster.space,
            node=cluster.node,
            settled_by=cluster.settled_by,
            keeps=not cluster.front,
            sequence=applied.sequence,
        )
        telemetry.log.warning("cluster_partial", what=_PARTIAL)

    def _begin(self, store: Store) -> Outcomes:
        # The numbers of recorded events' publications grow with the offset; those of others are far above.
        middle = LAST_PUBLICATION // 2
        self._broker.publications = Publications(store.publication_key, middle + secrets.randbelow(middle // 2))
        self._log = ClusterLog(
            self._cluster, self._nats, store, self._broker.commits, self._applied, self._flush, self._controlled
        )
        self._broker.commits.begin(self._log, store.head, self._log.direct.share, self._log.writer.reach)
        return self._log.writer

    def join(self, whole: Whole) -> None:
        """Give the parts of the server the way to the other nodes; call it before `listen`."""
        nats, members = self._nats, self.members
        self._whole = whole
        self._exchange = Exchange(self._cluster, nats, members)
        self._standing = ClusterStatus(self._cluster, nats, members, self._applied, self._log.states)
        members.heartbeat["settings"] = lambda: digests(whole.settings())
        whole.answers[SETTINGS] = lambda _node, _body: digests(whole.settings())
        whole.join(self._exchange, members, self._standing)
        if whole.nt4 is not None:
            self._nt4 = Nt4Home(whole.nt4, self._settings, self._broker, self._exchange, self._standing, self._flush)

    def __str__(self) -> str:
        """Which node this is, and of which cluster, for the terminal."""
        return f"node {self._cluster.node} of the cluster {self._cluster.space}"

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What a durable publish is refused with at present, if it is."""
        return self._log.refusal

    @property
    def is_ready(self) -> bool:
        """Whether new clients are welcome: NATS was there within `cluster.lost_s`, and has this node's stream."""
        return self._nats.away_s < self._cluster.lost_s and not (self._log.is_diverged or self.must_end)

    @property
    def must_end(self) -> str:
        """That another node has this one's name, if it goes on with that (`Members.taken_by`)."""
        other = self.members.taken_by
        return name_taken(self._cluster.node, other) if other else ""

    def listen(self) -> None:
        """Carry reports to the event loop, and begin to read the stream; call it on the running loop."""
        super().listen()
        self._log.begin()
        self.members.begin()
        self._standing.begin()
        if self._nt4 is not None:
            self._nt4.begin()

    def sweep(self, now: float) -> bool:
        """Do periodic work; see `OpenLog`."""
        has_more = super().sweep(now)
        if self._nt4 is not None:
            self._nt4.sweep(now)
        return has_more

    def look(self, now: float) -> None:
        """Do periodic work, once a second."""
        others = self.members.others()
        self._log.compare(others)
        self._log.sender.share_stream(len(others) + 1, self._log.frames_in)
        super().look(now)

    def _controlled(self, control: Control, sequence: int) -> None:
        if isinstance(control, Erasure):
            self._erasures.add(control, sequence, self._applied.offset)

    async def _erase_here(self, erasure: Erasure, last: int, tell: Progress) -> int:  # noqa: ARG002 - a keeper's form
        """Erase the events up to an offset from memory; see `OpenHistory.purge`."""
        await self._reported(last)
        self._broker.erase(erasure)
        await self.settle()
        for work in self._broker.erase(erasure):
            await asyncio.to_thread(work)
        return 0

    async def _reported(self, offset: int) -> None:
        """Wait until the events up to an offset are delivered."""
        while self.head < offset:  # noqa: ASYNC110 - the head is that of the hot path, which waits for nobody
            await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Wait for what is on its way to the stream, leave the cluster, and close the log."""
        if self._nt4 is not None:
            await self._nt4.close()
        if self.refusal is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.settle()
        self._whole.leave()
        await self._standing.close()
        await self.members.close()
        await self._erasures.close()
        await self._log.close()
        await self._end()
        await super().close()
        self._log.give_up(monotonic())

    async def _end(self) -> None:
        """End what the class below has, when nothing more comes from the stream."""

    def counts(self) -> Iterator[Count]:
        """Yield the cluster's metrics."""
        yield from super().counts()
        log = self._log
        yield Count("halley_cluster_frames_in", "Frames that were applied, of all nodes.", log.frames_in)
        yield Count("halley_cluster_frames_out", "Frames that were sent, also those sent again.", log.sender.frames)
        yield Count("halley_cluster_resent", "Frames that were sent again.", log.sender.resent)
        yield Count("halley_cluster_repeats", "Frames that were dropped, since they came again.", log.repeats)
        yield Count(
            "halley_cluster_foreign", "Messages of the stream that are not frames, and were dropped.", log.foreign
        )
        text = "Messages of the stream that this node has not applied yet."
        yield Count("halley_cluster_behind_frames", text, self._standing.behind, is_gauge=True)
        nodes = self._standing.nodes()
        yield Count("halley_cluster_nodes", "Nodes that are alive, with this one.", len(nodes), is_gauge=True)
        keepers = sum(bool(node.heartbeat.get("keeps", True)) for node in nodes)
        yield Count("halley_cluster_keepers", "Nodes that are alive and keep the history.", keepers, is_gauge=True)
        text = "Settings and other things that differ among the nodes and should not."
        yield Count("halley_cluster_differs", text, len(self._standing.differs()), is_gauge=True)
        text = "Whether the node cannot go on with the stream; it takes no events then."
        yield Count("halley_cluster_diverged", text, int(log.is_diverged), is_gauge=True)


class KeptHistory(SharedHistory, OpenHistory):
    """The history of a keeper: a data folder, filled from the stream. Raises `CannotJoin`.

    The node connects to the cluster for a moment, and blocks.
    """

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None]) -> None:
        applied = joined(join(settings, Path(settings.data_dir).resolve()))
        self._saved = (applied.sequence, 0.0)  # what was saved last, and when
        self._snapshot: dict[str, Any] | None = None
        self._saving: asyncio.Future[None] | None = None
        self._began_at = self._kept_at = 0.0
        super().__init__(settings, broker, flush, applied)
        self._keeper = Keeper(self._cluster, self._nats, self)
        self.members.heartbeat["kept"] = self._told

    def __str__(self) -> str:
        """Where the history is, and of which cluster, for the terminal."""
        return f"{self.folder}, as {super().__str__()}"

    def listen(self) -> None:
        """Begin to answer other nodes too; see `SharedHistory.listen`."""
        super().listen()
        self._began_at = self._kept_at = monotonic()
        self._log.sender.command(KeeperAnnouncement(self._cluster.node))

    def _tell_broker(self, report: Report, until: float) -> None:
        if not self._log.is_diverged:
            self._keeper.wrote()
        super()._tell_broker(report, until)

    def _told(self) -> dict[str, Any] | None:
        """What fronts need to know of this keeper; None if what it has is not what the stream has."""
        history = self.history
        if self._log.is_diverged:
            return None
        return {
            "head": history.head,
            "starts": self.starts,
            "bytes": history.bytes,
            "consumers": history.consumers.positions,
            "takes": history.refusal is None,
        }

    # What the keeper answers (`keeper.KeeperStore`)

    def state(self) -> dict[str, Any]:
        """How far the node has come in the stream. Raises `Diverged`."""
        if self._log.is_diverged:
            raise Diverged
        return {
            "node": self._cluster.node,
            "log_id": self.log_id,
            "publication_key": str(self.history.publication_key),
            "first": self.start,
            "applied": self._applied.saved(),
            "erased": self._erasures.done_to(self._applied.sequence),
        }

    @property
    def written(self) -> int:
        """The last offset on disk; reads of later events by other nodes wait."""
        return self.history.head

    @property
    def starts(self) -> list[int]:
        """The first offset on disk, and those of the rules."""
        return [self.start, *self.history.starts]

    async def some_rows(self, first: int, last: int) -> tuple[list[Stored], int]:
        """Stored rows, as other nodes ask for them; see `keeper.KeeperStore.some_rows`."""

        def read() -> tuple[list[Stored], int]:
            found: list[Stored] = []
            nbytes = 0
            for rows in self.history.rows(first, last):
                found += rows
                nbytes += sum(len(row.payload or "") + _ROW_BYTES for row in rows)
                if nbytes > _ROWS_BYTES:
                    return found, found[-1].offset
            return found, min(last, self.history.head)

        return await self.aside(read)

    async def erased(self, first: int, last: int) -> list[int]:
        """The offsets of erased events, as other nodes ask for them."""
        return await self.aside(lambda: self.history.erased(first, last))

    def sweep(self, now: float) -> bool:
        """Do periodic work, and save the state from time to time."""
        has_more = super().sweep(now)
        self._keep_state(now)
        return has_more

    def _keep_state(self, now: float) -> None:
        if now - self._kept_at >= _KEEPS_S:
            self._kept_at = now
            self._log.sender.command(KeeperAnnouncement(self._cluster.node))
        if self._erasures.is_busy:
            return
        sequence, saved_at = self._saved
        if self._snapshot is None and now - saved_at >= _SAVE_S and self._applied.sequence != sequence:
            self._snapshot = self._applied.saved()
        snapshot = self._snapshot
        if snapshot is not None and self.head >= snapshot["offset"] and not self._log.is_diverged:
            self._snapshot, self._saved = None, (snapshot["sequence"], now)
            self._saving = asyncio.get_running_loop().run_in_executor(self._pool, self._save, snapshot)

    def _save(self, state: dict[str, Any]) -> None:
        """Save a state whose events are all on disk; after a failure the next start applies more of the stream."""
        try:
            self._save_now(state)
        except OSError as error:
            telemetry.fault("cluster_state", error)

    def _save_now(self, state: dict[str, Any]) -> None:
        checksummed_json.save(self.folder / STATE_FILE, state)

    async def _end(self) -> None:
        await self._keeper.close()
        if self._saving is not None:
            await self._saving

    async def close(self) -> None:
        """Leave the cluster, and save the state; see `SharedHistory.close`."""
        await super().close()
        if self.head == self._applied.offset and not (self._log.is_diverged or self._erasures.is_busy):
            await asyncio.to_thread(self._save, self._applied.saved())

    # Erasing

    async def absent(self) -> Sequence[str]:
        """The other nodes that have not erased what was erased until now; see `KeptArchive.absent`.

        A node that has just begun waits until it must know all others that are alive.
        """
        await asyncio.sleep(self._began_at + _KNOWN_S - monotonic())
        done = self._done_by_others()
        late = {name for name, sequence in done.items() if sequence < self._erasures.last}
        silent = {*self._applied.keepers} - {self._cluster.node, *done}
        return sorted(late | silent)

    def _done_by_others(self) -> dict[str, int]:
        """Up to where in the stream each other node that is alive has erased."""
        told = {
            each.name: each.heartbeat.get("erased", each.heartbeat.get("sequence")) for each in self.members.others()
        }
        return {name: sequence if isinstance(sequence, int) else 0 for name, sequence in told.items()}

    async def _purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> int:
        """Erase on all nodes, and from the stream; see `KeptArchive.purge`."""
        if self._log.availability.refusal is not None:
            raise CannotPurge("the cluster takes nothing at present")
        try:
            async with asyncio.timeout(self._options.commit_s):
                sequence = await self._log.sender.command(erasure)
        except TimeoutError:
            raise CannotPurge("the stream does not take it at present; it may be erased nevertheless") from None
        async with asyncio.timeout(self._cluster.erase_s):
            erased = await self._erasures.finished(sequence, tell)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._cluster.erase_s):
                while any(done < sequence for done in self._done_by_others().values()):  # noqa: ASYNC110 - they are far
                    await asyncio.sleep(_LOOK_S)
        if not await self.absent():
            await delete_frames(self._nats, self._cluster.space, erasure, sequence)
        return erased

    async def _erase_here(self, erasure: Erasure, last: int, tell: Progress) -> int:
        """Erase from the folder too, and save a state behind that: no frame with erased events is needed again."""
        await self._reported(last)
        erased = await self._erase(erasure, tell, last)
        if self._saving is not None:
            await self._saving
        state = self._applied.saved()
        await self._reported(state["offset"])
        await asyncio.to_thread(self._save_now, state)
        self._saved, self._snapshot = (state["sequence"], monotonic()), None
        return erased


def joined(joining: Coroutine[Any, Any, Result]) -> Result:
    """What a node has found out when it joined; blocks. Raises `CannotJoin`."""
    with ThreadPoolExecutor(1) as apart:  # there may be a running event loop here, which must not run another
        try:
            return apart.submit(asyncio.run, joining).result()
        except NotJoined as error:
            raise CannotJoin(str(error)) from error
