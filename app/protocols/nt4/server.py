"""The NetworkTables server: new connections and their names, and the state that all engines share (NA1, NA2).

The code that runs the event loop calls `turn` at the time `due`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from app.broker.broker import Broker
from app.broker.errors import NoRoom
from app.broker.meters import Meters
from app.broker.policy import Rights
from app.broker.topics import Pattern
from app.protocols.contract import GOING_AWAY, TRY_AGAIN_LATER, Context, Link, WireProtocol
from app.protocols.nt4.clients import Client
from app.protocols.nt4.engine import Engine
from app.protocols.nt4.names import RTT, client_name
from app.protocols.nt4.tables import Tables
from app.settings import Nt4, Verb

Resume = Callable[[Any, Exception | None, float], None]
Permission = Callable[[Verb, list[Pattern | None], Context], list[bool] | Awaitable[list[bool]]]


class Server(WireProtocol):
    """Speaks NetworkTables for the broker's sessions (`contract.WireProtocol`).

    `wait` awaits something for a number of seconds at most and calls back with its value or error. `permission` asks
    the program's own policy about patterns (None is always allowed); it returns the answers, or an awaitable of them
    that may take `policy_s` seconds. `has_policy` returns whether there is a policy to ask.
    """

    name = "nt4"

    def __init__(
        self,
        broker: Broker,
        options: Nt4,
        rights: Rights,
        *,
        wait: Callable[[Awaitable[Any], float, Resume], None],
        permission: Permission = lambda _verb, patterns, _context: [True] * len(patterns),
        has_policy: Callable[[], bool] = lambda: True,
    ) -> None:
        self.options = options
        self.tables = Tables(broker, options, rights)
        self.wait = wait
        self.permission = permission
        self.has_policy = has_policy
        self.policy_s = 10.0
        self.is_draining = False
        self._broker = broker
        self._meters = Meters(options.values_per_s, options.value_burst)

    def connect(self, link: Link, context: Context, now: float) -> Engine:
        """Return the engine for a new link; the path has the client's name.

        The link is closed immediately if the server is draining or a limit on sessions is reached.
        """
        engine = Engine(self, context, is_time_only=link.subprotocol == RTT)
        name = client_name(context.path)
        tables = self.tables
        is_listed = link.subprotocol != RTT  # a connection for the time alone is not a client (NA6)
        client = engine.client = Client(
            tables.unique(name) if is_listed else name, engine, link, context, self._broker, self.options
        )
        if self.is_draining:
            client.closed = "drained"
            tables.outgoing.close(client, GOING_AWAY, "the server is shutting down")
            return engine
        try:
            tables.join(client, now, is_listed=is_listed)
        except NoRoom as refusal:
            client.closed = refusal.reason
            tables.outgoing.close(client, TRY_AGAIN_LATER, "too many connections, or too little memory")
        else:
            engine.meter = self._meters.new() if client.account is not None else None
        return engine

    @property
    def due(self) -> float:
        """When `turn` is to be called next (`WireProtocol.due`)."""
        return self.tables.due

    def turn(self, now: float) -> None:
        """Do one turn's part of the long work, and hand out the values that are due (`WireProtocol.turn`)."""
        self.tables.turn(now)

    def sweep(self, now: float) -> None:
        """Delete topics that have expired (`Tables.sweep`)."""
        self.tables.sweep(now)

    def drain(self) -> list[Callable[[float], None]]:
        """Stop accepting clients, and return what releases each of them (`WireProtocol.drain`)."""
        self.is_draining = True
        return [each.owner.release for each in self._broker.sessions.values() if isinstance(each, Client)]

    def close(self, now: float) -> None:
        """Record all waiting values, because the history is about to close."""
        self.tables.bridge.close(now)
