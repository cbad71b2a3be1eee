"""The history of a node of a cluster, filled from the stream that all nodes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from halley import telemetry
from halley.broker.broker import Broker
from halley.cluster.consistency import FRAMES, LOG_ID, digests
from halley.cluster.exchange import NodeExchange
from halley.cluster.frames import VERSION
from halley.cluster.membership import SETTINGS, join, join_without_folder, name_taken
from halley.cluster.status import ClusterStatus
from halley.cluster.stream import CannotJoin as NotJoined
from halley.cluster.stream import NotReady
from halley.protocols.contract import Count
from halley.server.cluster_node import ClusterNode
from halley.server.folder_log import FolderLog
from halley.server.front_store import FrontStore
from halley.server.keeper_store import KeeperStore
from halley.server.nt4_home import Nt4Home
from halley.server.other_nodes import CannotJoin, OtherNodes
from halley.server.recording import rules_of
from halley.settings import Settings

Result = TypeVar("Result")

_CLOSE_S = 5.0

_PARTIAL = "WAMP's retained events and rate limits are those of one node"


def open_cluster_history(
    settings: Settings, broker: Broker, flush: Callable[[], None], others: OtherNodes
) -> ClusterHistory:
    """Join the cluster of the settings: the node connects to it for a moment, and blocks.

    Raises `CannotJoin`, `BadRecord`, `FolderLocked`, `FolderUnusable`.
    """
    store: KeeperStore | FrontStore
    if settings.cluster.front:
        rules = rules_of(settings)
        state, applied = _joined(join_without_folder(settings))
        store = FrontStore(ClusterNode(settings, broker, flush, applied), state, rules)
    else:
        applied = _joined(join(settings, Path(settings.data_dir).resolve()))
        store = KeeperStore(ClusterNode(settings, broker, flush, applied))
    return ClusterHistory(store, others)


def _joined(joining: Coroutine[Any, Any, Result]) -> Result:
    with ThreadPoolExecutor(1) as apart:  # there may be a running event loop here, which must not run another
        try:
            return apart.submit(asyncio.run, joining).result()
        except NotJoined as error:
            raise CannotJoin(str(error), is_early=isinstance(error, NotReady)) from error


class ClusterHistory:
    """The log of a node while it is open (`history.AnyLog`); the events of the stream go to its `store`."""

    reasons = (*FolderLog.reasons, "auth", "cluster_diverged", "nats_away", "no_keeper", "no_leader", "stream_full")

    def __init__(self, store: KeeperStore | FrontStore, others: OtherNodes) -> None:
        """`others` gets the way to the other nodes."""
        self._store = store
        self.archive = store.archive
        self.figures = store.archive.figures
        self._log = log = store.log
        self._erasures = erasures = store.erasures
        node = store.node
        self._nats = node.nats
        self._options = options = node.options
        self._others = others
        self._members = members = node.members
        applied, broker = node.applied, node.broker
        members.report(LOG_ID, lambda: log.log_id)
        members.report("sequence", lambda: applied.sequence)
        members.report("offset", lambda: applied.offset)
        members.report("sessions", lambda: len(broker.sessions))
        members.report("erased", lambda: erasures.done_to(applied.sequence))
        members.report("went_back", lambda: log.availability.is_stream_replaced)
        members.report("unrecorded", log.direct.figures)
        members.observe(log.direct.compare)
        members.report("healing", self._healing)
        members.report("keeps", lambda: not options.front)
        members.report("refusal", lambda: self.refusal or None)
        members.report(FRAMES, lambda: VERSION)
        members.report("settings", lambda: digests(others.settings()))
        for name, value in store.heartbeat.items():
            members.report(name, value)
        telemetry.log.info(
            "cluster_joined",
            space=options.space,
            node=options.node,
            settled_by=options.settled_by,
            keeps=not options.front,
            sequence=applied.sequence,
        )
        telemetry.log.warning("cluster_partial", what=_PARTIAL)
        self._exchange = exchange = NodeExchange(members)
        exchange.answer(SETTINGS, lambda _node, _body: digests(others.settings()))
        self._nt4: Nt4Home | None = None
        if others.nt4 is not None:
            self._nt4 = Nt4Home(others.nt4, node.settings, broker, exchange, node.flush)
        home_of_nt4 = None if self._nt4 is None else self._nt4.where
        self._stream = node.stream
        self._status = ClusterStatus(members, node.stream, applied, log.states, home_of_nt4)
        others.join(exchange, members, self._status)

    def __str__(self) -> str:
        """Where the history is, and which node of which cluster this is, for the terminal."""
        return self._store.describe(f"node {self._options.node} of the cluster {self._options.space}")

    @property
    def refusal(self) -> str:
        """Why durable publishes are refused at present; "" while they are taken."""
        refusal = self._log.refusal
        return "" if refusal is None else refusal.cause

    @property
    def is_ready(self) -> bool:
        """Whether new clients are welcome: NATS was there within `cluster.lost_s`, and has this node's stream."""
        return self._nats.away_s < self._options.lost_s and not (self._log.is_diverged or self.fatal_error)

    @property
    def fatal_error(self) -> str:
        """That another node has this one's name, if it goes on with that (`Members.taken_by`)."""
        other = self._members.taken_by
        return name_taken(self._options.node, other) if other else ""

    def listen(self) -> None:
        """Begin to read the stream, and carry reports to the event loop; call it on the running loop."""
        self._log.begin()
        self._members.begin()
        self._status.begin()
        if self._nt4 is not None:
            self._nt4.begin()
        self._store.listen()

    async def close(self) -> None:
        """Wait for what is on its way to the stream, leave the cluster, and close the log."""
        if self._nt4 is not None:
            await self._nt4.close()
        if not self.refusal:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.archive.flush()
            await self._store.leave()
        self._others.leave()
        await self._status.close()
        await self._members.close()
        await self._erasures.close()
        await self._log.close()
        await self._store.close()
        if self._nt4 is not None:
            self._nt4.leave()

    def _healing(self) -> list[dict[str, Any]]:
        """What this node gets from keepers; see `CatchUp.figures`, `Repair.figures`."""
        return [each.figures for each in self._store.healers if each.figures is not None]

    def sweep(self, now: float) -> None:
        """Do what NetworkTables' home has to do."""
        if self._nt4 is not None:
            self._nt4.sweep(now)

    def check(self, now: float) -> None:
        """Compare this node with the others, and let the store do what is due; to be called once a second."""
        others = self._members.others()
        self._log.compare(others)
        self._log.sender.share_stream(len(others) + 1, self._log.frames_in)
        self._store.check(now)

    def counts(self) -> Iterator[Count]:
        """Yield the metrics of the archive, and the cluster's."""
        yield from self.archive.counts()
        log = self._log
        yield Count("halley_cluster_frames_in", "Frames that were applied, of all nodes.", log.frames_in)
        yield Count("halley_cluster_frames_out", "Frames that were sent, also those sent again.", log.sender.frames)
        yield Count("halley_cluster_resent", "Frames that were sent again.", log.sender.resent)
        yield Count("halley_cluster_repeats", "Frames that were dropped, since they came again.", log.repeats)
        text = "Events of other nodes that are not recorded, and did not come here."
        yield Count("halley_cluster_missed", text, log.direct.missed)
        healed = sum(each.events for each in self._store.healers)
        yield Count("halley_cluster_healed", "Events that came from a keeper, as they were missed or damaged.", healed)
        text = "Whether this node lacks events that it gets from a keeper: 1, or 2 if its folder lacks others besides."
        yield Count("halley_cluster_healing", text, len(self._healing()), is_gauge=True)
        text = "Messages from NATS that were dropped, since no node sends such; it should be 0."
        yield Count("halley_cluster_foreign", text, log.foreign + self._exchange.foreign)
        text = "Messages of the stream that this node has not applied yet."
        yield Count("halley_cluster_behind_frames", text, self._status.behind, is_gauge=True)
        nodes = self._status.nodes()
        yield Count("halley_cluster_nodes", "Nodes that are alive, with this one.", len(nodes), is_gauge=True)
        keepers = self._stream.keepers().values()
        there = sum(not each.away_s for each in keepers)
        yield Count("halley_cluster_keepers", "Nodes that are alive and write the history.", there, is_gauge=True)
        text = "Nodes that keep the history, and are away or cannot write; one that is gone for good must be forgotten."
        yield Count("halley_cluster_keepers_away", text, len(keepers) - there, is_gauge=True)
        extent = self._stream.extent
        yield Count("halley_cluster_stream_bytes", "Size of the stream.", extent.nbytes, is_gauge=True)
        text = "Size at which the stream is full."
        yield Count("halley_cluster_stream_max_bytes", text, extent.max_bytes, is_gauge=True)
        text = "Settings and other things that differ among the nodes and should not."
        yield Count("halley_cluster_differs", text, len(self._status.differs()), is_gauge=True)
        text = "Whether the node cannot go on with the stream; it takes no events then."
        yield Count("halley_cluster_diverged", text, int(log.is_diverged), is_gauge=True)
