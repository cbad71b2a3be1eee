"""The only file that imports the NATS client: a connection, requests to JetStream, the stream and its messages."""

from __future__ import annotations

import asyncio
import base64
import errno
import logging
import secrets
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import nats.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg

from app import telemetry
from app.settings import Cluster

Message = Msg
Handler = Callable[[Msg], Awaitable[None]]
AwayErrors = (nats.errors.Error, OSError, TimeoutError)
"""What calls raise while no server answers; `TimeoutError` and `OSError` are the standard ones."""

NobodyThere = nats.errors.NoRespondersError
"""The one of these which says that nobody has subscribed to the subject of a request."""

REQUEST_S = 1.0
_NEXT_S, _AT_ONCE = 10.0, 64
_CLOSE_S, _CANCEL_S = 2.0, 0.1
_BEAT_NS, _INACTIVE_NS = 500_000_000, 10_000_000_000
_PENDING_BYTES = 16_777_216
_DENIED_KEPT = 16
_NO_MESSAGE = 10_037
WRONG_LAST = 10_071
_BETWEEN: dict[str, Any] = {"reconnect_time_wait": 0.1}  # seconds; the client says that it is an integer, and need not
_TLS = "tls://"
_NO_NEWS = "returning true from eof_received() has no effect when using ssl"
"""What asyncio warns of at the end of each connection that the client began without TLS, as it does."""

logging.getLogger("asyncio").addFilter(lambda record: record.msg != _NO_NEWS)


