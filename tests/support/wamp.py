"""A WAMP client that sends exactly what a test gives it, and returns exactly what it received.

Every received message is also parsed by autobahn's message classes, where autobahn is installed: a message that this
strict foreign parser refuses fails the test (WD16). So each test of the wire also tests that.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import struct
import warnings
from collections import deque
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import cbor2
import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Message = list[Any]

HELLO, WELCOME, ABORT, CHALLENGE, AUTHENTICATE, GOODBYE, ERROR = 1, 2, 3, 4, 5, 6, 8
PUBLISH, PUBLISHED, SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE, UNSUBSCRIBED, EVENT = 16, 17, 32, 33, 34, 35, 36
CALL, CANCEL, RESULT, REGISTER, UNREGISTER, INVOCATION, YIELD = 48, 49, 50, 64, 66, 68, 70

REALM = "realm1"
SERIALIZERS = ("json", "msgpack", "cbor")
SUBPROTOCOLS = tuple(f"wamp.2.{name}{batched}" for name in SERIALIZERS for batched in ("", ".batched"))
ROLES: Mapping[str, Any] = MappingProxyType({role: {} for role in ("publisher", "subscriber", "caller")})

_DUMPS: dict[str, Callable[[Any], bytes]] = {
    "json": lambda value: json.dumps(value).encode(),
    "msgpack": msgspec.msgpack.encode,
    "cbor": cbor2.dumps,
}
_LOADS: dict[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    "msgpack": msgspec.msgpack.decode,
    "cbor": cbor2.loads,
}


def parsers() -> dict[int, Any]:
    """Return autobahn's class for each message code; empty without autobahn."""
    if importlib.util.find_spec("autobahn") is None:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("txaio").use_asyncio()  # must be called before autobahn is imported
        serializer = importlib.import_module("autobahn.wamp.serializer")
    found: dict[int, Any] = serializer.Serializer.MESSAGE_TYPE_MAP
    return found


_PARSERS = parsers()


def check(message: Message) -> None:
    """Check that autobahn's parser accepts this message of a router. Raises the parser's exceptions."""
    if _PARSERS:
        _PARSERS[message[0]].parse(message)


async def connect(url: str, subprotocol: str = "wamp.2.json", **options: Any) -> WampClient:
    """Connect, without a session, to `ws://…`, or to `/ws` of a server at `http://…`.

    `options` are those of websockets' `connect`, such as `origin` and `additional_headers`, and `separator`, which
    follows each message of batched JSON. Raises websockets' `InvalidStatus` if the server refuses.
    """
    separator = options.pop("separator", b"\x1e")
    if url.startswith("http"):
        url = f"ws{url.removeprefix('http')}/ws"
    unbounded = {"compression": None, "ping_interval": None, "max_size": None, "open_timeout": DEADLINE_S}
    socket = await connect_websocket(url, subprotocols=[Subprotocol(subprotocol)], **(unbounded | options))
    return WampClient(socket, subprotocol, separator)


async def join(url: str, subprotocol: str = "wamp.2.json", realm: str = REALM, **details: Any) -> WampClient:
    """Connect and open a session."""
    client = await connect(url, subprotocol)
    await client.join(realm, **details)
    return client


