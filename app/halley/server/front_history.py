"""The history of a front: it is in the stream and at the keepers, and the newest events are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from halley.broker.broker import Broker
from halley.broker.ports import Page, Query
from halley.cluster.front import Front
from halley.cluster.keeper_client import KeeperClient
from halley.cluster.membership import join_without_folder
from halley.server.history import lags_of, rules_of
from halley.server.shared_history import SharedHistory, joined
from halley.settings import Settings


class FrontHistory(SharedHistory):
    """The log of a node that keeps no history. Raises `BadRecord`, `CannotJoin`.

    The node connects to the cluster for a moment, and blocks.
    """

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None]) -> None:
        rules = rules_of(settings)
        state, applied = joined(join_without_folder(settings))
        super().__init__(settings, broker, flush, applied)
        self._keepers = KeeperClient(self._cluster, self._nats, self.members, rules, state)
        self._front = Front(
            state,
            rules,
            self._keepers,
            self._report,
            is_waiting=self._cluster.settled_by == "keeper",
            inbox_bytes=self._options.inbox_bytes,
        )
        self._outcomes = self._begin(self._front)

    def __str__(self) -> str:
        """Where the history is, and of which cluster, for the terminal."""
        return f"kept by other nodes, {super().__str__()} is a front"

    def listen(self) -> None:
        """Begin to listen to the keepers too; see `SharedHistory.listen`."""
        self._front.later = asyncio.get_running_loop().call_soon
        super().listen()
        self._keepers.begin(self._front.release)

    def _call_soon(self) -> None:
        """Have reports taken in the next turn: they are made on the loop, so it need not be woken."""
        if self._loop is not None:
            self._is_told = True
            self._loop.call_soon(self._take_reports)

    async def _end(self) -> None:
        self._front.close()

    @property
    def start(self) -> int:
        """The first offset that the keepers still have."""
        return self._keepers.start

    async def read(self, query: Query) -> Page:
        """One page, from a keeper. Raises `UnknownPublication`, and `TimeoutError` after `history.read_s`."""
        return await self._keepers.read(query, self._options.read_s)

    def look(self, now: float) -> None:
        """See which keepers are there."""
        self._front.look(now)
        super().look(now)

    def figures(self) -> dict[str, Any]:
        """The figures that ticks show of the log, as the keeper has them that this node asks first."""
        keeper = next(iter(self._keepers.keepers()), None)
        return {
            "first": self.start,
            "head": self.head,
            "bytes": keeper.nbytes if keeper else 0,
            "consumers": lags_of(keeper.consumers if keeper else {}, self.head),
        }
