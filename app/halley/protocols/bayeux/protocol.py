"""Bayeux as one of the server's protocols: one engine serves all requests, by HTTP and by WebSockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.messages import HttpContext
from halley.protocols.bayeux.relayed import Relay
from halley.protocols.bayeux.socket import Socket, Sockets
from halley.protocols.contract import GOING_AWAY, Context, Count, Link, Pings, WaitFor, WebSocketService, WireProtocol

_CHECKS = 4
"""Looks at each peer in one `ping_s`."""


class BayeuxProtocol(WireProtocol):
    """What the server asks of Bayeux (`contract.WireProtocol`)."""

    name = "bayeux"

    def __init__(self, engine: BayeuxEngine, wait: WaitFor) -> None:
        options = engine.options
        self.engine = engine
        self.sockets = Sockets(engine, wait)
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

        The rest is as `Socket` takes it.
        """
        return Socket(self.sockets, link, cast(HttpContext, context), now, cookies, token)

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
        """Forget unused channels, and close WebSockets without a session (`WireProtocol.sweep`)."""
        has_more_channels = self.engine.sweep(now)
        return self.sockets.sweep(now) or has_more_channels

    def drain(self, spread_s: float) -> list[Callable[[float], None]]:
        """Hold no more connects, and return what answers each one that is held, or ends its WebSocket.

        The replies advise clients to return at a random time within that of the drain (`WireProtocol.drain`).
        """
        sessions = self.engine.sessions
        held = sessions.drain(lambda: random.uniform(0, spread_s))  # noqa: S311 - no secret
        polls = [partial(sessions.release, session) for session in held if session.socket is None]
        return [*polls, *(socket.release for socket in self.sockets.open)]

    def counts(self) -> Iterator[Count]:
        """Yield Bayeux's own metrics (`WireProtocol.counts`)."""
        connects, refused = self.engine.sessions.connects, self.engine.replies.refused
        yield Count("halley_connects", "Bayeux /meta/connect messages received.", connects)
        yield Count("halley_messages_refused", "Bayeux messages refused, by error code.", refused, "code")
