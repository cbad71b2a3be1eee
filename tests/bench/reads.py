"""The time that reads take: the newest events of a channel, and pages of a pattern over very many channels.

A connection sends the same kind of request again and again, and measures how long each reply takes. The leading process
uses it itself, while a load may be running in others.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from halley.bench.load import BenchFailed
from halley.bench.measurement import Phase, Watch
from halley.bench.requests import Requests, channel_name
from halley.bench.sessions import Session
from halley.bench.tally import Tally, percentiles
from halley.bench.target import Target

_ANSWER_S = 60.0


class Probe(Session):
    """A session that sends one request at a time; create it with `probing`."""

    def poll(self) -> bytes:
        """Return a poll to which the server replies immediately."""
        return self._requests.connect(self.client_id, self.cookie, is_held=False)

    def get(self, path: str) -> bytes:
        """Return a GET request for `path`, without a token or a cookie."""
        peer = ":".join(map(str, self.transport.get_extra_info("peername")))
        return f"GET {path} HTTP/1.1\r\nHost: {peer}\r\n\r\n".encode()

    async def times_us(self, requests: Iterable[bytes], *, every_s: float = 0.0) -> tuple[Counter[int], bytes]:
        """Send the requests one after another, each at least `every_s` after the previous one.

        Returns how long the replies took, as counts by microsecond, and the body of the last one. Raises `BenchFailed`.
        """
        took_us: Counter[int] = Counter()
        body = b""
        for request in requests:
            began_ns = time.monotonic_ns()
            body = await self._answer(request)
            waited_ns = time.monotonic_ns() - began_ns
            took_us[waited_ns // 1_000] += 1
            await asyncio.sleep(max(every_s - waited_ns / 1e9, 0))
        return took_us, body

    async def _answer(self, request: bytes) -> bytes:
        self._response = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            async with asyncio.timeout(_ANSWER_S):
                head, body = await self._response
        except TimeoutError:
            raise BenchFailed(f"no response from the server within {_ANSWER_S:g} s") from None
        finally:
            self._response = None
        if b" 200 " not in head[:16]:
            raise BenchFailed(f"the request failed: {(body or head)[:200].decode('utf-8', 'backslashreplace')}")
        return body


@asynccontextmanager
async def probing(target: Target) -> AsyncIterator[Probe]:
    """Connect to a server and open a session; both end with the block. Raises `BenchFailed`."""
    parts = urlsplit(target.url)
    requests = Requests(parts.netloc, parts.path, token=target.token, browser_headers=False)
    loop, host = asyncio.get_running_loop(), parts.hostname or "127.0.0.1"
    try:
        _, probe = await loop.create_connection(lambda: Probe(requests, Tally()), host, parts.port or 80)
    except OSError as error:
        raise BenchFailed(f"cannot connect to {parts.netloc}: {error.strerror or error}") from None
    try:
        await probe.handshake()
        await probe.ask(probe.poll(), "a connect")
        yield probe
    finally:
        probe.drop()


@contextmanager
def off_the_servers_core(target: Target) -> Iterator[None]:
    """Keep this process off the server's core within the block, so that it does not slow down what it measures."""
    if not target.cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, target.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


CHANNELS = 100  # a log of 10,000 events has 100 in each
_NEWEST = 100
_READS, _UNTIMED_READS = 500, 100


@dataclass(frozen=True, slots=True)
class Stock:
    """The time to read the newest 100 events of a channel from one log, in ms: of the first read, then of the others.

    `rss_mb` is the server's resident memory after it opened the log, `read_rss_mb` after the reads.
    """

    first_ms: float
    read_ms: dict[str, float]
    rss_mb: float | None
    read_rss_mb: float | None


async def read(target: Target, count: int, watch: Watch) -> Stock:
    """Read the newest events of random channels from a log of `count` events. Raises `BenchFailed`."""
    chance = random.Random(count)
    with off_the_servers_core(target):
        async with probing(target) as probe:

            def requests(reads: int) -> Iterator[bytes]:
                for number in range(reads):
                    watch(Phase(f"reading {count:,}", number, reads, "reads"))
                    channel = channel_name(chance.randrange(CHANNELS))
                    yield probe.get(f"/history{channel}?reverse=true&limit={_NEWEST}")

            before = await target.usage()
            first_us, _ = await probe.times_us(requests(1))
            await probe.times_us(requests(_UNTIMED_READS))
            times_us, body = await probe.times_us(requests(_READS))
            after = await target.usage()
    events = body.count(b'"position":')
    if events != min(_NEWEST, count // CHANNELS):
        raise BenchFailed(f"a read of the newest {_NEWEST} events of a channel returned {events}")
    return Stock(_ms(first_us), percentiles(times_us), _mb(before.rss_bytes), _mb(after.rss_bytes))


def _ms(times_us: Counter[int]) -> float:
    return max(times_us, default=0) / 1_000


def _mb(nbytes: int | None) -> float | None:
    return None if nbytes is None else round(nbytes / 1_000_000, 1)


WIDE_CHANNELS = 20_000
RARE_EVENTS = 100
"""The number of events that the bench may read in a log where all others have another audience."""

_PAGE = 100
_PAGES, _UNTIMED_PAGES = 300, 50


async def read_wide(target: Target, count: int, watch: Watch, *, is_rare: bool) -> dict[str, float]:
    """Return percentiles of the time that a page takes, in ms, from a log of `count` events.

    `is_rare`: the bench may read only `RARE_EVENTS` of them. Raises `BenchFailed`.
    """
    chance = random.Random(count)
    everywhere = channel_name(0).rpartition("/")[0] + "/**"

    def requests(reads: int) -> Iterator[bytes]:
        for number in range(reads):
            watch(Phase(f"paging {count:,}", number, reads, "reads"))
            place = chance.randrange(1, count + 1)
            bound = f"reverse=true&before_position={place}" if number % 2 else f"after_position={place}"
            yield probe.get(f"/history{everywhere}?{bound}&limit={_PAGE}")

    with off_the_servers_core(target):
        async with probing(target) as probe:
            _, body = await probe.times_us(iter([probe.get(f"/history{everywhere}?limit={_PAGE}")]))
            await probe.times_us(requests(_UNTIMED_PAGES))
            times_us, _ = await probe.times_us(requests(_PAGES))
    events = body.count(b'"position":')
    if not 0 < events <= (min(RARE_EVENTS, _PAGE) if is_rare else _PAGE):
        raise BenchFailed(f"the first page of a log of {count:,} events returned {events}")
    return percentiles(times_us)
