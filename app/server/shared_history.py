"""The history of a node of a cluster: its data folder, filled from the stream that all nodes share."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from app import telemetry
from app.broker.broker import Broker
from app.broker.errors import HistoryUnavailable
from app.broker.events import LAST_PUBLICATION, Publications
from app.broker.ports import Erasure
from app.cluster.alike import digests
from app.cluster.broker_log import ClusterLog
from app.cluster.exchange import Exchange
from app.cluster.members import Members
from app.cluster.membership import SETTINGS, STATE_FILE, join
from app.cluster.membership import CannotJoin as NotJoined
from app.cluster.nats import Connection
from app.cluster.standing import Standing
from app.history import checksummed_json
from app.history.history import CannotPurge, History
from app.protocols.contract import Count
from app.server.history import CannotJoin, OpenHistory, Outcomes
from app.server.whole import Whole
from app.settings import Settings

_SAVE_S = 10.0
"""How often the state is saved: what a node that was killed has to apply again."""

_CLOSE_S = 5.0

_PARTIAL = "WAMP's retained events and rate limits are those of one node; nothing can be erased"


class SharedHistory(OpenHistory):
    """The open history of a node. Raises `CannotJoin`; the node connects to the cluster for a moment, and blocks."""

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None]) -> None:
        folder = Path(settings.data_dir).resolve()
        with ThreadPoolExecutor(1) as apart:  # there may be a running event loop here, which must not run another
            try:
                self._applied = apart.submit(asyncio.run, join(settings, folder)).result()
            except NotJoined as error:
                raise CannotJoin(str(error)) from error
        self._cluster = settings.cluster
        self._saved = (self._applied.sequence, 0.0)  # what was saved last, and when
        self._snapshot: dict[str, Any] | None = None
        self._saving: asyncio.Future[None] | None = None
        super().__init__(settings, broker, flush)
        cluster = settings.cluster
        telemetry.log.info(
            "cluster_joined",
            space=cluster.space,
            node=cluster.node,
            settled_by=cluster.settled_by,
            sequence=self._applied.sequence,
        )
        telemetry.log.warning("cluster_partial", what=_PARTIAL)

    def _begin(self, history: History) -> Outcomes:
        # Publications of recorded events have their offsets as numbers; those of others are far above.
        middle = LAST_PUBLICATION // 2
        self._broker.publications = Publications(history.publication_key, middle + secrets.randbelow(middle // 2))
        self._nats = nats = Connection(self._cluster)
        self._log = ClusterLog(self._cluster, nats, history, self._broker.commits, self._applied, self._flush)
        self.members = Members(self._cluster, nats)
        self.members.facts |= {
            "sequence": lambda: self._applied.sequence,
            "offset": lambda: self._applied.offset,
            "sessions": lambda: len(self._broker.sessions),
        }
        self._broker.commits.begin(self._log, history.head, self._log.share)
        return self._log

    def join(self, whole: Whole) -> None:
        """Give the parts of the server the way to the other nodes; call it before `listen`."""
        nats, members = self._nats, self.members
        self._whole = whole
        self._exchange = Exchange(self._cluster, nats, members)
        self._standing = Standing(self._cluster, nats, members, self._applied, self._log.state)
        members.facts["settings"] = lambda: digests(whole.settings())
        whole.answers[SETTINGS] = lambda _node, _body: digests(whole.settings())
        whole.join(self._exchange, members, self._standing)

    def __str__(self) -> str:
        """Where the history is, and of which cluster, for the terminal."""
        return f"{self.folder}, as node {self._cluster.node} of the cluster {self._cluster.space}"

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What a durable publish is refused with at present, if it is."""
        return self._log.refusal

    @property
    def is_ready(self) -> bool:
        """Whether new clients are welcome: NATS was there within `cluster.lost_s`, and has this node's stream."""
        return self._log.away_s < self._cluster.lost_s and not self._log.is_diverged

    def listen(self) -> None:
        """Carry reports to the event loop, and begin to read the stream; call it on the running loop."""
        super().listen()
        self._log.begin()
        self.members.begin()
        self._exchange.begin()
        self._standing.begin()

    def sweep(self, now: float) -> None:
        """Do periodic work, and save the state from time to time."""
        super().sweep(now)
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
            checksummed_json.save(self.folder / STATE_FILE, state)
        except OSError as error:
            telemetry.fault("cluster_state", error)

    async def close(self) -> None:
        """Wait for what is on its way to the stream, leave the cluster, and close the log."""
        if self.refusal is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self.settle()
        self._whole.leave()
        await self._standing.close()
        await self._exchange.close()
        await self.members.close()
        await self._log.close()
        if self._saving is not None:
            await self._saving
        await super().close()
        self._log.give_up(monotonic())
        if self.head == self._applied.offset and not self._log.is_diverged:
            await asyncio.to_thread(self._save, self._applied.saved())

    async def purge(self, erasure: Erasure, tell: Callable[[int, int], None]) -> NoReturn:  # noqa: ARG002 - Archive's form
        """Refuse: what is erased here would stay on the other nodes. Raises `CannotPurge`."""
        raise CannotPurge("events cannot be erased in a cluster yet")

    def counts(self) -> Iterator[Count]:
        """Yield the cluster's metrics."""
        log = self._log
        yield Count("halley_cluster_frames_in", "Frames that were applied, of all nodes.", log.frames_in)
        yield Count("halley_cluster_frames_out", "Frames that were sent, also those sent again.", log.frames_out)
        yield Count("halley_cluster_resent", "Frames that were sent again.", log.resent)
        yield Count("halley_cluster_repeats", "Frames that were dropped, since they came again.", log.repeats)
        yield Count(
            "halley_cluster_foreign", "Messages of the stream that are not frames, and were dropped.", log.foreign
        )
        text = "Messages of the stream that this node has not applied yet."
        yield Count("halley_cluster_behind_frames", text, self._standing.behind, is_gauge=True)
        nodes = self._standing.nodes()
        yield Count("halley_cluster_nodes", "Nodes that are alive, with this one.", len(nodes), is_gauge=True)
        keepers = sum(bool(node.facts.get("keeps", True)) for node in nodes)
        yield Count("halley_cluster_keepers", "Nodes that are alive and keep the history.", keepers, is_gauge=True)
        text = "Settings and other things that differ among the nodes and should not."
        yield Count("halley_cluster_differs", text, len(self._standing.differs()), is_gauge=True)
        text = "Whether the stream is not the one that the node has applied; it takes no events then."
        yield Count("halley_cluster_diverged", text, int(log.is_diverged), is_gauge=True)
