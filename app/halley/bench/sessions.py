"""The Bayeux sessions of a worker, each on its own connection: those that receive, those that publish, and all of them.

Every session keeps the cookie that it got, so each counts as a separate browser and limits per browser do not apply.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from halley.bench.connection import Connection
from halley.bench.load import BenchFailed, Share, together
from halley.bench.requests import DUE, GROUP, MARK, MARK_BYTES, NUMBER, Requests
from halley.bench.tally import Tally

SUCCESS = b'"successful":true'
_SPACED_SUCCESS = re.compile(rb'"successful"\s*:\s*true')
_CLIENT_ID = re.compile(rb'"clientId"\s*:\s*"([^"\\]{1,200})"')
_COOKIE = re.compile(rb"\r\nset-cookie: *([^;\r\n]{1,500})", re.IGNORECASE)


def successes(body: bytes) -> int:
    """Return the number of successful replies in a body, with or without spaces in its JSON."""
    return body.count(SUCCESS) or len(_SPACED_SUCCESS.findall(body))


class Session(Connection):
    """A session that is opened request by request (`ask`); afterwards `worked` is called with every response."""

    def __init__(self, requests: Requests, tally: Tally) -> None:
        super().__init__()
        self._requests = requests
        self._tally = tally
        self._response: asyncio.Future[tuple[bytes, bytes]] | None = None
        self._is_counted = False
        self.client_id = ""
        self.cookie = b""

    async def handshake(self) -> None:
        """Send a handshake, which begins the session. Raises `BenchFailed`."""
        head, body = await self.ask(self._requests.handshake(), "a handshake")
        client_id = _CLIENT_ID.search(body)
        if client_id is None:
            raise BenchFailed(f"a handshake reply has no clientId: {_excerpt(body)}")
        self.client_id = client_id[1].decode()
        cookie = _COOKIE.search(head)
        self.cookie = cookie[1] if cookie else b""

    async def ask(self, request: bytes, what: str) -> tuple[bytes, bytes]:
        """Send a request and wait for the response's head and body. Raises `BenchFailed` unless it succeeded."""
        head, body = await self.exchange(request)
        if not successes(body):
            raise BenchFailed(f"the server refused {what}: {_excerpt(body or head)}")
        return head, body

    async def exchange(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request and return the response's head and body. Raises `BenchFailed` if the connection is lost."""
        self._response = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            return await self._response
        finally:
            self._response = None

    def opened(self) -> None:
        """Count the session as open; from now on, losing its connection is an error that is counted."""
        self._is_counted = True
        self._tally.connections += 1

    def drop(self) -> None:
        """Close the connection without a disconnect; this is not counted as an error."""
        self._is_counted = False
        self.transport.abort()

    def answered(self, status: int, head: bytes, body: bytes) -> None:
        """Pass a response to the `ask` that waits for it, or else to `worked`."""
        if self._response is not None:
            if not self._response.done():
                self._response.set_result((head, body))
            return
        self.worked(status, body)

    def worked(self, status: int, body: bytes) -> None:
        """Handle a response while the load runs."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Count received bytes that are not HTTP as an error."""
        self._tally.errors[str(error)] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the `ask` that waits for a response, if any, and count the lost connection."""
        if self._response is not None and not self._response.done():
            reason = f" ({exc})" if exc else ""
            self._response.set_exception(
                BenchFailed(f"the server closed a connection while it was being opened{reason}")
            )
        if self._is_counted:
            self._tally.disconnected()


def _excerpt(text: bytes) -> str:
    return text[:200].decode("utf-8", "backslashreplace")


_RETRY_S = 1.0


class Receiver(Session):
    """A receiving session, with one held poll after the other; it subscribes to `channels`, those of `group`.

    `patterns` is the number of its subscriptions to patterns (`Requests.subscribe`).
    """

    def __init__(
        self, requests: Requests, tally: Tally, group: int, channels: Sequence[int], patterns: int = 0
    ) -> None:
        super().__init__(requests, tally)
        self._group = b"%06d" % group
        self._channels = channels
        self._patterns = patterns
        self._poll = b""
        self._next = 0
        self._early: set[int] = set()

    async def join(self) -> None:
        """Subscribe, connect, and poll. Raises `BenchFailed`."""
        subscription = self._requests.subscribe(self.client_id, self.cookie, self._channels, self._patterns)
        await self.ask(subscription, "a subscription")
        await self.ask(self._requests.connect(self.client_id, self.cookie, is_held=False), "a connect")
        self._poll = self._requests.connect(self.client_id, self.cookie, is_held=True)
        self.opened()
        self.transport.write(self._poll)

    def begin(self) -> None:
        """Prepare for the events of the tally's new round."""
        self._next = self._tally.floor
        self._early.clear()

    def settle(self, published: int) -> int:
        """Return how many of the round's first `published` events are missing; count any others received as errors."""
        end = self._tally.floor + published
        foreign = max(self._next - end, 0) + sum(number >= end for number in self._early)
        if foreign:
            self._tally.errors["event never published"] += foreign
        return published - (self._next - self._tally.floor + len(self._early) - foreign)

    def worked(self, status: int, body: bytes) -> None:
        """Handle the response to a poll: poll again, then count the events. Written for speed."""
        now_ns = time.monotonic_ns()
        tally = self._tally
        if status == 200 and (SUCCESS in body or successes(body)):
            self.transport.write(self._poll)
            tally.polls += 1
        else:
            tally.errors[f"HTTP {status}" if status != 200 else "poll refused"] += 1
            self.poll_later()
        self.count(body, now_ns)

    def count(self, body: bytes, now_ns: int) -> None:
        """Count the events in a body that was received at `now_ns`."""
        tally = self._tally
        at = body.find(MARK)
        while at >= 0:
            end = at + MARK_BYTES
            self._count(body[at:end], now_ns)
            at = body.find(MARK, end)
        if tally.deliveries >= tally.goal:
            tally.reached()

    def _count(self, mark: bytes, now_ns: int) -> None:
        tally = self._tally
        try:
            number, due_ns = int(mark[NUMBER]), int(mark[DUE])
        except ValueError:
            tally.errors["mangled event"] += 1
            return
        if mark[GROUP] != self._group:
            tally.errors["event for somebody else"] += 1
            return
        if number < self._next or number in self._early:
            tally.repeated += number >= tally.floor  # else it is late from an earlier round
            return
        if number == self._next:
            self._next += 1
            while self._early and self._next in self._early:
                self._early.remove(self._next)
                self._next += 1
        else:
            self._early.add(number)
        tally.deliveries += 1
        tally.time(due_ns, now_ns)

    def poll_later(self) -> None:
        """Poll again after a second, since the server has refused a poll."""
        asyncio.get_running_loop().call_later(_RETRY_S, self._poll_again)

    def _poll_again(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._poll)


class Publisher(Session):
    """A publishing session; `freed` is called whenever it can publish again.

    With `is_timed`, latencies are those of acknowledgements, else those of deliveries.
    """

    def __init__(self, requests: Requests, tally: Tally, *, data_bytes: int, batch: int, is_timed: bool) -> None:
        super().__init__(requests, tally)
        self.freed: Callable[[Publisher], None] = lambda _: None
        self.is_busy = False
        self._data_bytes = data_bytes
        self._batch = batch
        self._is_timed = is_timed
        self._template = self._keep_alive = b""
        self._due_ns = 0
        self._is_renewal_due = self._is_renewing = False

    async def join(self) -> None:
        """Send the first connect, so that the server keeps the session. Raises `BenchFailed`."""
        self._keep_alive = self._requests.connect(self.client_id, self.cookie, is_held=False)
        await self.ask(self._keep_alive, "a connect")
        self._template = self._requests.publish_template(self.client_id, self.cookie, self._data_bytes, self._batch)
        self.opened()

    def publish(self, events: tuple[int, ...], due_ns: int) -> None:
        """Send a batch of events that was due at `due_ns`. Call it only while `is_busy` is false.

        `events` has four numbers for each event: channel, due time in ns, group, number within the group.
        """
        self.is_busy = True
        self._due_ns = due_ns
        self.transport.write(self._template % events)

    def renew(self) -> None:
        """Keep the session alive with a connect, as soon as no other request is under way."""
        if self.is_busy:
            self._is_renewal_due = True
        else:
            self.is_busy = self._is_renewing = True
            self.transport.write(self._keep_alive)

    def worked(self, status: int, body: bytes) -> None:
        """Handle the response to a publish, or to a connect that keeps the session alive."""
        wanted = 1 if self._is_renewing else self._batch
        if status != 200 or (refused := wanted - successes(body)):
            what = "connect refused" if self._is_renewing else "publish refused"
            self._tally.errors[f"HTTP {status}" if status != 200 else what] += refused if status == 200 else wanted
        elif not self._is_renewing:
            self._tally.acknowledged += wanted
            if self._is_timed:
                self._tally.time(self._due_ns, time.monotonic_ns())
        self.is_busy = self._is_renewing = False
        if self._is_renewal_due:
            self._is_renewal_due = False
            self.renew()
        else:
            self.freed(self)


_WAVE = 100
_IP_BIND_ADDRESS_NO_PORT = 24  # on Linux; the socket module does not define it
_WAVE_S = 30.0


Each = TypeVar("Each", Receiver, Publisher)


class Sessions:
    """All sessions of a worker with the server at `url`; each sends the `token`, if there is one.

    They are opened in waves, since no server should have to accept all of them in one burst, and count in `tally`. A
    subclass for another protocol has its own `requests`, `receiver` and `publisher`.
    """

    requests: type[Requests] = Requests
    receiver: type[Receiver] = Receiver
    publisher: type[Publisher] = Publisher

    def __init__(self, share: Share, url: str, token: str | None, tally: Tally) -> None:
        parts = urlsplit(url)
        self.receivers: list[Receiver] = []
        self.publishers: list[Publisher] = []
        self._share = share
        self._tally = tally
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._requests = self.requests(
            parts.netloc,
            parts.path,
            token=token,
            browser_headers=share.load.browser_headers,
            ending="/x" if share.load.patterns else "",
        )

    async def open(self, receivers: int, opened: Callable[[int], None]) -> tuple[int, float]:
        """Open sessions until there are `receivers` receivers; once all receivers are open, open the publishers too.

        `opened` is called with the number of open sessions after each wave. Returns the number of sessions opened now,
        and the seconds that connections and handshakes took. Raises `BenchFailed`.
        """
        before = self._count()
        took_s = await self._open(self.receivers, receivers, self._receiver, opened)
        if receivers == self._share.receivers:
            took_s += await self._open(self.publishers, self._share.publishers, self._publisher, opened)
        return self._count() - before, took_s

    async def _open(
        self, sessions: list[Each], count: int, make: Callable[[int], Each], opened: Callable[[int], None]
    ) -> float:
        """Open sessions of one kind until there are `count`, in waves; return the seconds as `open` does."""
        took_s = 0.0
        while (wanted := min(count - len(sessions), _WAVE)) > 0:
            wave = [make(len(sessions) + index) for index in range(wanted)]
            took_s += await self._open_wave(wave)
            sessions += wave
            opened(self._count())
        return took_s

    def _count(self) -> int:
        return len(self.receivers) + len(self.publishers)

    def _receiver(self, index: int) -> Receiver:
        group = 0 if self._share.load.is_shared else self._share.first_group + index
        channels, patterns = self._share.channels_of(index), self._share.patterns_of(index)
        return self.receiver(self._requests, self._tally, group, channels, patterns)

    def _publisher(self, _: int) -> Publisher:
        load = self._share.load
        is_timed = load.verb == "publish"
        return self.publisher(
            self._requests, self._tally, data_bytes=load.data_bytes, batch=load.batch, is_timed=is_timed
        )

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
        await self._reach(session, self._host, self._port)
        await session.handshake()

    async def _reach(self, session: Receiver | Publisher, host: str, port: int) -> None:
        """Connect a session to a server. Raises `BenchFailed`."""
        loop = asyncio.get_running_loop()
        try:
            sock = self._socket()
            if sock is None:
                await loop.create_connection(lambda: session, host, port)
            else:
                try:
                    await loop.sock_connect(sock, (host, port))
                except BaseException:
                    sock.close()
                    raise
                await loop.create_connection(lambda: session, sock=sock)
        except OSError as error:
            raise BenchFailed(f"cannot connect to {host}:{port}: {error.strerror or error}") from None

    def _socket(self) -> socket.socket | None:
        """Return a socket bound to this worker's own loopback address; None where any address will do.

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
