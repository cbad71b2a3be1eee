"""NetworkTables' fan-out: one publisher and subscribers that want every value, on Halley and on ntcore.

Each server is freshly started in every round and gets the same rates from one load process. That uses raw sockets,
because the period of a real client would hide the server's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from app.bench.disk import disk
from app.bench.measurement import Phase
from app.bench.nt4_figures import NTCORE, OFF, ON, Nt4Figures
from app.bench.ntcore import ntcore
from app.bench.orders import ordered
from app.bench.rounds import Watch, in_turn
from app.bench.target import Target, halley_command, started

_UNBOUNDED = {"HALLEY_NT4_VALUES_PER_S": "0", "HALLEY_HISTORY_MAX_BYTES": str(1 << 40)}
"""Settings without the limits for one client, which would interfere."""


@dataclass(frozen=True, slots=True)
class Nt4Plan:
    """The size of the measurement: `rates` are in values per second, each for `seconds`.

    The publisher writes every `every_s`, and subscribers request values every `periodic_s`. If no value arrives for
    `grace_s` after the end, missing ones are given up. `ntcore` is a Python interpreter with pyntcore; None leaves
    ntcore out. With `history`, Halley is also measured with a history.
    """

    subscribers: int = 20
    rates: Sequence[int] = (10_000, 100_000)
    periodic_s: float = 0.01
    every_s: float = 0.005
    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = 1.0
    grace_s: float = 0.5
    history: bool = False
    ntcore: Path | None = None
    is_pinned: bool = True
    data_dir: Path | None = None


async def measure_nt4(plan: Nt4Plan, watch: Watch = lambda _: None, *, servers: Sequence[str] = ()) -> Nt4Figures:
    """Measure the `servers` (all, if empty) in turn, `plan.rounds` times. Raises `BenchFailed`."""
    names = servers or [OFF, *([ON] if plan.history else []), *([NTCORE] if plan.ntcore else [])]
    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=plan.data_dir or disk()) as name:
        folder = Path(name)
        shown = {each: value for each, value in asdict(plan).items() if each not in ("ntcore", "data_dir", "is_pinned")}
        found = Nt4Figures(plan=shown, date=datetime.now(UTC).isoformat(timespec="seconds"))
        await in_turn(names, plan.rounds, folder, partial(_serving, plan), partial(_measure, plan, found), watch)
        return found


async def _measure(plan: Nt4Plan, found: Nt4Figures, server: str, target: Target, watch: Watch) -> None:
    asked = {name: getattr(plan, name) for name in ("subscribers", "periodic_s", "every_s", "grace_s")}
    async with ordered("app.bench.nt4_load", target, **asked) as order:
        watch(Phase("opening", 0, plan.subscribers, "sessions"))
        await order(do="open")
        if plan.warm_up_s:
            await order(do="paced", rate=min(plan.rates), seconds=plan.warm_up_s)
        for number, rate in enumerate(plan.rates):
            watch(Phase(f"{rate:,} values/s", number, len(plan.rates), "rates"))
            before = await target.usage()
            told = await order(do="paced", rate=rate, seconds=plan.seconds)
            found.take(rate, server, told, before, await target.usage(), plan.subscribers)


def _serving(plan: Nt4Plan, server: str, folder: Path) -> AbstractAsyncContextManager[Target]:
    if server == NTCORE:
        assert plan.ntcore is not None
        return ntcore(plan.ntcore, folder, is_pinned=plan.is_pinned)
    command = [*halley_command(data_dir=folder if server == ON else None), "--nt4", "--nt4-port", "0"]
    return started(command, server, path="/nt/bench", is_pinned=plan.is_pinned, environment=_UNBOUNDED)
