"""An NT4 client that sends exactly what a test gives it, and returns exactly what it received, in order.

Received messages are checked for what every client relies on: frames are whole, a topic is announced before its values
and unannounced once, ids are not negative (NA21, NA37). If a server breaks this, the test fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote

import msgpack
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

V41, V40 = "v4.1.networktables.first.wpi.edu", "networktables.first.wpi.edu"
RTT = "rtt.networktables.first.wpi.edu"

BOOLEAN, DOUBLE, INT, FLOAT, STRING, RAW = range(6)
ARRAY = 16

TIME_ID = -1
MARK = "/.mark"
"""The topic of marks, by which a test knows that all values before them have arrived."""

_MARK_ID = 2_000_000_000
_ASKED = -(2**62)  # this client's own requests for the time count down from here
_PERIODIC_S = 0.01
_METHODS: dict[str, dict[str, type]] = {
    "announce": {"name": str, "id": int, "type": str, "properties": dict},
    "unannounce": {"name": str, "id": int},
    "properties": {"name": str, "update": dict},
}


class Text(NamedTuple):
    """A text message, one of those in a frame."""

    method: str
    params: dict[str, Any]


class Value(NamedTuple):
    """A value, by its topic's name."""

    name: str
    time_us: int
    number: int
    value: Any


Message = Text | Value


def text(method: str, **params: Any) -> dict[str, Any]:
    """Return a text message as it is sent."""
    return {"method": method, "params": params}


def packed(uid: Any, time_us: Any, number: Any, value: Any) -> bytes:
    """Return a value as it is sent; floats have 32 bits if the type's number is that of floats."""
    data: bytes = msgpack.packb([uid, time_us, number, value], use_single_float=number in (FLOAT, ARRAY + FLOAT))
    return data


async def connect(
    url: str, name: str = "test", *subprotocols: str, path: str | None = None, **options: Any
) -> NtClient:
    """Connect to `/nt/NAME`, or another `path`, of a server at `http://…`; the protocol is 4.1 unless one is given.

    `options` are those of websockets' `connect`. Raises its `InvalidStatus` if the server refuses.
    """
    path = f"/nt/{quote(name, safe='')}" if path is None else path
    usual = {"compression": None, "ping_interval": None, "max_size": None, "max_queue": None}
    socket = await connect_websocket(
        f"ws{url.removeprefix('http')}{path}",
        subprotocols=[Subprotocol(each) for each in subprotocols or (V41,)],
        **(usual | {"open_timeout": DEADLINE_S} | options),
    )
    return NtClient(socket, name)


