"""NetworkTables at a node of a cluster: served while the node is its home, with the persistent topics of the cluster.

It is the `cluster.nt4_lease.Leaseholder`. The topics are stored in the cluster instead of the data folder; where none
were ever stored, the first home begins with those of its own folder, if it has a file of them.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from math import inf
from time import monotonic

from halley import telemetry
from halley.broker.broker import Broker
from halley.broker.ports import Erasure, Work
from halley.cluster.exchange import NodeExchange
from halley.cluster.nt4_lease import Nt4Lease
from halley.cluster.values import ClusterValues
from halley.nats.client import AwayErrors
from halley.nats.jetstream import ApiError
from halley.protocols.nt4.protocol import NetworkTables
from halley.protocols.nt4.tables import SharedTopics
from halley.server.persistence import PersistentTopics, persistent, restore, text_of
from halley.settings import Settings


class Nt4Home:
    """NetworkTables of one node; also a `broker.ports.Erasable`. Its methods are for the event loop."""

    def __init__(
        self,
        nt4: tuple[NetworkTables, PersistentTopics],
        settings: Settings,
        broker: Broker,
        exchange: NodeExchange,
        flush: Callable[[], None],
    ) -> None:
        """Become the keeper of the broker's values; see `OtherNodes.serve_nt4`."""
        self._protocol, self._file = nt4
        self._save_every_s = settings.nt4.save_every_s
        self._broker = broker
        self._nats = exchange.nats
        self._lease = Nt4Lease(exchange.nats, self)
        self._values = ClusterValues(exchange, broker, self._protocol, flush)
        self._is_home = False
        self._saving: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._saved_at = -inf
        self._fault = ""
        broker.add_holder(self)

    def where(self) -> str | None:
        """The node that is the home, if it is known."""
        return self._lease.node

    def begin(self) -> None:
        """Look for the home, and be it if there is none."""
        self._lease.begin()
        self._values.begin()

    async def close(self) -> None:
        """Give the home up, if it is here."""
        await asyncio.shield(self._end_lease())
        await self._values.close()

    def leave(self) -> None:
        """Take part in no erasure any more; to be called when the last one has ended."""
        self._broker.remove_holder(self)
        self._broker.remove_holder(self._values)

    def _end_lease(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_lease())
        return self._closing

    async def _close_lease(self) -> None:
        if self._saving is not None:
            await self._saving
        await self._lease.close()

    def sweep(self, now: float) -> None:
        """Notice that the time as home is over or that the server drains, and store the topics that have changed."""
        if self._is_home and not self.serves(now):
            self._deactivated()
        if self._protocol.is_draining:
            self._end_lease()
        is_idle = self._saving is None or self._saving.done()
        has_unsaved = self._is_home and self._protocol.tables.has_unsaved
        if has_unsaved and is_idle and now - self._saved_at >= self._save_every_s:
            self._saved_at = now
            self._saving = asyncio.create_task(self._save())

    async def _save(self) -> None:
        """Store the topics; after a failure they are stored again later, and the failure is logged once."""
        tables = self._protocol.tables
        tables.has_unsaved = False
        text = text_of(persistent(tables))
        try:
            if len(text) > self._nats.max_payload:
                raise OSError(errno.EFBIG, f"persistent topics have more bytes than NATS takes: {len(text)}")
            await self._lease.store(text)
            self._fault = ""
        except (ApiError, *AwayErrors) as error:
            tables.has_unsaved = True
            if repr(error) != self._fault:
                telemetry.fault("persistent_topics", error)
            self._fault = repr(error)

    # cluster.nt4_lease.Leaseholder

    def serves(self, now: float) -> bool:
        """Whether clients are served here."""
        return self._protocol.serves(now)

    def activate(self, topics: bytes | None, term: int, until: float) -> None:
        """Serve clients until a monotonic time, with the stored topics; see `Leaseholder`."""
        protocol = self._protocol
        protocol.stand_by(monotonic())
        if self._is_home:
            self._deactivated()
        self._is_home = True
        self._values.activate(term)
        tables = protocol.tables
        tables.add_observer(SharedTopics(self._values.topic_changed))
        restore(tables, *(self._file.load() if topics is None else self._file.read(topics)))
        tables.has_unsaved = topics is None and len(tables.topics) > 0
        protocol.serve_until(until)

    def renew(self, until: float) -> None:
        """Go on serving clients until a later monotonic time; see `Leaseholder`."""
        self._protocol.serve_until(until)

    def deactivate(self) -> bytes | None:
        """Stop serving, and return the topics for the next home; None if this node is not the home."""
        now = monotonic()
        if not self.serves(now):
            return None
        self._protocol.bridge.record_all(now)
        topics = text_of(persistent(self._protocol.tables))
        self._protocol.stand_by(now)
        self._deactivated()
        return topics

    def _deactivated(self) -> None:
        self._is_home = False
        self._values.deactivate()

    # Erasing

    def erase(self, erasure: Erasure) -> Work:
        """Drop values from the tables, and return what cleans the stored topics and the file."""
        loop = asyncio.get_running_loop()
        file = self._file.erase(erasure)
        self._drop(erasure)

        def clean() -> None:
            asyncio.run_coroutine_threadsafe(self._clean(erasure), loop).result()
            file()

        return clean

    async def _clean(self, erasure: Erasure) -> None:
        await self._lease.clean(lambda topics: self._file.cleaned(topics, erasure))
        if self._saving is not None:  # it may have stored them without those, and not yet overwritten what was before
            await asyncio.wait((self._saving,))
        self._drop(erasure)  # this node may have become the home meanwhile

    def _drop(self, erasure: Erasure) -> None:
        self._protocol.erase(erasure, monotonic())
        self._protocol.tables.broker.wake()
