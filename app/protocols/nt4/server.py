"""The server: who connects and under which name, and what all engines share (nt4.md A1, A2).

`answers` is asked once a turn of the loop by whoever runs it, and again when `due` has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.broker.errors import NoRoom
from app.broker.meters import Meters
from app.protocols.links import GOING_AWAY, TRY_AGAIN_LATER
from app.protocols.nt4.clients import Client
from app.protocols.nt4.engine import Engine
from app.protocols.nt4.paths import RTT, client_name
from app.protocols.nt4.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from app.broker.broker import Broker
    from app.broker.policy import Rights
    from app.broker.topics import Pattern
    from app.protocols.links import Close, Context, Link
    from app.settings import Nt4, Verb

    Resume = Callable[[Any, Exception | None, float], None]
    Permission = Callable[[Verb, list[Pattern | None], Context], list[bool] | Awaitable[list[bool]]]


class Server:
    """Speaks NetworkTables for the broker's sessions (`links.Switchboard`).

    `wait` awaits something for at most so many seconds and calls back with its value or error. `permission` asks a
    program's own policy about some patterns; of None there is nothing to ask: verdicts, or to await, for `policy_s`.
    `has_policy` says whether there is anything to ask at all.
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
        """See `Switchboard`. The client's name stands in the path."""
        engine = Engine(self, context, is_time_only=link.subprotocol == RTT)
        name = client_name(context.path)
        tables = self.tables
        is_listed = link.subprotocol != RTT  # who only wants to know the time is no client (A6)
        client = engine.client = Client(
            tables.unique(name) if is_listed else name, engine, link, context, self._broker, self.options
        )
        if self.is_draining:
            client.closed = "drained"
            tables.outgoing.close(link, GOING_AWAY, "the server is leaving")
            return engine
        try:
            tables.join(client, now, is_listed=is_listed)
        except NoRoom as refusal:
            client.closed = refusal.reason
            tables.outgoing.close(link, TRY_AGAIN_LATER, "there is no room")
        else:
            engine.meter = self._meters.new() if client.account is not None else None
        return engine

    def work(self, now: float) -> bool:
        """Do a turn's part of what takes long; whether there is more. To be asked once a turn, before `answers`."""
        return self.tables.work(now)

    @property
    def due(self) -> float:
        """When `answers` has something to do next; infinity where it has not."""
        return self.tables.due

    def answers(self, now: float) -> Iterator[tuple[Link, list[bytes] | Close]]:
        """What is to be written to whom, once for each link."""
        return self.tables.answers(now)

    def sweep(self, now: float) -> None:
        """Let go of what has had its time."""
        self.tables.sweep(now)

    def drain(self) -> list[Engine]:
        """From now on nobody comes in; returns the engines to `release`."""
        self.is_draining = True
        return [each.owner for each in self._broker.sessions.values() if isinstance(each, Client)]

    def close(self, now: float) -> None:
        """The history is about to close: record what waits for its turn."""
        self.tables.bridge.close(now)
