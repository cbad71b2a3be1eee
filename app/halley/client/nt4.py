"""A NetworkTables 4.1 client: publishes values, and subscribes to topics.

async with Nt4Client("ws://127.0.0.1:5810", "robot") as client:
    await client.publish("/robot/pose", 1, "double[]")
    await client.put_all({"/robot/pose": [1.0, 2.0, 0.5]})
    await client.subscribe("/robot/mode")
    async for value in client:
        print(value.name, value.value)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

import msgpack

from halley.client.websocket import WebSocketClient, websocket_url

V41, V40 = "v4.1.networktables.first.wpi.edu", "networktables.first.wpi.edu"

BOOLEAN, DOUBLE, INT, FLOAT, STRING, RAW = range(6)
ARRAY = 16
TYPES = {
    "boolean": BOOLEAN, "double": DOUBLE, "int": INT, "float": FLOAT, "string": STRING, "json": STRING, "raw": RAW,
    "boolean[]": ARRAY + BOOLEAN, "double[]": ARRAY + DOUBLE, "int[]": ARRAY + INT, "float[]": ARRAY + FLOAT,
    "string[]": ARRAY + STRING,
}  # fmt: skip
"""The number of each type; a type that is not listed is raw."""

TIME_ID = -1
"""The topic id of requests for the server's time and of their replies."""

ASKED = -(2**62)
"""The value of a request for the time, which its reply repeats: those of `Nt4Client.time` count down from here."""


class Text(NamedTuple):
    """A text message; a frame can have several."""

    method: str
    params: dict[str, Any]


class Value(NamedTuple):
    """A value: its topic's name, the server's time in microseconds, the number of its type, and the value itself."""

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


class Nt4Client(WebSocketClient[Message]):
    """A connection of the client `name`; see `WebSocketClient` for its life and its errors.

    `server` is `ws://HOST:PORT` or `http://HOST:PORT`. `async with` also learns the server's time. `names` are the
    announced topics by their ids.
    """

    def __init__(self, server: str, name: str, *subprotocols: str, path: str | None = None, **options: Any) -> None:
        path = f"/nt/{quote(name, safe='')}" if path is None else path
        super().__init__(websocket_url(server, path), subprotocols or (V41,), **options)
        self.name = name
        self.names: dict[int, str] = {}
        self._published: dict[str, tuple[int, int]] = {}
        self._offset_us = 0
        self._time_requests = count(1)
        self._time_replies = self._server_us = 0

    # Time

    async def begin(self) -> None:
        """Learn the server's time, with which `put_all` marks values."""
        sent_us = _now_us()
        self._offset_us = await self.time() - (sent_us + _now_us()) // 2

    async def time(self) -> int:
        """Return the server's time in microseconds; it has then processed all that was sent before.

        Raises `TimeoutError` if there is no reply within `answer_s`.
        """
        number = next(self._time_requests)
        await self.socket.send(packed(TIME_ID, 0, INT, ASKED - number))
        async with asyncio.timeout(self.answer_s):
            await self.until(lambda: self._time_replies >= number)
        return self._server_us

    # Publishing

    async def publish(
        self, name: str, pubuid: int, type_name: str = "double", properties: dict[str, Any] | None = None
    ) -> None:
        """Begin to publish a topic; `pubuid` is a number of the client's choice."""
        self._published[name] = pubuid, TYPES.get(type_name, RAW)
        await self.send(text("publish", name=name, pubuid=pubuid, type=type_name, properties=properties or {}))

    async def unpublish(self, pubuid: int) -> None:
        """End the publishing of a topic."""
        await self.send(text("unpublish", pubuid=pubuid))

    async def set_properties(self, name: str, **update: Any) -> None:
        """Change a topic's properties."""
        await self.send(text("setproperties", name=name, update=update))

    async def put(self, pubuid: int, time_us: int, value: Any, number: int = DOUBLE) -> None:
        """Send one value as the publisher `pubuid`; `time_us` is by the server's clock, `number` that of its type."""
        await self.socket.send(packed(pubuid, time_us, number, value))

    async def put_all(self, values: Mapping[str, Any]) -> None:
        """Send values of published topics by their names, all with the current time and in one frame."""
        now_us = _now_us() + self._offset_us
        frame = b""
        for name, value in values.items():
            pubuid, number = self._published[name]
            frame += packed(pubuid, now_us, number, value)
        await self.socket.send(frame)

    # Subscribing

    async def subscribe(self, *topics: str, subuid: int = 1, periodic: float = 0.1, **options: Any) -> None:
        """Subscribe to topics, with options such as `prefix=True`; `periodic` is the time between updates in s."""
        options = {"periodic": periodic, **options}
        await self.send(text("subscribe", topics=topics, subuid=subuid, options=options))

    async def unsubscribe(self, subuid: int) -> None:
        """End the subscription `subuid`; values that the server has already sent can still arrive."""
        await self.send(text("unsubscribe", subuid=subuid))

    async def __anext__(self) -> Value:
        """Return the next value of a topic."""
        while not isinstance(message := await self.receive(), Value):
            pass
        return message

    # Messages

    async def send(self, *messages: Any) -> None:
        """Send text messages, all in one frame."""
        await self.socket.send(json.dumps(messages))

    def _handle(self, frame: str | bytes) -> None:
        if isinstance(frame, str):
            for message in json.loads(frame):
                self._handle_text(Text(message["method"], message["params"]))
            return
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(frame)
        for topic_id, time_us, number, value in unpacker:
            self._handle_value(topic_id, time_us, number, value)

    def _handle_text(self, message: Text) -> None:
        if message.method == "announce":
            self.names[message.params["id"]] = message.params["name"]
        elif message.method == "unannounce":
            self.names.pop(message.params["id"], None)
        self._queue(message)

    def _handle_value(self, topic_id: int, time_us: int, number: int, value: Any) -> None:
        if topic_id == TIME_ID:
            self._time_replies, self._server_us = ASKED - int(value), int(time_us)
        elif topic_id in self.names:  # the values of an unannounced topic can still be on their way
            self._queue(Value(self.names[topic_id], time_us, number, value))


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
