"""What a cluster costs: NATS servers, a keeper and fronts on this machine, under one load after another.

Each load runs for a while on all of them, and the CPU time of each process is read before it and after it. What they
use without a load is taken off where a figure is per event. Nothing is pinned to a core: where there are fewer cores
than processes, trust CPU times more than latencies.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.cluster_result import ClusterFigures, Measured
from app.bench.coordinator import StartWorker, bayeux_worker, coordinated
from app.bench.load import BenchFailed, Load, together
from app.bench.measurement import Phase, Watch, while_alive
from app.bench.orders import running_worker
from app.bench.tally import percentiles
from app.bench.target import Target, halley_command, metrics_of, started, usage_of
from app.processes import free_port, module_command

FEW_PER_S = 200.0
RECEIVERS = 100
"""Held polls at a node, while deliveries are measured."""

_BATCH = 50
_CHANNELS = 100
_PUBLISHERS = 64
_DELIVERED_PER_S = 20.0
_POLLED_PER_S = 200.0
_WARM_UP_S = 1.0
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
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cores=os.cpu_count() or 1,
        load_average=os.getloadavg()[0],
    )
    loads = _loads(plan)
    async with _running(plan, nats_server) as cluster:
        for number, (name, load) in enumerate(loads.items()):
            watch(Phase(name, number, len(loads), f"{number + 1} of {len(loads)}"))
            found.measured[name] = await while_alive(cluster, _measure(cluster, plan, *load))
    return found


_Load = tuple[Load | None, Sequence[int], int | None]
"""A load, the places of the nodes that it is put on, and of the node to which it sends its requests instead."""


def _loads(plan: ClusterPlan) -> Mapping[str, _Load]:
    """Return each load by name; None is only time."""
    everywhere, seconds = range(plan.nodes), plan.seconds
    publish = partial(Load, "publish", publishers=_PUBLISHERS, channels=_CHANNELS, seconds=seconds)
    many = partial(publish, rate=plan.rate, batch=_BATCH)
    fanout = partial(Load, "fanout", seconds=seconds)
    poll = Load("publish", publishers=1, rate=_POLLED_PER_S, seconds=seconds)
    delivered = partial(fanout, rate=_DELIVERED_PER_S)
    return {
        "idle": (None, (), None),
        "few": (publish(rate=FEW_PER_S), (0,), None),
        "many": (many(processes=plan.nodes), everywhere, None),
        "passed": (many(), (0,), None),
        "applied": (
            fanout(receivers=plan.nodes, processes=plan.nodes, publishers=_PUBLISHERS, rate=plan.rate, batch=_BATCH),
            everywhere,
            None,
        ),
        "one": (delivered(receivers=RECEIVERS), (0,), None),
        "all": (delivered(receivers=RECEIVERS * plan.nodes, processes=plan.nodes), everywhere, None),
        "direct": (poll, (0,), 0),
        "relayed": (poll, (0,), 1),
    }


async def _measure(
    cluster: _Cluster, plan: ClusterPlan, load: Load | None, places: Sequence[int], via: int | None
) -> Measured:
    if load is None:
        begun = await cluster.usage()
        await asyncio.sleep(plan.seconds)
        return _measured(begun, await cluster.usage())
    urls = [cluster.fronts[place].url for place in places]
    start = _at_each(urls) if via is None else partial(_polls, via=cluster.fronts[via].url)
    async with coordinated(load, urls[0], None, (), start) as workers:
        await workers.open(1)
        await workers.round(1, min(_WARM_UP_S, plan.seconds))
        begun = await cluster.usage()
        report = await workers.round(2, plan.seconds)
        measured = _measured(begun, await cluster.usage())
    counts = report.counts
    measured.events, measured.deliveries = counts["acknowledged"], counts["deliveries"]
    measured.per_s = counts["acknowledged"] / report.seconds
    measured.latency_ms = percentiles(report.latencies_us)
    measured.unsent, measured.lost, measured.repeated = counts["unsent"], counts["lost"], counts["repeated"]
    measured.errors = dict(report.errors)
    measured.is_load_full = max(report.busy_shares) >= _FULL
    return measured


def _at_each(urls: Sequence[str]) -> StartWorker:
    """Return what starts the workers of a load at these servers in turn, instead of all at one."""

    def start(core: int | None, *, share: dict[str, Any], token: str | None, **_url: str) -> Any:
        return bayeux_worker(core, share=share, token=token, url=urls[share["number"] % len(urls)])

    return start


_polls = partial(running_worker, module_command("app.bench.polls"))


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
    place = os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108 - which is on a disk; the folder in it is new
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
