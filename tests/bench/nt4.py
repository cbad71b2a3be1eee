"""NetworkTables' fan-out: one publisher and subscribers that want every value, on Halley and on ntcore.

Each server is freshly started in every round and gets the same rates from one worker (`nt4_load.py`). That uses raw
sockets, because the period of a real client would hide the server's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import MUCH, Figures, Rows, rounds_of
from bench.rounds import disk, in_turn, load_worker

from halley.bench.measurement import Phase, Watch
from halley.bench.target import Target, Usage, halley_command, started

_UNBOUNDED = {"HALLEY_NT4_VALUES_PER_S": "0", "HALLEY_HISTORY_MAX_BYTES": str(1 << 40)}
"""Settings without the limits for one client, which would interfere."""


@dataclass(frozen=True, slots=True)
class Nt4Plan:
    """The size of the measurement: `rates` are in values per second, each for `seconds`.

    The publisher writes every `every_s`, and subscribers request values every `periodic_s`. If no value arrives for
    `grace_s` after the end, missing ones are given up. With `history`, Halley is also measured with a history.
    `compiled` is the Python for which a compiled Halley is installed, and `ntcore` one that has pyntcore; servers that
    are None are left out.
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
    compiled: Path | None = None
    ntcore: Path | None = None
    is_pinned: bool = True
    data_dir: Path | None = None


async def measure_nt4(plan: Nt4Plan, watch: Watch = lambda _: None, *, servers: Sequence[str] = ()) -> Nt4Figures:
    """Measure the `servers` (all, if empty) in turn, `plan.rounds` times. Raises `BenchFailed`."""
    others = {ON: plan.history, COMPILED: plan.compiled, NTCORE: plan.ntcore}
    names = servers or [OFF, *(name for name, is_wanted in others.items() if is_wanted)]
    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=plan.data_dir or disk()) as name:
        folder = Path(name)
        shown = {
            each: value
            for each, value in asdict(plan).items()
            if each not in ("compiled", "ntcore", "data_dir", "is_pinned")
        }
        found = Nt4Figures(plan=shown, date=datetime.now(UTC).isoformat(timespec="seconds"))
        await in_turn(names, plan.rounds, folder, partial(_serving, plan), partial(_measure, plan, found), watch)
        return found


async def _measure(plan: Nt4Plan, found: Nt4Figures, server: str, target: Target, watch: Watch) -> None:
    arguments = {name: getattr(plan, name) for name in ("subscribers", "periodic_s", "every_s", "grace_s")}
    async with load_worker("nt4_load", target, **arguments) as worker:
        watch(Phase("opening", 0, plan.subscribers, "sessions"))
        await worker.ask("open")
        if plan.warm_up_s:
            await worker.ask("paced", rate=min(plan.rates), seconds=plan.warm_up_s)
        for number, rate in enumerate(plan.rates):
            watch(Phase(f"{rate:,} values/s", number, len(plan.rates), "rates"))
            before = await target.usage()
            counts = await worker.ask("paced", rate=rate, seconds=plan.seconds)
            found.take(rate, server, counts, before, await target.usage(), plan.subscribers)


def _serving(plan: Nt4Plan, server: str, folder: Path) -> AbstractAsyncContextManager[Target]:
    if server == NTCORE:
        assert plan.ntcore is not None
        return ntcore(plan.ntcore, folder, is_pinned=plan.is_pinned)
    python = plan.compiled if server == COMPILED else None
    command = halley_command(data_dir=folder if server == ON else None, python=python)
    return started(
        [*command, "--nt4", "--nt4-port", "0"],
        server,
        path="/nt/bench",
        is_pinned=plan.is_pinned,
        environment=_UNBOUNDED,
    )


_NOT_SHOWN = {"compiled", "ntcore", "data_dir", "is_pinned"}

_PROGRAM = """
import signal, sys, ntcore
server = ntcore.NetworkTableInstance.create()
server.startServer(sys.argv[1], "127.0.0.1", 0, int(sys.argv[2]))
signal.pause()
"""


def ntcore(python: Path, folder: Path, *, is_pinned: bool) -> AbstractAsyncContextManager[Target]:
    """Start a separate server with its file in `folder`. Raises `BenchFailed` as `started` does."""
    command = [str(python), "-c", _PROGRAM, str(folder / "networktables.json"), "{port}"]
    return started(command, "ntcore", path="/nt/bench", is_pinned=is_pinned)


OFF, ON, COMPILED, NTCORE = "halley", "halley with history", "halley compiled", "ntcore"
"""The servers. With a history, values are recorded after they are delivered."""

_US = 1_000_000
_MB = 1_000_000


@dataclass(slots=True)
class Nt4Figures(Figures):
    """Figures whose phases are rates, as strings.

    A value that was replaced by a newer one is not a fault; the figure `kept` is the share of values delivered.
    """

    verb = "nt4"
    order = OFF, ON, COMPILED, NTCORE

    def take(
        self, rate: float, server: str, counts: dict[str, Any], before: Usage, after: Usage, subscribers: int
    ) -> None:
        """Add one phase: what the load process reported, and the server's usage before and after it."""
        name, used = f"{rate:g}/s at {server}", after.since(before)
        if not counts["deliveries"]:
            self.wrong.append(f"{name}: nothing was delivered")
            return
        figures = {each: counts[each] for each in ("offered_per_s", "flushes_per_s", "load_cpu_share")}
        figures |= counts["lag_ms"]
        figures["kept"] = counts["deliveries"] / (counts["published"] * subscribers)
        if used.rss_bytes is not None:
            figures["rss_mb"] = used.rss_bytes / _MB
        if used.cpu_s is not None:
            figures["server_cpu_share"] = used.cpu_s / counts["seconds"]
            figures["us_per_delivery"] = used.cpu_s * _US / counts["deliveries"]
        self.add(f"{rate:g}", server, figures)
        if counts["repeated"]:
            self.wrong.append(f"{name}: {counts['repeated']:,} repeated")
        if not self.load_was_the_limit(name, counts, used) and counts["offered_per_s"] < (1 - MUCH) * rate:
            self.warnings.append(f"{name}: the server accepted only {counts['offered_per_s']:,.0f} values/s")
        self.warn_if_core_was_shared(name, counts, used)


_LINES = (
    ("published", "offered_per_s", "/s"),
    ("delivered", "kept", "share"),
    ("server's CPU", "server_cpu_share", "share"),
    ("  per delivery", "us_per_delivery", "us"),
    ("lag, p50", "p50", "ms"),
    ("  p99", "p99", "ms"),
    ("flushes to each subscriber", "flushes_per_s", "/s"),
)


def nt4_table(found: Nt4Figures) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = (
        f"nt4: 1 publisher, {plan['subscribers']} subscribers, all values of a double every {plan['periodic_s']:g} s; "
        f"{rounds_of(plan)}"
    )
    other = NTCORE if NTCORE in found.servers else OFF
    rows = Rows(found, [(one, other) for one in (OFF, ON, COMPILED) if one in found.servers and one != other])
    for rate in found.figures:
        rows.head(f"{float(rate):,.0f} values/s")
        for what, name, unit in _LINES:
            rows.add(f"  {what}", rate, name, unit)
    rows.add("server's memory", next(reversed(found.figures), ""), "rss_mb", "MB")
    return "\n".join([title, *rows.lines(), *found.sentences])
