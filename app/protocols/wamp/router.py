"""The router: the state that the engines of all connections share (Basic Profile, 2.2).

The router has the realms and sessions, and assigns ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from app.broker.broker import Broker
from app.broker.log import Page, Query
from app.broker.meters import Meters
from app.broker.policy import Rights
from app.broker.topics import Pattern
from app.protocols.contract import Context, Count, Link, WireProtocol
from app.protocols.wamp import errors, meta_events, subscribing, testaments
from app.protocols.wamp.authentication import Authentication
from app.protocols.wamp.engine import Engine
from app.protocols.wamp.realms import Realm
from app.protocols.wamp.sessions import new_id
from app.protocols.wamp.subscription_ids import SubscriptionIds
from app.settings import Realm as RealmOptions
from app.settings import Verb, Wamp

if TYPE_CHECKING:
    from app.protocols.wamp.sessions import WampSession

Resume = Callable[[Any, Exception | None, float], None]


class Archive(Protocol):
    """The event history, as the router reads it."""

    def page(self, query_of: Callable[[int], Query | None]) -> Awaitable[Page | None]:
        """Read one page of the history after all earlier publications have been settled.

        `query_of` gets the log's last position at that time and returns the query; the page is None if the query is.
        Raises `UnknownPublication`, `TimeoutError`.
        """


class Router(WireProtocol):
    """Speaks WAMP for the broker's sessions (`contract.WireProtocol`).

    `reserve` reserves subscription ids (`subscription_ids.py`). `wait` awaits something for a number of seconds at
    most and calls back with its value or error. `permission` asks the program's own policy about a topic or pattern; it
    returns the answer, or an awaitable of it that may take `policy_s` seconds. `archive` is the history, if there is
    one. `agent` is what WELCOME names.
    """

    name = "wamp"

    def __init__(  # noqa: PLR0913 - the constructor takes everything that the router does not do itself
        self,
        broker: Broker,
        options: Wamp,
        realms: tuple[RealmOptions, ...],
        rights: Rights,
        authentication: Authentication,
        *,
        reserve: Callable[[], int],
        wait: Callable[[Awaitable[Any], float, Resume], None],
        permission: Callable[[Verb, str | Pattern, Context], bool | Awaitable[bool]] = lambda *_: True,
        policy_s: float = 10.0,
        archive: Archive | None = None,
        agent: str = "Halley",
        denied: Iterable[Callable[[WampSession | None, str, str], None]] = (),
    ) -> None:
        self.broker = broker
        self.options = options
        self.rights = rights
        self.authentication = authentication
        self.wait = wait
        self.permission = permission
        self.policy_s = policy_s
        self.agent = agent
        self.archive = archive
        self.is_draining = False
        self.realms = {
            each.name: Realm(each, broker.limits, options, is_first=not number) for number, each in enumerate(realms)
        }
        broker.holders += [realm.retained for realm in self.realms.values()]
        self._ids = SubscriptionIds(reserve)
        self._meters = Meters(options.publishes_per_s, options.publish_burst)
        self._numbers: set[int] = set()  # ids of sessions that exist or are about to
        self._waited_for: dict[Engine, None] = {}  # for a HELLO, an AUTHENTICATE or a GOODBYE
        # listeners, called with the session, and the pattern or the reason of its end
        self.opened: list[Callable[[WampSession], None]] = []
        self.closed: list[Callable[[WampSession, str], None]] = []
        self.subscribed: list[Callable[[WampSession, Pattern], None]] = []
        self.unsubscribed: list[Callable[[WampSession, Pattern], None]] = []
        self.denied = [*denied]
        """Listeners for refused requests and sessions, called with the session (or None), what it was, and the URI."""
        # plain counts, read by telemetry
        self.refused: Counter[str] = Counter()  # requests and sessions, by error
        self.unacknowledged: Counter[str] = Counter()  # refused publications that were not answered, by error

    # Connections

    def connect(self, link: Link, context: Context, now: float) -> Engine:
        """Return the engine for a new link, which must send HELLO in time."""
        engine = Engine(self, link, context)
        self.await_hello(engine, now)
        return engine

    # Deadlines of connections without a session

    def await_hello(self, engine: Engine, now: float) -> None:
        """Set the deadline by which the peer must send HELLO and authenticate: `wamp.hello_s`."""
        engine.deadline = now + self.options.hello_s
        self._waited_for[engine] = None

    def await_goodbye(self, engine: Engine, now: float) -> None:
        """Set the deadline for the peer's GOODBYE: `wamp.kill_s`."""
        engine.deadline = now + self.options.kill_s
        self._waited_for[engine] = None

    def forget(self, engine: Engine) -> None:
        """Remove the deadline of an engine."""
        engine.deadline = None
        self._waited_for.pop(engine, None)

    def sweep(self, now: float) -> None:
        """Close the connections whose deadline has passed."""
        late = [engine for engine in self._waited_for if engine.deadline is not None and engine.deadline <= now]
        for engine in late:
            engine.late(now)

    # Sessions

    def new_number(self) -> int:
        """Return a new session id that no other session has, and reserve it."""
        while (number := new_id()) in self._numbers:
            pass
        self._numbers.add(number)
        return number

    def forget_number(self, number: int) -> None:
        """Release a session id."""
        self._numbers.discard(number)

    def join(self, session: WampSession, now: float) -> None:
        """Admit a session. Raises `NoRoom`.

        The session has no deadline but its token's: it ends with its connection, which has its own deadlines.
        """
        self.broker.open(session, inf, now)
        session.meter = self._meters.new() if session.account is not None else None
        session.realm.sessions[session.number] = session
        meta_events.joined(self, session, now)
        self.tell(self.opened, session)

    def leave(self, session: WampSession, reason: str, now: float) -> None:
        """End a session: its subscriptions end, its testaments and the meta events are published."""
        self.broker.close(session, reason)  # unless the broker has done so itself after a fault
        del session.realm.sessions[session.number]
        self.forget_number(session.number)
        for live in tuple(session.live.values()):
            subscribing.forget(self, session, live, now)
        testaments.publish(self, session, now)
        meta_events.left(self, session, now)
        self.tell(self.closed, session, reason)

    def refused_to(self, session: WampSession | None, what: str, uri: str) -> None:
        """Count an ERROR or ABORT, and notify the listeners in `denied`."""
        self.refused[uri] += 1
        self.tell(self.denied, session, what, uri)

    def tell(self, listeners: list[Callable[..., None]], *news: object) -> None:
        """Call each listener with the arguments `news`."""
        for listener in listeners:
            listener(*news)

    def drain(self) -> list[Callable[[float], None]]:
        """Stop accepting sessions, and return what releases each client (`WireProtocol.drain`)."""
        self.is_draining = True
        joined = [session.owner for realm in self.realms.values() for session in realm.sessions.values()]
        return [partial(self.release, engine) for engine in (*joined, *self._waited_for)]

    def release(self, engine: Engine, now: float) -> None:
        """End a client's session, or refuse it one, because the server is draining."""
        if engine.session is not None:
            engine.dismiss(errors.SYSTEM_SHUTDOWN, "", now, reason="drained")
        elif not engine.is_leaving:
            engine.abort(errors.SYSTEM_SHUTDOWN, "The server is shutting down.", now)

    def counts(self) -> Iterator[Count]:
        """Yield WAMP's own metrics (`WireProtocol.counts`)."""
        live = sum(len(realm.subscriptions) for realm in self.realms.values())
        text = "Distinct WAMP topics and patterns with subscriptions."
        yield Count("halley_wamp_subscriptions", text, live, is_gauge=True)
        kept = sum(len(realm.retained) for realm in self.realms.values())
        yield Count("halley_wamp_retained_topics", "WAMP topics with a retained event.", kept, is_gauge=True)
        text = "WAMP requests and sessions refused, by error URI."
        yield Count("halley_wamp_refused", text, self.refused, "error")
        text = "Unacknowledged WAMP publications refused, by error URI."
        yield Count("halley_wamp_unacknowledged", text, self.unacknowledged, "error")

    # Subscription ids

    def number_of(self, realm: Realm, pattern: Pattern) -> int:
        """Return the subscription id of a pattern in a realm, whether or not it has subscribers."""
        live = realm.subscriptions.get(pattern)
        return self._ids.of(pattern) if live is None else live.number

    def pattern_of(self, session: WampSession, number: int) -> Pattern | None:
        """Return the pattern of a subscription id; None where the id is unknown in the session's realm."""
        live = session.realm.numbers.get(number)
        pattern = self._ids.pattern(number) if live is None else live.pattern
        return pattern if pattern is not None and session.realm.has(pattern) else None
