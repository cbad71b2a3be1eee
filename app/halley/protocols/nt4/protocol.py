"""NetworkTables as one of the server's protocols: what all its connections share, and how they begin (NA1, NA2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf

from halley.broker.broker import Broker
from halley.broker.errors import AtCapacity
from halley.broker.limits import Meters
from halley.broker.policy import Rights
from halley.broker.ports import Erasure
from halley.protocols.contract import (
    GOING_AWAY,
    TRY_AGAIN_LATER,
    Context,
    Count,
    Link,
    ProgramDecisions,
    WaitFor,
    WireProtocol,
)
from halley.protocols.nt4.bridge import Bridge
from halley.protocols.nt4.engine import AskedPolicy, Nt4Engine
from halley.protocols.nt4.errors import DRAINED, MOVED
from halley.protocols.nt4.meta import MetaTopics
from halley.protocols.nt4.names import RTT, client_name
from halley.protocols.nt4.publishing import Publishing
from halley.protocols.nt4.subscribing import Subscribing
from halley.protocols.nt4.tables import Tables
from halley.settings import Nt4


class NetworkTables(WireProtocol):
    """The NetworkTables of one server (`contract.WireProtocol`); its `bridge` has the broker's values.

    It serves from the start. In a cluster one node at a time does: the others `stand_by`, without clients and topics.
    `policy` is the program's own; its decisions are awaited by `wait`, for `policy_s` seconds at most.
    """

    name = "nt4"

    def __init__(
        self, broker: Broker, options: Nt4, rights: Rights, policy: ProgramDecisions, wait: WaitFor, policy_s: float
    ) -> None:
        self.policy = AskedPolicy(policy, wait, policy_s)
        self.is_draining = False
        self._broker = broker
        self._options = options
        self._rights = rights
        self._meters = Meters(options.values_per_s, options.value_burst)
        self._set_up()

    def _set_up(self) -> None:
        self.tables = Tables(self._broker, self._options, self._rights)
        self.bridge = Bridge(self.tables, self.policy.program)
        self._meta = MetaTopics(self.tables, self.bridge)
        self._publishing = Publishing(self.tables, self.bridge)
        self._subscribing = Subscribing(self.tables, self._meta)
        self.tables.add_observer(self.bridge)
        self.tables.add_observer(self._meta)

    # Where it serves, in a cluster

    def serves(self, now: float) -> bool:
        """Whether clients are served here."""
        return now < self.tables.until

    def serve_until(self, until: float) -> None:
        """Serve clients until then, in monotonic seconds; later it stands by, if it is not called again before."""
        self.tables.until = until

    def stand_by(self, now: float) -> None:
        """Close all clients, and forget all topics and values."""
        for engine in self._engines():
            engine.send_on(now)
        self._set_up()
        self.tables.until = -inf

    def _is_over(self, now: float) -> bool:
        """Whether the time to serve is over; then it stands by."""
        if now < self.tables.until:
            return False
        if self.tables.until > -inf:
            self.stand_by(now)
        return True

    def _engines(self) -> list[Nt4Engine]:
        owners = [session.owner for session in self._broker.sessions.values()]
        return [owner for owner in owners if isinstance(owner, Nt4Engine)]

    # All that a protocol has

    def connect(self, link: Link, context: Context, now: float) -> Nt4Engine:
        """Return the engine for a new link; the path has the client's name.

        The link is closed immediately if the server is draining or a limit on sessions is reached.
        """
        tables = self.tables
        is_listed = link.subprotocol != RTT  # a connection for the time alone is not a client (NA6)
        name = client_name(context.path)
        if is_listed:
            name = tables.unique(name)
        engine = Nt4Engine(tables, self._publishing, self._subscribing, self.policy, name, link, context)
        if not self.serves(now):
            engine.refuse(MOVED, GOING_AWAY, "another node of the cluster serves NetworkTables")
            return engine
        if self.is_draining:
            engine.refuse(DRAINED, GOING_AWAY, "the server is shutting down")
            return engine
        client = engine.client
        try:
            tables.join(client, now, is_listed=is_listed)
        except AtCapacity as refusal:
            engine.refuse(refusal.reason, TRY_AGAIN_LATER, "too many connections, or too little memory")
        else:
            client.meter = self._meters.new() if client.account is not None else None
        return engine

    def begin(self, now: float) -> None:
        """Accept clients from now on (`WireProtocol.begin`); topics and values are still those of the earlier run."""
        self.is_draining = False
        for engine in self._engines():
            engine.lost(now)

    @property
    def due(self) -> float:
        """When `turn` is to be called next, in monotonic seconds; infinity if nothing waits for it."""
        tables = self.tables
        if len(tables.tasks) or self._meta.is_stale or self.bridge.has_ended_publishers:
            return -inf
        return min(tables.pacing.due, self.bridge.due)

    def turn(self, now: float) -> None:
        """Do one turn's part of the long work, and hand out the values that are due (`WireProtocol.turn`)."""
        if self._is_over(now):
            return
        tables = self.tables
        self.bridge.remove_ended_publishers(now)
        tables.tasks.turn()
        self._meta.refresh(now)
        if tables.pacing.due <= now:
            tables.pacing.tick(now, tables.time_us(now))
        self.bridge.record(now)

    def sweep(self, now: float) -> None:
        """Delete topics that have expired (`WireProtocol.sweep`)."""
        if not self._is_over(now):
            self.tables.delete_expired(now)

    def drain(self, spread_s: float) -> list[Callable[[float], None]]:  # noqa: ARG002 - no advice to give
        """Stop accepting clients, and return what releases each of them (`WireProtocol.drain`)."""
        self.is_draining = True
        return [engine.drain for engine in self._engines()]

    def erase(self, erasure: Erasure, now: float) -> None:
        """Drop the values that an erasure concerns: the last ones, and those that wait for the history."""
        self.bridge.erase(erasure)
        self.tables.erase(erasure, now)

    # Figures

    @property
    def conflated(self) -> int:
        """The number of values that slow clients did not get (`WireProtocol.conflated`)."""
        return self.tables.conflated

    def count_subscribers(self, topic: str) -> int:
        """The number of clients that get a topic's values (`WireProtocol.count_subscribers`)."""
        known = self.tables.topics.shared.get(topic)
        return 0 if known is None else self.tables.pacing.count_subscribers(known)

    def counts(self) -> Iterator[Count]:
        """Yield NetworkTables' own metrics (`WireProtocol.counts`)."""
        tables, flow = self.tables, self.tables.flow
        text = "Topics, including persistent, retained and meta topics."
        yield Count("halley_nt4_topics", text, len(tables.topics), is_gauge=True)
        yield Count("halley_nt4_received", "Values received from clients.", flow.published)
        text = "Values written to clients, counted once per client."
        yield Count("halley_nt4_delivered", text, flow.delivered)
        yield Count("halley_nt4_flushes", "Writes to clients; one may carry many values.", tables.pacing.flushes)
        yield Count("halley_nt4_conflated", "Values replaced by newer ones for slow clients.", tables.conflated)
        yield Count("halley_nt4_ignored", "Messages and values ignored, by reason.", tables.ignored, "reason")
        yield Count("halley_nt4_shed", "Values not recorded because newer ones replaced them.", self.bridge.shed)
        text = "Values that could not be shared with other protocols, by reason."
        yield Count("halley_nt4_unshared", text, self.bridge.unshared, "reason")