class WampClient:
    """One connection; make it with `connect`.

    `socket` is the connection of websockets, for anything but messages. `welcome` are the details of WELCOME, `session`
    is the session's id.
    """

    def __init__(self, socket: ClientConnection, subprotocol: str, separator: bytes) -> None:
        self.socket = socket
        self.subprotocol = subprotocol
        self.serializer = subprotocol.split(".")[2]
        self.separator = separator
        self.session = 0
        self.welcome: dict[str, Any] = {}
        self._came: deque[Message] = deque()
        self._requests = count(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, *messages: Any) -> None:
        """Send messages, each in a separate frame, or all in one batch."""
        packed = list(map(_DUMPS[self.serializer], messages))
        for data in [self._batch(packed)] if self.subprotocol.endswith(".batched") else packed:
            await self.send_raw(data)

    async def send_raw(self, data: bytes) -> None:
        """Send one frame: text for JSON, binary for the other serializers."""
        await self.socket.send(data, text=self.serializer == "json")

    async def receive(self) -> Message:
        """Return the next message. Raises `TimeoutError`, and websockets' `ConnectionClosed`."""
        while not self._came:
            async with asyncio.timeout(DEADLINE_S):
                data = await self.socket.recv(decode=False)
            self._came.extend(map(self._read, self._split(data)))
        return self._came.popleft()

    async def receive_all(self) -> list[Message]:
        """Return the messages that arrive before the result of a call that is sent now, so all that were due."""
        request = self.next_request()
        await self.send([CALL, request, {}, "wamp.session.count"])
        before = []
        while (message := await self.receive())[:2] != [RESULT, request]:
            before.append(message)
        return before

    async def hello(self, realm: str = REALM, **details: Any) -> Message:
        """Send HELLO, and return the reply. `details` are added to the roles, or replace them."""
        await self.send([HELLO, realm, {"roles": dict(ROLES), **details}])
        answer = await self.receive()
        if answer[0] == WELCOME:
            _, self.session, self.welcome = answer
        return answer

    async def join(self, realm: str = REALM, **details: Any) -> int:
        """Send HELLO, which must be replied to by WELCOME; return the session's id."""
        answer = await self.hello(realm, **details)
        assert answer[0] == WELCOME, answer
        return self.session

    def next_request(self) -> int:
        """Return the next request id: 1, 2, 3 ..."""
        return next(self._requests)

    async def ask(self, code: int, *rest: Any) -> Message:
        """Send a request with the next id and return its reply; other messages in between are received later."""
        request = self.next_request()
        await self.send([code, request, *rest])
        others = []
        try:
            while True:
                message = await self.receive()
                if message[0] == ERROR and message[1:3] == [code, request]:
                    return message
                if message[0] == code + (2 if code == CALL else 1) and message[1] == request:
                    return message
                others.append(message)
        finally:
            self._came.extendleft(reversed(others))

    async def subscribe(self, topic: str, **options: Any) -> int:
        """Subscribe; return the subscription's id."""
        answer = await self.ask(SUBSCRIBE, options, topic)
        assert answer[0] == SUBSCRIBED, answer
        subscription: int = answer[2]
        return subscription

    async def unsubscribe(self, subscription: int) -> Message:
        """End a subscription; return the reply."""
        return await self.ask(UNSUBSCRIBE, subscription)

    async def publish(self, topic: str, *payload: Any, **options: Any) -> int:
        """Publish with acknowledgement; return the publication's id. `payload`: nothing, args, or args and kwargs."""
        answer = await self.ask(PUBLISH, {"acknowledge": True, **options}, topic, *payload)
        assert answer[0] == PUBLISHED, answer
        publication: int = answer[2]
        return publication

    async def call(self, procedure: str, *args: Any, **kwargs: Any) -> Message:
        """Call a procedure; return the reply."""
        return await self.ask(CALL, {}, procedure, list(args), kwargs)

    @property
    def close_code(self) -> int | None:
        """The code with which the server has closed the connection, if it has."""
        return self.socket.close_code

    async def closed(self) -> int:
        """Wait until the server closes, without any message before that; return the close's code."""
        with contextlib.suppress(ConnectionClosed):
            message = await self.receive()
            raise AssertionError(f"received {message} instead of a close")
        assert self.close_code is not None
        return self.close_code

    async def close(self) -> None:
        """Close the connection, without GOODBYE."""
        await self.socket.close()

    def _batch(self, packed: list[bytes]) -> bytes:
        if self.serializer == "json":
            return b"".join(each + self.separator for each in packed)
        return b"".join(struct.pack(">I", len(each)) + each for each in packed)

    def _split(self, data: bytes) -> list[bytes]:
        """Return the messages of one frame; each of a batch must end with this client's separator."""
        if not self.subprotocol.endswith(".batched"):
            return [data]
        if self.serializer == "json":
            *messages, rest = data.split(self.separator)
            assert messages, data
            assert rest == b"", data
            return messages
        messages = []
        while data:
            (length,) = struct.unpack_from(">I", data)
            assert len(data) >= 4 + length, data
            messages.append(data[4 : 4 + length])
            data = data[4 + length :]
        assert messages, "an empty batch"
        return messages

    def _read(self, data: bytes) -> Message:
        message: Message = _LOADS[self.serializer](data)
        check(message)
        return message
