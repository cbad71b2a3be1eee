"""WAMP's fan-out: one publisher and many WebSocket subscribers, on Halley with history and without, and on others.

Each server is freshly started in every round and gets the same three phases from one worker (`wamp_load.py`): several
publications under way (its highest rate), one (the time until the last subscriber has it), and a fixed rate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Figures, Rows, rounds_of
from bench.rounds import disk, in_turn, is_in_memory, load_worker
from bench.servers import CROSSBAR, NEXUS, Server, available, crossbar, halley, halley_compiled, nexus

from halley.bench.measurement import Phase, Watch
from halley.bench.target import Target, Usage, halley_command

_UNBOUNDED = {"HALLEY_WAMP_PUBLISHES_PER_S": "0", "HALLEY_HISTORY_MAX_BYTES": str(1 << 40)}
"""Settings without the limits for one client, which would interfere."""


@dataclass(frozen=True, slots=True)
class WampPlan:
    """The size of the measurement: `window` publications are under way in the phase of that name.

    In the paced phase, `rate` publications per second are due. If no event arrives for `grace_s` after a phase, missing
    ones are lost. `compiled` is the Python for which a compiled Halley is installed, and `crossbar` the program in the
    environment that it is installed in; None leaves them out. `has_nexus`: nexus is built and measured.
    """

    subscribers: int = 100
    payload_chars: int = 64
    window: int = 8
    rate: float = 20.0
    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = 1.0
    grace_s: float = 5.0
    compiled: Path | None = None
    crossbar: Path | None = None
    has_nexus: bool = False
    is_pinned: bool = True
    data_dir: Path | None = None

    @property
    def phases(self) -> dict[str, dict[str, Any]]:
        """The orders to the load process, by the name of the phase."""
        return {
            "window": {"what": "closed", "under_way": self.window, "seconds": self.seconds},
            "single": {"what": "closed", "under_way": 1, "seconds": self.seconds},
            "paced": {"what": "paced", "rate": self.rate, "seconds": self.seconds},
        }


async def measure_wamp(plan: WampPlan, watch: Watch = lambda _: None, *, servers: Sequence[str] = ()) -> WampFigures:
    """Measure the `servers` (all, if empty) in turn, `plan.rounds` times. Raises `BenchFailed`."""
    makes = _makes(plan)
    measured, left_out = available({name: make for name, make in makes.items() if not servers or name in servers})
    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=plan.data_dir or disk()) as name:
        folder = Path(name)
        found = WampFigures(
            plan=_shown(plan),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            is_in_memory=is_in_memory(folder),
            about=[*(each.about for each in measured.values()), *left_out],
        )

        def serving(server: str, own: Path) -> AbstractAsyncContextManager[Target]:
            return measured[server].started(own, is_pinned=plan.is_pinned, environment=_UNBOUNDED)

        await in_turn(list(measured), plan.rounds, folder, serving, partial(_measure, plan, found), watch)
        return found


_NOT_STORED = "Against it: it checks limits and rights, and counts for its metrics and console"
_STORED = f"{_NOT_STORED}; every event is on disk before it is delivered"


def _makes(plan: WampPlan) -> dict[str, Callable[[], Server]]:
    """Return how the servers of a plan are made, by name."""
    own = Path("{folder}")

    def make(name: str, server: Server, data_dir: Path | None, python: Path | None = None) -> Server:
        return replace(server, name=name, path="/ws", command=halley_command(data_dir=data_dir, python=python))

    makes: dict[str, Callable[[], Server]] = {
        ON: lambda: make(ON, halley(unfair=_STORED), own),
        OFF: lambda: make(OFF, halley(unfair=_NOT_STORED), None),
    }
    if plan.compiled:
        makes[COMPILED] = lambda: make(COMPILED, halley_compiled(plan.compiled, _STORED), own, plan.compiled)
    if plan.crossbar:
        makes[CROSSBAR] = partial(crossbar, plan.crossbar)
    if plan.has_nexus:
        makes[NEXUS] = nexus
    return makes


async def _measure(plan: WampPlan, found: WampFigures, server: str, target: Target, watch: Watch) -> None:
    arguments = {name: getattr(plan, name) for name in ("subscribers", "payload_chars", "grace_s")}
    async with load_worker("wamp_load", target, **arguments) as worker:
        watch(Phase("opening", 0, plan.subscribers, "sessions"))
        await worker.ask("open")
        if plan.warm_up_s:
            await worker.ask("closed", under_way=plan.window, seconds=plan.warm_up_s)
        for number, (name, phase) in enumerate(plan.phases.items()):
            watch(Phase(name, number, len(plan.phases), "phases"))
            before = await target.usage()
            counts = await worker.ask(**phase)
            found.take(name, server, counts, before, await target.usage())


def _shown(plan: WampPlan) -> dict[str, object]:
    return {
        "subscribers": plan.subscribers,
        "payload_chars": plan.payload_chars,
        "window": plan.window,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
    }


ON, OFF, COMPILED = "halley", "halley without history", "halley compiled"
"""This Halley, and one that is compiled. With the history, as that also has, events are on disk before delivery."""

_MB = 1_000_000


@dataclass(slots=True)
class WampFigures(Figures):
    """Figures by the phases `window`, `single` and `paced`; `about` has a sentence on each server."""

    verb = "wamp"
    order = ON, OFF, COMPILED, CROSSBAR, NEXUS

    about: list[str] = field(default_factory=list)

    def take(self, phase: str, server: str, counts: dict[str, Any], before: Usage, after: Usage) -> None:
        """Add one phase: what the load process reported, and the server's usage before and after it."""
        name, used = f"{phase} at {server}", after.since(before)
        figures = {each: counts[each] for each in ("deliveries_per_s", "load_cpu_share")} | counts["latency_ms"]
        if used.rss_bytes is not None:
            figures["rss_mb"] = used.rss_bytes / _MB
        if used.cpu_s and counts["deliveries"]:
            figures["deliveries_per_cpu_s"] = counts["deliveries"] / used.cpu_s
        self.add(phase, server, figures)
        for fault in ("lost", "repeated", "disordered"):
            if counts[fault]:
                self.wrong.append(f"{name}: {counts[fault]:,} {fault}")
        if counts["deliveries"]:
            self.load_was_the_limit(name, counts, used)
        else:
            self.wrong.append(f"{name}: nothing was delivered")
        if (
            server not in (ON, COMPILED) and phase != "paced"
        ):  # with a history, the server's own writer uses its core too
            self.warn_if_core_was_shared(name, counts, used)


def wamp_table(found: WampFigures) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = (
        f"wamp: 1 publisher, {plan['subscribers']} subscribers, wamp.2.json, {plan['payload_chars']} characters; "
        f"{rounds_of(plan)}"
    )
    ours = [name for name in (ON, OFF, COMPILED) if name in found.servers]
    pairs = [(one, other) for other in (CROSSBAR, NEXUS) if other in found.servers for one in ours]
    rows = Rows(found, pairs or [(one, OFF) for one in ours if one != OFF])
    rows.add(f"deliveries, {plan['window']} under way", "window", "deliveries_per_s", "/s")
    rows.add("  per second of the server's CPU", "window", "deliveries_per_cpu_s", "")
    rows.add("1 under way: to the last subscriber, p50", "single", "p50", "ms")
    rows.add("  p99", "single", "p99", "ms")
    rows.add(f"{plan['rate']:g} publishes/s: each delivery, p50", "paced", "p50", "ms")
    rows.add("  p99", "paced", "p99", "ms")
    rows.add("server's memory", "paced", "rss_mb", "MB")
    return "\n".join([title, *rows.lines(), *found.about, *found.sentences])
