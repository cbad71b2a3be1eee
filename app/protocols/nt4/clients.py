"""A client: what the tables know of one connection beyond what the broker knows of any session."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

from app.broker.sessions import Session
from app.protocols.nt4.backlog import Backlog
from app.protocols.nt4.paths import V40
from app.protocols.nt4.subscriptions import Subscriptions

if TYPE_CHECKING:
    from app.broker.broker import Broker
    from app.protocols.links import Context, Link
    from app.protocols.nt4.engine import Engine
    from app.protocols.nt4.pacing import Stream
    from app.protocols.nt4.topics import Topic
    from app.settings import Nt4

ROLE = "nt4"
"""What access rules know all of them by."""

_ID_BYTES = 20


class Publisher:
    """Somebody's right to set a topic's values, and the reason why it exists.

    `owner` is a client, or a session of another protocol. `number` is that of the type that it declared, -1 where
    the topic has another: then nothing that it publishes counts (A32).
    """

    __slots__ = ("number", "owner", "pubuid", "topic")

    def __init__(self, topic: Topic, owner: Session, pubuid: int, type_name: str) -> None:
        self.topic = topic
        self.owner = owner
        self.pubuid = pubuid
        self.number = topic.number if type_name == topic.type else -1


class Client(Session):
    """One connection, from its opening to its end.

    `name` is what no other client has (A11). `listens` is what it has subscribed to, `announced` the topics that it was
    told of, `streams` those that bring it values. `texts` and `frames` are what it is told at the end of this turn,
    `backlog` the values that wait until it reads again. `unseen` are topics that are yet to be looked at for it, each
    with the subscription that has replaced another, if that is why (`subscribing.py`).
    """

    owner: Engine

    __slots__ = (
        "address",
        "announced",
        "backlog",
        "connection",
        "frames",
        "is_paused",
        "link",
        "listens",
        "name",
        "publishers",
        "streams",
        "texts",
        "unseen",
        "user_agent",
        "version",
    )

    def __init__(self, name: str, engine: Engine, link: Link, context: Context, broker: Broker, options: Nt4) -> None:
        super().__init__(secrets.token_hex(_ID_BYTES), "nt4", engine, broker.outbox())
        self.name = self.authid = name
        self.role = ROLE
        self.address = context.address
        self.account = broker.account_of(context.address)
        self.user_agent = context.headers.get("user-agent", "")
        host = f"[{context.address}]" if ":" in context.address else context.address
        self.connection = f"{host}:{context.port}"
        self.version = 0x0400 if link.subprotocol == V40 else 0x0401
        self.link = link
        self.publishers: dict[int, Publisher] = {}
        self.listens = Subscriptions(options.max_period_s)
        self.announced: dict[Topic, None] = {}
        self.streams: dict[Topic, Stream] = {}
        self.backlog = Backlog(options.queue_bytes)
        self.is_paused = False
        self.texts: list[bytes] = []
        self.frames: list[bytes] = []
        self.unseen: OrderedDict[Topic, int | None] = OrderedDict()
