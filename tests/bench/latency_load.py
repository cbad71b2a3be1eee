"""The worker that keeps a server busy while `latency.py` measures another client: `python -m bench.latency_load`.

It does one kind of work, again and again, at a low priority, so that on a shared core it gives way to the client that
is measured. It executes the orders `start`, which returns once the work is under way, and `count`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from halley.bench.load import BenchFailed, Load, split
from halley.bench.orders import Orders, run_worker
from halley.bench.requests import channel_name
from halley.bench.sessions import Sessions
from halley.bench.tally import Tally, percentiles
from halley.bench.worker import Worker
from halley.client import ALL, Client
from halley.history.folder import segment_files
from halley.pipeline.source import open_log
from halley.settings import Limits, Pipeline

Work = AsyncIterator[int]
"""Work that never ends. After each piece it yields how many units that were; the first says that it is under way."""

EVERYTHING = channel_name(0).rpartition("/")[0] + "/**"
CONSOLE = (
    *("/halley/rates", "/halley/topics", "/halley/queues", "/halley/sessions", "/halley/subscriptions"),
    *("/halley/pipeline", "/alerts/**", "/stats/10s/**", "/**"),
)
"""What the console subscribes to in all of its views."""

_NICENESS = 10
_ANSWER_S = 60.0
_UNTIMED_S = 0.2
_RENEWED_EVERY_S = 4.0  # the server ends a session that has not connected for 10 s
_PAGE = 300
_CONSOLE_TOPICS, _TOPICS_AT_ONCE, _TOPICS_EVERY_S = 500, 25, 0.05
_CONSOLE_PAGE_EVERY_S = 1.0
_LARGE_EVENTS, _ENVELOPE_BYTES = 4, 150
_MANY_EVENTS = 1_000
_WRITTEN_BYTES, _WRITTEN_EVERY_S = 32_768, 0.05


class Busy:
    """The work of a worker. `stored` events are in the server's log, in `data_dir`, before it begins."""

    def __init__(
        self,
        url: str,
        data_dir: str,
        stored: int,
        receivers: int,
        rate: float,
        reader: str,
    ) -> None:
        self._url = url
        self._server = url.removesuffix("/bayeux")
        self._data_dir = Path(data_dir)
        self._stored = stored
        self._receivers = receivers
        self._rate = rate
        self._reader = reader
        self._working: asyncio.Task[None] | None = None
        self._began_s = 0.0
        self._done = 0
        self._fan_out: Worker | None = None

    async def start(self, work: str, seconds: float) -> None:
        """Begin the work of that name, and return once its first piece is done.

        Raises `BenchFailed` if that takes longer than `seconds`.
        """
        if work == "fanout":
            self._fan_out = await self._opened_fan_out()
            return
        is_under_way = asyncio.Event()

        async def doing() -> None:
            async for units in getattr(self, f"_{work}")():
                self._done += units
                if not is_under_way.is_set():
                    self._began_s = time.monotonic()
                    is_under_way.set()

        self._working = asyncio.create_task(doing())
        starting = asyncio.create_task(is_under_way.wait())
        await asyncio.wait({self._working, starting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            raise BenchFailed(f"the work has not begun: {self._failure()}")

    async def count(self, seconds: float) -> dict[str, Any]:
        """Wait, and return the number of units `done` since the start, in how many seconds. Raises `BenchFailed`.

        A fan-out also has percentiles of its deliveries, `latency_ms`, in these seconds.
        """
        if self._fan_out is not None:
            return await self._fanned_out(self._fan_out, seconds)
        assert self._working is not None
        await asyncio.wait({self._working}, timeout=seconds)
        if self._working.done():
            raise BenchFailed(f"the work has ended: {self._failure()}")
        return {"done": self._done, "seconds": time.monotonic() - self._began_s}

    def _failure(self) -> str:
        if self._working is None or not self._working.done():
            return "it takes too long"
        return repr(self._working.exception())

    # Readers

    async def _replay(self) -> Work:
        """Replay all stored events to a Bayeux session, and then to the next one."""
        while True:
            async with Client(self._server) as client:
                await client.subscribe(EVERYTHING, after=ALL)
                received = 0
                async for events in client.batches():
                    received += len(events)
                    yield len(events)
                    if received >= self._stored:
                        break

    async def _history(self) -> Work:
        """Read pages of the history from random positions, in both directions."""
        chance = random.Random(self._stored)
        async with self._http() as http:
            while True:
                place = chance.randrange(1, self._stored + 1)
                for bound in (f"after_position={place - 1}", f"reverse=true&before_position={place + 1}"):
                    await _page(http, bound)
                    yield 1

    async def _console(self) -> Work:
        """Receive all that the console shows, of as many sessions and topics as fit into its figures."""
        load = Load("idle", receivers=min(self._receivers, 500))
        sessions = Sessions(split(load)[0], self._url, None, Tally())
        await sessions.open(load.receivers, lambda _: None)
        async with Client(self._server) as console, self._http() as http, _publishing(http) as publisher:
            for pattern in CONSOLE:
                await console.subscribe(pattern)
            others = asyncio.gather(_use_topics(publisher), _read_newest(http))
            try:
                async for events in console.batches():
                    if others.done():
                        await others
                    yield len(events)
            finally:
                others.cancel()

    async def _folder(self) -> Work:
        """Read the whole log from its folder, as Spark's source does, or by Spark itself."""
        if self._reader == "spark":
            read = await asyncio.to_thread(_spark_reader, str(self._data_dir))
            while True:
                await asyncio.to_thread(read)
                yield self._stored
        log = open_log({"path": str(self._data_dir)})
        while True:
            head = log.head()
            rows = iter(log.read(head.first, head.next))
            while batch := await asyncio.to_thread(next, rows, None):
                yield len(batch) if isinstance(batch, list) else 0

    # Publishers

    async def _bodies(self) -> Work:
        """Publish in bodies as large as the server takes, each with a few large events."""
        pad = "x" * (Limits().body_bytes // _LARGE_EVENTS - _ENVELOPE_BYTES)
        async for _ in self._published([(channel_name(number), pad) for number in range(_LARGE_EVENTS)]):
            yield 1

    async def _batches(self) -> Work:
        """Publish in bodies as large as the server takes, each with as many events as it takes."""
        pad = "x" * (Limits().body_bytes // _MANY_EVENTS - _ENVELOPE_BYTES)
        async for _ in self._published([(channel_name(number % 100), pad) for number in range(_MANY_EVENTS)]):
            yield 1

    async def _published(self, events: Sequence[tuple[str, Any]], every_s: float = 0.0) -> AsyncIterator[None]:
        async with self._http() as http, _publishing(http) as publisher:
            while True:
                await publisher.publish(events)
                yield
                await asyncio.sleep(every_s)

    async def _sealing(self) -> Work:
        """Publish, so that segments are full, and count those that are sealed."""
        counted: set[str] = set()
        async for _ in self._written():
            sealed = {path.name for path in self._data_dir.glob("*.seal")} - counted
            counted |= sealed
            if sealed:
                yield len(sealed)

    async def _retention(self) -> Work:
        """Publish, so that the log is larger than it may be, and count the segments that are deleted."""
        present: set[Path] = set()
        async for _ in self._written():
            before, present = present, {path for _, path in segment_files(self._data_dir)}
            if before - present:
                yield len(before - present)

    def _written(self) -> AsyncIterator[None]:
        return self._published([(channel_name(0), "x" * _WRITTEN_BYTES)], _WRITTEN_EVERY_S)

    # Fan-out

    async def _opened_fan_out(self) -> Worker:
        share = split(Load("fanout", receivers=self._receivers, rate=self._rate))[0]
        worker = Worker(Sessions, share, self._url, None, lambda **_: None)
        await worker.open(self._receivers)
        await worker.prepare(1)
        await worker.round(_UNTIMED_S)
        return worker

    async def _fanned_out(self, worker: Worker, seconds: float) -> dict[str, Any]:
        await worker.prepare(2)
        ended = await worker.round(seconds)
        found = await worker.settle(ended["published"])
        if found["errors"] or found["counts"]["lost"]:
            raise BenchFailed(f"the fan-out: {found['counts']['lost']} lost, errors {found['errors']}")
        latencies_us = dict(zip(*found["latencies_us"], strict=True))
        return {
            "done": found["counts"]["deliveries"],
            "seconds": ended["seconds"],
            "latency_ms": percentiles(latencies_us),
        }

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self._server, timeout=_ANSWER_S, trust_env=False, verify=False)


class _Publisher:
    """A Bayeux session that publishes any number of events in one request; create it with `_publishing`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._client_id = ""
        self._renewed_s = 0.0

    async def open(self) -> None:
        types = {"version": "1.0", "supportedConnectionTypes": ["long-polling"]}
        (reply,) = await self._ask({"channel": "/meta/handshake", **types})
        self._client_id = reply["clientId"]

    async def publish(self, events: Iterable[tuple[str, Any]]) -> None:
        """Publish (channel, data) pairs, and wait until all are acknowledged. Raises `BenchFailed`."""
        if time.monotonic() - self._renewed_s > _RENEWED_EVERY_S:
            self._renewed_s = time.monotonic()
            await self._ask({"channel": "/meta/connect", "connectionType": "long-polling", "advice": {"timeout": 0}})
        await self._ask(*({"channel": channel, "data": data} for channel, data in events))

    async def _ask(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        own = {"clientId": self._client_id} if self._client_id else {}
        body = json.dumps([message | own for message in messages], separators=(",", ":"))
        response = await self._http.post("/bayeux", content=body, headers={"Content-Type": "application/json"})
        replies: list[dict[str, Any]] = response.json() if response.status_code == httpx.codes.OK else []
        if not replies or not all(reply.get("successful", True) for reply in replies):
            raise BenchFailed(f"a request failed ({response.status_code}): {response.text[:200]}")
        return replies


@asynccontextmanager
async def _publishing(http: httpx.AsyncClient) -> AsyncIterator[_Publisher]:
    publisher = _Publisher(http)
    await publisher.open()
    yield publisher


async def _page(http: httpx.AsyncClient, bound: str) -> None:
    response = await http.get(f"/history{EVERYTHING}?{bound}&limit={_PAGE}")
    if response.status_code != httpx.codes.OK:
        raise BenchFailed(f"a page of the history failed ({response.status_code}): {response.text[:200]}")


async def _use_topics(publisher: _Publisher) -> None:
    """Publish to as many topics as the console lists, a few at a time."""
    first = 0
    while True:
        await publisher.publish([(channel_name(first + number), number) for number in range(_TOPICS_AT_ONCE)])
        first = (first + _TOPICS_AT_ONCE) % _CONSOLE_TOPICS
        await asyncio.sleep(_TOPICS_EVERY_S)


async def _read_newest(http: httpx.AsyncClient) -> None:
    """Read the newest page of the history, as the view of that name does when it is opened."""
    while True:
        await _page(http, "reverse=true")
        await asyncio.sleep(_CONSOLE_PAGE_EVERY_S)


def _spark_reader(data_dir: str) -> Callable[[], None]:
    """Start Spark, and return a function that reads the log with it."""
    from halley.pipeline import session

    spark = session.start(replace(Pipeline(), master="local[1]", driver_memory="1g"))
    return lambda: spark.read.format("halley").load(data_dir).write.format("noop").mode("overwrite").save()


def has_spark() -> bool:
    """Whether Spark is installed."""
    return find_spec("pyspark") is not None


def _begin(_: Callable[..., None], cores: Sequence[int], **arguments: Any) -> Orders:
    os.nice(_NICENESS)
    if cores:
        os.sched_setaffinity(0, cores)
    busy = Busy(**arguments)
    return {"start": busy.start, "count": busy.count}


if __name__ == "__main__":
    run_worker(_begin)
