"""WAMP's fan-out: one publisher and many WebSocket subscribers, on Halley with history and without, and on crossbar.

Each server is freshly started in every round and gets the same three phases from one load process: several publications
under way (its highest rate), one (the time until the last subscriber has it), and a fixed rate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.crossbar import crossbar
from app.bench.disk import disk, is_in_memory
from app.bench.measurement import Phase
from app.bench.orders import ordered
from app.bench.rounds import Watch, in_turn
from app.bench.target import Target, halley_command, started
from app.bench.wamp_figures import CROSSBAR, OFF, ON, WampFigures

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
            "window": {"do": "closed", "under_way": self.window, "seconds": self.seconds},
            "single": {"do": "closed", "under_way": 1, "seconds": self.seconds},
            "paced": {"do": "paced", "rate": self.rate, "seconds": self.seconds},
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
    asked = {name: getattr(plan, name) for name in ("subscribers", "payload_chars", "grace_s")}
    async with ordered("app.bench.wamp_load", target, **asked) as order:
        watch(Phase("opening", 0, plan.subscribers, "sessions"))
        await order(do="open")
        if plan.warm_up_s:
            await order(do="closed", under_way=plan.window, seconds=plan.warm_up_s)
        for number, (name, phase) in enumerate(plan.phases.items()):
            watch(Phase(name, number, len(plan.phases), "phases"))
            before = await target.usage()
            told = await order(**phase)
            found.take(name, server, told, before, await target.usage())


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
