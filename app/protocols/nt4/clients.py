"""Clients: the tables' state of one connection, in addition to the broker's state of a session."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

from app.broker.broker import Broker
from app.broker.sessions import Session
from app.broker.topics import Pattern
from app.protocols.contract import Context, Link
from app.protocols.nt4.backlog import Backlog
from app.protocols.nt4.messages import Subscribe
from app.protocols.nt4.names import V40
from app.protocols.nt4.subscriptions import Subscriptions
from app.settings import Nt4

if TYPE_CHECKING:
    from app.protocols.nt4.engine import Engine
    from app.protocols.nt4.pacing import Stream
    from app.protocols.nt4.topics import Topic

ROLE = "nt4"
"""The role of all NetworkTables clients in access rules."""

_ID_BYTES = 20


class Publisher:
    """A publisher of a topic, which may set the topic's values and keeps the topic in existence.

    `owner` is a client, or a session of another protocol. `number` is the wire number of the declared type, or -1 if
    the topic has another type: then all its values are ignored (NA32).
    """

    __slots__ = ("number", "owner", "pubuid", "topic")

    def __init__(self, topic: Topic, owner: Session, pubuid: int, type_name: str) -> None:
        self.topic = topic
        self.owner = owner
        self.pubuid = pubuid
        self.number = topic.number if type_name == topic.type else -1


class Client(Session):
    """The client of one connection, from its opening to its end.

    `name` is unique among clients (NA11). `listens` has the client's subscriptions, `announced` the topics that were
    announced to it, `streams` the streams of values that it gets. `texts` and `frames` are its output at the end of
    this turn; `backlog` has the values that wait until it reads again. `unseen` are the topics that are still to be
    examined for it, each with the id of a subscription that has replaced another, if that is the reason
    (`subscribing.py`).
    """

    owner: Engine

    __slots__ = (
        "announced",
        "backlog",
        "closing",
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
        self.closing: tuple[int, str] | None = None  # the code and reason of the close that follows them
        self.unseen: OrderedDict[Topic, int | None] = OrderedDict()

    def subscription_names(self) -> list[Pattern | str]:
        """The names of its subscriptions, each prefix with a star at its end."""
        return [name for each in self.listens for name in listed(each)]


def listed(subscription: Subscribe) -> list[Pattern | str]:
    """The names of one subscription, each prefix with a star at its end."""
    return [name + "*" * subscription.options.is_prefix for name in subscription.topics]
