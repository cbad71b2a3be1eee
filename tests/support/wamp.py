"""A WAMP client that sends exactly what a test gives it, and returns exactly what it received.

It is `halley.client`'s, with every serialization and with batches. Every received message is also parsed by autobahn's
message classes, where autobahn is installed: a message that this strict foreign parser refuses fails the test (WD16).
So each test of the wire also tests that.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import struct
import warnings
from typing import TYPE_CHECKING, Any, Self

import cbor2
import msgspec
from websockets.exceptions import ConnectionClosed

from halley.client import wamp
from halley.client.wamp import (
    ABORT,
    AUTHENTICATE,
    CALL,
    CANCEL,
    CHALLENGE,
    ERROR,
    EVENT,
    GOODBYE,
    HELLO,
    INVOCATION,
    PUBLISH,
    PUBLISHED,
    REALM,
    REGISTER,
    RESULT,
    ROLES,
    SUBSCRIBE,
    SUBSCRIBED,
    UNREGISTER,
    UNSUBSCRIBE,
    UNSUBSCRIBED,
    WELCOME,
    YIELD,
    Message,
)  # fmt: skip
from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ABORT", "AUTHENTICATE", "CALL", "CANCEL", "CHALLENGE", "ERROR", "EVENT", "GOODBYE", "HELLO", "INVOCATION",
    "PUBLISH", "PUBLISHED", "REALM", "REGISTER", "RESULT", "ROLES", "SERIALIZERS", "SUBPROTOCOLS", "SUBSCRIBE",
    "SUBSCRIBED", "UNREGISTER", "UNSUBSCRIBE", "UNSUBSCRIBED", "WELCOME", "YIELD", "Message", "WampClient", "check",
    "connect", "join", "parsers",
]  # fmt: skip

SERIALIZERS = ("json", "msgpack", "cbor")
SUBPROTOCOLS = tuple(f"wamp.2.{name}{batched}" for name in SERIALIZERS for batched in ("", ".batched"))

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
    client = WampClient(url, subprotocol, **options)
    await client.open()
    return client


async def join(url: str, subprotocol: str = "wamp.2.json", realm: str = REALM, **details: Any) -> WampClient:
    """Connect and open a session."""
    client = await connect(url, subprotocol)
    await client.join(realm, **details)
    return client


class WampClient(wamp.WampClient):
    """One connection; make it with `connect` or `join`."""

    def __init__(self, url: str, subprotocol: str, *, separator: bytes = b"\x1e", **options: Any) -> None:
        usual = {"max_size": None, "open_timeout": DEADLINE_S, "answer_s": DEADLINE_S}
        super().__init__(url, subprotocol=subprotocol, **(usual | options))
        self.serializer = subprotocol.split(".")[2]
        self.separator = separator

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

    async def receive_all(self) -> list[Message]:
        """Return the messages that arrive before the result of a call that is sent now, so all that were due."""
        request = self.next_request()
        await self.send([CALL, request, {}, "wamp.session.count"])
        before = []
        while (message := await self.receive())[:2] != [RESULT, request]:
            before.append(message)
        return before

    async def join(self, realm: str = REALM, **details: Any) -> int:
        """Send HELLO, which must be replied to by WELCOME; return the session's id."""
        answer = await self.hello(realm, **details)
        assert answer[0] == WELCOME, answer
        return self.session

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

    async def _read(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            self._handle(await self.socket.recv(decode=False))

    def _messages_in(self, frame: str | bytes) -> list[Message]:
        assert isinstance(frame, bytes)
        messages: list[Message] = list(map(_LOADS[self.serializer], self._split(frame)))
        for message in messages:
            check(message)
        return messages

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
