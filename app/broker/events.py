"""An event: one published message, shared by all its subscribers, live or from the history."""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Any, NamedTuple, Protocol

from app.broker.errors import Refusal
from app.broker.watermark import Watermark

_OBJECTS_BYTES = 640
"""About how many bytes Python needs for an event in addition to its texts."""

BARE = "bare"
"""The shape of a payload that is one JSON value, as Bayeux and NT4 publish them."""


class Stage(Enum):
    """Which subscribers a fan-out is for: those that receive events live, those that replay, or both.

    Sessions that do not replay receive an event once, before or after it is recorded. Sessions that replay receive it
    when it is in the log or known never to get there, since the committed position is their border between history
    and live (`commits.py`).
    """

    LIVE = "live"  # not yet in the log: only sessions that do not replay
    COMMITTED = "committed"  # delivered live before: only sessions that replay
    BOTH = "both"


class Audience(NamedTuple):
    """The subscribers that may receive an event, by authid and role; None in a field: no restriction.

    If `eligible_*` is given, only these authids or roles may; the `excluded_*` ones may not.
    """

    eligible_authids: tuple[str, ...] | None = None
    eligible_roles: tuple[str, ...] | None = None
    excluded_authids: tuple[str, ...] = ()
    excluded_roles: tuple[str, ...] = ()

    def admits(self, authid: str | None, role: str) -> bool:
        """Whether a subscriber with this authid (None if it has none) and role may receive the event."""
        if authid in self.excluded_authids or role in self.excluded_roles:
            return False
        if self.eligible_authids is not None and authid not in self.eligible_authids:
            return False
        return self.eligible_roles is None or role in self.eligible_roles


class Chosen(NamedTuple):
    """The subscribers within an event's audience that may receive it, by session id; None: no restriction.

    It applies to live delivery only: a session's id means nothing once the session has ended.
    """

    eligible: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    def admits(self, session_id: str) -> bool:
        """Whether the session with that id may receive the event."""
        return session_id not in self.excluded and (self.eligible is None or session_id in self.eligible)


class Waiter(Protocol):
    """An object that waits for the result of a pending event."""

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Receive the result: the event is on disk and delivered, or refused with `refusal`.

        It is called once for each time that the waiter was added to the event's `waiters`.
        """


class Event:
    """One publication on its way through the broker.

    `topic` is canonical, `payload` the value as JSON text, `time_us` wall-clock microseconds, `publication` a number
    that no other has, `publisher` the id of the publishing session if it had one. `authid` and `role` are the
    publisher's identity.
    `position` is the event's offset in the log, and 0 until it is on disk there.
    An event that `is_fleeting` was meant for some sessions and not others: it is not logged, since sessions end.
    `frames` keeps each protocol's encoded bytes: made at the first delivery, reused at all others.
    `matched` are the subscriptions that the latest fan-out found for it: WAMP names them in what it writes.
    `chosen` restricts delivery to some sessions.
    """

    __slots__ = (
        "_waiting",
        "audience",
        "authid",
        "chosen",
        "details",
        "frames",
        "idempotency_key",
        "is_durable",
        "is_fleeting",
        "is_pending",
        "is_recorded",
        "matched",
        "nt4_time_us",
        "nt4_type",
        "payload",
        "pending_since",
        "position",
        "protocol",
        "publication",
        "publisher",
        "role",
        "shape",
        "source",
        "time_us",
        "topic",
        "waiters",
        "without",
    )

    def __init__(
        self,
        topic: str,
        payload: bytes,
        *,
        publisher: str | None = None,
        protocol: str = "bayeux",
        authid: str | None = None,
        role: str | None = None,
        idempotency_key: str | None = None,
        audience: Audience | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.publisher = publisher
        self.protocol = protocol
        self.authid = authid
        self.role = role
        self.idempotency_key = idempotency_key
        self.audience = audience
        self.is_fleeting = False
        self.shape = BARE
        self.details: str | None = None  # JSON text: further details from the publisher's protocol
        self.nt4_type: str | None = None
        self.nt4_time_us: int | None = None
        self.publication = 0
        self.time_us = 0
        self.position = 0
        self.frames: dict[Hashable, bytes] = {}
        self.matched: tuple[Any, ...] = ()  # of `subscriptions.Subscription`
        self._waiting: Watermark | None = None
        # used while the event is pending, see `Recording`
        self.source: object = None
        self.chosen: Chosen | None = None
        self.without: object = None  # the session that is left out
        self.waiters: list[Waiter] = []
        self.pending_since = 0.0
        self.is_recorded = False
        self.is_durable = False
        self.is_pending = False  # not delivered to anyone yet

    def weigh_on(self, waiting: Watermark) -> None:
        """Count this event's bytes in `waiting`, once for all subscribers, until nothing refers to the event."""
        if self._waiting is None:
            self._waiting = waiting
            waiting.move_to(waiting.value + self.nbytes)

    def __del__(self) -> None:
        if self._waiting is not None:
            self._waiting.move_to(self._waiting.value - self.nbytes)

    @property
    def nbytes(self) -> int:
        """About the event's size in memory, in bytes: payload, encoded frames and Python's objects."""
        return 2 * len(self.payload) + _OBJECTS_BYTES

    def __repr__(self) -> str:
        return f"<Event {self.position or self.publication} on {self.topic}>"
