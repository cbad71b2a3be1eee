"""A request from a node to another on core NATS, whose answer may be larger than a message of NATS.

The answer is sent in pieces, each with a kind and its number: `+` more follow, `.` the last one, `!` a refusal, whose
text is one of the words that both sides know. If a piece is lost the whole answer is; the asker asks again.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import orjson

from halley.nats.client import is_unanswered
from halley.nats.jetstream import Connection

_HEAD_BYTES = 9
_PIECE_BYTES = 524_288
_MOST_PIECES = 2_048
_MORE, _LAST, _REFUSED = b"+", b".", b"!"


class NobodyAnswers(Exception):
    """Nobody has subscribed to the subject of a request."""


class RequestRefused(Exception):
    """The other node does not answer this; `word` says why, "lost" if a part of its answer was lost."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


async def ask(nats: Connection, subject: str, what: dict[str, Any], within_s: float) -> bytes:
    """The whole answer to a request, which is sent as JSON.

    Raises `NobodyAnswers`, `RequestRefused`, and `TimeoutError` after `within_s` seconds, also while NATS is away.
    """
    inbox = f"{nats.space}.r.{secrets.token_hex(12)}"
    pieces: list[bytes] = []
    async with asyncio.timeout(within_s), nats.answers(subject, orjson.dumps(what), inbox) as following:
        kind = _MORE
        while kind != _LAST:
            message = await following()
            if is_unanswered(message):
                raise NobodyAnswers
            kind, number, data = message.data[:1], message.data[1:_HEAD_BYTES], message.data[_HEAD_BYTES:]
            if kind == _REFUSED:
                raise RequestRefused(data.decode("ascii", "replace"))
            if number != b"%08d" % len(pieces) or len(pieces) >= _MOST_PIECES:
                raise RequestRefused("lost")
            pieces.append(data)
    return b"".join(pieces)


async def answer(nats: Connection, reply: str, data: bytes) -> None:
    """Send an answer, in as many pieces as it takes."""
    size = min(_PIECE_BYTES, nats.max_payload - _HEAD_BYTES)
    for number, at in enumerate(range(0, max(len(data), 1), size)):
        kind = _MORE if at + size < len(data) else _LAST
        nats.publish(reply, b"%b%08d%b" % (kind, number, data[at : at + size]))
        await nats.drained()


def refuse(nats: Connection, reply: str, word: str) -> None:
    """Send `word` in place of an answer."""
    nats.publish(reply, b"%b%08d%b" % (_REFUSED, 0, word.encode()))
