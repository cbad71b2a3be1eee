"""The ticks of a whole cluster: each node sends its figures to the others while any of them has subscribers.

Its throughput and delays it sends always: each node keeps those of the whole cluster, as its past (`past_rates.py`).

The latest figures of each node are added to a node's own (`merge`). A tick has `nodes` then, the names of the nodes
whose figures are in it, and each session in `/halley/queues` has its `node`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from heapq import nlargest
from operator import itemgetter
from time import monotonic
from typing import Any

from halley.broker.flow import Delays
from halley.server.other_nodes import OtherNodes
from halley.settings import Ticks

_KIND = "figures"
_SUBSCRIBED = "hears"
_OLD_TICKS, _OLD_S = 2.5, 3.0
"""Figures older than both are left out: their node sends none any more."""

DELAYS = "delays"
FLOW = "flow"
"""What throughput and delays are sent as; it is not a topic."""
_SUMS = (
    "sessions",
    "subscriptions",
    "holds",
    "queued",
    "put_back",
    "conflated",
    "overflows",
    "dropped",
    "memory_bytes",
)
_PROTOCOL_SUMS = ("sessions", "published", "delivered", "published_per_s", "delivered_per_s")
_TOPIC_SUMS = ("published", "per_s", "subscribers")

Figures = dict[str, Any]
Merge = Callable[[Figures, Figures, int], Figures]


class SharedTicks:
    """The figures that the nodes of a cluster send each other.

    `has_subscribers` returns whether a tick's topic has subscribers at this node; `merges` has for each such topic what
    adds the figures of another node to those of this one.
    """

    def __init__(
        self,
        others: OtherNodes,
        options: Ticks,
        has_subscribers: Callable[[str], bool],
        merges: Mapping[str, tuple[Merge, int]],
    ) -> None:
        self._others = others
        self._old_s = max(_OLD_S, _OLD_TICKS * options.every_s)
        self._merges = merges
        self._received: dict[tuple[str, str], tuple[float, Figures]] = {}  # by topic and node, with the time
        others.report(_SUBSCRIBED, lambda: [topic for topic in merges if topic != FLOW and has_subscribers(topic)])
        others.answer(_KIND, self._receive)

    def has_subscribers(self, topic: str) -> bool:
        """Whether a tick has subscribers at another node."""
        return any(topic in _listed(heartbeat.get(_SUBSCRIBED)) for heartbeat in self._others.alive().values())

    def send(self, topic: str, figures: Figures) -> None:
        """Send the figures of this node to the others."""
        self._others.notify(_KIND, {"topic": topic, "figures": figures})

    def merged(self, topic: str, figures: Figures, now: float) -> Figures:
        """The figures of all nodes: those of this one, and the latest of the others."""
        merge, most = self._merges[topic]
        nodes = [self._others.node]
        for node in sorted(self._others.alive()):
            at, theirs = self._received.get((topic, node), (-self._old_s, {}))
            if now - at < self._old_s:
                try:
                    figures = merge(figures, theirs, most)
                except (KeyError, TypeError, IndexError, ValueError, AttributeError):
                    continue  # it is another version of Halley
                nodes.append(node)
        # Made without changing `figures`: what was sent of them is encoded later in this turn of the loop.
        return {**{name: value for name, value in figures.items() if name != DELAYS}, "nodes": nodes}

    def _receive(self, node: str, body: Any) -> None:
        topic, figures = body["topic"], body["figures"]
        if topic in self._merges and node in self._others.alive():
            self._received[topic, node] = monotonic(), figures
        for key in [key for key in self._received if key[1] not in self._others.alive()]:
            del self._received[key]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def sparse(delays: Delays) -> dict[str, int]:
    """A histogram as a JSON value: the classes that are not empty."""
    return {str(number): count for number, count in enumerate(delays.counts) if count}


def merge_flow(mine: Figures, theirs: Figures, _most: int) -> Figures:
    """Add up what each protocol has in `protocols`.

    Both have `delays`, the `sparse` histogram of each protocol.
    """
    ours, others = mine["protocols"], theirs["protocols"]
    names = sorted({*ours, *others})
    delays = {name: _sum(mine[DELAYS].get(name, {}), theirs[DELAYS].get(name, {})) for name in names}
    return {
        "protocols": {name: _protocol(ours.get(name), others.get(name), delays[name]) for name in names},
        DELAYS: delays,
    }


def merge_rates(mine: Figures, theirs: Figures, most: int) -> Figures:
    """Add up `/halley/rates`. The history is that of this node: each has all events; what was lost is added up."""
    history = mine["history"]
    if history is not None and theirs["history"] is not None:
        history = {**history, "lost": history["lost"] + theirs["history"]["lost"]}
    return {
        **mine,
        **{name: mine[name] + theirs[name] for name in _SUMS},
        "limits_hit": _sum(mine["limits_hit"], theirs["limits_hit"]),
        "history": history,
        **merge_flow(mine, theirs, most),
    }


def _sum(mine: dict[str, int], theirs: dict[str, int]) -> dict[str, int]:
    return dict(Counter(mine) + Counter(theirs))


def _protocol(mine: Figures | None, theirs: Figures | None, counts: dict[str, int]) -> Figures:
    if mine is None or theirs is None:
        return mine or theirs or {}
    delays = Delays()
    for number, count in counts.items():
        delays.counts[int(number)] = count
    quantiles = {"p50": delays.quantile_ms(0.5), "p99": delays.quantile_ms(0.99)} if counts else None
    return {
        **{name: round(mine[name] + theirs[name], 1) for name in _PROTOCOL_SUMS if name in mine},
        "delay_ms": quantiles,
    }


def merge_topics(mine: Figures, theirs: Figures, most: int) -> Figures:
    """Add up `/halley/topics`; what is listed by neither node may be counted twice in `others`."""
    rows = {row["channel"]: row for row in mine["topics"]}
    for row in theirs["topics"]:
        own = rows.get(row["channel"])
        if own is not None:
            sums = {name: round(own[name] + row[name], 1) for name in _TOPIC_SUMS}
            row = {**row, **sums, "last": max(own["last"], row["last"])}  # noqa: PLW2901 - the row of both
        rows[row["channel"]] = row
    topics = nlargest(most, rows.values(), key=itemgetter("last"))
    return {"topics": topics, "others": mine["others"] + theirs["others"] + len(rows) - len(topics)}


def merge_queues(mine: Figures, theirs: Figures, most: int) -> Figures:
    """List the sessions of both: those with the longest outboxes first, then the newest."""
    rows = [*mine["sessions"], *theirs["sessions"]]
    sessions = sorted(rows, key=lambda row: (-row["queued"], row["age_s"]))[:most]
    return {"sessions": sessions, "others": mine["others"] + theirs["others"] + len(rows) - len(sessions)}
