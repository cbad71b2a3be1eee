"""What a front has of the history: it is in the stream and at the keepers, and the newest events are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any

from halley.broker.ports import Page, Query, Reader
from halley.cluster.erasure import Erasures, PendingErasure
from halley.cluster.front import Front
from halley.cluster.keeper_client import KeeperClient, KeeperRequests, KeeperState
from halley.history.key_digests import Digests
from halley.history.rules import Rules
from halley.history.stored import Stored
from halley.protocols.contract import Count
from halley.server.cluster_node import ClusterNode
from halley.server.commit_reports import CommitReports
from halley.server.folder_log import lags_of


class FrontStore:
    """The store of a node that keeps no history (`ClusterHistory`), and its archive: pages come from the keepers."""

    local = None
    heartbeat: Mapping[str, Callable[[], Any]] = {}

    def __init__(self, node: ClusterNode, state: KeeperState, rules: Rules) -> None:
        """`state` is that of the keeper from which the node goes on."""
        self.node = node
        self._options = options = node.settings.history
        self._reports = CommitReports(node.broker, node.flush, options.commit_s)
        self._keepers = KeeperClient(node.members, rules, state)
        self._front = Front(
            state,
            rules,
            self._keepers,
            self._reports.put,
            lambda: node.stream.is_filling,
            is_waiting=node.options.settled_by == "keeper",
            inbox_bytes=options.inbox_bytes,
        )
        self.erasures = Erasures(self._erase)
        self.log = node.log_of(self._front, self.erasures, self)
        self._reports.deliver_to(self.log.writer)
        self.healers = (self.log.missed,)
        self.archive = self
        self.flush = self._reports.flush

    def describe(self, name: str) -> str:
        """Where the history is, for the terminal; `name` is the node's."""
        return f"kept by other nodes, {name} is a front"

    def listen(self) -> None:
        """Listen to the keepers, and report what they have stored; call it on the running loop."""
        call_soon = asyncio.get_running_loop().call_soon  # reports are made on the loop, so it need not be woken
        self._front.later = call_soon
        self._reports.listen(call_soon)
        self._keepers.begin(self._front.report_stored)

    async def leave(self) -> None:
        """Do what needs the other nodes, before this one leaves the cluster: nothing."""

    async def close(self) -> None:
        """Report to the broker what is under way: it is unknown whether that is stored."""
        self._front.close()
        self._reports.end()
        self.log.give_up(monotonic())

    @property
    def start(self) -> int:
        """The first offset that the keepers still have."""
        return self._keepers.start

    @property
    def head(self) -> int:
        """The last committed offset that was reported to the broker."""
        return self._reports.head

    async def read(self, query: Query, reader: Reader) -> Page:
        """One page, from a keeper, when it is the reader's turn there; see `Archive.read`."""
        return await self._keepers.read(query, self._options.read_s, reader.sharer)

    def check(self, now: float) -> None:
        """See which keepers are there, and how much they have."""
        self._front.check(now)
        self.node.broker.commits.measured(self.figures()["bytes"], self.start, now)

    async def _erase(self, due: PendingErasure) -> int:
        """Erase the events from the memory of this node."""
        await self.node.delivered(due.last)
        self.node.broker.erase(due.erasure)
        await self.flush()
        for work in self.node.broker.erase(due.erasure):
            await asyncio.to_thread(work)
        return 0

    # What the stream no longer has (`missed.CatchUpTarget`)

    async def take_over(self, rows: list[Stored], reached: int, digests: Digests) -> None:  # noqa: ARG002 - of `CatchUpTarget`
        """Go on behind the rows of a keeper, which has them on its disk."""
        self._front.head = reached

    async def erase_like(self, keeper: KeeperRequests, state: KeeperState, last: int) -> None:  # noqa: ARG002
        """Erase from memory what is erased at a keeper, and drop the newest events: they may be too."""
        await self.node.forget(state)
        tail = self.node.broker.commits.tail
        tail.skip_to(tail.head)

    async def save(self) -> None:
        """Do nothing: a front saves no state."""

    def figures(self) -> dict[str, Any]:
        """The figures that ticks show of the log, as the keeper has them that this node asks first."""
        keeper = next(iter(self._keepers.keepers()), None)
        return {
            "first": self.start,
            "head": self.head,
            "bytes": keeper.nbytes if keeper else 0,
            "consumers": lags_of(keeper.consumers if keeper else {}, self.head),
        }

    def counts(self) -> Iterator[Count]:
        """Yield no metrics: those of the log are the keepers'."""
        yield from ()
