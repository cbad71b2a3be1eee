"""A NetworkTables 4.1 client over a WebSocket with what a robot needs: it publishes values and subscribes to topics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgpack
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from app.demo.comeback import Away

_SUBPROTOCOL = Subprotocol("v4.1.networktables.first.wpi.edu")
_TYPES = {"boolean": 0, "double": 1, "int": 2, "string": 4, "raw": 5, "double[]": 17}
_TIME_ID = -1
_ANSWER_S = 10.0


class Nt4Link:
    """A client, made with `linked`, which also sets its clock by the server's; `listen` has to run meanwhile.

    `topics` are those that it publishes: names and types.
    """

    def __init__(self, socket: ClientConnection, topics: Mapping[str, str]) -> None:
        self._socket = socket
        self._topics = {name: (number, _TYPES[kind]) for number, (name, kind) in enumerate(topics.items(), 1)}
        self._names: dict[int, str] = {}
        self._behind_us = 0

    async def begin(self, topics: Mapping[str, str], wanted: Sequence[str]) -> None:
        """Request the server's time, announce the published topics, and subscribe to the wanted ones."""
        asked_us = _now_us()
        await self._socket.send(msgpack.packb([_TIME_ID, 0, _TYPES["int"], asked_us]))
        async with asyncio.timeout(_ANSWER_S):
            while isinstance(answer := await self._socket.recv(), str):
                self._learn(answer)
        _, server_us, _, _ = msgpack.unpackb(answer)
        self._behind_us = server_us - (asked_us + _now_us()) // 2
        messages = [
            {"method": "publish", "params": {"name": name, "pubuid": number, "type": topics[name], "properties": {}}}
            for name, (number, _) in self._topics.items()
        ]
        hear = {"topics": wanted, "subuid": 1, "options": {"periodic": 0.1}}
        await self._socket.send(json.dumps([*messages, {"method": "subscribe", "params": hear}]))

    async def put(self, values: Mapping[str, Any]) -> None:
        """Publish values by the names of their topics, all with the current time and in one frame."""
        now_us = _now_us() + self._behind_us
        packed = []
        for name, value in values.items():
            number, kind = self._topics[name]
            packed.append(msgpack.packb([number, now_us, kind, value]))
        await self._socket.send(b"".join(packed))

    async def listen(self, hear: Callable[[str, Any], object]) -> None:
        """Call `hear` with the name and value of each update. Raises websockets' `ConnectionClosed` in the end."""
        while True:
            data = await self._socket.recv()
            if isinstance(data, str):
                self._learn(data)
                continue
            unpacker = msgpack.Unpacker()
            unpacker.feed(data)
            for topic_id, _, _, value in unpacker:
                if topic_id in self._names:
                    hear(self._names[topic_id], value)

    def _learn(self, text: str) -> None:
        for message in json.loads(text):
            params = message["params"]
            if message["method"] == "announce":
                self._names[params["id"]] = params["name"]
            elif message["method"] == "unannounce":
                self._names.pop(params["id"], None)


@asynccontextmanager
async def linked(server: str, name: str, topics: Mapping[str, str], wanted: Sequence[str]) -> AsyncIterator[Nt4Link]:
    """Connect a client to `ws://HOST:PORT`. Raises `Away`, `OSError`, and what websockets raises."""
    # The server pings; pings from both sides would show no more.
    async with connect(f"{server}/nt/{name}", subprotocols=[_SUBPROTOCOL], ping_interval=None) as socket:
        if socket.subprotocol != _SUBPROTOCOL:
            raise Away("the server does not support NetworkTables 4.1")
        link = Nt4Link(socket, topics)
        await link.begin(topics, wanted)
        yield link


def _now_us() -> int:
    return time.monotonic_ns() // 1_000
