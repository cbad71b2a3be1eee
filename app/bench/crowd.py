"""The sessions of one load process, opened in waves, since no server should have to accept all of them in one burst."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from app.bench.failure import BenchFailed, together
from app.bench.load import Share
from app.bench.publisher import Publisher
from app.bench.receiver import Receiver
from app.bench.requests import Requests
from app.bench.tally import Tally

_WAVE = 100
_IP_BIND_ADDRESS_NO_PORT = 24  # on Linux; the socket module does not define it
_WAVE_S = 30.0


class Crowd:
    """All sessions with the server at `url`; each sends the `token`, if there is one. They count in `tally`."""

    def __init__(self, share: Share, url: str, token: str | None, tally: Tally) -> None:
        parts = urlsplit(url)
        self.receivers: list[Receiver] = []
        self.publishers: list[Publisher] = []
        self._share = share
        self._tally = tally
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._requests = Requests(parts.netloc, parts.path, token=token, browser_headers=share.load.browser_headers)

    async def open(self, receivers: int, opened: Callable[[int], None]) -> tuple[int, float]:
        """Open sessions until there are `receivers` receivers; once all receivers are open, open the publishers too.

        `opened` is called with the number of open sessions after each wave. Returns the number of sessions opened now,
        and the seconds that connections and handshakes took. Raises `BenchFailed`.
        """
        before, took_s = self._count(), 0.0
        while (wanted := min(receivers - len(self.receivers), _WAVE)) > 0:
            wave = [self._receiver(len(self.receivers) + index) for index in range(wanted)]
            took_s += await self._open_wave(wave)
            self.receivers += wave
            opened(self._count())
        if receivers == self._share.receivers:
            while (wanted := min(self._share.publishers - len(self.publishers), _WAVE)) > 0:
                publishers = [self._publisher() for _ in range(wanted)]
                took_s += await self._open_wave(publishers)
                self.publishers += publishers
                opened(self._count())
        return self._count() - before, took_s

    def close(self) -> None:
        """Close every connection."""
        for session in (*self.receivers, *self.publishers):
            session.leave()

    def _count(self) -> int:
        return len(self.receivers) + len(self.publishers)

    def _receiver(self, index: int) -> Receiver:
        group = 0 if self._share.load.is_shared else self._share.first_group + index
        return Receiver(self._requests, self._tally, group, self._share.channels_of(index))

    def _publisher(self) -> Publisher:
        load = self._share.load
        is_timed = load.verb == "publish"
        return Publisher(self._requests, self._tally, data_bytes=load.data_bytes, batch=load.batch, is_timed=is_timed)

    async def _open_wave(self, wave: Sequence[Receiver | Publisher]) -> float:
        """Open these sessions at the same time; return the seconds that connections and handshakes took."""
        try:
            async with asyncio.timeout(_WAVE_S):
                before_s = time.perf_counter()
                await together(self._connect(session) for session in wave)
                took_s = time.perf_counter() - before_s
                await together(session.join() for session in wave)
        except TimeoutError:
            raise BenchFailed(f"the server has not opened {len(wave)} sessions within {_WAVE_S:g} s") from None
        return took_s

    async def _connect(self, session: Receiver | Publisher) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock = self._socket()
            if sock is None:
                await loop.create_connection(lambda: session, self._host, self._port)
            else:
                try:
                    await loop.sock_connect(sock, (self._host, self._port))
                except BaseException:
                    sock.close()
                    raise
                await loop.create_connection(lambda: session, sock=sock)
        except OSError as error:
            raise BenchFailed(f"cannot connect to {self._host}:{self._port}: {error.strerror or error}") from None
        await session.handshake()

    def _socket(self) -> socket.socket | None:
        """Return a socket bound to this process' own loopback address; None where any address will do.

        An address has 28,000 ports for its connections to one server; on Linux, loopback has more addresses. The port
        is chosen by `connect`, not here: finding a port that no other socket has bound takes longer the more sockets
        there are.
        """
        if self._host != "127.0.0.1" or sys.platform != "linux":
            return None
        sock = socket.socket()
        sock.setblocking(False)  # noqa: FBT003 - the standard library's form
        sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind((f"127.0.0.{1 + self._share.number % 250}", 0))
        return sock
