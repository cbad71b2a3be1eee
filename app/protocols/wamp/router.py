"""The router: what the engines of all connections share (Basic Profile, 2.2).

It knows realms and sessions, gives out ids, and collects what is to be written: a turn's replies and events of one link
leave together. `answers` is asked once a turn of the loop by whoever runs it.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from app.broker.meters import Meters
from app.protocols.links import Close
from app.protocols.wamp import errors, meta_events, subscribing, testaments
from app.protocols.wamp.engine import Engine
from app.protocols.wamp.realms import Realm
from app.protocols.wamp.sessions import new_id
from app.protocols.wamp.subscription_ids import SubscriptionIds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from app.broker.broker import Broker
    from app.broker.log import Page, Query
    from app.broker.policy import Rights
    from app.broker.topics import Pattern
    from app.protocols.links import Context, Link
    from app.protocols.wamp.authentication import Authentication
    from app.protocols.wamp.sessions import WampSession
    from app.settings import Realm as RealmOptions
    from app.settings import Verb, Wamp

    Resume = Callable[[Any, Exception | None, float], None]


class Archive(Protocol):
    """The event history."""

    def page(self, query_of: Callable[[int], Query | None]) -> Awaitable[Page | None]:
        """One page, when what was published before is through; `query_of` is given the last offset then.

        Raises `UnknownPublication`, `TimeoutError`.
        """


class Router:
    """Speaks WAMP for the broker's sessions (`links.Switchboard`).

    `reserve` gives out subscription ids (`subscription_ids.py`). `wait` awaits something for at most so many seconds
    and calls back with its value or error. `permission` asks a program's own policy about a topic or pattern: an
    answer, or one to await, for `policy_s` at most. `archive` is the history, if there is one.
    """

    def __init__(
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
    ) -> None:
        self.broker = broker
        self.options = options
        self.rights = rights
        self.authentication = authentication
        self.wait = wait
        self.permission = permission
        self.policy_s = 10.0
        self.agent = "Halley"
        self.archive: Archive | None = None
        self.is_draining = False
        self.turn = 0  # how often what was to be written has been handed out
        self.realms = {
            each.name: Realm(each, broker.limits, options, is_first=not number) for number, each in enumerate(realms)
        }
        self._ids = SubscriptionIds(reserve)
        self._meters = Meters(options.publishes_per_s, options.publish_burst)
        self._numbers: set[int] = set()  # of sessions, here or about to be
        self._outcomes: dict[Link, list[bytes] | Close] = {}
        self._overflowed: deque[Engine] = deque()
        self._waited_for: dict[Engine, None] = {}  # for a HELLO, an answer to a challenge, a goodbye
        # told of what happens to sessions, with the pattern or reason
        self.opened: list[Callable[[WampSession], None]] = []
        self.closed: list[Callable[[WampSession, str], None]] = []
        self.subscribed: list[Callable[[WampSession, Pattern], None]] = []
        self.unsubscribed: list[Callable[[WampSession, Pattern], None]] = []
        self.denied: list[Callable[[WampSession | None, str, str], None]] = []
        """Told of each request or session that is refused: whose, what it was, and the error."""
        # plain counts, read by telemetry
        self.refused: Counter[str] = Counter()  # requests and sessions, by error
        self.unacknowledged: Counter[str] = Counter()  # publications that nobody was told are refused, likewise

    # Connections

    def connect(self, link: Link, context: Context, now: float) -> Engine:
        """See `Switchboard`."""
        engine = Engine(self, link, context)
        self.await_hello(engine, now)
        return engine

    def answers(self, now: float) -> Iterator[tuple[Link, list[bytes] | Close]]:
        """What is to be written to whom, once for each link."""
        while self._overflowed or self._outcomes:
            while self._overflowed:
                self._overflowed.popleft().send_away(now)
            outcomes, self._outcomes = self._outcomes, {}
            self.turn += 1
            yield from outcomes.items()

    def say(self, link: Link, outcome: list[bytes] | Close) -> None:
        """Have frames written, behind what is to be written already; nothing more behind a close."""
        before = self._outcomes.get(link)
        if before is None:
            self._outcomes[link] = outcome
            if len(self._outcomes) == 1:
                self.broker.wake()
        elif isinstance(before, Close):
            return
        elif isinstance(outcome, Close):
            self._outcomes[link] = outcome._replace(frames=before + outcome.frames)
        else:
            before += outcome

    def overflowed(self, engine: Engine) -> None:
        """A peer does not read what it is sent."""
        self._overflowed.append(engine)
        self.broker.wake()

    # Deadlines of who has no session

    def await_hello(self, engine: Engine, now: float) -> None:
        """It must say HELLO, and prove who it is, in time."""
        engine.deadline = now + self.options.hello_s
        self._waited_for[engine] = None

    def await_goodbye(self, engine: Engine, now: float) -> None:
        """It may say goodbye, for a while."""
        engine.deadline = now + self.options.kill_s
        self._waited_for[engine] = None

    def forget(self, engine: Engine) -> None:
        """It is waited for no longer."""
        engine.deadline = None
        self._waited_for.pop(engine, None)

    def sweep(self, now: float) -> None:
        """End those who are late."""
        late = [engine for engine in self._waited_for if engine.deadline is not None and engine.deadline <= now]
        for engine in late:
            engine.late(now)

    # Sessions

    def new_number(self) -> int:
        """A session's id that no other has."""
        while (number := new_id()) in self._numbers:
            pass
        self._numbers.add(number)
        return number

    def forget_number(self, number: int) -> None:
        """Nobody will have it, or has it any longer."""
        self._numbers.discard(number)

    def join(self, session: WampSession, now: float) -> None:
        """Admit a session. Raises `NoRoom`.

        It needs no deadline but its token's: its connection has one, and takes the session with it.
        """
        self.broker.open(session, inf, now)
        session.meter = self._meters.new() if session.account is not None else None
        session.realm.sessions[session.number] = session
        meta_events.joined(self, session, now)
        self.tell(self.opened, session)

    def leave(self, session: WampSession, reason: str, now: float) -> None:
        """End a session, with all that others are to hear of it."""
        self.broker.close(session, reason)  # if it has not done so itself, for a fault
        del session.realm.sessions[session.number]
        self.forget_number(session.number)
        for live in tuple(session.live.values()):
            subscribing.forget(self, session, live, now)
        testaments.publish(self, session, now)
        meta_events.left(self, session, now)
        self.tell(self.closed, session, reason)

    def refused_to(self, session: WampSession | None, what: str, uri: str) -> None:
        """Count and tell of an ERROR or ABORT."""
        self.refused[uri] += 1
        self.tell(self.denied, session, what, uri)

    def tell(self, listeners: list[Callable[..., None]], *news: object) -> None:
        """Call each with `news`."""
        for listener in listeners:
            listener(*news)

    def drain(self) -> list[Engine]:
        """From now on no session begins; returns the engines to `release`."""
        self.is_draining = True
        joined = [session.owner for realm in self.realms.values() for session in realm.sessions.values()]
        return [*joined, *self._waited_for]

    def release(self, engine: Engine, now: float) -> None:
        """Send a client away because the server leaves."""
        if engine.session is not None:
            engine.dismiss(errors.SYSTEM_SHUTDOWN, "", now, reason="drained")
        elif not engine.is_leaving:
            engine.abort(errors.SYSTEM_SHUTDOWN, "The server is leaving.", now)

    # Subscription ids

    def number_of(self, realm: Realm, pattern: Pattern) -> int:
        """The id of a pattern, subscribed or not."""
        live = realm.subscriptions.get(pattern)
        return self._ids.of(pattern) if live is None else live.number

    def pattern_of(self, session: WampSession, number: int) -> Pattern | None:
        """What an id stands for to a session; None where it stands for nothing in its realm."""
        live = session.realm.numbers.get(number)
        pattern = self._ids.pattern(number) if live is None else live.pattern
        return pattern if pattern is not None and session.realm.has(pattern) else None
