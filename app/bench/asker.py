"""One connection that asks a server the same kind of thing again and again, and how long each answer took.

Asked by the leading process itself, beside whatever load there is: a poll that is answered at once shows how long the
server's event loop keeps anybody waiting, a read of the history how long that takes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.bench.failure import BenchFailed
from app.bench.requests import Requests
from app.bench.sessions import Session
from app.bench.tally import Tally

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from app.bench.target import Target

_ANSWER_S = 60.0


class Asker(Session):
    """Make it with `asker`. It has a session of its own."""

    def poll(self) -> bytes:
        """A poll that the server answers at once, without looking at anything."""
        return self._requests.connect(self.client_id, self.cookie, is_held=False)

    def get(self, path: str) -> bytes:
        """A request for something else."""
        return self._requests.get(path)

    async def times_us(self, requests: Iterable[bytes], *, every_s: float = 0.0) -> tuple[Counter[int], bytes]:
        """Send each when the one before is answered, but no two within `every_s`.

        Returns how long the answers took, as counts by microsecond, and the last answer's body. Raises `BenchFailed`.
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
            raise BenchFailed(f"the server has not answered within {_ANSWER_S:g} s") from None
        finally:
            self._asked = None
        if b" 200 " not in head[:16]:
            raise BenchFailed(f"the server refused: {(body or head)[:200].decode('utf-8', 'backslashreplace')}")
        return body


@asynccontextmanager
async def asker(target: Target) -> AsyncIterator[Asker]:
    """A connection to that server. Raises `BenchFailed`."""
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
    """Whoever asks must not take the time from whom it asks."""
    if not target.cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, target.cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
