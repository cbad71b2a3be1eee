"""The router: WAMP as the server knows it, and where its connections get their engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from halley.broker.broker import Broker
from halley.broker.policy import Rights
from halley.protocols.contract import Context, Count, Link, WireProtocol
from halley.protocols.wamp.authentication import Authentication
from halley.protocols.wamp.engine import Handlers, WampEngine
from halley.protocols.wamp.meta_queries import pattern_of
from halley.protocols.wamp.remote_sessions import RemoteSessions
from halley.protocols.wamp.session import SessionEngine
from halley.protocols.wamp.state import Environment, RouterState
from halley.settings import Realm, Wamp

_LATE_AT_ONCE = 50
"""Connections that are closed in one turn of the event loop because their peers were silent for too long."""


class Router(RouterState, WireProtocol):
    """Speaks WAMP for the broker's sessions (`contract.WireProtocol`)."""

    name = "wamp"

    def __init__(
        self,
        broker: Broker,
        options: Wamp,
        realms: tuple[Realm, ...],
        rights: Rights,
        authentication: Authentication,
        environment: Environment,
    ) -> None:
        """Make a router without sessions.

        `handlers` handle the requests of all sessions. `remote_sessions` are the sessions at the other nodes, where the
        server is a node of a cluster. They are made here and once: the compiled build would make a cached property each
        time.
        """
        super().__init__(broker, options, realms, rights, authentication, environment)
        self.handlers = Handlers(self)
        nodes = environment.nodes
        self.remote_sessions = None if nodes is None else RemoteSessions(self, nodes)

    def connect(self, link: Link, context: Context, now: float) -> WampEngine:
        """Return the engine for a new link, which must send HELLO in time."""
        engine = WampEngine(self, self.handlers, link, context)
        engine.await_hello(now)
        return engine

    def answer(self, question: dict[str, Any], now: float) -> Any:
        """Answer a question of another node (`meta_queries.py`)."""
        return self.handlers.queries.answer(question, now)

    def arrived(self, event: list[Any], now: float) -> None:
        """Publish a meta event of another node (`state.META_EVENT`)."""
        name, uri, args, about = event
        realm = self.realms.get(name)
        if realm is not None and uri.startswith("wamp."):
            self.meta.arrived(realm, uri, args, None if about is None else pattern_of(about), now)

    def begin(self, now: float) -> None:
        """Accept sessions from now on (`WireProtocol.begin`)."""
        self.is_draining = False
        for engine in self._engines():
            engine.lost(now)

    def sweep(self, now: float) -> bool:
        """Close the connections whose peers did not say in time what they had to; see what is new at other nodes."""
        queues = (self.hellos, self.goodbyes)
        for queue in queues:
            for engine in queue.overdue(now, _LATE_AT_ONCE):
                engine.late(now)
        has_more_changes = self.remote_sessions is not None and self.remote_sessions.sweep(now)
        return has_more_changes or any(queue.has_overdue(now) for queue in queues)

    def drain(self, spread_s: float) -> list[Callable[[float], None]]:  # noqa: ARG002 - no advice to give
        """Stop accepting sessions, and return what releases each client (`WireProtocol.drain`)."""
        self.is_draining = True
        return [engine.drain for engine in self._engines()]

    def _engines(self) -> list[SessionEngine]:
        """The engines of all sessions, and of the connections that have none yet or no more."""
        joined = [session.engine for realm in self.realms.values() for session in realm.sessions.values()]
        return [*joined, *self.hellos, *self.goodbyes]

    def counts(self) -> Iterator[Count]:
        """Yield WAMP's own metrics (`WireProtocol.counts`)."""
        live = sum(len(realm.subscriptions) for realm in self.realms.values())
        text = "Distinct WAMP topics and patterns with subscriptions."
        yield Count("halley_wamp_subscriptions", text, live, is_gauge=True)
        retained = sum(len(realm.retained) for realm in self.realms.values())
        yield Count("halley_wamp_retained_topics", "WAMP topics with a retained event.", retained, is_gauge=True)
        text = "WAMP requests and sessions refused, by error URI."
        yield Count("halley_wamp_refused", text, self.refused, "error")
        text = "Unacknowledged WAMP publications refused, by error URI."
        yield Count("halley_wamp_unacknowledged", text, self.unacknowledged, "error")
