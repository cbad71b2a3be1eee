"""A session: one peer's presence in the broker, whatever protocol it speaks."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from app.broker.policy import NOBODY

if TYPE_CHECKING:
    from app.broker.cursors import Cursor
    from app.broker.events import Event
    from app.broker.index import Subscription
    from app.broker.meters import Meter
    from app.broker.outbox import Outbox
    from app.broker.topics import Pattern


class Owner(Protocol):
    """The engine behind a session: the three occasions on which the broker turns to it."""

    def due(self, session: Session, now: float) -> None:
        """The session's deadline has passed: move it, or close the session."""

    def flush(self, session: Session, now: float) -> None:
        """Events wait in the session's outbox that were not there before."""

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """The outbox is full: make room and take `event`, or close the session."""


class Session:
    """Identity, rights, subscriptions and what waits for delivery.

    `deadline` is never None: a session that nothing would end is a leak (CometD #674, #1134, #1716). It is moved by
    `Broker.touch` only, which keeps the heap of deadlines true, and never beyond `expiry`, when the token that the
    session began with ends (monotonic seconds, as `deadline`; infinity where there is no end).
    `opened_at` is when it was admitted. `cursor` is there once the session has asked for the history.
    `account` is the address that its presence is charged to, None where nobody counts; `meter` bounds its publishes.
    """

    __slots__ = (
        "account",
        "alarm",
        "authid",
        "closed",
        "cursor",
        "deadline",
        "expiry",
        "heard",
        "id",
        "is_ready",
        "meter",
        "opened_at",
        "outbox",
        "owner",
        "protocol",
        "role",
        "subscriptions",
    )

    def __init__(self, session_id: str, protocol: str, owner: Owner, outbox: Outbox) -> None:
        self.id = session_id
        self.protocol = protocol
        self.owner = owner
        self.outbox = outbox
        self.authid: str | None = None
        self.role = NOBODY
        self.expiry = inf
        self.account: str | None = None
        self.meter: Meter | None = None
        self.subscriptions: dict[Pattern, Subscription] = {}
        self.cursor: Cursor | None = None
        self.opened_at = 0.0
        self.deadline = 0.0
        self.alarm: tuple[float, int, Session] | None = None  # its one live entry in the heap of deadlines
        self.is_ready = False  # waits in Broker.ready
        self.closed: str | None = None  # why it ended
        self.heard: tuple[Pattern, ...] = ()  # what it was subscribed to then
