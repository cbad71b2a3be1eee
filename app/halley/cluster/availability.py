"""Whether this node can take events for the stream, and whether it can go on with the stream at all."""

from __future__ import annotations

from time import monotonic

from halley import telemetry
from halley.broker.errors import HistoryUnavailable
from halley.cluster.consistency import OTHER_LOG
from halley.cluster.stream import GAP
from halley.nats.jetstream import Connection

AWAY_S = 1.0
"""After which without NATS a durable publish is refused at once; an election among its servers may be over sooner."""

REFUSED_S = 1.0
"""For how long publishes are refused after the stream has refused one; the next one tries it again."""

LATER = "the stream has frames of a later version of Halley, which this node needs to go on"
OUTVOTED = "most other nodes have made something else of the stream"
_OF_THIS_NODE = frozenset((GAP, LATER, OUTVOTED, OTHER_LOG))
"""Reasons that concern this node alone: the others can go on."""


class StreamUnavailable(HistoryUnavailable):
    """The stream cannot take events at present."""

    cause = "cluster"


class Diverged(HistoryUnavailable):
    """The node cannot go on with the stream."""

    cause = "cluster_diverged"


class Availability:
    """What the parts of a node's log have found out about the stream.

    `is_diverged`: this node cannot go on with the stream; `is_stream_replaced`: since the stream is not the one that it
    has applied. `is_disputed` while that is so for another node: what this one took might get offsets of other events.
    """

    def __init__(self, nats: Connection) -> None:
        self.is_diverged = self.is_stream_replaced = self.is_disputed = False
        self._nats = nats
        self._refused_until = 0.0

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What durable publishes are refused with at present; None while the stream takes them."""
        if self.is_diverged or self.is_disputed:
            return Diverged()
        if monotonic() < self._refused_until or self._nats.away_s > AWAY_S:
            return StreamUnavailable()
        return None

    def refused(self) -> None:
        """Note that the stream takes nothing at present: it is full, or has no leader."""
        self._refused_until = monotonic() + REFUSED_S

    def diverge(self, why: str) -> None:
        """Take no events any more: no offset may mean two events."""
        if not self.is_diverged:
            self.is_diverged, self.is_stream_replaced = True, why not in _OF_THIS_NODE
            telemetry.log.error("cluster_diverged", why=why)
