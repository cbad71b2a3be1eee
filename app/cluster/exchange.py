"""News and questions between the nodes that are alive, past the stream: nothing of it is kept, or sent a second time.

    SPACE.q               {"node", "kind", "body"}: news to all other nodes, or with a reply subject a question
    SPACE.r.RUN.NUMBER    {"node", "body"}: a node's answer

The parts of the server put what answers a kind into `Exchange.answers`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import orjson

from app import telemetry
from app.cluster.members import Members
from app.cluster.nats import AwayErrors, Connection, Message
from app.settings import Cluster

_ANSWER_S = 1.0
_AGAIN_S = 1.0

Answer = Callable[[str, Any], Any]
"""Called with a node's name and what it has sent; returns the answer, a JSON value, or None for no answer."""


class Answers(NamedTuple):
    """The answers of other nodes, by name; `is_complete` says whether every node that is alive has answered in time."""

    by_node: dict[str, Any]
    is_complete: bool


class _Question:
    """A question that waits for the nodes in `missing`."""

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing
        self.by_node: dict[str, Any] = {}
        self.is_answered = asyncio.Event()


class Exchange:
    """What one node sends to the others and receives from them. Its methods are for the event loop."""

    def __init__(self, options: Cluster, nats: Connection, members: Members) -> None:
        """`nats` need not be connected yet."""
        self.answers: dict[str, Answer] = {}
        self._node = options.node
        self._nats = nats
        self._members = members
        self._subject = subject_of_questions(options.space)
        self._replies = f"{options.space}.r.{secrets.token_hex(8)}"
        self._asked: dict[str, _Question] = {}
        self._last = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Listen, as soon as the connection is open."""
        self._start(self._listen())

    async def close(self) -> None:
        """Stop listening."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tell(self, kind: str, body: Any) -> None:
        """Send a JSON value to all other nodes, which may not get it."""
        if self._members.others():
            self._start(self._nats.publish(self._subject, self._packed(kind, body)))

    async def ask(self, kind: str, body: Any) -> Answers:
        """Ask all other nodes that are alive; those that have not answered within a second are left out."""
        names = {member.name for member in self._members.others()}
        if not names or self._nats.away_since is not None:
            return Answers({}, is_complete=not names)
        question = _Question(names)
        self._last += 1
        reply = f"{self._replies}.{self._last}"
        self._asked[reply] = question
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._nats.publish(self._subject, self._packed(kind, body), reply)
                await question.is_answered.wait()
        except TimeoutError:
            pass
        finally:
            del self._asked[reply]
        return Answers(question.by_node, is_complete=not question.missing)

    def _packed(self, kind: str, body: Any) -> bytes:
        return orjson.dumps({"node": self._node, "kind": kind, "body": body})

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self) -> None:
        await self._nats.opened.wait()
        while True:
            try:
                await self._nats.subscribe(f"{self._replies}.*", self._answered)
                await self._nats.subscribe(self._subject, self._heard)
            except AwayErrors:
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _heard(self, message: Message) -> None:
        """Take news, or answer a question; what is not of this form is dropped."""
        node, kind, body = _fields(message.data, "node", "kind", "body")
        answer = self.answers.get(kind) if isinstance(kind, str) else None
        if not isinstance(node, str) or node == self._node or answer is None:
            return
        try:
            made = answer(node, body)
            if message.reply and made is not None:
                await self._nats.publish(message.reply, orjson.dumps({"node": self._node, "body": made}))
        except Exception as error:  # noqa: BLE001 - a node may send anything, and this one goes on
            telemetry.fault("cluster_exchange", error)

    async def _answered(self, message: Message) -> None:
        node, body = _fields(message.data, "node", "body")
        question = self._asked.get(message.subject)
        if question is not None and isinstance(node, str) and node in question.missing:
            question.missing.remove(node)
            question.by_node[node] = body
            if not question.missing:
                question.is_answered.set()


def subject_of_questions(space: str) -> str:
    """The subject of all news and questions."""
    return f"{space}.q"


def _fields(data: bytes, *names: str) -> list[Any]:
    try:
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        found = None
    return [found.get(name) if isinstance(found, dict) else None for name in names]
