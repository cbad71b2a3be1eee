"""The house in which the Bayeux engine is tested: a broker and an engine with a clock that is moved by hand.

There is no event loop and no socket: a request is a call, a response is the engine's return value, and time passes when
a test calls `pass_time`. After every call the house checks that the state is consistent (`House.check`), so each test
also finds leaks. The house does not judge: it sends what a test gives it and returns what it receives. Its clients are
in `bayeux_peers.py`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from halley.broker.broker import Broker
from halley.broker.names import Match
from halley.broker.policy import SERVER, DefaultRules
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.hooks import Hooks, Listener
from halley.protocols.bayeux.names import to_pattern
from halley.protocols.bayeux.outcomes import Request, Transport
from halley.protocols.bayeux.session import BayeuxSession, Reply
from halley.settings import Bayeux, History, Limits
from support.bayeux_peers import Exchange, Peer
from support.broker import waiting_bytes
from support.identities import Known
from support.memory_log import MemoryLog
from support.messages import JSON, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halley.broker.policy import Proof, Rights
    from halley.settings import Lazy, Verb

START_S = 1_000.0
"""The time at which the house's clock starts: not 0, so that a forgotten `now +` is noticed."""

WALL_S = 1_700_000_000.0
"""The wall clock at that moment."""

_MOST_SWEEPS = 10_000


class Later:
    """The awaitable that an asynchronous hook returns; its result is given by `Exchange.resume`."""

    def __await__(self) -> Any:
        raise AssertionError("the engine awaits nothing")


class ChangingRights:
    """The rights of `rules`, which a test may replace."""

    def __init__(self, rules: Rights) -> None:
        self.rules = rules

    @property
    def is_configured(self) -> bool:
        """See `Rights`."""
        return self.rules.is_configured

    def may(self, *question: Any) -> bool:
        """See `Rights`."""
        return self.rules.may(*question)

    def needs_session(self, visitor: Proof) -> bool:
        """See `Rights`."""
        return self.rules.needs_session(visitor)

    def grants_any(self, verb: Verb, visitor: Proof) -> bool:
        """See `Rights`."""
        return self.rules.grants_any(verb, visitor)


