"""The nodes that are alive. Each sends a heartbeat to the others every second, and forgets those that fall silent.

A heartbeat is one JSON object: `node`, the name; `id`, the four letters with which the ids of its sessions begin;
`key`, with which other nodes prove that they are of this cluster; `age_s`, for how many whole seconds it has run; and
what the parts of the server have put into `Members.heartbeat`. A node that stops sends `{"node": NAME, "left": true}`.
Nothing here decides what is stored: that is the stream alone (`applied.py`).

While NATS is away no node is forgotten, since silence says nothing then; nor at once when this node itself stood still.
A node that fell silent without leaving may only stand still, and its sessions be alive. So it is remembered for as long
as a session can live without a request (`Member.silent_since`), and counts as gone otherwise.

**Of nodes with one name, or one id, one goes on.** A node asks before it joins whether there is another
(`membership.py`). It gets no answer if both start at once, or while NATS has lost the other one. Then they receive each
other's messages later, with different keys. The one that has run for longer goes on, and of those whose ages have as
many binary digits the one with the greater key. Each node knows the other's age a little late: if the ages themselves
counted, each of two of almost the same age could take itself for the older one, while digits are mostly the same for
both. At least one node always survives: a node ends only after it has seen a greater rank, and ranks never get smaller.

A node ends only when it has received that twice, some time apart: a message that it has sent itself before a restart
may still be under way.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Any

import orjson

from halley import telemetry
from halley.cluster.tasks import Tasks
from halley.nats.jetstream import Connection
from halley.nats.wire import Message, json_object

_BEAT_S, _LISTEN_S = 1.0, 2.5
SILENT_S = 3.5
"""After which a node counts as gone: three of its messages are missing."""

_SURE_S = 0.5
"""After which another message of a node with this one's name proves that it is alive; messages under way come at once.
"""

_STILL_S = 2.0
"""A node that has not looked for this long stood still; what came meanwhile may still be unread."""

_COMPLETE_S = 1.5
"""After which every living node is known: it sends once a second, and at once when a new one has sent."""

MOST_NODES = 64
_MOST_BYTES = 65_536
_KEY_BYTES = 16

Field = Callable[[], Any]
"""Makes one field of this node's heartbeat, a JSON value; called once a second, on the event loop."""


def id_of(node: str) -> str:
    """The id of a node's name: four letters and digits in base 32, in lower case.

    Of 16 nodes two have the same id once in 8,000 clusters; the one that starts later has to get another name.
    """
    return base64.b32encode(hashlib.blake2b(node.encode(), digest_size=5).digest())[:4].decode().lower()


def subject_of_node(space: str, node: str) -> str:
    """The subject on which a running node says its name, so that no other one takes that, or one with the same id."""
    return f"{space}.n.{id_of(node)}"


@dataclass(slots=True)
class Member:
    """Another node; `received_at`: when its last message came, in seconds of the monotonic clock.

    `silent_since`: from when on nothing came of a node that has been silent for too long; infinite for a living one.

    `key` is a secret that the node has made at its start. Only those have it who can read what the nodes send to each
    other, and these could be a node themselves. It is not in `heartbeat`, which may be shown.
    """

    name: str
    id: str
    heartbeat: dict[str, Any]
    received_at: float
    key: str = ""
    silent_since: float = math.inf

    @property
    def is_silent(self) -> bool:
        """Whether it has been silent for too long, and has not left."""
        return self.silent_since < math.inf


async def alive(nats: Connection) -> dict[str, dict[str, Any]]:
    """The heartbeats of the nodes that are alive, by name, as they come within some seconds.

    Raises `ConnectionError`, one of `AwayErrors`, if NATS is away by then.
    """
    found: dict[str, dict[str, Any]] = {}

    def received(message: Message) -> None:
        name, fields = message.subject.rpartition(".")[2], json_object(message.data)
        if fields.get("left"):
            found.pop(name, None)
        elif fields and (name in found or len(found) < MOST_NODES):
            found[name] = fields

    end = nats.subscribe(f"{nats.space}.h.*", received)
    await asyncio.sleep(_LISTEN_S)
    end()
    if nats.away_since is not None:
        raise ConnectionError("the connection to NATS is lost")
    return dict(sorted(found.items()))


