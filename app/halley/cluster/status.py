"""Where every node stands: how far it has applied the stream, what its NATS server is, and what differs among nodes."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from halley import __version__, telemetry
from halley.cluster.applied import StreamState
from halley.cluster.consistency import StateHistory, differences
from halley.cluster.members import Member, Members
from halley.cluster.stream import StreamTrimmer
from halley.cluster.tasks import Tasks

_CHECK_S = 1.0
_PUBLISHED = (
    "version",
    "sequence",
    "offset",
    "behind",
    "saved",
    "refusal",
    "sessions",
    "settings",
    "keeps",
    "healing",
    "log_id",
)
"""What is shown of a node's heartbeat."""


class ClusterStatus:
    """What one node knows of the cluster; it looks once a second.

    `behind`: how many messages of the stream this node has not applied yet, when it looked last. `nt4` returns the node
    that is the home of NetworkTables; it is None where that is not served.
    """

    def __init__(
        self,
        members: Members,
        stream: StreamTrimmer,
        applied: StreamState,
        state: StateHistory,
        nt4: Callable[[], str | None] | None = None,
    ) -> None:
        """Add to the heartbeat of this node."""
        self.behind = 0
        self._nt4 = nt4
        self._nats = members.nats
        self._members = members
        self._applied = applied
        self._state = state
        self._stream = stream
        self._reported: set[str] = set()  # what differed when that was logged
        self._tasks = Tasks("cluster_status")
        members.report("version", lambda: __version__)
        members.report("state", lambda: state.of(applied.sequence))
        members.report("behind", lambda: None if stream.figures is None else self.behind)
        members.report("away", lambda: [each for each in stream.standings() if each["away_s"]])

    def begin(self) -> None:
        """Begin to look, as soon as NATS is connected: ask about the stream, and log what differs."""
        self._tasks.repeat(self._check, _CHECK_S)

    async def close(self) -> None:
        """Stop looking; `behind` and the figures of the stream stay as they are."""
        await self._tasks.cancel()

    def nodes(self) -> list[Member]:
        """All nodes that are alive, by name."""
        return sorted([self._members.own(), *self._members.others()], key=lambda member: member.name)

    def differs(self) -> list[dict[str, Any]]:
        """What differs among the nodes; see `consistency.differences`."""
        return differences(self.nodes(), self._state.deviating(self._members.others()))

    def figures(self) -> dict[str, Any]:
        """The cluster as JSON values, as `/halley/cluster` has it; `stream` is null while NATS does not answer."""
        nats = self._nats
        return {
            "node": self._members.node,
            "space": nats.space,
            "settled_by": nats.options.settled_by,
            "nodes": [
                {"node": each.name, "id": each.id}
                | {name: each.heartbeat[name] for name in _PUBLISHED if name in each.heartbeat}
                for each in self.nodes()
            ],
            "stream": None if self._stream.figures is None else _stream_figures(self._stream.figures),
            "keepers": self._stream.standings(),
            "nats": {
                "server": nats.server,
                "version": nats.version,
                "away_s": round(nats.away_s, 1),
                "error": nats.last_error,
            },
            "differs": self.differs(),
            **({} if self._nt4 is None else {"nt4": self._nt4()}),
        }

    async def _check(self) -> None:
        await self._nats.opened.wait()
        await self._stream.check(monotonic())
        if self._stream.figures is not None:
            self.behind = max(0, self._stream.figures["state"]["last_seq"] - self._applied.sequence)
        self._report()

    def _report(self) -> None:
        """Log what differs, once as long as it does."""
        found = {each["what"]: each["nodes"] for each in self.differs()}
        for what in found.keys() - self._reported:
            write = telemetry.log.error if what == "stream" else telemetry.log.warning
            write("cluster_differs", what=what, nodes=found[what])
        self._reported = {*found}


def _stream_figures(info: dict[str, Any]) -> dict[str, Any]:
    """What is shown of JetStream's description of the stream."""
    state, replicas = info["state"], info.get("cluster") or {}
    return {
        "first": state["first_seq"],
        "last": state["last_seq"],
        "messages": state["messages"],
        "bytes": state["bytes"],
        "max_bytes": info["config"]["max_bytes"],
        "leader": replicas.get("leader"),
        "replicas": [
            {"server": each["name"], "current": bool(each.get("current"))} for each in replicas.get("replicas") or ()
        ],
    }