class House:
    """A broker and a Bayeux engine. `limits` and `options` replace single settings.

    With `history`, which replaces settings of the history, it has a log in memory.
    """

    def __init__(
        self,
        *,
        limits: JSON | None = None,
        loopback: bool = True,
        anonymous_publish: bool = True,
        rights: Rights | None = None,
        authenticate: Callable[[str, float], Proof] | None = None,
        history: JSON | None = None,
        lazy: Sequence[Lazy] = (),
        connection_types: Sequence[str] = ("long-polling", "callback-polling"),
        node_of: Callable[[str, float], str | None] | None = None,
        **options: Any,
    ) -> None:
        self.now = START_S
        self.reported: list[tuple[str, Exception]] = []
        self._is_woken = False
        self.replies: list[Reply] = []  # those that may not be settled yet
        self.hooks = Hooks()
        self.hooks.report = lambda what, error: self.reported.append((what, error))
        self.broker = Broker(
            replace(Limits(), **(limits or {})),
            replace(History(), **(history or {})),
            wake=self._wake,
            report=lambda what, error: self.reported.append((what, error)),
        )
        self.broker.clock_offset_s = WALL_S - START_S
        self.identities = Known(authenticate)
        self.rights = ChangingRights(rights or DefaultRules(loopback, anonymous_publish))
        self.engine = BayeuxEngine(
            self.broker,
            replace(Bayeux(), **options),
            self.rights,
            self.hooks,
            identities=self.identities,
            lazy=lazy,
            connection_types=connection_types,
            node_of=node_of,
            read=None if history is None else lambda query, _: self.log.read(query),  # made below
        )
        if history is not None:
            self.log = MemoryLog(self.broker)

    def send(
        self,
        *messages: Any,
        transport: Transport = Transport.LONG_POLLING,
        cookies: tuple[str, ...] = (),
        stalled: bool = False,
        peer: Peer | None = None,
        **more: Any,
    ) -> Exchange:
        """Send one request with these messages, and end the turn of the loop; `more` is for the `Request`."""
        exchange = Exchange(self, peer, stalled=stalled)
        request = Request(deepcopy(list(messages)), transport, exchange, cookies, more.pop("context", None))
        for name, value in more.items():
            setattr(request, name, value)
        exchange.write(self.engine.receive(request, self.now))
        self.turn()
        return exchange

    def join(self, **wishes: Any) -> Peer:
        """Return a new peer after its handshake and first connect; `wishes` are the arguments of `ConnectionWriter`."""
        peer = Peer(self, **wishes)
        peer.handshake()
        peer.connect()
        return peer

    def new_session(self) -> BayeuxSession:
        """Return a session that is not opened yet."""
        sessions = self.engine.sessions
        return BayeuxSession(sessions.new_id(), sessions, self.broker.outbox(), sessions.options)

    def publish(self, channel: str, *data: Any) -> None:
        """Publish without a session, in one request, and assert that all events were accepted."""
        sent = self.send(*(publish(channel, value) for value in data))
        assert all(reply["successful"] for reply in sent.replies), sent.messages

    def policy(self, **questions: Callable[..., Any]) -> None:
        """Make these functions the policy."""
        self.hooks.policy = SimpleNamespace(**questions)

    def authorize(self, pattern: str, authorize: Callable[..., Any]) -> None:
        """Register an authorizer."""
        self.hooks.authorizers.add(to_pattern(pattern, self.engine.bounds), authorize)

    def listen(self, pattern: str, hear: Callable[..., Any], *, vetoes: bool = False) -> None:
        """Register a listener."""
        self.hooks.listeners.add(to_pattern(pattern, self.engine.bounds), Listener(hear, vetoes=vetoes))

    def serve(self, pattern: str, service: Callable[..., Any]) -> None:
        """Register a service."""
        self.hooks.services.add(to_pattern(pattern, self.engine.bounds), service)

    def deliver(self, peer: Peer, channel: str, data: Any) -> bool:
        """Send an event to one peer, as an embedding program does."""
        is_accepted = self.engine.sessions.deliver(peer.session, channel, data, None, self.now)
        self.turn()
        return is_accepted

    def dismiss(self, peer: Peer) -> None:
        """End a peer's session, as an embedding program does."""
        self.engine.sessions.leave(peer.session, self.now, by_client=False)
        self.turn()

    def turn(self) -> None:
        """Do what is due at the end of this turn of the loop: flush the outboxes, and hand out the responses."""
        while self._is_woken:
            self._is_woken = False
            self.broker.flush(self.now)
        self.check()

    def _wake(self) -> None:
        self._is_woken = True

    def pass_time(self, seconds: float) -> None:
        """Move the clock, stopping at each deadline on the way."""
        until = self.now + seconds
        for _ in range(_MOST_SWEEPS):
            self.now = min(until, max(self.now, self.broker.deadlines.next()))
            self.broker.due(self.now)
            self.turn()
            if self.now >= until and self.broker.deadlines.next() > until:
                return
        raise AssertionError("a deadline has passed and was not moved")

    def session(self, client_id: str) -> BayeuxSession | None:
        """Return the session of that id, if it has not ended."""
        session = self.broker.sessions.get(client_id)
        return session if isinstance(session, BayeuxSession) else None

    def hearers(self, subscription: str) -> list[str]:
        """Return the ids of the sessions that are subscribed to exactly this channel or pattern."""
        found = self.broker.index.subscriptions.get(to_pattern(subscription, self.engine.bounds))
        return [] if found is None else [session.id for session in found.sessions]

    def check(self) -> None:
        """Assert that each session has a deadline, each slot a hold, and that nothing is kept for ended sessions.

        The bytes that wait are also counted anew.
        """
        sessions = list(self.broker.sessions.values())
        assert len(self.broker.deadlines) == len(sessions)
        held = 0
        for session in sessions:
            assert isinstance(session, BayeuxSession)
            assert session.closed is None
            assert session.state != "closed"
            assert session.alarm
            assert session.alarm_at <= session.deadline
            assert (session.state == "held") is (session.held is not None)
            held += session.state == "held"
        assert self.engine.sessions.holds == held
        self.replies = [reply for reply in self.replies if not reply.is_settled]
        beginning = [*self.engine._handshakes._beginning]  # a program may have done something to them
        assert self.broker.waiting.value == waiting_bytes(self.broker, self.replies, beginning)
        assert sum(self.engine.sessions.holds_by_browser.values()) == held
        assert 0 not in self.engine.sessions.holds_by_browser.values()
        for pattern, subscription in self.broker.index.subscriptions.items():
            assert subscription.sessions, f"{pattern} has no subscriber"
            assert set(subscription.sessions) <= {*sessions, *beginning}, f"{pattern} has a subscriber that has ended"
        for session in sessions:
            wildcards = sum(pattern.match is not Match.EXACT for pattern in session.subscriptions)
            assert len(session.subscriptions) <= self.broker.limits.subscriptions
            assert wildcards <= self.broker.limits.patterns


def local_session(engine: BayeuxEngine, now: float) -> BayeuxSession:
    """Return a session of the program itself, which is open."""
    sessions = engine.sessions
    session = BayeuxSession(sessions.new_id(), sessions, engine.broker.outbox(), sessions.options)
    session.role = SERVER
    sessions.open(session, now)
    return session
