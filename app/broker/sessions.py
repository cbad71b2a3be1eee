"""A session: one client's state in the broker, the same for every protocol."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Protocol

from app.broker.cursors import Cursor
from app.broker.events import Event
from app.broker.index import Subscription
from app.broker.meters import Meter
from app.broker.outbox import Outbox
from app.broker.policy import NOBODY
from app.broker.topics import Pattern
from app.settings import Token, User


class Outlet(Protocol):
    """What can have something to be written: a session with events, or an engine with something to say.

    `is_ready` is the broker's: true while it waits in `Broker.ready` to be flushed.
    """

    is_ready: bool

    def flush(self, now: float) -> Iterable[tuple[Any, Any]]:
        """Return what is to be written now: links (`protocols.contract.Link`), each with its output."""


class Owner(Protocol):
    """The engine behind a session, with the methods that the broker and the session call."""

    def due(self, session: Session, now: float) -> None:
        """Handle a deadline that has passed: move it, or close the session."""

    def flush_session(self, session: Session, now: float) -> Iterable[tuple[Any, Any]]:
        """Return what is to be written because of the events in the session's outbox: links, each with its output."""

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Handle an outbox that is full: make room and take `event`, or close the session."""

    def rights_changed(self, session: Session, now: float) -> int:
        """Take away the subscriptions that the session's rights no longer grant, and the events that wait for them.

        Returns the number of these subscriptions.
        """


class SessionObserver(Protocol):
    """Something that follows the sessions of all protocols, such as the log."""

    def opened(self, session: Session) -> None:
        """Note that a session was admitted."""

    def closed(self, session: Session, reason: str) -> None:
        """Note that a session has ended; `session.had` are the subscriptions that it had."""

    def subscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Note that a session has subscribed to patterns, or to names as its protocol writes them."""

    def unsubscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Note that a session has ended such subscriptions; not those that end with the session."""


class Session:
    """A client's identity, subscriptions and undelivered events.

    `deadline` is never None: a session that nothing would end is a leak (CometD #674, #1134, #1716). Only
    `Broker.touch` moves it, which keeps the heap of deadlines correct, and never beyond `expiry`, when the token that
    the session began with expires. Both are monotonic seconds; `expiry` is infinity if the token does not expire.
    `authid` is None, or random, if the client is anonymous; `credential` is the entry of the settings that proved its
    identity, if one did (`policy.Identity`). `opened_at` is when the session was admitted. Its client counts as ready
    for events until `reads_until`, infinity while it is (`flow.py`); the owner sets it. `cursor` is None until the
    session asks for the history. `account` is the address whose limit of sessions this one counts towards, or None;
    `meter` bounds its publishes.
    """

    __slots__ = (
        "account",
        "address",
        "alarm",
        "authid",
        "closed",
        "credential",
        "cursor",
        "deadline",
        "expiry",
        "had",
        "id",
        "is_ready",
        "meter",
        "opened_at",
        "outbox",
        "owner",
        "protocol",
        "reads_until",
        "role",
        "subscription_bytes",
        "subscriptions",
        "user_agent",
    )

    def __init__(self, session_id: str, protocol: str, owner: Owner, outbox: Outbox) -> None:
        self.id = session_id
        self.protocol = protocol
        self.owner = owner
        self.outbox = outbox
        self.authid: str | None = None
        self.role = NOBODY
        self.credential: Token | User | None = None
        self.expiry = inf
        self.address = ""  # of the peer that began it
        self.user_agent = ""
        self.account: str | None = None
        self.meter: Meter | None = None
        self.subscriptions: dict[Pattern, Subscription[Session]] = {}
        self.subscription_bytes = 0  # the memory that they take
        self.cursor: Cursor | None = None
        self.opened_at = 0.0
        self.reads_until = inf
        self.deadline = 0.0
        self.alarm: tuple[float, int, Session] | None = None  # the one live entry in the heap of deadlines
        self.is_ready = False  # waits in Broker.ready
        self.closed: str | None = None  # why it ended
        self.had: tuple[Pattern, ...] = ()  # the subscriptions that it had when it ended

    def flush(self, now: float) -> Iterable[tuple[Any, Any]]:
        """Have the owner say what is to be written to the session's client (`Outlet`)."""
        return self.owner.flush_session(self, now)

    def subscription_names(self) -> Sequence[Pattern | str]:
        """The subscriptions that the session has or had: patterns, or names as its protocol writes them."""
        return list(self.subscriptions if self.closed is None else self.had)

    @property
    def lasting_authid(self) -> str | None:
        """The authid that names the same client in its next session too; None if the client is anonymous.

        Events, idempotency keys and the log have it. Audiences apply to `authid`, which in WAMP an anonymous session
        has too: a random one, which its client learns from WELCOME.
        """
        return None if self.role == NOBODY else self.authid
