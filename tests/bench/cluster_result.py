"""What was measured of a cluster, the costs that follow from it, and their table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.scaling import WANTED, Costs, at_most, at_rate

_US = 1_000_000
_SCALED = (2, 4, 8, 16)
_SUBSCRIBERS = (1, 100)


@dataclass(slots=True)
class Measured:
    """One load: its events (polls, where it polls), and what it took.

    `cpu_s` is the CPU time of each process in `seconds`; `frames` are those that the last front applied.
    """

    seconds: float
    cpu_s: dict[str, float]
    frames: int
    events: int = 0
    deliveries: int = 0
    per_s: float = 0.0
    latency_ms: dict[str, float] = field(default_factory=dict)
    unsent: int = 0
    lost: int = 0
    repeated: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    is_load_full: bool = False


@dataclass(slots=True)
class ClusterFigures:
    """All loads by name, with the cluster and the machine that they ran on.

    `idle` is without a load. `few` and `many` publish at one node, and at all of them; `passed` publishes at the first
    as many as `many` does, and `applied` does so with a subscriber at each node. In `behind` events are published
    everywhere while the keeper stands still; its `seconds` and `cpu_s` are those from when it goes on until it has all
    of them. `one` and `all` deliver each publish of the first node to `receivers` held polls there, and at each node.
    `direct` and `relayed` are polls at the node of their session, and at another one. There are few of them; in
    `direct_many` and `relayed_many`, `polls` are under way at any time.
    """

    nodes: int
    servers: int
    rate: float
    seconds: float
    receivers: int
    polls: int
    date: str
    cores: int
    load_average: float
    measured: dict[str, Measured] = field(default_factory=dict)

    @property
    def fronts(self) -> list[str]:
        """The names of the nodes that serve clients."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def wrong(self) -> list[str]:
        """Faults, as sentences."""
        return [
            f"{name}: {each.lost:,} lost, {each.repeated:,} repeated, {each.errors or 'no errors'}"
            for name, each in self.measured.items()
            if each.lost or each.repeated or each.errors
        ]

    @property
    def warnings(self) -> Iterator[str]:
        """What makes figures doubtful, as sentences."""
        for name, each in self.measured.items():
            if each.unsent:
                yield f"{name}: {each.unsent:,} due events were not sent: the rate was not reached."
            if each.is_load_full:
                yield f"{name}: the load generator was the limit."

    @property
    def costs(self) -> Costs:
        """CPU per unit of work, without what an idle cluster uses; see `scaling.Costs`."""
        first, *others = self.fronts
        few, passed, applied = (self.measured[name] for name in ("few", "passed", "applied"))
        by_few, by_passed, by_applied = (
            self.used_us(load, *others) / len(others) for load in ("few", "passed", "applied")
        )
        # Two loads with frames of other sizes give the costs of a frame and of an event in it.
        unlike = few.frames * passed.events - passed.frames * few.events
        frame_us = (by_few * passed.events - by_passed * few.events) / unlike if unlike > 0 else 0.0
        frame_us = min(max(frame_us, 0.0), by_passed / max(passed.frames, 1))
        return Costs(
            publish=_each(self.used_us("passed", first), passed.events),
            deliver=_each(self.used_us("one", first), self.measured["one"].deliveries),
            applied=_each(by_applied - frame_us * applied.frames, applied.events),
            passed=_each(by_passed - frame_us * passed.frames, passed.events),
            frame=frame_us,
            row=_each(self.used_us("passed", "keeper"), passed.events),
            row_behind=_each(self.used_us("behind", "keeper"), self.measured["behind"].events),
            nats=_each(self.used_us("passed", "nats") / (self.nodes + 1), passed.events),
        )

    def used_us(self, load: str, *processes: str) -> float:
        """The microseconds of CPU that a load took in these processes, without what they use without a load."""
        measured, idle = self.measured[load], self.measured["idle"]
        return sum(
            _US * (measured.cpu_s[name] - idle.cpu_s[name] / idle.seconds * measured.seconds) for name in processes
        )

    def as_json(self) -> dict[str, Any]:
        """Return the result as it is saved and compared."""
        loads = {"nodes": self.nodes, "servers": self.servers, "rate": self.rate, "seconds": self.seconds}
        return {"verb": "cluster", "load": loads, "costs_us": self.costs._asdict(), **asdict(self)}


def cluster_table(found: ClusterFigures) -> str:
    """Return the figures as a table, with what they are worth, and what many nodes would do by arithmetic."""
    servers = "1 NATS server" if found.servers == 1 else f"{found.servers} NATS servers"
    rows = list(_rows(found))
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        [
            f"cluster: {found.nodes} nodes, a keeper and {servers}; {found.seconds:g} s for each load",
            *(f"  {name:<{width}}  {value}" for name, value in rows),
            f"All of these and the load share {found.cores} cores; load average before: {found.load_average:.1f}.",
            *found.warnings,
            "By arithmetic from these costs, with a core for each node, and others for the keeper and NATS, at most:",
            *_at_most(found.costs),
            *_at_rate(found.costs, found.rate),
        ]
    )


