"""The nodes that are alive. Each sends its facts to the others every second, and forgets those that fall silent.

A message is one JSON object: `node`, the name; `id`, the four letters with which the ids of its sessions begin; and
what the parts of the server have put into `Members.facts`. A node that stops sends `{"node": NAME, "left": true}`.
Nothing here decides what is stored: that is the stream alone (`applied.py`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson

from app import telemetry
from app.cluster.nats import AwayErrors, Connection, Message
from app.settings import Cluster

_BEAT_S = 1.0
_SILENT_S = 3.5
"""After which a node counts as gone: three of its messages are missing."""

_MOST_NODES = 64
_MOST_BYTES = 65_536

Fact = Callable[[], Any]
"""Makes one fact of this node, a JSON value; called once a second, on the event loop."""


def id_of(node: str) -> str:
    """The id of a node's name: four letters and digits in base 32, in lower case.

    Of 16 nodes two have the same id once in 8,000 clusters; then sessions are asked for at one of the two.
    """
    return base64.b32encode(hashlib.blake2b(node.encode(), digest_size=5).digest())[:4].decode().lower()


@dataclass(slots=True)
class Member:
    """Another node; `heard_at`: when its last message came, in seconds of the monotonic clock."""

    name: str
    id: str
    facts: dict[str, Any]
    heard_at: float


class Members:
    """The living nodes of a space, as far as their messages reach this one. Its methods are for the event loop."""

    def __init__(self, options: Cluster, nats: Connection) -> None:
        """`nats` need not be connected yet."""
        self.node, self.id = options.node, id_of(options.node)
        self.facts: dict[str, Fact] = {}
        self.on_change: list[Callable[[str, bool], None]] = []
        """Called with the name of a node that has come (True) or gone (False)."""
        self._subject = f"{options.space}.h"
        self._nats = nats
        self._others: dict[str, Member] = {}
        self._beating: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Send and listen, as soon as the connection is open."""
        self._beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        """Let the others know that this node leaves."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            await self._send({"node": self.node, "left": True})

    def own(self) -> Member:
        """This node."""
        return Member(self.node, self.id, {name: make() for name, make in self.facts.items()}, monotonic())

    def others(self) -> list[Member]:
        """The other nodes that are alive, by name."""
        return sorted(self._others.values(), key=lambda member: member.name)

    def with_id(self, node_id: str) -> Member | None:
        """The other node that has an id, if it is alive."""
        return next((member for member in self._others.values() if member.id == node_id), None)

    async def _beat(self) -> None:
        await self._nats.opened.wait()
        while True:
            try:
                await self._nats.subscribe(f"{self._subject}.*", self._received)
                break
            except AwayErrors:
                await asyncio.sleep(_BEAT_S)
        while True:
            try:
                own = self.own()
                await self._send({"node": own.name, "id": own.id, **own.facts})
                self.look(monotonic())
            except Exception as error:  # noqa: BLE001 - a fact that fails once must not make the node fall silent
                telemetry.fault("cluster_members", error)
            await asyncio.sleep(_BEAT_S)

    async def _send(self, message: dict[str, Any]) -> None:
        await self._nats.publish(f"{self._subject}.{self.node}", orjson.dumps(message))

    async def _received(self, message: Message) -> None:
        self.heard(message.data, monotonic())

    def heard(self, data: bytes, now: float) -> None:
        """Take what a node has sent; what is not of this form is dropped."""
        try:
            facts = orjson.loads(data) if len(data) <= _MOST_BYTES else None
        except orjson.JSONDecodeError:
            return
        if not isinstance(facts, dict):
            return
        name, node_id = facts.pop("node", None), facts.pop("id", None)
        if not isinstance(name, str) or name == self.node:
            return
        if facts.get("left"):
            self._forget(name)
        elif isinstance(node_id, str) and (name in self._others or len(self._others) < _MOST_NODES):
            is_new = name not in self._others
            self._others[name] = Member(name, node_id, facts, now)
            if is_new:
                self._changed(name, is_there=True)

    def look(self, now: float) -> None:
        """Forget the nodes that have been silent for too long."""
        for member in [each for each in self._others.values() if now - each.heard_at > _SILENT_S]:
            self._forget(member.name)

    def _forget(self, name: str) -> None:
        if self._others.pop(name, None) is not None:
            self._changed(name, is_there=False)

    def _changed(self, name: str, *, is_there: bool) -> None:
        if is_there:
            telemetry.log.info("cluster_member", node=name)
        else:
            telemetry.log.info("cluster_member_gone", node=name)
        for report in self.on_change:
            report(name, is_there)
