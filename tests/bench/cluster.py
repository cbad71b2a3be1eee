"""What a cluster costs: NATS servers, a keeper and fronts on this machine, under one load after another.

Each load runs for a while on all of them, and the CPU time of each process is read before it and after it. What they
use without a load is taken off where a figure is per event. Nothing is pinned to a core: where there are fewer cores
than processes, trust CPU times more than latencies.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from bench.cluster_result import ClusterFigures, Measured
from bench.rounds import side_command, side_environment

from halley.bench.coordinator import Coordinator, Report, StartWorker, bayeux_worker, coordinated
from halley.bench.load import BenchFailed, Load, together
from halley.bench.measurement import Phase, Watch, while_alive
from halley.bench.orders import running_worker
from halley.bench.requests import channel_name
from halley.bench.tally import percentiles
from halley.bench.target import Target, halley_command, metrics_of, started, usage_of
from halley.processes import free_port

FEW_PER_S = 200.0
RECEIVERS = 100
"""Held polls at a node, while deliveries are measured."""

POLLS = 16
"""Polls under way, where there are many: another one goes out as soon as one is answered."""

_BATCH = 50
_CHANNELS = 100
_PUBLISHERS = 64
_DELIVERED_PER_S = 20.0
_POLLED_PER_S = 200.0
_WARM_UP_S = 1.0
_STOPPED_S = 1.0
"""How long the keeper stands still. It says once a second that it is there, and after 2.5 s without that fronts refuse
durable publishes.
"""

_READ_S = 60.0
_STREAM_BYTES = 8_589_934_592
_FRAMES = re.compile(r"^halley_cluster_frames_in_total (\S+)$", re.MULTILINE)
_FULL = 0.9
_ROOM = {
    "HALLEY_LIMITS_QUEUE_EVENTS": "1000000",  # what is measured is not the limit
    "HALLEY_LIMITS_QUEUE_BYTES": "1000000000",
    "HALLEY_CLUSTER_JOIN_S": "18",  # three NATS servers have to elect one of them first
}


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What is to be measured: the number of fronts and NATS servers, and the rate at which events are published."""

    nodes: int = 2
    servers: int = 1
    rate: float = 20_000.0
    seconds: float = 5.0


async def measure_cluster(plan: ClusterPlan, nats_server: str, watch: Watch = lambda _: None) -> ClusterFigures:
    """Start a cluster, measure it, and end it; `nats_server` is the program. Raises `BenchFailed`."""
    found = ClusterFigures(
        nodes=plan.nodes,
        servers=plan.servers,
        rate=plan.rate,
        seconds=plan.seconds,
        receivers=RECEIVERS,
        polls=POLLS,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cores=os.cpu_count() or 1,
        load_average=os.getloadavg()[0],
    )
    loads = _loads(plan)
    async with _running(plan, nats_server) as cluster:
        for number, (name, work) in enumerate(loads.items()):
            watch(Phase(name, number, len(loads), f"{number + 1} of {len(loads)}"))
            found.measured[name] = await while_alive(cluster.died(), _measure(cluster, work, plan.seconds))
    return found


@dataclass(frozen=True, slots=True)
class _Work:
    """A load, or only time, and the places of the nodes that it is put on.

    `via` is the place of the node to which it sends its requests instead. With `is_behind`, the keeper stands still
    under the load, and how it catches up is measured.
    """

    load: Load | None = None
    places: Sequence[int] = ()
    via: int | None = None
    is_behind: bool = False


