"""What the durable history costs: the same loads with it and without it, in turn, and reads of logs of several sizes.

The event loop's lag is measured from outside: while the load runs, an otherwise idle connection sends a poll every few
milliseconds to which the server replies immediately, so the reply takes as long as the loop is busy with other work.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import MUCH, Figures, cell, columns, rounds_of
from bench.logs import fill_apart
from bench.reads import CHANNELS, RARE_EVENTS, WIDE_CHANNELS, Stock, off_the_servers_core, probing, read, read_wide
from bench.rounds import disk, is_in_memory, noted

from halley.bench.load import Load
from halley.bench.measurement import Watch, measure
from halley.bench.result import Result
from halley.bench.tally import percentiles
from halley.bench.target import Target, halley_command, started

STORED = (10_000, 1_000_000)
_ASKED_EVERY_S = 0.005
_WARM_UP_S = 2.0
_MOST_BYTES = 1 << 40  # of the log, so that retention does not interfere


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """The size of the measurement: `rate` is in recorded events per second, while the event loop's lag is measured.

    `stored` are the sizes of the logs that are read, in events; `batch` is the events per request in the batched loads.
    """

    publishers: int = 100
    batch: int = 20
    rate: float = 20_000.0
    stored: Sequence[int] = STORED
    rounds: int = 3
    seconds: float = 5.0
    warm_up_s: float = _WARM_UP_S
    processes: int = 1
    is_pinned: bool = True
    data_dir: Path | None = None

    def loads(self) -> dict[str, Load]:
        """Return the loads, by name, that are put on a server with the history and on one without it."""
        single = Load(
            "publish",
            publishers=self.publishers,
            seconds=self.seconds,
            warm_up_s=self.warm_up_s,
            processes=self.processes,
        )
        batched = replace(single, batch=self.batch)
        return {
            "single": single,
            "batched": batched,
            "received": replace(single, verb="one-to-one", receivers=1, publishers=1),
            "steady": replace(batched, rate=self.rate),
        }


async def measure_history(plan: HistoryPlan, watch: Watch = lambda _: None) -> HistoryFigures:
    """Measure every load `plan.rounds` times, and read logs of every size. Raises `BenchFailed`."""
    with tempfile.TemporaryDirectory(prefix="halley-bench-", dir=plan.data_dir or disk()) as name:
        folder = Path(name)
        found = HistoryFigures(
            plan=_shown(plan),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            is_in_memory=is_in_memory(folder),
        )
        for number in range(1, plan.rounds + 1):
            for load_name, load in plan.loads().items():
                for switch in found.order if number % 2 else reversed(found.order):
                    data_dir = folder / f"{load_name}-{number}" if switch == "on" else None
                    async with _serving(plan, data_dir) as target:
                        on_phase = noted(watch, f"{number}/{plan.rounds} {load_name}, {switch}")
                        found.take(load_name, switch, await _loaded(load, target, on_phase))
        for count in plan.stored:
            stock = folder / f"stock-{count}"
            await fill_apart(stock, count, CHANNELS, watch)
            async with _serving(plan, stock) as target:
                found.stock[count] = await read(target, count, watch)
            found.wide[count] = {}
            for reader, legible in (("all", None), ("rare", RARE_EVENTS)):
                stock = folder / f"wide-{reader}-{count}"
                await fill_apart(stock, count, WIDE_CHANNELS, watch, legible=legible)
                async with _serving(plan, stock) as target:
                    found.wide[count][reader] = await read_wide(target, count, watch, is_rare=reader == "rare")
        return found


async def _loaded(load: Load, target: Target, watch: Watch) -> tuple[Result, dict[str, float]]:
    """Measure one load; if it has a fixed rate, also measure how long the event loop keeps another client waiting."""
    if not load.rate:
        return await measure(load, target, watch), {}
    with off_the_servers_core(target):
        async with probing(target) as probe:
            measuring = asyncio.create_task(measure(load, target, watch))
            try:
                polls = iter(lambda: b"" if measuring.done() else probe.poll(), b"")
                times_us, _ = await probe.times_us(polls, every_s=_ASKED_EVERY_S)
            finally:
                result = await measuring
    return result, {f"lag_{name}": value for name, value in percentiles(times_us).items()}


def _serving(plan: HistoryPlan, data_dir: Path | None) -> AbstractAsyncContextManager[Target]:
    environment = {"HALLEY_HISTORY_MAX_BYTES": str(_MOST_BYTES)}
    return started(halley_command(data_dir=data_dir), is_pinned=plan.is_pinned, environment=environment)


def _shown(plan: HistoryPlan) -> dict[str, object]:
    return {
        "publishers": plan.publishers,
        "batch": plan.batch,
        "rate": plan.rate,
        "rounds": plan.rounds,
        "seconds": plan.seconds,
        "channels": CHANNELS,
    }


@dataclass(slots=True)
class HistoryFigures(Figures):
    """Figures by load (`single`, `batched`, `received`, `steady`) with the history `on` and `off`, and of reads.

    `stock`: reads of a channel's newest events, by the number of events stored. `wide`: times of pages over very many
    channels, in ms by percentile, by the number of events stored, for a reader of `all` events or of `rare` ones.
    """

    verb = "history"
    order = "off", "on"

    stock: dict[int, Stock] = field(default_factory=dict)
    wide: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)

    def take(self, load: str, switch: str, found: tuple[Result, dict[str, float]]) -> None:
        """Add the figures of one measurement."""
        result, more = found
        figures = {"publishes_per_s": result.publishes_per_s, **result.latency_ms, **more}
        if result.server_cpu_us is not None:
            figures["server_cpu_us"] = result.server_cpu_us
        self.add(load, switch, figures)
        name = f"{load}, history {switch}"
        if not result.is_clean:
            self.wrong.append(f"{name}: {result.lost} lost, {result.repeated} repeated, errors {result.errors}")
        if result.unsent:
            self.warnings.append(f"{name}: {result.unsent:,} due events were not sent, because no publisher was free")
        # With a history, the server's own writer thread uses its core too.
        if switch == "off" and (result.server_waited_share or 0) >= MUCH:
            self.warnings.append(
                f"{name}: something else used the server's core {result.server_waited_share:.0%} of the time"
            )
        if result.limit == "load":
            self.warnings.append(f"{name}: the load generator was the limit")


def history_table(found: HistoryFigures) -> str:
    """Return all results as a table, with the conditions of the measurement and warnings."""
    plan = found.plan
    title = f"history at halley: {plan['publishers']} publishers, closed loop; {rounds_of(plan)}"
    lines = columns([["", "history off", "history on", "on vs. off"], *_lines(found)])
    return "\n".join([title, *lines, *found.sentences])


def _lines(found: HistoryFigures) -> Iterator[list[str]]:
    plan = found.plan
    batch, rate = plan["batch"], plan["rate"]
    for load, what in (("single", "one per request"), ("batched", f"{batch} per request")):
        yield _line(found, f"publishes acknowledged, {what}", load, "publishes_per_s", "/s")
        yield _line(found, "  reply, p50", load, "p50", "ms")
        yield _line(found, "  reply, p99", load, "p99", "ms")
        yield _line(found, "  server CPU per publish", load, "server_cpu_us", "us")
    yield _line(found, "publish to receive, 1 to 1, p50", "received", "p50", "ms", is_added=True)
    yield _line(found, f"at {rate:,.0f} publishes/s: reached", "steady", "publishes_per_s", "/s")
    yield _line(found, "  reply, p99", "steady", "p99", "ms")
    yield _line(found, "  event loop's lag, p50", "steady", "lag_p50", "ms")
    yield _line(found, "  event loop's lag, p99", "steady", "lag_p99", "ms")
    for count, stock in found.stock.items():
        yield [f"newest 100 of a channel, {count:,} stored, p50", "", f"{stock.read_ms['p50']:.2f} ms", ""]
        yield ["  p99", "", f"{stock.read_ms['p99']:.2f} ms", ""]
        yield ["  the first read", "", f"{stock.first_ms:.2f} ms", ""]
        if stock.rss_mb is not None and stock.read_rss_mb is not None:
            yield ["  server's memory after opening", "", f"{stock.rss_mb:.1f} MB", ""]
            yield ["  server's memory after the reads", "", f"{stock.read_rss_mb:.1f} MB", ""]
    for count, readers in found.wide.items():
        for reader, what in (("all", "of"), ("rare", f"of {RARE_EVENTS} readable events in")):
            paged = f"page {what} {WIDE_CHANNELS:,} channels, {count:,} stored, p50"
            yield [paged, "", f"{readers[reader]['p50']:.2f} ms", ""]
            yield ["  p99", "", f"{readers[reader]['p99']:.2f} ms", ""]


def _line(found: HistoryFigures, what: str, load: str, name: str, unit: str, *, is_added: bool = False) -> list[str]:
    off, on = (found.median(load, switch, name) for switch in found.order)
    ratio = ""
    if off and on is not None:
        ratio = f"{on - off:+.2f} {unit}" if is_added else f"{on / off:.2f} x"
    return [what, cell(off, unit), cell(on, unit), ratio]
