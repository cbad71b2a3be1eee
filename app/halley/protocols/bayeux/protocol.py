"""Bayeux as one of the server's protocols. Its connections are HTTP requests alone, all of which one engine serves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.contract import Count, WireProtocol


class BayeuxProtocol(WireProtocol):
    """What the server asks of Bayeux (`contract.WireProtocol`). `drain_s` returns how long a drain is to take."""

    name = "bayeux"

    def __init__(self, engine: BayeuxEngine, drain_s: Callable[[], float]) -> None:
        self.engine = engine
        self._drain_s = drain_s

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
        self.engine.sessions.begin(now)

    def sweep(self, now: float) -> bool:
        """Forget unused channels (`WireProtocol.sweep`)."""
        return self.engine.sweep(now)

    def drain(self) -> list[Callable[[float], None]]:
        """Hold no more connects, and return what answers each one that is held (`WireProtocol.drain`).

        The replies advise clients to return at a random time within that of the drain.
        """
        spread_s = self._drain_s()
        sessions = self.engine.sessions
        held = sessions.drain(lambda: random.uniform(0, spread_s))  # noqa: S311 - no secret
        return [partial(sessions.release, session) for session in held]

    def counts(self) -> Iterator[Count]:
        """Yield Bayeux's own metrics (`WireProtocol.counts`)."""
        connects, refused = self.engine.sessions.connects, self.engine.replies.refused
        yield Count("halley_connects", "Bayeux /meta/connect messages received.", connects)
        yield Count("halley_messages_refused", "Bayeux messages refused, by error code.", refused, "code")
