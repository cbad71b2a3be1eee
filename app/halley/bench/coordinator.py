"""The coordinator of a load's workers: starts them, assigns their shares, keeps them in step, adds up their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from halley.bench.load import Load, Share, split, together
from halley.bench.orders import WorkerHandle, running_worker
from halley.processes import module_command

_OPEN_S = 600.0


@dataclass(slots=True)
class Report:
    """What all workers have found in a round: sums of their `COUNTS` and of `lost` events, errors and latencies.

    `seconds` is the time until the last event; `busy_shares` are the workers' CPU times as shares of a core.
    """

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    latencies_us: Counter[int] = field(default_factory=Counter)
    busy_shares: list[float] = field(default_factory=list)


class Coordinator:
    """Leads all workers; create it with `coordinated`.

    `on_progress` is called with the sums over all workers whenever one of them reports progress: open sessions,
    deliveries, acknowledged publishes, errors.
    """

    def __init__(self, shares: list[Share], workers: list[WorkerHandle]) -> None:
        self.on_progress: Callable[[int, int, int, int], object] = lambda *_: None
        self._shares = shares
        self._workers = workers
        self._opened = [0] * len(workers)
        self._begin()
        for number, worker in enumerate(workers):
            worker.on_report = partial(self._reported, number)

    async def open(self, share: float) -> tuple[int, float]:
        """Open sessions until that share of the receivers is open; with a share of 1, open the publishers too.

        Returns the number of connections made, and how many of them the server accepted per second, with handshake.
        """
        pairs = zip(self._workers, self._shares, strict=True)
        replies = await together(
            worker.ask("open", within_s=_OPEN_S, receivers=int(part.receivers * share)) for worker, part in pairs
        )
        rate = sum(each["connected"] / each["connecting_s"] for each in replies if each["connecting_s"])
        return sum(each["connected"] for each in replies), rate

    async def round(self, number: int, seconds: float, events: int = 0) -> Report:
        """Run the load for some seconds, wait for the events that are still under way, and return all counts.

        With `events`, it ends as soon as each receiver has got that number of them.
        """
        self._begin()
        await self._all("prepare", number=number)
        ended = await self._all("round", seconds=seconds, events=events)
        published = sum(each["published"] for each in ended)
        began_ns = min(each["began_ns"] for each in ended)
        report = Report(busy_shares=[each["busy_share"] for each in ended])
        report.seconds = max(each["seconds"] for each in ended)
        for found in await self._all("settle", published=published):
            report.counts.update(found["counts"])
            report.errors.update(found["errors"])
            report.latencies_us.update(dict(zip(*found["latencies_us"], strict=True)))
            report.seconds = max(report.seconds, (found["last_ns"] - began_ns) / 1e9)
        return report

    def _begin(self) -> None:
        self._arrived = [0] * len(self._workers)
        self._progress = [[0, 0, 0] for _ in self._workers]

    async def _all(self, what: str, **arguments: Any) -> list[dict[str, Any]]:
        return await together(worker.ask(what, **arguments) for worker in self._workers)

    def _reported(self, number: int, report: dict[str, Any]) -> None:
        """Handle a worker's report: of progress, or of events that have arrived at all receivers there.

        How many have arrived everywhere in the others is sent to the first worker, which publishes.
        """
        if "arrived" in report:
            self._arrived[number] = report["arrived"]
            self._workers[0].send(do="others_arrived", arrived=min(self._arrived[1:]))
            return
        if "opened" in report:
            self._opened[number] = report["opened"]
        else:
            self._progress[number] = report["progress"]
        self.on_progress(sum(self._opened), *map(sum, zip(*self._progress, strict=True)))


StartWorker = Callable[..., AbstractAsyncContextManager[WorkerHandle]]
"""Starts a worker on a core (None: any); its other arguments, `share`, `url` and `token`, are those of `begin`."""

bayeux_worker: StartWorker = partial(running_worker, module_command("halley.bench.worker"))


@asynccontextmanager
async def coordinated(
    load: Load, url: str, token: str | None, cores: Sequence[int], start_worker: StartWorker = bayeux_worker
) -> AsyncIterator[Coordinator]:
    """Start the workers for a load, on these cores in turn (on any, if there are none), and end them with the block."""
    shares = split(load)
    async with AsyncExitStack() as stack:
        workers = []
        for share in shares:
            core = cores[share.number % len(cores)] if cores else None
            worker = start_worker(core, share=asdict(share), url=url, token=token)
            workers.append(await stack.enter_async_context(worker))
        yield Coordinator(shares, workers)