class Members:
    """The living nodes of a space, as far as their messages reach this one. Its methods are for the event loop."""

    def __init__(self, nats: Connection, began_at: float, sessions_s: float = 0.0) -> None:
        """`nats` need not be connected yet; the node has begun to run at the monotonic time `began_at`.

        `sessions_s`: for how long sessions live without a request, at most.
        """
        options = nats.options
        self.node, self.id, self.key = options.node, id_of(options.node), secrets.token_hex(_KEY_BYTES)
        self.heartbeat: dict[str, Field] = {}
        self.taken_by = ""
        """The other node that goes on with this one's name or id, so that this one has to end; "" without one."""
        self._subject = f"{options.space}.h"
        self._name_subject = subject_of_node(options.space, options.node)
        self.nats = nats
        self._others: dict[str, Member] = {}
        self._silent: dict[str, Member] = {}
        self._began_at, self._sessions_s = began_at, sessions_s
        self._listens_since, self._away_at, self._doubted_at = math.inf, -math.inf, -math.inf
        self._checked_at = math.inf
        self._observe: Callable[[Member], None] = lambda _: None
        self._tasks = Tasks("cluster_members")

    def observe(self, observe: Callable[[Member], None]) -> None:
        """Call `observe` with another node at each of its heartbeats."""
        self._observe = observe

    def report(self, name: str, field: Field) -> None:
        """Send the other nodes with each heartbeat what `field` returns."""
        self.heartbeat[name] = field

    def begin(self) -> None:
        """Listen, and send as soon as the connection is open."""
        self.nats.subscribe(f"{self._subject}.*", self._received)
        self.nats.subscribe(self._name_subject, lambda asked: self.nats.publish(asked.reply, self.node.encode()))
        self._tasks.repeat(self._beat, _BEAT_S)

    async def close(self) -> None:
        """Let the others know that this node leaves."""
        if len(self._tasks) > 0:
            await self._tasks.cancel()
            if self.taken_by != self.node:  # else it would say that the other one leaves
                self._send({"node": self.node, "left": True})

    def own(self) -> Member:
        """This node in the form of the others, with its heartbeat as it would be now."""
        return Member(self.node, self.id, {name: make() for name, make in self.heartbeat.items()}, monotonic())

    def others(self) -> list[Member]:
        """The other nodes that are alive, by name."""
        return sorted(self._others.values(), key=lambda member: member.name)

    def is_complete(self, now: float, silent_s: float = 0.0) -> bool:
        """Whether every node is known that lives, also if it has been silent for up to `silent_s`.

        False at first, and while there has been no NATS server yet.
        """
        return now - self._listens_since > max(_COMPLETE_S, silent_s)

    def with_id(self, node_id: str) -> Member | None:
        """The other node that has an id, if it is alive, or else is silent and may have sessions."""
        members = chain(self._others.values(), self._silent.values())
        return next((member for member in members if member.id == node_id), None)

    async def _beat(self) -> None:
        await self.nats.opened.wait()
        now = monotonic()
        self._listens_since = min(self._listens_since, now)
        self._send_own(now)
        self.check(now)

    def _send_own(self, now: float) -> None:
        if not self.taken_by:
            own = self.own()
            self._send({"node": own.name, "id": own.id, "key": self.key, "age_s": self._age_s(now), **own.heartbeat})

    def _age_s(self, now: float) -> int:
        return int(now - self._began_at)

    def _send(self, message: dict[str, Any]) -> None:
        self.nats.publish(f"{self._subject}.{self.node}", orjson.dumps(message))

    def _received(self, message: Message) -> None:
        known, now = len(self._others), monotonic()
        self.receive(message.data, now)
        if len(self._others) > known:  # one that has just started is not to wait for the next second
            self._send_own(now)

    def receive(self, data: bytes, now: float) -> None:
        """Take what a node has sent; what is not of this form is dropped."""
        fields = json_object(data) if len(data) <= _MOST_BYTES else {}
        name, node_id, key = fields.pop("node", None), fields.pop("id", None), fields.pop("key", "")
        age_s = fields.pop("age_s", None)
        if not isinstance(name, str):
            return
        if fields.get("left"):
            self._forget(name)
        elif _are_words(node_id, key):
            if (name == self.node or node_id == self.id) and key != self.key and isinstance(age_s, int):
                self._met_namesake(name, _rank(age_s, key), now)
            if name != self.node:
                self._note(Member(name, node_id, fields, now, key))

    def _met_namesake(self, name: str, rank: tuple[int, str], now: float) -> None:
        """Take note of another node with this one's name or id; see above."""
        if rank < _rank(self._age_s(now), self.key) or self.taken_by:
            return
        doubted_s = now - self._doubted_at
        if doubted_s > SILENT_S:
            self._doubted_at = now
        elif doubted_s > _SURE_S:
            self.taken_by = name
            telemetry.log.error("cluster_name_taken", node=name)

    def _note(self, member: Member) -> None:
        is_new = member.name not in self._others
        if is_new and len(self._others) >= MOST_NODES:
            return
        self._others[member.name] = member
        self._silent.pop(member.name, None)
        self._observe(member)
        if is_new:
            telemetry.log.info("cluster_member", node=member.name)

    def check(self, now: float) -> None:
        """Forget the nodes that have been silent for too long while this one could receive; called once a second."""
        if self.nats.away_since is not None or now - self._checked_at > _STILL_S:
            self._away_at = now
        self._checked_at = now
        for name, member in [*self._others.items()]:
            since = max(member.received_at, self._away_at)
            if now - since > SILENT_S:
                self._forget(name)
                member.silent_since = since
                self._silent[name] = member
        for name, member in [*self._silent.items()]:
            if now - member.silent_since > self._sessions_s or len(self._silent) > MOST_NODES:
                del self._silent[name]

    def _forget(self, name: str) -> None:
        self._silent.pop(name, None)
        if self._others.pop(name, None) is not None:
            telemetry.log.info("cluster_member_gone", node=name)


def _rank(age_s: int, key: str) -> tuple[int, str]:
    """What decides which of several nodes with one name goes on: the one that has the greatest."""
    return age_s.bit_length(), key


def _are_words(node_id: object, key: object) -> bool:
    """Whether both are letters and digits, as they go into the heads of requests."""
    return isinstance(node_id, str) and isinstance(key, str) and (node_id + key).isalnum() and (node_id + key).isascii()