def _rows(found: ClusterFigures) -> Iterator[tuple[str, str]]:
    costs, measured = found.costs, found.measured
    for name, where in (("few", "at one node"), ("many", "at all nodes")):
        each = measured[name]
        yield f"recorded {where}", f"{each.per_s:,.0f} events/s, {each.events / max(each.frames, 1):.1f} in a frame"
        yield "  acknowledged, p50 and p99", _latency(each)
        shares = {process: cpu_s / each.seconds for process, cpu_s in each.cpu_s.items()}
        yield "  CPU, of a core", "  ".join(f"{process} {share:.2f}" for process, share in shares.items())
    passed = measured["passed"]
    yield "CPU for an event that is published here", _us(costs.publish)
    others = len(found.fronts) - 1
    whole = found.used_us("passed", *found.fronts[1:]) / others / max(passed.events, 1)
    yield "  of another node, without a subscriber", f"{_us(whole)}, without the frame's share {_us(costs.passed)}"
    applied = measured["applied"]
    whole = found.used_us("applied", *found.fronts[1:]) / others / max(applied.events, 1)
    yield "  of another node, delivered to one", f"{_us(whole)}, without the frame's share {_us(costs.applied)}"
    yield "  for a frame of another node", _us(costs.frame)
    yield "  for a row at the keeper", _rows_per_s(costs.row)
    behind = measured["behind"].events
    yield "  for a row at the keeper that is behind", f"{_rows_per_s(costs.row_behind)}, after {behind:,} rows"
    yield "  in NATS, for each node", _us(costs.nats)
    everywhere = measured["all"]
    at_all = _each(found.used_us("all", *found.fronts), everywhere.deliveries)
    yield f"CPU for a delivery, {found.receivers} polls at one node", _us(costs.deliver)
    yield (
        f"  {found.receivers} polls at each of {found.nodes} nodes",
        f"{_us(at_all)}: deliveries are {costs.deliver / at_all:.2f} of {found.nodes} x one node's",
    )
    yield from _polls(found, "direct", "relayed", "")
    yield from _polls(found, "direct_many", "relayed_many", f", {found.polls} at a time")


def _polls(found: ClusterFigures, own: str, other: str, how: str) -> Iterator[tuple[str, str]]:
    direct, relayed = found.measured[own], found.measured[other]
    direct_us = _each(found.used_us(own, *found.fronts), direct.events)
    relayed_us = _each(found.used_us(other, *found.fronts), relayed.events)
    yield f"a poll at its own node{how}", f"{_latency(direct)}; CPU {_us(direct_us)}"
    yield (
        f"  passed on by another node{how}",
        f"{_latency(relayed)}; CPU of both {_us(relayed_us)}, {relayed_us - direct_us:+.0f} us",
    )


def _at_most(costs: Costs) -> Iterator[str]:
    yield f"  {'':<38}{'events/s':>10} {'deliveries/s':>13} {'of N x one':>11} {'of keeper':>10} {'NATS':>6}"
    for subscribers in _SUBSCRIBERS:
        to = "1 subscriber" if subscribers == 1 else f"{subscribers} subscribers"
        for nodes in _SCALED:
            each = at_most(costs, nodes, subscribers)
            rates = f"{each.events_per_s:>10,.0f} {each.deliveries_per_s:>13,.0f} {each.share:>11.2f}"
            name = f"{nodes} nodes, {to} of each event"
            yield f"  {name:<38}{rates} {each.keeper_share:>10.2f} {each.nats_cores:>6.2f}"


def _at_rate(costs: Costs, rate: float) -> Iterator[str]:
    yield f"With {rate:,.0f} events/s of all nodes together, and at each a subscriber for {WANTED:.0%} of the others':"
    yield "  of the core of each node   publishes  frames  others' events   left   deliveries/s  of N x one"
    for nodes in _SCALED:
        each = at_rate(costs, nodes, rate)
        parts = f"{each.publishes:>9.2f} {each.frames:>7.2f} {each.others:>15.2f} {each.left:>6.2f}"
        yield f"  {f'{nodes} nodes':<27}{parts} {each.deliveries_per_s:>14,.0f} {each.share:>11.2f}"


def _each(us: float, count: int) -> float:
    """CPU for each of them: never 0, which a short load could seem to take."""
    return max(us / max(count, 1), 0.001)


def _us(value: float) -> str:
    return f"{value:,.2f} us" if value < 10 else f"{value:,.0f} us"


def _rows_per_s(row_us: float) -> str:
    return f"{_us(row_us)}, {_US / row_us:,.0f} rows/s of a core"


def _latency(each: Measured) -> str:
    return " and ".join(f"{each.latency_ms.get(name, 0.0):.2f}" for name in ("p50", "p99")) + " ms"
