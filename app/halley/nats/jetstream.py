"""JetStream: the stream of a space, its messages in order, and what else nodes ask NATS servers for.

Source: docs.nats.io, "JetStream wire API Reference".
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson

from halley.nats.client import AwayErrors, Client
from halley.nats.stream_position import LAST, is_control, position_of
from halley.nats.subscriptions import Handler
from halley.nats.wire import Message, json_object

_NEXT_S, _AT_ONCE = 10.0, 64
_BEAT_NS, _INACTIVE_NS = 500_000_000, 10_000_000_000
NO_MESSAGE, NAME_IN_USE, STREAM_NOT_FOUND, WRONG_LAST = 10_037, 10_058, 10_059, 10_071
"""Codes of errors (`ApiError`)."""

NO_ROOM = frozenset((10_023, 10_047, 10_077))
"""Of those for which nothing more is stored: the server or the account has no room, or the stream has its bytes."""

_STALLED = "Nats-Consumer-Stalled"


class ApiError(Exception):
    """JetStream's answer is an error; `code` is its number (`err_code`)."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error.get("description", "error"))[:200])
        self.code = error.get("err_code", 0)


class Connection(Client):
    """A connection to NATS servers that have the stream of the `space`."""

    @property
    def space(self) -> str:
        """The first token of all subjects, and the name of the stream (`cluster.space`)."""
        return self.options.space

    async def first_answer(self, subject: str, data: bytes) -> bytes | None:
        """The first answer to a request on a subject; None if nobody answers."""
        try:
            return (await self.request(subject, data)).data
        except AwayErrors:
            return None

    async def last_of(self, stream: str, subject: str) -> tuple[int, bytes]:
        """The sequence and the data of the last message that a stream has on a subject; 0 and b"" if there is none.

        Raises `ApiError`, `AwayErrors`.
        """
        try:
            found = (await self.ask(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject}))["message"]
        except ApiError as error:
            if error.code != NO_MESSAGE:
                raise
            return 0, b""
        return int(found["seq"]), base64.b64decode(found.get("data", ""))

    async def put(self, subject: str, data: bytes, after: int | None = None) -> int:
        """Store a message, if the last one on its subject has the sequence `after`; returns its own sequence.

        Raises `ApiError` (`WRONG_LAST` where another is the last), `AwayErrors`.
        """
        expected = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % after if after is not None else b""
        return int(_fields(await self.request(subject, data, expected))["seq"])

    async def ask(self, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """JetStream's answer to a request. Raises `ApiError`, `AwayErrors`."""
        return _fields(await self.request(f"$JS.API.{what}", orjson.dumps(body or {})))

    async def stream_info(self) -> dict[str, Any]:
        """The configuration and state of the stream. Raises `ApiError`, `AwayErrors`."""
        return await self.ask(f"STREAM.INFO.{self.space}")

    async def messages(self, first: int, last: int) -> AsyncIterator[Message]:
        """Yield the stream's messages from one sequence to another, as far as it has them.

        Raises `ApiError`, `AwayErrors`; `TimeoutError` if the next one does not come within `_NEXT_S`.
        """
        if first > last:
            return
        queue: asyncio.Queue[Message] = asyncio.Queue(_AT_ONCE)

        def take(message: Message) -> Awaitable[None] | None:
            if is_control(message):
                self.answer_control(message)
            if queue.full():
                return queue.put(message)
            queue.put_nowait(message)
            return None

        end = await self.consume(secrets.token_hex(8), first, take)
        try:
            count = 0
            while True:
                async with asyncio.timeout(_NEXT_S):
                    message = await queue.get()
                if is_control(message):
                    if message.header(LAST) == str(count) and not message.header(_STALLED):
                        return  # there are no more
                    continue
                position, count = position_of(message), count + 1
                if position.in_consumer != count:
                    raise TimeoutError
                if position.sequence <= last:
                    yield message
                if position.sequence >= last or not position.pending:
                    return
        finally:
            end()

    async def consume(self, name: str, first: int, handler: Handler) -> Callable[[], None]:
        """Have the stream's messages from the sequence `first` on delivered in order; returns what ends that.

        The consumer is in one server's memory and sends a heartbeat twice a second; it ends with its server.
        Raises `ApiError`, `AwayErrors`.
        """
        stream = self.space
        subject = f"{stream}.d.{name}"
        end = self.subscribe(subject, handler)
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
            end()
            raise
        return end

    def answer_control(self, message: Message) -> None:
        """Answer a message of the consumer that has no data: a heartbeat, or a request for flow control."""
        reply = message.reply or message.header(_STALLED)
        if reply:
            self.publish(reply, b"")


def error_code(answer: bytes) -> int:
    """The number of the error that JetStream has answered (`err_code`); 0 for any other answer."""
    error = json_object(answer).get("error")
    code = error.get("err_code") if isinstance(error, dict) else 0
    return code if isinstance(code, int) else 0


def _fields(message: Message) -> dict[str, Any]:
    """The fields of JetStream's answer. Raises `ApiError`."""
    answer = json_object(message.data)
    if not answer:  # it is not JetStream that has answered
        raise ApiError({"description": "no JSON object"})
    if "error" in answer:
        raise ApiError(answer["error"])
    return answer
