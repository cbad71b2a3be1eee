"""Whether this node can take events for the stream, and whether it can go on with the stream at all."""

from __future__ import annotations

from time import monotonic

from halley import telemetry
from halley.broker.errors import HistoryUnavailable
from halley.cluster.stream import OTHER_LOG
from halley.nats.jetstream import Connection

AWAY_S = 1.0
"""After which without NATS a durable publish is refused at once; an election among its servers may be over sooner."""

REFUSED_S = 1.5
"""For how long publishes are refused after the stream has refused a frame: by then that has been sent again."""

LATER = "the stream has frames of a later version of Halley, which this node needs to go on"
OUTVOTED = "most other nodes have made something else of the stream"
FAULT = "an error while applying the stream: "
"""Followed by the name of an exception's class, whose text might be a stranger's."""

_OF_THIS_NODE = frozenset((LATER, OUTVOTED, OTHER_LOG))
"""Reasons that concern this node alone: the others can go on."""


class NatsAway(HistoryUnavailable):
    """No NATS server can be reached."""

    cause = "nats_away"


class Unauthorized(HistoryUnavailable):
    """The NATS servers do not let this node in."""

    cause = "auth"


class NoLeader(HistoryUnavailable):
    """The stream stores nothing: too few of its NATS servers run, or they have yet to choose which one leads."""

    cause = "no_leader"


class StreamFull(HistoryUnavailable):
    """The stream has no room, or NATS has none for it."""

    cause = "stream_full"


class Healing(HistoryUnavailable):
    """The node has missed frames of the stream, and gets from a keeper what was in them."""

    cause = "cluster_healing"


class Diverged(HistoryUnavailable):
    """The node cannot go on with the stream."""

    cause = "cluster_diverged"


class Availability:
    """What the parts of a node's log have found out about the stream.

    `healing_since`: since when, in monotonic seconds, this node lacks frames that the stream no longer has; else None.
    `is_diverged`: this node cannot go on with the stream; `is_stream_replaced`: since the stream is not the one that it
    has applied. `is_disputed` while that is so for another node: what this one took might get offsets of other events.
    """

    def __init__(self, nats: Connection) -> None:
        self.is_diverged = self.is_stream_replaced = self.is_disputed = False
        self.healing_since: float | None = None
        self._nats = nats
        self._refused: type[HistoryUnavailable] = NoLeader
        self._refused_until = 0.0

    @property
    def refusal(self) -> HistoryUnavailable | None:
        """What durable publishes are refused with at present; None while the stream takes them."""
        if self.is_diverged or self.is_disputed:
            return Diverged()
        if self.healing_since is not None and monotonic() - self.healing_since > AWAY_S:
            return Healing()
        if self._nats.away_s > AWAY_S:
            return Unauthorized() if self._nats.is_unauthorized else NatsAway()
        return self._refused() if monotonic() < self._refused_until else None

    def refused(self, why: type[HistoryUnavailable] = NoLeader) -> None:
        """Note that the stream takes nothing at present."""
        self._refused, self._refused_until = why, monotonic() + REFUSED_S

    def failed(self, what: str, error: Exception) -> None:
        """Take no events any more, since this node has made only a part of something: another start makes it again."""
        telemetry.fault(what, error)
        self.diverge(f"{FAULT}{type(error).__name__}")

    def diverge(self, why: str) -> None:
        """Take no events any more: no offset may mean two events."""
        if not self.is_diverged:
            is_own = why in _OF_THIS_NODE or why.startswith(FAULT)
            self.is_diverged, self.is_stream_replaced = True, not is_own
            telemetry.log.error("cluster_diverged", why=why)
