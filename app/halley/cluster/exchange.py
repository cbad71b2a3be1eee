"""News and questions between the nodes that are alive, past the stream: nothing of it is kept, or sent a second time.

    SPACE.q               {"node", "news": [[kind, body]]}: what a node reports to all others in a turn of its loop;
                          or with a reply subject a question, which is one such pair; with `to`, the name of
                          a node, it is for that one alone
    SPACE.r.RUN.NUMBER    {"node", "body"}: a node's answer

What takes or answers a kind is registered by `NodeExchange.answer`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson

from halley import telemetry
from halley.broker.errors import InvalidName
from halley.cluster.frames import WRONG
from halley.cluster.members import Members
from halley.nats.wire import Message, json_object

_ANSWER_S = 1.0
_AT_ONCE = 100
"""News in a message; they are small, except the figures of ticks."""

Answer = Callable[[str, Any], Any]
"""Called with a node's name and what it has sent; returns the answer, a JSON value."""

UNFIT = (*WRONG, InvalidName)
"""What Python, and the broker, raise where a value is not what it should be."""


class NodeExchange:
    """What one node sends to the others and receives from them, over `nats`. Its methods are for the event loop.

    `foreign` counts what has come that no node sends.
    """

    def __init__(self, members: Members) -> None:
        """The connection need not be open yet."""
        self.foreign = 0
        self._answers: dict[str, Answer] = {}
        self._node = members.node
        self.nats = nats = members.nats
        self.members = members
        self._subject = subject_of_questions(nats.space)
        self._replies = f"{nats.space}.r.{secrets.token_hex(8)}"
        self._last = 0
        self._news: list[tuple[str, Any]] = []
        nats.subscribe(self._subject, self._received)

    def answer(self, kind: str, answer: Answer) -> None:
        """Answer questions of this kind, and take such news. One of `UNFIT` says that it is not of the right form."""
        self._answers[kind] = answer

    def notify(self, kind: str, body: Any) -> None:
        """Send a JSON value to all other nodes, which may not get it."""
        if self.members.others():
            if not self._news:
                asyncio.get_running_loop().call_soon(self._send_news)
            self._news.append((kind, body))

    async def ask(self, kind: str, body: Any, node: str | None = None) -> tuple[dict[str, Any], bool]:
        """Ask all other nodes that are alive, or the `node` of that name if it is.

        Returns the answers by node, without those that do not come within a second, and whether all have come.
        """
        missing = {member.name for member in self.members.others() if node in (None, member.name)}
        if not missing or self.nats.away_since is not None:
            return {}, not missing
        by_node: dict[str, Any] = {}
        self._last += 1
        asked, reply = question(self._node, kind, body, node), f"{self._replies}.{self._last}"
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S), self.nats.answers(self._subject, asked, reply) as following:
                while missing:
                    fields = json_object((await following()).data)
                    name = fields.get("node")
                    if isinstance(name, str) and name in missing:
                        missing.remove(name)
                        by_node[name] = fields.get("body")
        return by_node, not missing

    def _send_news(self) -> None:
        news, self._news = self._news, []
        for first in range(0, len(news), _AT_ONCE):
            message = {"node": self._node, "news": news[first : first + _AT_ONCE]}
            self.nats.publish(self._subject, orjson.dumps(message))

    def _received(self, message: Message) -> None:
        """Take news, or answer a question; what is not of this form is dropped, and counted."""
        fields = json_object(message.data)
        node, news, to = fields.get("node"), fields.get("news"), fields.get("to")
        if not isinstance(node, str) or not isinstance(news, list) or len(news) > _AT_ONCE:
            self.foreign += 1
        elif node != self._node and to in (None, self._node):
            for each in news:
                self._take(node, each, message.reply)

    def _take(self, node: str, news: Any, reply: str) -> None:
        try:
            kind, body = news
            answer = self._answers.get(kind)
            if answer is not None:
                made = answer(node, body)
                if reply:
                    self.nats.publish(reply, orjson.dumps({"node": self._node, "body": made}))
        except UNFIT:
            self.foreign += 1
        except Exception as error:  # noqa: BLE001 - the next one may be right
            telemetry.fault("cluster_exchange", error)


def subject_of_questions(space: str) -> str:
    """The subject of all news and questions."""
    return f"{space}.q"


def question(node: str, kind: str, body: Any, to: str | None = None) -> bytes:
    """A question as it is sent, to all nodes or to one."""
    return orjson.dumps({"node": node, "news": [(kind, body)], **({} if to is None else {"to": to})})