class ApiError(Exception):
    """JetStream's answer is an error; `code` is its number (`err_code`)."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("description", "error"))[:200])
        self.code = error.get("err_code", 0)


class Place(NamedTuple):
    """A message's place: its sequence in the stream and in the consumer, the stream's time in microseconds.

    `pending` is how many messages followed when it was delivered.
    """

    sequence: int
    in_consumer: int
    time_us: int
    pending: int


class Connection:
    """A connection to any of the servers, which is renewed by itself.

    `away_since` is when it was lost, else None; `opened` is set when it was there for the first time. `denied` has the
    last of the server's texts about what the user may not do, `last_error` what else it or the client has said.
    """

    def __init__(self, options: Cluster) -> None:
        self.away_since: float | None = monotonic()
        self.opened = asyncio.Event()
        self.denied: deque[str] = deque(maxlen=_DENIED_KEPT)
        self.last_error = ""
        self._options = options
        self._client = Client()
        self._has_begun = self._is_closing = False

    async def open(self) -> None:
        """Connect to the first server that answers. Raises `AwayErrors`; `OSError` too for files that are missing."""
        options, proof = self._options, _proof(self._options)
        self._has_begun = True
        connecting = self._client.connect(
            list(options.urls),
            name=f"halley {options.node}",
            allow_reconnect=True,
            connect_timeout=1,
            max_reconnect_attempts=-1,
            ping_interval=5,
            max_outstanding_pings=2,
            pending_size=_PENDING_BYTES,
            disconnected_cb=self._lost,
            reconnected_cb=self._found,
            error_cb=self._tell,
            **_BETWEEN,
            **proof,
        )
        await _cancellable(connecting)
        self.away_since = None
        self.opened.set()

    async def _lost(self) -> None:
        self.away_since = monotonic()
        if not self._is_closing:
            telemetry.log.warning("cluster_away")

    async def _found(self) -> None:
        self.away_since = None
        telemetry.log.info("cluster_back")

    async def _tell(self, error: Exception) -> None:
        """Log what a handler has raised; `_lost` logs that the connection is lost."""
        if not isinstance(error, OSError) or not self.last_error:  # as when a server has refused, and hung up
            said = str(error)
            self.last_error = said if said.isprintable() else said.encode("unicode_escape").decode()
        if "permissions violation" in str(error):
            self.denied.append(str(error))
        elif not isinstance(error, AwayErrors):
            telemetry.fault("cluster", error)

    @property
    def away_s(self) -> float:
        """For how many seconds no server has been reachable; 0 while one is."""
        return 0.0 if self.away_since is None else monotonic() - self.away_since

    @property
    def server(self) -> str:
        """The server that the node is connected to, as `host:port`; empty while there is none."""
        url = self._client.connected_url
        return "" if url is None or self.away_since is not None else f"{url.hostname}:{url.port}"

    @property
    def version(self) -> str:
        """The version of that server."""
        if not self.server:
            return ""
        version = self._client.connected_server_version
        return f"{version.major}.{version.minor}.{version.patch}"

    @property
    def max_payload(self) -> int:
        """The largest message that the server takes, in bytes."""
        return int(self._client.max_payload)

    async def close(self) -> None:
        """Close the connection."""
        self._is_closing = True
        if self._has_begun:
            with suppress(*AwayErrors):
                async with asyncio.timeout(_CLOSE_S):
                    await self._client.close()
            self._abort()

    async def renew(self) -> None:
        """Leave a server that does not answer, and connect to another."""
        self._abort()
        with suppress(*AwayErrors):
            await self._client.force_reconnect()

    def _abort(self) -> None:
        """Break the connection: the client itself would first wait until the server has read all, and says goodbye."""
        transport: Any = self._client._transport  # noqa: SLF001 - the client has no other way
        if transport is not None and transport._io_writer is not None:  # noqa: SLF001
            transport._io_writer.transport.abort()  # noqa: SLF001

    async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message; while no server is connected it is dropped."""
        if self.away_since is None:
            with suppress(*AwayErrors):
                await self._client.publish(subject, data, reply=reply)

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Callable[[], Awaitable[None]]:
        """Have each message of a subject handled, one after another; returns what ends that. Raises `AwayErrors`.

        Of all subscribers that name the same `queue`, one gets each message.
        """
        found = await self._client.subscribe(subject, queue, cb=handler, pending_msgs_limit=0, pending_bytes_limit=0)

        async def end() -> None:
            with suppress(*AwayErrors):
                await found.unsubscribe()

        return end

    async def first_answer(self, subject: str, data: bytes) -> bytes | None:
        """The first answer to a request on a subject; None if nobody answers."""
        try:
            return bytes((await self._client.request(subject, data, timeout=REQUEST_S)).data)
        except AwayErrors:
            return None

    async def request(self, subject: str, data: bytes) -> bytes:
        """The first answer to a request on a subject. Raises `AwayErrors`, of them `NobodyThere`."""
        return bytes((await self._client.request(subject, data, timeout=REQUEST_S)).data)

    async def last_of(self, stream: str, subject: str) -> tuple[int, bytes]:
        """The sequence and the data of the last message that a stream has on a subject; 0 and b"" if there is none.

        Raises `ApiError`, `AwayErrors`.
        """
        try:
            found = (await self.ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))["message"]
        except ApiError as error:
            if error.code != _NO_MESSAGE:
                raise
            return 0, b""
        return int(found["seq"]), base64.b64decode(found.get("data", ""))

    async def put(self, subject: str, data: bytes, after: int) -> int:
        """Store a message if the last one on its subject has the sequence `after`; returns its own sequence.

        Raises `ApiError` (`WRONG_LAST` where another is the last), `AwayErrors`.
        """
        expected = {"Nats-Expected-Last-Subject-Sequence": str(after)}
        message = await self._client.request(subject, data, timeout=REQUEST_S, headers=expected)
        answer: dict[str, Any] = orjson.loads(message.data)
        if "error" in answer:
            raise ApiError(answer["error"])
        return int(answer["seq"])

    async def ask(self, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """JetStream's answer to a request. Raises `ApiError`, `AwayErrors`."""
        message = await self._client.request(f"$JS.API.{what}", orjson.dumps(body or {}), timeout=REQUEST_S)
        answer: dict[str, Any] = orjson.loads(message.data)
        if "error" in answer:
            raise ApiError(answer["error"])
        return answer

    async def stream_info(self) -> dict[str, Any]:
        """The configuration and state of the stream. Raises `ApiError`, `AwayErrors`."""
        return await self.ask(f"STREAM.INFO.{self._options.space}")

    async def messages(self, first: int, last: int) -> AsyncIterator[Msg]:
        """Yield the stream's messages from one sequence to another, as far as it has them.

        Raises `ApiError`, `AwayErrors`; `TimeoutError` if the next one does not come within `_NEXT_S`.
        """
        if first > last:
            return
        queue: asyncio.Queue[Msg] = asyncio.Queue(_AT_ONCE)

        async def take(message: Msg) -> None:
            if is_control(message):
                await self.answer_control(message)
            await queue.put(message)

        end = await self.consume(secrets.token_hex(8), first, take)
        try:
            count = 0
            while True:
                async with asyncio.timeout(_NEXT_S):
                    message = await queue.get()
                if is_control(message):
                    headers = message.headers or {}
                    if headers.get("Nats-Last-Consumer") == str(count) and "Nats-Consumer-Stalled" not in headers:
                        return  # there are no more
                    continue
                place, count = place_of(message), count + 1
                if place.in_consumer != count:
                    raise TimeoutError
                if place.sequence <= last:
                    yield message
                if place.sequence >= last or not place.pending:
                    return
        finally:
            await end()

    async def consume(self, name: str, first: int, handler: Handler) -> Callable[[], Awaitable[None]]:
        """Have the stream's messages from the sequence `first` on delivered in order; returns what ends that.

        The consumer is in one server's memory and sends a heartbeat twice a second; it ends with its server.
        Raises `ApiError`, `AwayErrors`.
        """
        stream = self._options.space
        subject = f"{stream}.d.{name}"
        end = await self.subscribe(subject, handler)
        config = {
            "name": name,
            "deliver_subject": subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": first,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": _BEAT_NS,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_NS,
            "replay_policy": "instant",
        }
        try:
            await self.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        except BaseException:
            await end()
            raise
        return end

    async def answer_control(self, message: Msg) -> None:
        """Answer a message of the consumer that has no data: a heartbeat, or a request for flow control."""
        stalled = (message.headers or {}).get("Nats-Consumer-Stalled", "")
        if message.reply or stalled:
            await self.publish(message.reply or stalled, b"")


def is_control(message: Msg) -> bool:
    """Whether a message of a consumer is none of the stream's."""
    return not message.data and not message.reply.startswith("$JS.ACK")


async def _cancellable(work: Coroutine[Any, Any, Any]) -> None:
    """Await what the client does, which may swallow that it is cancelled: it is cancelled again until it ends."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_S)
        raise


def _proof(options: Cluster) -> dict[str, Any]:
    """The client's arguments that prove who the node is, and who the servers are. Raises `OSError`."""
    more: dict[str, Any] = {}
    for file in filter(None, (options.tls_ca, options.tls_cert, options.tls_key)):
        Path(file).read_bytes()  # as OpenSSL's errors do not name a file that is missing
    if options.user:
        password = Path(options.password_file).read_text(encoding="utf-8").strip() if options.password_file else ""
        more |= {"user": options.user, "password": password}
    if options.nkey_file:
        more["nkeys_seed_str"] = seed = Path(options.nkey_file).read_text(encoding="ascii", errors="replace").strip()
        import nkeys  # the client imports it in this case only, too

        with _naming(options.nkey_file, "no seed of a user's nkey"):
            nkeys.from_seed(bytearray(seed.encode())).wipe()
    if options.tls_ca or options.tls_cert or any(url.startswith(_TLS) for url in options.urls):
        with _naming(options.tls_ca, "no certificate"):
            more["tls"] = context = ssl.create_default_context(cafile=options.tls_ca or None)
        if options.tls_cert:
            with _naming(options.tls_cert, "no certificate with its private key"):
                context.load_cert_chain(options.tls_cert, options.tls_key or None, password="")
    return more


@contextmanager
def _naming(file: str, otherwise: str) -> Iterator[None]:
    """Have any error say what is wrong with which file, and nothing of what it contains. Raises `OSError`."""
    try:
        yield
    except Exception:  # noqa: BLE001 - these libraries raise many kinds
        raise OSError(errno.EINVAL, otherwise, file) from None


def place_of(message: Msg) -> Place:
    """The place of a message that a consumer delivered."""
    # $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<in the consumer>.<nanoseconds>.<pending>
    parts = message.reply.split(".")
    return Place(int(parts[-4]), int(parts[-3]), int(parts[-2]) // 1_000, int(parts[-1]))


def is_unanswered(message: Msg) -> bool:
    """Whether a message is what a NATS server answers to a request that nobody else can answer."""
    return not message.data and (message.headers or {}).get("Status") == "503"
