"""A connection that sends a server the same kind of request again and again, and measures how long each reply takes.

The leading process uses it itself, while a load may be running in others: a poll to which the server replies
immediately shows how long its event loop keeps clients waiting; a read of the history shows how long reads take.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit

from app.bench.load import BenchFailed
from app.bench.requests import Requests
from app.bench.sessions import Session
from app.bench.tally import Tally
from app.bench.target import Target

_ANSWER_S = 60.0


class Asker(Session):
    """A session that sends one request at a time; create it with `asker`."""

    def poll(self) -> bytes:
        """Return a poll to which the server replies immediately."""
        return self._requests.connect(self.client_id, self.cookie, is_held=False)

    def get(self, path: str) -> bytes:
        """Return a GET request for `path`."""
        return self._requests.get(path)

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
        self._asked = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            async with asyncio.timeout(_ANSWER_S):
                head, body = await self._asked
        except TimeoutError:
            raise BenchFailed(f"no response from the server within {_ANSWER_S:g} s") from None
        finally:
            self._asked = None
        if b" 200 " not in head[:16]:
            raise BenchFailed(f"the request failed: {(body or head)[:200].decode('utf-8', 'backslashreplace')}")
        return body


@asynccontextmanager
async def asker(target: Target) -> AsyncIterator[Asker]:
    """Connect to a server and open a session; both end with the block. Raises `BenchFailed`."""
    parts = urlsplit(target.url)
    requests = Requests(parts.netloc, parts.path, token=target.token, browser_headers=False)
    loop, host = asyncio.get_running_loop(), parts.hostname or "127.0.0.1"
    try:
        _, asking = await loop.create_connection(lambda: Asker(requests, Tally()), host, parts.port or 80)
    except OSError as error:
        raise BenchFailed(f"cannot connect to {parts.netloc}: {error.strerror or error}") from None
    try:
        await asking.handshake()
        await asking.ask(asking.poll(), "a connect")
        yield asking
    finally:
        asking.leave()


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
