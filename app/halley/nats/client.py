"""A connection to one of several NATS servers, which is renewed by itself: messages, and requests with an answer.

Handlers are called while the bytes of the messages are read, in the order in which they come. One that has to wait
returns an awaitable: what follows on its subscription waits for that, and nothing else does.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from time import monotonic
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from halley import __version__, telemetry
from halley.nats.credentials import TLS, Credentials, UnusableFile, authorities_of_the_system, files_of, proof_of
from halley.nats.subscriptions import Handler, Subscriptions, dropped
from halley.nats.wire import Message, Wire
from halley.settings import Cluster

REQUEST_S = 1.0
_CONNECT_S, _SHORT_S = 2.0, 1.0
_BETWEEN_S, _MOST_S, _MOST_UNAUTHORIZED_S = 0.1, 3.0, 15.0
"""The pause before another server is tried, and the longest after all have been: it is doubled each time. It may be
longer where only other files, or other settings of NATS, can help."""

_MOST_DOUBLED = 10

_PING_S, _PINGS = 5.0, 2
_CLOSE_S = 2.0
_UNSENT_BYTES = 16_777_216
"""How much may wait to be sent; what is published then is dropped, as it is while no server is connected."""

_UNAUTHORIZED: Final = re.compile(
    "authorization violation|authentication (expired|revoked)|alert .*(certificate|unknown ca)", re.IGNORECASE
)
"""What servers say if they do not accept a user's credentials, or not any more; the alerts of TLS are about the node's
own certificate."""

_MOST_LEARNED = 16
_MOST_DENIED = 16
_MOST_REASONS = 16
_TEXT_CHARS = 200
_NO_RESPONDERS = "503"
_PORT, _MAX_PAYLOAD = 4222, 1_048_576
"""What NATS servers have unless their configuration says otherwise."""


class NoServerAvailable(Exception):
    """Nobody has subscribed to the subject of a request."""


AwayErrors = (NoServerAvailable, OSError)
"""What requests raise while there is no answer; `TimeoutError` is an `OSError`."""


class _Server(NamedTuple):
    """A server; its certificate has to be for `name`."""

    host: str
    port: int
    name: str
    is_encrypted: bool

    def __str__(self) -> str:
        """Where the server is, as `host:port`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Client:
    """A connection and what uses it; its methods are for the event loop. `options` are those it was made with.

    `away_since` is when the connection was lost, else None; `opened` is set when it was there for the first time.
    `denied` has the last of the server's texts about what the user may not do. `last_error` is why no server lets this
    node in; if one refuses its credentials, then that.
    """

    def __init__(self, options: Cluster) -> None:
        self.away_since: float | None = monotonic()
        self.opened = asyncio.Event()
        self.denied: deque[str] = deque(maxlen=_MOST_DENIED)
        self.last_error = ""
        self._name = f"halley {options.node}"
        self.options = options
        # Nodes have the same list, and are not all to be at the same server.
        self._configured = [_server_of(url) for url in random.sample(options.urls, len(options.urls))]
        self._learned: deque[_Server] = deque(maxlen=_MOST_LEARNED)
        self._subscriptions = Subscriptions()
        self._wire = Wire(self._on_error)
        self._turn = -1
        self._attempts = 0  # without success
        self._is_refused = False
        self._refusing: set[_Server] = set()  # that have refused the credentials in the last attempt
        self._reasons: deque[str] = deque(maxlen=_MOST_REASONS)  # which are logged, since the connection was lost
        self._is_wanted = asyncio.Event()
        self._at = ""
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._requests: dict[str, asyncio.Future[Message]] = {}
        self._last_request = 0
        self._connecting: asyncio.Task[None] | None = None
        self.subscribe(f"{self._inbox}.*", self._answered)

    # Its life

    async def open(self) -> None:
        """Connect, and try that until a server lets this node in. Raises `UnusableFile`."""
        await asyncio.to_thread(proof_of, self.options)
        self.begin()
        await self.opened.wait()

    def begin(self) -> None:
        """Connect, and stay connected; files that cannot be used are read again later."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._stay_connected())

    def reload(self) -> None:
        """Log whether the files can be used; if the node waits before it connects again, it does so now."""
        try:
            proof_of(self.options)
        except UnusableFile as error:
            telemetry.log.error("reload_failed", what="credentials", reason=str(error))
        else:
            telemetry.log.info("reloaded", what="credentials", files=files_of(self.options))
        self._attempts = 0
        self._is_wanted.set()

    async def close(self) -> None:
        """Send what waits to be sent, and close the connection."""
        under_way = [*filter(None, [self._connecting, *self._subscriptions.end_all()])]
        if self._connecting is not None:
            self._connecting.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        self._wire.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._wire.ended()
        self._wire.abort()

    def renew(self) -> None:
        """Leave a server that does not answer, and connect to another."""
        self._wire.abort()

    @property
    def away_s(self) -> float:
        """For how many seconds no server has been reachable; 0 while one is."""
        return 0.0 if self.away_since is None else monotonic() - self.away_since

    @property
    def is_refused(self) -> bool:
        """Whether a server was reached that did not let this node in."""
        return self._is_refused or self.is_unauthorized

    @property
    def is_unauthorized(self) -> bool:
        """Whether the last attempt to connect has failed because of the node's credentials, or of their files."""
        return bool(self._refusing)

    def why(self, error: Exception) -> str:
        """Why `open` or a request has raised that: a line for an operator."""
        return str(error) or self.last_error or "no answer"

    @property
    def server(self) -> str:
        """The server that the node is connected to, as `host:port`; empty while there is none."""
        return self._at if self.away_since is None else ""

    @property
    def version(self) -> str:
        """The version of that server."""
        return str(self._wire.info.get("version", "")) if self.away_since is None else ""

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes, in bytes."""
        most = self._wire.info.get("max_payload")
        return most if isinstance(most, int) else _MAX_PAYLOAD

    async def _stay_connected(self) -> None:
        """Connect, and connect again each time that the connection is lost."""
        while True:
            server = await self._connect()
            began_at = monotonic()
            self.away_since, self.last_error = None, ""
            self._refusing.clear()
            if self.opened.is_set():
                telemetry.log.info("cluster_back")
            self.opened.set()
            await self._until_lost()
            self.away_since = monotonic()
            self._reasons.clear()
            self._failed(server, ConnectionResetError("the connection is lost"))
            self._learn(server)
            if self.away_since - began_at < _SHORT_S:  # a server may hang up again and again
                await self._pause()
            else:
                self._attempts = 0

    async def _connect(self) -> _Server:
        """Try one server after another, until one lets this node in; returns that."""
        while True:
            servers = self._servers
            self._turn = (self._turn + 1) % len(servers)
            server = servers[self._turn]
            self._is_wanted.clear()
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._connect_to(server)
            except Exception as error:  # noqa: BLE001 - the next try must come, else the node would stay away
                self._wire.abort()
                self._failed(server, error)
            else:
                return server
            await self._pause()

    @property
    def _servers(self) -> list[_Server]:
        return [*self._configured, *self._learned]

    async def _pause(self) -> None:
        """Wait before the next attempt, or until `reload`."""
        self._attempts += 1
        seconds = pause_s(self._attempts, len(self._servers), is_unauthorized=self.is_unauthorized)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_wanted.wait()

    async def _connect_to(self, server: _Server) -> None:
        """Have a server let this node in. Raises `OSError`; `ValueError` for what it sends."""
        self._wire = wire = Wire(self._on_error)
        proof = await asyncio.to_thread(proof_of, self.options)
        await wire.connect(server.host, server.port)
        await wire.greeted()
        if wire.info.get("tls_required") or server.is_encrypted or proof.tls is not None:
            if not (wire.info.get("tls_required") or wire.info.get("tls_available")):
                raise ConnectionRefusedError("the server does not offer TLS")
            await wire.encrypt(proof.tls or authorities_of_the_system(), server.name)
        wire.send(b"CONNECT %b\r\n" % orjson.dumps(self._hello(wire, proof)))
        wire.ping()
        await wire.answered()
        wire.take = self._subscriptions.deliver
        for line in self._subscriptions.lines:
            wire.send(line)
        self._at = str(server)

    def _hello(self, wire: Wire, proof: Credentials) -> dict[str, object]:
        return {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": __version__,
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "name": self._name,
            **proof.fields(str(wire.info.get("nonce", ""))),
        }

    def _learn(self, server: _Server) -> None:
        """Remember the other servers of the cluster, which the one that was lost has named."""
        urls = self._wire.info.get("connect_urls")
        for url in urls if isinstance(urls, list) else ():
            with suppress(ValueError):
                found = _server_of(f"nats://{url}", is_encrypted=server.is_encrypted)
                if (found.host, found.port) not in [each[:2] for each in self._servers]:
                    self._learned.append(found._replace(name=server.name) if _is_address(found.host) else found)

    async def _until_lost(self) -> None:
        """Wait until the connection is lost; it is, too, if the server does not answer any more."""
        wire = self._wire
        while wire.is_open:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PING_S):
                    await wire.ended()
            if wire.unanswered >= _PINGS:
                wire.refusal = "the server does not answer"
                wire.abort()
            else:
                wire.ping()

    def _on_error(self, text: str) -> None:
        if "permissions violation" in text.lower():
            self.denied.append(_printable(text))
            self._wire.refusal = ""  # the server keeps the connection

    def _failed(self, server: _Server, error: Exception) -> None:
        """Note why a server does not let this node in, or not any more; log each reason once while the node is away."""
        reason = _printable(self._wire.refusal or str(error) or "no answer")
        self._is_refused = bool(self._wire.info)  # with which a server greets
        self._refusing.discard(server)
        if isinstance(error, UnusableFile) or _UNAUTHORIZED.search(reason):
            self._refusing.add(server)
        if server in self._refusing or not self._refusing:
            self.last_error = reason
        if self.opened.is_set() and reason not in self._reasons:
            self._reasons.append(reason)
            telemetry.log.warning("cluster_away", server=str(server), reason=reason)

    # Messages

    def publish(self, subject: str, data: bytes, reply: str = "", head: bytes = b"") -> None:
        """Send a message, with `head` as its headers.

        It is dropped while no server is connected, and where there is no subject, as of the answer to a message without
        `reply`; and if it is larger than the server takes, which would end the connection.
        """
        if self.away_since is not None or self._wire.unsent_bytes > _UNSENT_BYTES or not subject:
            return
        if len(head) + len(data) > self.max_payload:
            dropped("larger than max_payload", subject, len(head) + len(data))
            return
        to = f"{subject} {reply}" if reply else subject
        line = f"HPUB {to} {len(head)} {len(head) + len(data)}" if head else f"PUB {to} {len(data)}"
        self._wire.send(b"%b\r\n%b%b\r\n" % (line.encode("latin-1"), head, data))

    async def drained(self) -> None:
        """Wait until much more can be published without being dropped."""
        await self._wire.drained()

    def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Callable[[], None]:
        """Have each message of a subject handled, one after another; returns what ends that.

        What its handler waits for is cancelled then, and messages that wait are dropped.
        Of all subscribers that name the same `queue`, one gets each message.
        """
        subscription = self._subscriptions.add(subject, handler, queue)
        if self.away_since is None:
            self._wire.send(subscription.line)

        def end() -> None:
            if self._subscriptions.end(subscription) and self.away_since is None:
                self._wire.send(b"UNSUB %b\r\n" % subscription.sid)

        return end

    # Requests

    @asynccontextmanager
    async def answers(self, subject: str, data: bytes, reply: str) -> AsyncIterator[Callable[[], Awaitable[Message]]]:
        """Publish a message; each call of what is yielded waits for the next answer, on the subject `reply`."""
        found: asyncio.Queue[Message] = asyncio.Queue()  # which has what came in one turn, if all are waited for
        end = self.subscribe(reply, found.put_nowait)
        try:
            self.publish(subject, data, reply)
            yield found.get
        finally:
            end()

    async def request(self, subject: str, data: bytes, head: bytes = b"") -> Message:
        """The first answer to a request on a subject. Raises `AwayErrors`, of them `NoServerAvailable`."""
        self._last_request += 1
        reply = f"{self._inbox}.{self._last_request}"
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._requests[reply] = answer
        try:
            async with asyncio.timeout(REQUEST_S):
                self.publish(subject, data, reply, head)
                message = await answer
        finally:
            del self._requests[reply]
        if is_unanswered(message):
            raise NoServerAvailable
        return message

    def _answered(self, message: Message) -> None:
        answer = self._requests.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)


def is_unanswered(message: Message) -> bool:
    """Whether a message is what a NATS server answers to a request on a subject that nobody has subscribed to."""
    return not message.data and message.status == _NO_RESPONDERS


def pause_s(attempts: int, servers: int, *, is_unauthorized: bool) -> float:
    """How long to wait after a number of attempts without success; not all nodes that lost a server come at once."""
    rounds, rest = divmod(attempts, servers)
    most = _MOST_UNAUTHORIZED_S if is_unauthorized else _MOST_S
    longest = _BETWEEN_S if rest else min(most, _BETWEEN_S * 2.0 ** min(rounds, _MOST_DOUBLED))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def _server_of(url: str, *, is_encrypted: bool = False) -> _Server:
    """The server of a URL, with port 4222 unless it names one. Raises `ValueError` for an invalid port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return _Server(host, parts.port or _PORT, host, is_encrypted or url.startswith(TLS))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _printable(text: str) -> str:
    return (text if text.isprintable() else text.encode("unicode_escape").decode())[:_TEXT_CHARS]
