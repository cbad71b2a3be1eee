"""The NetworkTables server: new connections and their names, and the state that all engines share (NA1, NA2).

The code that runs the event loop calls `answers` once a turn, and again at the time `due`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from app.broker.broker import Broker
from app.broker.errors import NoRoom
from app.broker.meters import Meters
from app.broker.policy import Rights
from app.broker.topics import Pattern
from app.protocols.contract import GOING_AWAY, TRY_AGAIN_LATER, Close, Context, Link
from app.protocols.nt4.clients import Client
from app.protocols.nt4.engine import Engine
from app.protocols.nt4.paths import RTT, client_name
from app.protocols.nt4.tables import Tables
from app.settings import Nt4, Verb

Resume = Callable[[Any, Exception | None, float], None]
Permission = Callable[[Verb, list[Pattern | None], Context], list[bool] | Awaitable[list[bool]]]


class Server:
    """Speaks NetworkTables for the broker's sessions (`contract.Switchboard`).

    `wait` awaits something for a number of seconds at most and calls back with its value or error. `permission` asks
    the program's own policy about patterns (None is always allowed); it returns the answers, or an awaitable of them
    that may take `policy_s` seconds. `has_policy` returns whether there is a policy to ask.
    """

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
        """Return the engine for a new link (`Switchboard.connect`); the path has the client's name.

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
            tables.outgoing.close(link, GOING_AWAY, "the server is shutting down")
            return engine
        try:
            tables.join(client, now, is_listed=is_listed)
        except NoRoom as refusal:
            client.closed = refusal.reason
            tables.outgoing.close(link, TRY_AGAIN_LATER, "too many connections, or too little memory")
        else:
            engine.meter = self._meters.new() if client.account is not None else None
        return engine

    def work(self, now: float) -> bool:
        """Do one turn's part of the long work, and return whether there is more; called before `answers`."""
        return self.tables.work(now)

    @property
    def due(self) -> float:
        """When `answers` has output next, in monotonic seconds; infinity if it has none."""
        return self.tables.due

    def answers(self, now: float) -> Iterator[tuple[Link, list[bytes] | Close]]:
        """Yield the output of this turn, once for each link: frames, or frames and a close."""
        return self.tables.answers(now)

    def sweep(self, now: float) -> None:
        """Delete topics that have expired (`Tables.sweep`)."""
        self.tables.sweep(now)

    def drain(self) -> list[Engine]:
        """Stop accepting clients, and return the engines to `release`."""
        self.is_draining = True
        return [each.owner for each in self._broker.sessions.values() if isinstance(each, Client)]

    def close(self, now: float) -> None:
        """Record all waiting values, because the history is about to close."""
        self.tables.bridge.close(now)
