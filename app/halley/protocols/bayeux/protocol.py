"""Bayeux as one of the server's protocols. Its connections are HTTP requests alone, all of which one engine serves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from halley.protocols.bayeux.engine import Engine
from halley.protocols.contract import Count, WireProtocol


class BayeuxProtocol(WireProtocol):
    """What the server asks of Bayeux (`contract.WireProtocol`). `drain_s` returns how long a drain is to take."""

    name = "bayeux"

    def __init__(self, engine: Engine, drain_s: Callable[[], float]) -> None:
        self.engine = engine
        self._drain_s = drain_s

    @property
    def holds(self) -> int:
        """The number of connects that are held."""
        return self.engine.holds

    @property
    def put_back(self) -> int:
        """The number of events whose reply did not reach its socket."""
        return self.engine.put_back

    def begin(self, now: float) -> None:
        """Admit sessions from now on (`WireProtocol.begin`)."""
        self.engine.begin(now)

    def sweep(self, now: float) -> bool:
        """Forget unused channels (`WireProtocol.sweep`)."""
        return self.engine.sweep(now)

    def drain(self) -> list[Callable[[float], None]]:
        """Hold no more connects, and return what answers each one that is held (`WireProtocol.drain`).

        The replies advise clients to return at a random time within that of the drain.
        """
        spread_s = self._drain_s()
        sessions = self.engine.drain(lambda: random.uniform(0, spread_s))  # noqa: S311 - no secret
        return [partial(self.engine.release, session) for session in sessions]

    def counts(self) -> Iterator[Count]:
        """Yield Bayeux's own metrics (`WireProtocol.counts`)."""
        engine = self.engine
        yield Count("halley_connects", "Bayeux /meta/connect messages received.", engine.connects)
        yield Count("halley_messages_refused", "Bayeux messages refused, by error code.", engine.refused, "code")