class NtClient:
    """One connection; make it with `connect`.

    `names` are the announced topics by id, `frames` all received binary frames, `times` the responses to requests for
    the time, except those to requests that this client made for itself.
    """

    def __init__(self, socket: ClientConnection, name: str) -> None:
        self.socket = socket
        self.name = name
        self.names: dict[int, str] = {}
        self.frames: list[bytes] = []
        self.times: list[list[Any]] = []
        self._came: deque[Message] = deque()
        self._asked = count(1)
        self._marks = count(1)
        self._answered = self._server_us = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, *messages: Any) -> None:
        """Send text messages, all in one frame."""
        await self.socket.send(json.dumps(messages))

    async def publish(
        self, name: str, pubuid: int, type_name: str = "double", properties: dict[str, Any] | None = None
    ) -> None:
        """Begin to publish a topic."""
        await self.send(text("publish", name=name, pubuid=pubuid, type=type_name, properties=properties or {}))

    async def unpublish(self, pubuid: int) -> None:
        """End the publishing of a topic."""
        await self.send(text("unpublish", pubuid=pubuid))

    async def set_properties(self, name: str, **update: Any) -> None:
        """Change a topic's properties."""
        await self.send(text("setproperties", name=name, update=update))

    async def subscribe(self, *topics: str, subuid: int = 1, periodic: float = _PERIODIC_S, **options: Any) -> None:
        """Subscribe to topics; the period is short unless one is given."""
        options = {"periodic": periodic, **options}
        await self.send(text("subscribe", topics=topics, subuid=subuid, options=options))

    async def unsubscribe(self, subuid: int) -> None:
        """End a subscription."""
        await self.send(text("unsubscribe", subuid=subuid))

    async def put(self, pubuid: int, time_us: int, value: Any, number: int = DOUBLE) -> None:
        """Send one value."""
        await self.socket.send(packed(pubuid, time_us, number, value))

    async def send_raw(self, data: bytes | str) -> None:
        """Send a binary or a text frame."""
        await self.socket.send(data)

    async def receive(self) -> Message:
        """Return the next message. Raises `TimeoutError`, and websockets' `ConnectionClosed`."""
        while not self._came:
            await self._read()
        return self._came.popleft()

    async def text(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the parameters of the next text message of that method that has these parameters.

        Other messages that arrived before it are received later.
        """
        message = await self._first(
            lambda each: isinstance(each, Text) and each.method == method and params.items() <= each.params.items()
        )
        assert isinstance(message, Text)
        return message.params

    async def value(self, name: str) -> Value:
        """Return the next value of that topic; other messages that arrived before it are received later."""
        message = await self._first(lambda each: isinstance(each, Value) and each.name == name)
        assert isinstance(message, Value)
        return message

    async def time(self) -> int:
        """Return the server's time in microseconds."""
        asked = next(self._asked)
        await self.socket.send(packed(TIME_ID, 0, INT, _ASKED - asked))
        while self._answered < asked:
            await self._read()
        return self._server_us

    async def quiet(self) -> list[Message]:
        """Return all messages that arrive until the server has processed what this client sent before.

        Values that wait for their period are not among them; see `marked`.
        """
        await self.time()
        return self.left()

    def left(self) -> list[Message]:
        """Return the messages that have arrived and were not received; they are not received later."""
        came = [*self._came]
        self._came.clear()
        return came

    async def heed_marks(self, periodic_s: float = _PERIODIC_S) -> None:
        """Subscribe to marks with that period, so that a mark arrives after all values with the same period."""
        await self.subscribe(MARK, subuid=_MARK_ID, periodic=periodic_s, all=True)
        await self.time()

    async def mark(self) -> int:
        """Publish a mark after all values that this client has published; return its number."""
        number = next(self._marks)
        if number == 1:
            await self.publish(MARK, _MARK_ID, "int")
        await self.put(_MARK_ID, number, number, INT)
        await self.time()
        return number

    async def marked(self, number: int) -> list[Message]:
        """Return all messages that arrive up to that mark and with it, without marks."""
        came: list[Message] = []
        while True:
            message = await self.receive()
            if isinstance(message, Value) and message.name == MARK and message.value == number:
                break
            came.append(message)
        came += await self.quiet()  # what was written in the same flush, after the mark
        return [each for each in came if (each.name if isinstance(each, Value) else each.params["name"]) != MARK]

    async def closed(self) -> tuple[int, str]:
        """Wait until the server closes; return the code and reason. Earlier messages can still be received."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._read()
        assert self.socket.close_code is not None
        return self.socket.close_code, self.socket.close_reason or ""

    async def close(self) -> None:
        """Close the connection."""
        await self.socket.close()

    async def _first(self, is_wanted: Callable[[Message], bool]) -> Message:
        """Take the first wanted message out of those that have arrived or will arrive."""
        seen = 0
        while True:
            for number, message in enumerate(self._came):
                if number >= seen and is_wanted(message):
                    del self._came[number]
                    return message
            seen = len(self._came)
            try:
                await self._read()
            except TimeoutError:
                raise AssertionError(f"{self.name} waits in vain; there came {[*self._came]}") from None

    async def _read(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            data = await self.socket.recv()
        if isinstance(data, str):
            self._came.extend(map(self._read_text, json.loads(data)))
        else:
            self.frames.append(data)
            self._read_values(data)

    def _read_text(self, message: dict[str, Any]) -> Text:
        method, params = message["method"], message["params"]
        for name, kind in _METHODS[method].items():
            assert isinstance(params[name], kind), message
        if method == "announce":
            assert params["id"] >= 0, message
            assert self.names.setdefault(params["id"], params["name"]) == params["name"], "an id of another topic"
        elif method == "unannounce":
            assert self.names.pop(params["id"]) == params["name"], message
        return Text(method, params)

    def _read_values(self, data: bytes) -> None:
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(data)
        for topic_id, time_us, number, value in unpacker:
            if topic_id != TIME_ID:
                assert topic_id in self.names, f"a value of topic {topic_id}, which was not announced"
                self._came.append(Value(self.names[topic_id], time_us, number, value))
            elif number == INT and isinstance(value, int) and value < _ASKED:
                self._answered, self._server_us = _ASKED - value, time_us
            else:
                self.times.append([time_us, number, value])
        assert unpacker.tell() == len(data), "a value that is not whole"
