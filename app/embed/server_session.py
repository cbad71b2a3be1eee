"""A client's session as the program sees it (CometD's ServerSession)."""

from __future__ import annotations

from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from app.broker.policy import SERVER
from app.embed.names import pattern_of
from app.protocols.bayeux.names import to_subscription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.protocols.bayeux.engine import Engine
    from app.protocols.bayeux.sessions import BayeuxSession


class ServerSession:
    """One session: who it is, what it hears, and what can be done to it. The same object for the session's whole life.

    `attributes` is the program's own, for whatever it wants to remember of this client.
    """

    def __init__(self, session: BayeuxSession, engine: Engine) -> None:
        self._session = session
        self._engine = engine

    def __repr__(self) -> str:
        return f"<ServerSession from {self.address or 'here'}>"  # never the id: it is the client's secret

    @property
    def id(self) -> str:
        """The clientId. Whoever knows it can speak for the client."""
        return self._session.id

    @property
    def attributes(self) -> dict[str, Any]:
        """What the program remembers of this client."""
        return self._session.attributes

    @property
    def authid(self) -> str | None:
        """Who its client has proved to be: the `id` of a static token, the `sub` of a JWT; None for the anonymous."""
        return self._session.authid

    @property
    def role(self) -> str:
        """What access rules know it by: its token's role, or "anonymous"."""
        return self._session.role

    @property
    def address(self) -> str:
        """The IP address its handshake came from; empty for local sessions."""
        return self._session.address

    @property
    def user_agent(self) -> str:
        """The User-Agent of its handshake, at most 200 characters."""
        return self._session.user_agent

    @property
    def is_local(self) -> bool:
        """Whether it is the program's own."""
        return self._session.role == SERVER

    @property
    def is_connected(self) -> bool:
        """Whether it has not ended yet."""
        return self._session.closed is None

    @property
    def subscriptions(self) -> list[str]:
        """The channels and patterns it is subscribed to."""
        return [to_subscription(pattern) for pattern in self._session.subscriptions]

    @property
    def hold_s(self) -> float:
        """How long its connects are held, in seconds; it is advised of a change with its next reply."""
        return self._session.hold_s

    @hold_s.setter
    def hold_s(self, seconds: float) -> None:
        self._session.hold_s = max(0.0, seconds)

    @property
    def interval_s(self) -> float:
        """How long it waits before it connects again, in seconds; it is advised of a change with its next reply."""
        return self._session.interval_s

    @interval_s.setter
    def interval_s(self, seconds: float) -> None:
        self._session.interval_s = max(0.0, seconds)

    @property
    def max_interval_s(self) -> float:
        """How long it may send no connect before it ends, in seconds beyond its interval."""
        return self._session.max_interval_s

    @max_interval_s.setter
    def max_interval_s(self, seconds: float) -> None:
        self._session.max_interval_s = max(0.0, seconds)

    @property
    def broadcast_to_publisher(self) -> bool:
        """Whether it gets its own events if it is subscribed to their channel."""
        return self._session.broadcast_to_publisher

    @broadcast_to_publisher.setter
    def broadcast_to_publisher(self, wanted: bool) -> None:
        self._session.broadcast_to_publisher = wanted

    @property
    def connect_delivery_only(self) -> bool:
        """Whether events reach it on connect replies alone, which keeps them in strict order."""
        return self._session.connect_delivery_only

    @connect_delivery_only.setter
    def connect_delivery_only(self, wanted: bool) -> None:
        self._session.connect_delivery_only = wanted

    def deliver(self, channel: str, data: Any) -> bool:
        """Send an event to this session alone, subscribed or not; False if it has ended.

        Raises `ValueError` if `channel` is no channel, `TypeError` if `data` is no JSON.
        """
        pattern_of(channel, self._engine)
        return self._engine.deliver(self._session, channel, data, None, monotonic())

    def subscribe(self, channel: str) -> None:
        """Subscribe it to a channel or pattern, without asking it or the policy. Raises `ValueError`."""
        pattern = pattern_of(channel, self._engine)
        if self.is_connected:
            self._engine.broker.subscribe(self._session, pattern)

    def unsubscribe(self, channel: str) -> None:
        """Undo `subscribe`, whoever did it. Raises `ValueError`."""
        self._engine.broker.unsubscribe(self._session, pattern_of(channel, self._engine))

    def disconnect(self) -> None:
        """End the session; a client whose connect is held learns of it at once, another by its next request."""
        self._engine.leave(self._session, monotonic(), by_client=False)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Events that come meanwhile reach the client together, when the block ends."""
        self._session.open_batches += 1
        try:
            yield
        finally:
            self._session.open_batches -= 1
            if self._session.outbox:
                self._engine.broker.mark_ready(self._session)
