"""Bayeux as one of the server's protocols: one engine serves all requests, by HTTP and by WebSockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from halley.broker.limits import Meters
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.messages import HttpContext
from halley.protocols.bayeux.relayed import Relay
from halley.protocols.bayeux.socket import Socket, Sockets
from halley.protocols.contract import (
    GOING_AWAY,
    TRY_AGAIN_LATER,
    Close,
    Context,
    Count,
    Link,
    Pings,
    WaitFor,
    WebSocketService,
    WireProtocol,
)

_CHECKS = 4
"""Looks at each peer in one `ping_s`."""


class BayeuxProtocol(WireProtocol):
    """What the server asks of Bayeux (`contract.WireProtocol`)."""

    name = "bayeux"

    def __init__(self, engine: BayeuxEngine, wait: WaitFor) -> None:
        options = engine.options
        self.engine = engine
        self.sockets = Sockets(engine, wait)
        self._turned_away = Meters(options.turned_away_per_s, max(1, round(options.turned_away_per_s))).new()
        self.websocket = self.service = WebSocketService(
            tuple(path.rstrip("/") for path in options.paths),
            {"": Pings(options.ping_s, options.pong_s, lost_code=GOING_AWAY)},
            options.message_bytes,
            options.pings_per_s,
            options.kill_s,
            options.ping_s / _CHECKS,
            reports_left=True,
        )

    def relay_by(self, relay: Relay) -> None:
        """Pass on what WebSockets bring for sessions of other nodes of a cluster; a server alone has no such nodes."""
        self.sockets.relay = relay

    def connect(
        self,
        link: Link,
        context: Context,
        now: float,
        cookies: tuple[str, ...] = (),
        token: str | None = None,
    ) -> Socket:
        """Make the engine for a WebSocket (`WireProtocol.connect`), which must have a session in time.

        It is closed at once while there is a `farewell`. The rest is as `Socket` takes it.
        """
        socket = Socket(self.sockets, link, cast(HttpContext, context), now, cookies, token)
        if (farewell := self._farewell(is_counted=True)) is not None:
            self.engine.sessions.send(socket, farewell)
        return socket

    def refusal(self, now: float) -> str:
        """Why a WebSocket may not even be opened to be closed at once (`bayeux.turned_away_per_s`); empty if it may."""
        farewell = self._farewell()
        if farewell is None or (self._turned_away is not None and self._turned_away.admits(now)):
            return ""
        return farewell.reason

    def _farewell(self, *, is_counted: bool = False) -> Close | None:
        """What ends a WebSocket that is opened now, since the server is shutting down or is full; else None."""
        if self.engine.replies.advisor.is_draining:
            return Close([], GOING_AWAY, "the server is shutting down")
        broker = self.engine.broker
        if (refusal := broker.load_refusal()) is not None:
            if is_counted:
                broker.counted(refusal)
            return Close([], TRY_AGAIN_LATER, "the server is full")
        return None

    @property
    def holds(self) -> int:
        """The number of connects that are held."""
        return self.engine.sessions.holds

    @property
    def put_back(self) -> int:
        """The number of events whose reply did not reach its socket."""
        return self.engine.sessions.put_back

    def begin(self, now: float) -> None:
        """Admit sessions from now on (`WireProtocol.begin`)."""
        self.engine.begin(now)

    def sweep(self, now: float) -> bool:
        """Close WebSockets that have no session in time (`WireProtocol.sweep`)."""
        return self.sockets.sweep(now)

    def drain(self, spread_s: float) -> list[Callable[[float], None]]:
        """Hold no more connects, and return what answers each one that is held, or ends its WebSocket.

        The replies advise clients to return at a random time within that of the drain (`WireProtocol.drain`).
        """
        sessions = self.engine.sessions
        held = sessions.drain(lambda: random.uniform(0, spread_s))  # noqa: S311 - no secret
        polls = [partial(sessions.drain_session, session) for session in held if session.socket is None]
        return [*polls, *(socket.drain for socket in self.sockets.open)]

    def counts(self) -> Iterator[Count]:
        """Yield Bayeux's own metrics (`WireProtocol.counts`)."""
        connects, refused = self.engine.sessions.connects, self.engine.replies.refused
        yield Count("halley_connects", "Bayeux /meta/connect messages received.", connects)
        yield Count("halley_messages_refused", "Bayeux messages refused, by error code.", refused, "code")