def _loads(plan: ClusterPlan) -> Mapping[str, _Work]:
    """Return each load by name."""
    everywhere, seconds = range(plan.nodes), plan.seconds
    publish = partial(Load, "publish", publishers=_PUBLISHERS, channels=_CHANNELS, seconds=seconds)
    many = partial(publish, rate=plan.rate, batch=_BATCH)
    stopped_s = min(_STOPPED_S, seconds)
    waiting = int(plan.rate * stopped_s / _BATCH)  # publishers, in the end, for the keeper to go on
    fanout = partial(Load, "fanout", seconds=seconds)
    poll = Load("publish", publishers=1, rate=_POLLED_PER_S, seconds=seconds)
    polls = Load("publish", publishers=POLLS, seconds=seconds)
    delivered = partial(fanout, rate=_DELIVERED_PER_S)
    return {
        "idle": _Work(),
        "few": _Work(publish(rate=FEW_PER_S), (0,)),
        "many": _Work(many(processes=plan.nodes), everywhere),
        "passed": _Work(many(), (0,)),
        "behind": _Work(
            many(publishers=_PUBLISHERS + waiting, processes=plan.nodes, seconds=stopped_s), everywhere, is_behind=True
        ),
        "applied": _Work(
            fanout(receivers=plan.nodes, processes=plan.nodes, publishers=_PUBLISHERS, rate=plan.rate, batch=_BATCH),
            everywhere,
        ),
        "one": _Work(delivered(receivers=RECEIVERS), (0,)),
        "all": _Work(delivered(receivers=RECEIVERS * plan.nodes, processes=plan.nodes), everywhere),
        "direct": _Work(poll, (0,), via=0),
        "relayed": _Work(poll, (0,), via=1),
        "direct_many": _Work(polls, (0,), via=0),
        "relayed_many": _Work(polls, (0,), via=1),
    }


async def _measure(cluster: _Cluster, work: _Work, seconds: float) -> Measured:
    if work.load is None:
        begun = await cluster.usage()
        await asyncio.sleep(seconds)
        return _measured(begun, await cluster.usage())
    urls = [cluster.fronts[place].url for place in work.places]
    start = _at_each(urls) if work.via is None else partial(_polls, via=cluster.fronts[work.via].url)
    async with coordinated(work.load, urls[0], None, (), start) as workers:
        await workers.open(1)
        await workers.round(1, min(_WARM_UP_S, seconds))
        if work.is_behind:
            begun, report = await _behind(cluster, workers, work.load.seconds)
        else:
            begun, report = await cluster.usage(), await workers.round(2, work.load.seconds)
        measured = _measured(begun, await cluster.usage())
    counts = report.counts
    measured.events, measured.deliveries = counts["acknowledged"], counts["deliveries"]
    measured.per_s = counts["acknowledged"] / report.seconds
    measured.latency_ms = percentiles(report.latencies_us)
    measured.unsent, measured.lost, measured.repeated = counts["unsent"], counts["lost"], counts["repeated"]
    measured.errors = dict(report.errors)
    measured.is_load_full = max(report.busy_shares) >= _FULL
    return measured


async def _behind(cluster: _Cluster, workers: Coordinator, seconds: float) -> tuple[_Usage, Report]:
    """Stop the keeper for a round of the load, and wait until it has all events.

    Returns what was used until it went on, and the report of the load. Where the keeper settles events, it has all when
    all are acknowledged; else when a front gets a page of the history, which is not sent before.
    """

    async def resume() -> _Usage:
        await asyncio.sleep(seconds)
        usage = await cluster.usage()
        cluster.signal_keeper(signal.SIGCONT)
        return usage

    cluster.signal_keeper(signal.SIGSTOP)
    resuming = asyncio.create_task(resume())
    try:
        report = await workers.round(2, seconds)
        begun = await resuming
    finally:
        resuming.cancel()
    if len(cluster.nats) > 1:
        await _page_of(cluster.fronts[0])
    return begun, report


async def _page_of(front: Target) -> None:
    """Wait for a page of the history. Raises `BenchFailed`."""
    url = f"{front.url.removesuffix('/bayeux')}/history{channel_name(0)}?limit=1"
    try:
        async with httpx.AsyncClient(timeout=_READ_S) as http:
            (await http.get(url)).raise_for_status()
    except httpx.HTTPError as error:
        raise BenchFailed(f"no history from {url}: {error}") from error


def _at_each(urls: Sequence[str]) -> StartWorker:
    """Return what starts the workers of a load at these servers in turn, instead of all at one."""

    def start(core: int | None, *, share: dict[str, Any], token: str | None, **_url: str) -> Any:
        return bayeux_worker(core, share=share, token=token, url=urls[share["number"] % len(urls)])

    return start


_polls = partial(running_worker, side_command("polls"), environment=side_environment())


@dataclass(frozen=True, slots=True)
class _Usage:
    """What the processes have used until a moment: CPU time by name, and the frames that the last front has applied."""

    at_s: float
    cpu_s: Mapping[str, float]
    frames: int


