"""WAMP's fan-out: one publisher and many WebSocket subscribers, on Halley with history and without, and on crossbar.

Each server is freshly started in every round and gets the same three phases from one worker (`wamp_load.py`): several
publications under way (its highest rate), one (the time until the last subscriber has it), and a fixed rate.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Figures, Rows, rounds_of
from bench.rounds import disk, in_turn, is_in_memory, load_worker
from bench.wamp_load import REALM

from app.bench.measurement import Phase, Watch
from app.bench.target import Target, Usage, halley_command, started

_UNBOUNDED = {"HALLEY_WAMP_PUBLISHES_PER_S": "0", "HALLEY_HISTORY_MAX_BYTES": str(1 << 40)}
"""Settings without the limits for one client, which would interfere."""


@dataclass(frozen=True, slots=True)
class WampPlan:
    """The size of the measurement: `window` publications are under way in the phase of that name.

    In the paced phase, `rate` publications per second are due. If no event arrives for `grace_s` after a phase, missing
    ones are lost. `crossbar` is the program in the environment that it is installed in; None leaves it out.
    """

    subscribers: int = 100
    payload_chars: int = 64
    window: int = 8
    rate: float = 20.0
    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = 1.0
    grace_s: float = 5.0
    crossbar: Path | None = None
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
    names = servers or [ON, OFF, *([CROSSBAR] if plan.crossbar else [])]
    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=plan.data_dir or disk()) as name:
        folder = Path(name)
        found = WampFigures(
            plan=_shown(plan),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            is_in_memory=is_in_memory(folder),
        )
        await in_turn(names, plan.rounds, folder, partial(_serving, plan), partial(_measure, plan, found), watch)
        return found


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


def _serving(plan: WampPlan, server: str, folder: Path) -> AbstractAsyncContextManager[Target]:
    if server == CROSSBAR:
        assert plan.crossbar is not None
        return crossbar(plan.crossbar, folder, is_pinned=plan.is_pinned)
    command = halley_command(data_dir=folder if server == ON else None)
    return started(command, server, path="/ws", is_pinned=plan.is_pinned, environment=_UNBOUNDED)


def _shown(plan: WampPlan) -> dict[str, object]:
    return {
        "subscribers": plan.subscribers,
        "payload_chars": plan.payload_chars,
        "window": plan.window,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
    }


_ALL = {"call": True, "register": True, "publish": True, "subscribe": True}


def crossbar(program: Path, folder: Path, *, is_pinned: bool) -> AbstractAsyncContextManager[Target]:
    """Start a separate node in an empty folder; `program` is `bin/crossbar` of the environment it is installed in.

    Like Halley, it does not disclose publishers. It stores nothing. Raises `BenchFailed` as `started` does.
    """
    return started(
        [str(program), "start", "--cbdir", str(folder), "--loglevel", "error"],
        "crossbar",
        path="/ws",
        is_pinned=is_pinned,
        prepare=lambda port: (folder / "config.json").write_text(json.dumps(_configuration(port)), encoding="utf-8"),
    )


def _configuration(port: int) -> dict[str, object]:
    permission = {"uri": "", "match": "prefix", "allow": _ALL, "disclose": {"caller": False, "publisher": False}}
    websocket = {
        "type": "websocket",
        "serializers": ["json"],
        "auth": {"anonymous": {"type": "static", "role": "anonymous"}},
    }
    transport = {
        "type": "web",
        "endpoint": {"type": "tcp", "port": port, "interface": "127.0.0.1"},
        "paths": {"/": {"type": "static", "directory": "."}, "ws": websocket},
    }
    realm = {"name": REALM, "roles": [{"name": "anonymous", "permissions": [permission | {"cache": True}]}]}
    return {"version": 2, "workers": [{"type": "router", "realms": [realm], "transports": [transport]}]}


ON, OFF, CROSSBAR = "halley", "halley without history", "crossbar"
"""The servers. With the history, every event is on disk before it is delivered."""

_MB = 1_000_000


@dataclass(slots=True)
class WampFigures(Figures):
    """Figures by the phases `window`, `single` and `paced`."""

    verb = "wamp"
    order = ON, OFF, CROSSBAR

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
        if server != ON and phase != "paced":  # with a history, the server's own writer uses its core too
            self.warn_if_core_was_shared(name, counts, used)


def wamp_table(found: WampFigures) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = (
        f"wamp: 1 publisher, {plan['subscribers']} subscribers, wamp.2.json, {plan['payload_chars']} characters; "
        f"{rounds_of(plan)}"
    )
    rows = Rows(found, [(ON, CROSSBAR), (OFF, CROSSBAR)] if CROSSBAR in found.servers else [(ON, OFF)])
    rows.add(f"deliveries, {plan['window']} under way", "window", "deliveries_per_s", "/s")
    rows.add("  per second of the server's CPU", "window", "deliveries_per_cpu_s", "")
    rows.add("1 under way: to the last subscriber, p50", "single", "p50", "ms")
    rows.add("  p99", "single", "p99", "ms")
    rows.add(f"{plan['rate']:g} publishes/s: each delivery, p50", "paced", "p50", "ms")
    rows.add("  p99", "paced", "p99", "ms")
    rows.add("server's memory", "paced", "rss_mb", "MB")
    return "\n".join([title, *rows.lines(), *found.sentences])
