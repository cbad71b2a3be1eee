"""A client's session as the program sees it (CometD's ServerSession)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from halley.access.proofs import proof_of
from halley.broker.errors import InvalidName
from halley.broker.events import Event
from halley.broker.names import Pattern
from halley.broker.policy import SERVER
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.messages import encode_data
from halley.protocols.bayeux.names import to_pattern, to_subscription
from halley.protocols.bayeux.session import BayeuxSession


class ServerSession:
    """A client's session, with its identity, subscriptions and settings; one object for the session's whole life.

    `attributes` is for the program's own data about this client.
    """

    def __init__(self, session: BayeuxSession, engine: BayeuxEngine) -> None:
        self._session = session
        self._engine = engine

    def __repr__(self) -> str:
        return f"<ServerSession from {self.address or 'here'}>"  # never the id: it is the client's secret

    @property
    def id(self) -> str:
        """The clientId. It is a secret: anyone who has it can act as the client."""
        return self._session.id

    @property
    def attributes(self) -> dict[str, Any]:
        """The program's own data about this client."""
        return self._session.attributes

    @property
    def authid(self) -> str | None:
        """The client's proved name: the `id` of a static token, the `sub` of a JWT, or from `identify`."""
        return self._session.authid

    @property
    def role(self) -> str:
        """The role by which access rules decide: that of the token, or "anonymous"."""
        return self._session.role

    def identify(self, authid: str, role: str, claims: Mapping[str, Any] | None = None) -> None:
        """Give the session the identity that the program has proved, in `can_handshake` and before it returns True.

        It counts like a token's, for access rules too. `claims` are JSON values, at most 1 KiB as JSON. Raises
        `ValueError` for a name, role or claims that no token could have, and for a session that has begun, or has an
        identity already: that of its token.
        """
        if self._session.opened_at or self._session.authid is not None:
            raise ValueError("a session gets one identity, in its handshake")
        self._session.prove(proof_of(authid, role, None, claims or {}), self._engine.broker.clock_offset_s)

    @property
    def address(self) -> str:
        """The IP address from which the handshake was sent; empty for local sessions."""
        return self._session.address

    @property
    def user_agent(self) -> str:
        """The User-Agent of the handshake, at most 200 characters."""
        return self._session.user_agent

    @property
    def is_local(self) -> bool:
        """Whether the session is the program's own."""
        return self._session.role == SERVER

    @property
    def is_connected(self) -> bool:
        """Whether the session is still open."""
        return self._session.closed is None

    @property
    def subscriptions(self) -> list[str]:
        """The channels and patterns that the session is subscribed to."""
        return [to_subscription(pattern) for pattern in self._session.subscriptions]

    @property
    def hold_s(self) -> float:
        """How long the session's connects are held, in seconds; the client gets a change with its next reply."""
        return self._session.hold_s

    @hold_s.setter
    def hold_s(self, seconds: float) -> None:
        self._session.hold_s = max(0.0, seconds)

    @property
    def interval_s(self) -> float:
        """The client's pause between connects, in seconds; the client gets a change with its next reply."""
        return self._session.interval_s

    @interval_s.setter
    def interval_s(self, seconds: float) -> None:
        self._session.interval_s = max(0.0, seconds)

    @property
    def max_interval_s(self) -> float:
        """The time without a connect after which the session ends, in seconds beyond its interval."""
        return self._session.max_interval_s

    @max_interval_s.setter
    def max_interval_s(self, seconds: float) -> None:
        self._session.max_interval_s = max(0.0, seconds)

    @property
    def broadcast_to_publisher(self) -> bool:
        """Whether the session receives its own events if it is subscribed to their channel."""
        return self._session.broadcast_to_publisher

    @broadcast_to_publisher.setter
    def broadcast_to_publisher(self, wanted: bool) -> None:
        self._session.broadcast_to_publisher = wanted

    @property
    def connect_delivery_only(self) -> bool:
        """Whether events are sent on connect replies only, which keeps them in strict order."""
        return self._session.connect_delivery_only

    @connect_delivery_only.setter
    def connect_delivery_only(self, wanted: bool) -> None:
        self._session.connect_delivery_only = wanted

    def deliver(self, channel: str, data: Any, *, lazy: bool = False) -> bool:
        """Send an event to this session alone, subscribed or not; False if the session has ended.

        A `lazy` one may wait for others, for up to `bayeux.lazy_s` or what a [[lazy]] rule says.
        Raises `ValueError` if `channel` is not a channel, `TypeError` if `data` is not JSON.
        """
        pattern_of(channel, self._engine)
        sessions = self._engine.sessions
        event = Event(sessions.to_topic(channel), encode_data(data))
        if lazy:
            sessions.laziness.mark(event)
        return sessions.send_to(self._session, event, monotonic())

    def subscribe(self, channel: str) -> None:
        """Subscribe the session to a channel or pattern, without asking rules or policy. Raises `ValueError`.

        No change of the rules takes that away: `unsubscribe` does, the client itself, or the end of the session.
        """
        self._engine.subscribe(self._session, channel, pattern_of(channel, self._engine), monotonic())

    def unsubscribe(self, channel: str) -> None:
        """Remove a subscription, made by the client or by the program. Raises `ValueError`."""
        self._engine.unsubscribe(self._session, channel, pattern_of(channel, self._engine))

    def disconnect(self) -> None:
        """End the session; the client is notified immediately if a connect is held, else by its next request."""
        self._engine.sessions.leave(self._session, monotonic(), by_client=False)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Hold back the session's events until the block ends, so that they reach the client together.

        Replies that are sent within the block carry none. If the events are more than fit into the session's queue,
        those before are sent to make room.
        """
        self._session.open_batches += 1
        try:
            yield
        finally:
            self._session.open_batches -= 1
            self._engine.broker.mark_ready(self._session)


def pattern_of(channel: str, engine: BayeuxEngine) -> Pattern:
    """The pattern that a channel name or wildcard stands for. Raises `ValueError` if it is invalid."""
    try:
        return to_pattern(channel, engine.bounds)
    except InvalidName:
        raise ValueError(f"{channel!r} is not a channel or pattern") from None
