"""What keepers and fronts have of their cluster: a connection, the other nodes, and how far it has come."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from time import monotonic

from halley.broker.broker import Broker
from halley.broker.events import LAST_PUBLICATION, Publications
from halley.broker.ports import Erasure
from halley.cluster.applied import StreamState
from halley.cluster.broker_log import ClusterLog
from halley.cluster.erasure import Erasures
from halley.cluster.frames import Control
from halley.cluster.keeper_client import KeeperState
from halley.cluster.members import Members
from halley.cluster.missed import CatchUpTarget
from halley.cluster.store import Store
from halley.cluster.stream import StreamTrimmer
from halley.nats.jetstream import Connection
from halley.settings import Settings

CHECK_S = 0.05
"""Seconds between two looks at what other nodes, or the hot path, must come to."""

_ERASURES = 100
"""How many erasures a keeper remembers for nodes that miss them."""


class ClusterNode:
    """This node. `applied` is the state from which it goes on; `flush` is called when events were delivered."""

    def __init__(self, settings: Settings, broker: Broker, flush: Callable[[], None], applied: StreamState) -> None:
        self.settings = settings
        self.options = settings.cluster
        self.broker = broker
        self.flush = flush
        self.applied = applied
        self.erasures: deque[tuple[int, Erasure]] = deque(maxlen=_ERASURES)  # the latest ones, with their sequences
        self.nats = Connection(self.options)
        sessions_s = max(settings.bayeux.max_interval_s, settings.wamp.poll_gone_s)
        self.members = Members(self.nats, monotonic(), sessions_s)
        self.stream = StreamTrimmer(self.members, applied)

    def log_of(self, store: Store, erasures: Erasures, target: CatchUpTarget) -> ClusterLog:
        """The log that gives `store` what comes from the stream, and is the broker's from now on.

        `target` takes what the stream no longer has.
        """

        def controlled(control: Control, sequence: int) -> None:
            if isinstance(control, Erasure):
                self.erasures.append((sequence, control))
                erasures.add(control, sequence, self.applied.offset)

        commits = self.broker.commits
        # The numbers of recorded events' publications grow with the offset; those of others are far above.
        middle = LAST_PUBLICATION // 2
        self.broker.publications = Publications(store.publication_key, middle + secrets.randbelow(middle // 2))
        members, flush = self.members, self.flush
        log = ClusterLog(members, store, commits, self.applied, flush, target, controlled)
        commits.begin(log, store.head, log.direct.share, log.reach)
        return log

    async def forget(self, state: KeeperState) -> None:
        """Erase from memory, and from files next to the log, what this node did not see being erased."""
        for sequence, erasure in state.erasures:
            if sequence > self.applied.sequence:
                for work in self.broker.erase(erasure):
                    await asyncio.to_thread(work)

    async def delivered(self, offset: int) -> None:
        """Wait until the events up to an offset are delivered here."""
        while self.broker.commits.tail.head < offset:  # noqa: ASYNC110 - the hot path waits for nobody
            await asyncio.sleep(CHECK_S)
