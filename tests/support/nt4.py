"""An NT4 client that sends exactly what a test gives it, and returns exactly what it received, in order.

It is `halley.client`'s. Received messages are checked for what every client relies on: frames are whole, a topic is
announced before its values and unannounced once, ids are not negative (NA21, NA37). If a server breaks this, the test
fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count
from typing import TYPE_CHECKING, Any, Self

import msgpack
from websockets.exceptions import ConnectionClosed

from halley.client import nt4
from halley.client.nt4 import (
    ARRAY,
    ASKED,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    RAW,
    STRING,
    TIME_ID,
    V40,
    V41,
    Message,
    Text,
    Value,
    packed,
    text,
)  # fmt: skip
from support.wire import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ARRAY", "BOOLEAN", "DOUBLE", "FLOAT", "INT", "MARK", "RAW", "RTT", "STRING", "TIME_ID", "V40", "V41", "Message",
    "NtClient", "Text", "Value", "connect", "packed", "text",
]  # fmt: skip

RTT = "rtt.networktables.first.wpi.edu"
MARK = "/.mark"
"""The topic of marks, by which a test knows that all values before them have arrived."""

_MARK_ID = 2_000_000_000
_PERIODIC_S = 0.01
_METHODS: dict[str, dict[str, type]] = {
    "announce": {"name": str, "id": int, "type": str, "properties": dict},
    "unannounce": {"name": str, "id": int},
    "properties": {"name": str, "update": dict},
}


async def connect(
    url: str, name: str = "test", *subprotocols: str, path: str | None = None, **options: Any
) -> NtClient:
    """Connect to `/nt/NAME`, or another `path`, of a server at `http://…`; the protocol is 4.1 unless one is given.

    `options` are those of websockets' `connect`. Raises its `InvalidStatus` if the server refuses.
    """
    usual = {"max_size": None, "max_queue": None, "open_timeout": DEADLINE_S, "answer_s": DEADLINE_S}
    client = NtClient(url, name, *subprotocols, path=path, **(usual | options))
    await client.open()
    return client


class NtClient(nt4.Nt4Client):
    """One connection; make it with `connect`.

    `frames` are all received binary frames, `times` the responses to requests for the time, except those to requests
    that this client made for itself.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.frames: list[bytes] = []
        self.times: list[list[Any]] = []
        self._marks = count(1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def subscribe(self, *topics: str, subuid: int = 1, periodic: float = _PERIODIC_S, **options: Any) -> None:
        """Subscribe to topics; the period is short unless one is given."""
        await super().subscribe(*topics, subuid=subuid, periodic=periodic, **options)

    async def send_raw(self, data: bytes | str) -> None:
        """Send a binary or a text frame."""
        await self.socket.send(data)

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

    async def quiet(self) -> list[Message]:
        """Return all messages that arrive until the server has processed what this client sent before.

        Values that wait for their period are not among them; see `marked`.
        """
        await self.time()
        return self.left()

    def left(self) -> list[Message]:
        """Return the messages that have arrived and were not received; they are not received later."""
        came = [*self._received]
        self._received.clear()
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

    async def _first(self, is_wanted: Callable[[Message], bool]) -> Message:
        """Take the first wanted message out of those that have arrived or will arrive."""
        seen = 0
        while True:
            for number, message in enumerate(self._received):
                if number >= seen and is_wanted(message):
                    del self._received[number]
                    return message
            seen = len(self._received)
            try:
                await self._read()
            except TimeoutError:
                raise AssertionError(f"{self.name} waits in vain; there came {[*self._received]}") from None

    async def _read(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await super()._read()

    def _handle(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self.frames.append(frame)
            unpacker = msgpack.Unpacker(strict_map_key=False)
            unpacker.feed(frame)
            for _ in unpacker:
                pass
            assert unpacker.tell() == len(frame), "a value that is not whole"
        super()._handle(frame)

    def _handle_text(self, message: Text) -> None:
        params = message.params
        for name, kind in _METHODS[message.method].items():
            assert isinstance(params[name], kind), message
        if message.method == "announce":
            assert params["id"] >= 0, message
            assert self.names.get(params["id"], params["name"]) == params["name"], "an id of another topic"
        elif message.method == "unannounce":
            assert self.names[params["id"]] == params["name"], message
        super()._handle_text(message)

    def _handle_value(self, topic_id: int, time_us: int, number: int, value: Any) -> None:
        if topic_id == TIME_ID and not (number == INT and isinstance(value, int) and value < ASKED):
            self.times.append([time_us, number, value])
            return
        assert topic_id == TIME_ID or topic_id in self.names, f"a value of topic {topic_id}, which was not announced"
        super()._handle_value(topic_id, time_us, number, value)
