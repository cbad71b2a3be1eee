"""A connection to one of several NATS servers, which is renewed by itself: messages, and requests with an answer.

Handlers are called while the bytes of the messages are read, in the order in which they come. One that has to wait
returns an awaitable: what follows on its subscription waits for that, and nothing else does.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from time import monotonic
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from halley import __version__, telemetry
from halley.nats.credentials import TLS, Proof, authorities_of_the_system, proof_of
from halley.nats.subscriptions import Handler, Subscriptions, dropped
from halley.nats.wire import Message, Wire
from halley.settings import Cluster

REQUEST_S = 1.0
_CONNECT_S, _BETWEEN_S, _SHORT_S = 2.0, 0.1, 1.0
_PING_S, _PINGS = 5.0, 2
_CLOSE_S = 2.0
_UNSENT_BYTES = 16_777_216
"""How much may wait to be sent; what is published then is dropped, as it is while no server is connected."""

_REFUSED: Final = ("authorization violation", "authentication expired", "authentication revoked")
"""Of what servers say when they do not accept the credentials of a user, or not any more."""

_MOST_LEARNED = 16
_MOST_DENIED = 16
_TEXT_CHARS = 200
_NO_RESPONDERS = "503"
_PORT, _MAX_PAYLOAD = 4222, 1_048_576
"""What NATS servers have unless their configuration says otherwise."""


class NobodyThere(Exception):
    """Nobody has subscribed to the subject of a request."""


AwayErrors = (NobodyThere, OSError)
"""What requests raise while there is no answer; `TimeoutError` is an `OSError`."""


class _Server(NamedTuple):
    """A server; its certificate has to be for `name`."""

    host: str
    port: int
    name: str
    is_encrypted: bool


class Client:
    """A connection and what uses it; its methods are for the event loop.

    `away_since` is when the connection was lost, else None; `opened` is set when it was there for the first time.
    `is_unauthorized` while it is away since a server has refused its credentials in the last attempt to connect.
    `denied` has the last of the server's texts about what the user may not do, `last_error` what else has gone wrong.
    """

    def __init__(self, options: Cluster) -> None:
        self.away_since: float | None = monotonic()
        self.opened = asyncio.Event()
        self.is_unauthorized = False
        self.denied: deque[str] = deque(maxlen=_MOST_DENIED)
        self.last_error = ""
        self._name = f"halley {options.node}"
        self._options = options
        # Nodes have the same list, and are not all to be at the same server.
        self._configured = [_server_of(url) for url in random.sample(options.urls, len(options.urls))]
        self._learned: deque[_Server] = deque(maxlen=_MOST_LEARNED)
        self._subscriptions = Subscriptions()
        self._wire = Wire(self._on_error)
        self._turn = -1
        self._at = ""
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._requests: dict[str, asyncio.Future[Message]] = {}
        self._last_request = 0
        self._connecting: asyncio.Task[None] | None = None
        self.subscribe(f"{self._inbox}.*", self._answered)

    # Its life

    async def open(self) -> None:
        """Connect, and try that until a server lets this node in. Raises `OSError` for files that cannot be used."""
        proof = proof_of(self._options)
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._stay_connected(proof))
        await self.opened.wait()

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

    async def _stay_connected(self, proof: Proof) -> None:
        """Connect, and connect again each time that the connection is lost."""
        while True:
            server = await self._connect(proof)
            began_at = monotonic()
            self.away_since, self.is_unauthorized = None, False
            if self.opened.is_set():
                telemetry.log.info("cluster_back")
            self.opened.set()
            await self._until_lost()
            self.away_since = monotonic()
            telemetry.log.warning("cluster_away")
            self._learn(server)
            if self.away_since - began_at < _SHORT_S:  # a server may hang up again and again
                await asyncio.sleep(_BETWEEN_S)

    async def _connect(self, proof: Proof) -> _Server:
        """Try one server after another, until one lets this node in; returns that."""
        while True:
            servers = [*self._configured, *self._learned]
            self._turn = (self._turn + 1) % len(servers)
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._connect_to(servers[self._turn], proof)
            except Exception as error:  # noqa: BLE001 - the next try must come, else the node would stay away
                self._wire.abort()
                self._failed(error)
            else:
                return servers[self._turn]
            await asyncio.sleep(_BETWEEN_S)

    async def _connect_to(self, server: _Server, proof: Proof) -> None:
        """Have a server let this node in. Raises `OSError`; `ValueError` for what it sends."""
        self._wire = wire = Wire(self._on_error)
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
        self._at = f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"

    def _hello(self, wire: Wire, proof: Proof) -> dict[str, object]:
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
                if (found.host, found.port) not in [each[:2] for each in (*self._configured, *self._learned)]:
                    self._learned.append(found._replace(name=server.name) if _is_address(found.host) else found)

    async def _until_lost(self) -> None:
        """Wait until the connection is lost; it is, too, if the server does not answer any more."""
        wire = self._wire
        while wire.is_open:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PING_S):
                    await wire.ended()
            if wire.unanswered >= _PINGS:
                wire.abort()
            else:
                wire.ping()

    def _on_error(self, text: str) -> None:
        if "permissions violation" in text.lower():
            self.denied.append(_printable(text))

    def _failed(self, error: Exception) -> None:
        text = self._wire.refusal or (str(error) if isinstance(error, ssl.SSLError) or not self.last_error else "")
        self.last_error = _printable(text) or self.last_error
        self.is_unauthorized = any(each in self._wire.refusal.lower() for each in _REFUSED)

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

    async def request(self, subject: str, data: bytes, head: bytes = b"") -> Message:
        """The first answer to a request on a subject. Raises `AwayErrors`, of them `NobodyThere`."""
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
            raise NobodyThere
        return message

    def _answered(self, message: Message) -> None:
        answer = self._requests.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)


def is_unanswered(message: Message) -> bool:
    """Whether a message is what a NATS server answers to a request on a subject that nobody has subscribed to."""
    return not message.data and message.status == _NO_RESPONDERS


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