def _measured(begun: _Usage, ended: _Usage) -> Measured:
    cpu_s = {name: ended.cpu_s[name] - begun.cpu_s[name] for name in ended.cpu_s}
    return Measured(seconds=ended.at_s - begun.at_s, cpu_s=cpu_s, frames=ended.frames - begun.frames)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A cluster that runs. Its processes by name: "n1" and so on are the fronts, "keeper", and "nats" all servers."""

    nats: Sequence[Target]
    keeper: Target
    fronts: Sequence[Target]

    async def usage(self) -> _Usage:
        """Return what all processes have used so far. Raises `BenchFailed`."""
        cpu_s = {each.name: _cpu_s(each) for each in (*self.fronts, self.keeper)}
        cpu_s["nats"] = sum(map(_cpu_s, self.nats))
        return _Usage(time.monotonic(), cpu_s, await _frames(self.fronts[-1]))

    def signal_keeper(self, number: signal.Signals) -> None:
        """Send the keeper's process a signal; that it has ended is noticed by `died`."""
        if self.keeper.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.keeper.pid, number)

    async def died(self) -> str:
        """Wait until one of the processes ends; return a sentence on how it ended."""
        targets = (*self.nats, self.keeper, *self.fronts)
        deaths = [asyncio.create_task(each.died()) for each in targets]
        try:
            await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            return next(
                f"{each.name}: {death.result()}" for each, death in zip(targets, deaths, strict=True) if death.done()
            )
        finally:
            for death in deaths:
                death.cancel()


def _cpu_s(target: Target) -> float:
    cpu_s = None if target.pid is None else usage_of(target.pid).cpu_s
    if cpu_s is None:
        raise BenchFailed("the CPU time of processes is unknown on this system: /proc is missing")
    return cpu_s


async def _frames(front: Target) -> int:
    match = _FRAMES.search(await metrics_of(f"{front.metrics_url}"))
    if match is None:
        raise BenchFailed(f"{front.metrics_url} lacks halley_cluster_frames_in_total")
    return int(float(match[1]))


# The processes


@asynccontextmanager
async def _running(plan: ClusterPlan, nats_server: str) -> AsyncIterator[_Cluster]:
    """Run a cluster within the block, with its files in a folder that is removed. Raises `BenchFailed`."""
    place = os.environ.get("TMPDIR", "/var/tmp")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="halley-bench-", dir=place)))
        routes = [free_port() for _ in range(plan.servers)]

        async def start(name: str, running: AbstractAsyncContextManager[Target]) -> Target:
            try:
                return await stack.enter_async_context(running)
            except BenchFailed as error:
                raise BenchFailed(f"{name}: {error}") from None

        servers = range(plan.servers)
        nats = [await start("nats", _nats(nats_server, folder, routes, number)) for number in servers]
        urls = ",".join(each.url for each in nats)
        keeper = await start("keeper", _node(folder, "keeper", urls, plan.servers))
        names = [f"n{number}" for number in range(1, plan.nodes + 1)]
        fronts = await together(start(name, _node(folder, name, urls, plan.servers, "--front")) for name in names)
        yield _Cluster(nats, keeper, fronts)


@asynccontextmanager
async def _nats(program: str, folder: Path, routes: Sequence[int], number: int) -> AsyncIterator[Target]:
    file = folder / f"nats-{number}.conf"
    peers = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
    cluster = f"cluster {{ name: bench, listen: 127.0.0.1:{routes[number]}, routes: [{peers}] }}\n"
    store = f'store_dir: "{folder}/nats-{number}", max_file_store: {_STREAM_BYTES}, sync_interval: always'

    def configure(port: int) -> None:
        file.write_text(
            f"server_name: n{number}\nlisten: 127.0.0.1:{port}\njetstream {{ {store} }}\n" + cluster * (len(routes) > 1)
        )

    async with started([program, "-c", str(file)], "nats", is_pinned=False, prepare=configure) as target:
        target.url = f"nats://{target.url.removeprefix('http://').removesuffix('/bayeux')}"
        yield target


@asynccontextmanager
async def _node(folder: Path, name: str, urls: str, servers: int, *more: str) -> AsyncIterator[Target]:
    operations = free_port()
    command = [
        *halley_command(data_dir=folder / name),
        *("--operations-port", str(operations), "--cluster", urls, "--node", name, *more),
    ]
    settled_by = {"HALLEY_CLUSTER_SETTLED_BY": "keeper" if servers == 1 else "stream"}
    async with started(command, name, is_pinned=False, environment=_ROOM | settled_by) as target:
        target.metrics_url = f"http://127.0.0.1:{operations}/metrics"
        yield target
