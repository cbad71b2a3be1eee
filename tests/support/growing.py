"""Tables that clients, time or other nodes fill, each with a bound that a test sets, and how what is in them ages.

`tests/test_growth.py` fills and ages them, and counts the work; `tests/bench/tables.py` measures their memory.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from halley.access.rules import AccessRules, Rule
from halley.broker.aging import TimeoutQueue
from halley.broker.broker import Broker
from halley.broker.commits import Tail
from halley.broker.errors import TooManyTopics
from halley.broker.events import Event
from halley.broker.flow import RecentTopics
from halley.broker.limits import Meters
from halley.broker.names import Match, Pattern, shape_of
from halley.broker.outbox import Conflation, Outbox
from halley.broker.pending import Pending
from halley.broker.policy import ANONYMOUS
from halley.broker.ports import Reader
from halley.broker.remembered import Results
from halley.cluster.applied import StreamState
from halley.cluster.consistency import StateHistory
from halley.cluster.frames import Row, SharedFields
from halley.cluster.members import Members
from halley.history.rules import Rules
from halley.protocols.nt4.pacing import Backlog
from halley.protocols.nt4.topics import Topic
from halley.protocols.wamp import remote_sessions
from halley.protocols.wamp.state import ON_JOIN
from halley.server.composition import Server
from halley.server.readers import READ_BYTES, Readers
from halley.settings import Cluster, History, Limits, Settings, Wamp
from halley.transports.wamp import Poll, WampEndpoint
from support.bayeux import House
from support.broker import Owner, event, join
from support.memory_log import MemoryLog
from support.nt4_peers import World as Nt4World
from support.wamp_peers import Context
from support.wamp_peers import World as WampWorld

if TYPE_CHECKING:
    from collections.abc import Callable

    from halley.broker.sessions import Session

NOW = 100.0
LONG_S = 100_000.0
"""Longer than anything is remembered."""


@dataclass
class Growing:
    """One table. `add` adds the entry of that number, and `size` is how many there are.

    `turn` does what one turn of the event loop does to a table whose entries have all become old, and returns whether
    there is more; None where entries do not age, but only make room for newer ones.
    """

    add: Callable[[int], object]
    size: Callable[[], int]
    turn: Callable[[], object] | None = None


class StuckLog(MemoryLog):
    """A log that takes any number of events, and writes none."""

    def append(self, pending: Pending) -> None:
        """See `ports.Log`."""


class Ending(Owner):
    """An engine whose sessions end at their deadlines."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    def due(self, session: Session, now: float) -> None:
        """End the session."""
        self._broker.close(session, "expired")


# The core


def keys(bound: int) -> Growing:
    """Idempotency keys, by publishes that have one."""
    broker = Broker(Limits(), replace(History(), keys=bound))
    known = broker.commits.keys

    def add(number: int) -> None:
        published = event()
        published.idempotency_key = str(number)
        broker.publish(published, NOW)

    return Growing(add, lambda: len(known), lambda: known.sweep(NOW + LONG_S))


def keys_of_all(bound: int) -> Growing:
    """The same, those of the anonymous among others'."""
    broker = Broker(Limits(), replace(History(), keys=bound))
    known = broker.commits.keys

    def add(number: int) -> None:
        published = event()
        published.idempotency_key = str(number)
        published.authid = None if number % 3 else "ann"
        broker.publish(published, NOW)

    return Growing(add, lambda: len(known), lambda: known.sweep(NOW + LONG_S))


def waiting_publishers(bound: int) -> Growing:
    """Publishers that wait for a disk that is stuck; `history.inbox_bytes` bounds them, so not here."""
    broker = Broker(Limits(), replace(History(), commit_s=10))
    StuckLog(broker)
    waiter = SimpleNamespace(settled=lambda *_: None)

    def waiting() -> int:
        return sum(bool(each.waiters) for each in broker.commits.pending)

    def add(number: int) -> None:
        if number < bound:
            pending = broker.publish(event(), NOW)
            assert pending is not None
            pending.waiters.append(waiter)

    return Growing(
        add,
        waiting,
        lambda: broker.commits.expire(NOW + LONG_S),
    )


def tail(bound: int) -> Growing:
    """The newest events, in memory."""
    kept = Tail(bound * event().nbytes)

    def add(_number: int) -> None:
        published = event()
        published.position = kept.head + 1
        kept.append(published)

    return Growing(add, lambda: len(kept._entries))


def meters(bound: int) -> Growing:
    """Rates of addresses that publish without a session."""
    meters = Meters(200, 400, most=bound - 1)  # what is beyond has one more meter, which is shared
    return Growing(
        lambda number: meters.admits(str(number), NOW), lambda: len(meters), lambda: meters.sweep(NOW + LONG_S)
    )


def activity(bound: int) -> Growing:
    """Topics whose events are counted."""
    activity = RecentTopics(bound)
    return Growing(lambda number: activity.note(str(number), NOW), lambda: len(activity.traces))


def busy_activity(bound: int) -> Growing:
    """The same, each published to again and again."""
    activity = RecentTopics(bound)

    def add(number: int) -> None:
        for _ in range(3):
            activity.note(str(number), NOW)

    return Growing(add, lambda: len(activity.traces))


def sessions(bound: int) -> Growing:
    """Sessions, and their deadlines, which pass together."""
    broker = Broker(replace(Limits(), sessions=bound))
    owner = Ending(broker)

    def add(number: int) -> None:
        if number < bound:
            join(broker, str(number), owner, NOW)

    def turn() -> bool:
        with mock.patch("halley.broker.sessions._STALE_ENTRIES_KEPT", 100):
            return broker.due(NOW + LONG_S)

    return Growing(add, lambda: len(broker.sessions), turn)


def patterns(bound: int) -> Growing:
    """Subscriptions, each to another topic."""
    broker = Broker(Limits())
    hearer = join(broker, "s")

    def add(number: int) -> None:
        if number < bound:
            broker.subscribe(hearer, Pattern(Match.EXACT, str(number)))

    return Growing(add, lambda: len(broker.index.subscriptions))


def matches(bound: int) -> Growing:
    """The cache of topics and their subscribers, which a new pattern makes useless."""
    broker = Broker(Limits())
    hearer = join(broker, "s", deadline=2 * LONG_S)
    index = broker.index
    bounds = mock.patch.multiple("halley.broker.subscriptions", _CACHED_TOPICS=bound, DROPPED_AT_ONCE=256)
    with bounds:
        index._empty()

    def add(number: int) -> None:
        with bounds:
            index.match(str(number))

    def turn() -> bool:
        with bounds:
            if index.cache and not hearer.subscriptions:
                broker.subscribe(hearer, Pattern(Match.DESCENDANTS, ""))
            return broker.due(NOW)

    return Growing(add, lambda: len(index.cache), turn)


def conflated(bound: int) -> Growing:
    """Values that wait apart from a queue that is full."""
    outbox = Outbox(500, 1_000_000_000, Conflation(bound, 1_000_000_000))
    for number in range(500):
        outbox.put(event(number))

    def add(number: int) -> None:
        value = event(number, str(number))
        value.nt4_type = "double"
        outbox.put(value)

    def turn() -> bool:
        outbox.take()
        return len(outbox) > 0

    return Growing(add, lambda: 0 if outbox.conflated is None else len(outbox.conflated), turn)


def deadlines(bound: int) -> Growing:
    """Connections that must do something in time."""
    queue: TimeoutQueue[int] = TimeoutQueue(10)

    def add(number: int) -> None:
        if number < bound:
            queue.add(number, NOW)

    return Growing(add, lambda: len(queue), lambda: [*queue.overdue(NOW + 10)] and queue.has_overdue(NOW + 10))


# Rights and rules


def results_of(function: Callable[[Any], Any]) -> Results[Any, Any]:
    """Return the table in which the results of a function are remembered."""
    table: Results[Any, Any] = function.__self__  # type: ignore[attr-defined]
    return table


def decisions(bound: int) -> Growing:
    """Remembered decisions of the access rules."""
    rules = AccessRules([Rule("*", "*", Pattern(Match.DESCENDANTS, ""), allow=True)])
    rules._decisions.most_bytes = 434 * bound

    def add(number: int) -> None:
        results_of(shape_of).clear()  # so that the rule's own is worked out each time, and not once in thousands
        rules.may(None, "subscribe", str(number), ANONYMOUS)

    return Growing(add, lambda: len(rules._decisions))


def recorded(bound: int) -> Growing:
    """Topics of which the history's rules have decided."""
    rules = Rules()
    table = results_of(rules.of)
    table.most_bytes = 252 * bound
    return Growing(lambda number: rules.of(str(number)), lambda: len(table))


# Bayeux


def channels(bound: int) -> Growing:
    """Channels, where a program watches them."""
    house = House(limits={"channels": bound})
    house.hooks.channel_created.append(lambda _channel: None)
    later = house.now + LONG_S
    return Growing(
        lambda number: house.publish(f"/{number}", 1),
        lambda: len(house.engine.channels),
        lambda: house.engine.sweep(later),
    )


def channels_in_use(bound: int) -> Growing:
    """The same, of which each has a subscriber and stays."""
    house = House(limits={"channels": bound, "subscriptions": 2 * bound, "subscription_bytes": 10**9})
    house.hooks.channel_created.append(lambda _channel: None)
    hearer = house.join().session

    def add(number: int) -> None:
        pattern = Pattern(Match.EXACT, str(number))
        house.engine.channels.add(f"/{number}", pattern, house.now)
        house.broker.subscribe(hearer, pattern)

    later = house.now + LONG_S
    return Growing(add, lambda: len(house.engine.channels), lambda: house.engine.sweep(later))


# WAMP


def wamp(**options: Any) -> WampWorld:
    """Return a router without a rate limit."""
    return WampWorld(options=replace(Wamp(), publishes_per_s=0, **options))


def ids(bound: int) -> Growing:
    """The ids of subscriptions."""
    with mock.patch("halley.protocols.wamp.state._IDS_BYTES", 606 * bound):
        router = wamp().router
    realm = next(iter(router.realms.values()))

    def add(number: int) -> None:
        router.subscription_id(realm, Pattern(Match.EXACT, str(number)))

    return Growing(add, lambda: len(router._subscription_ids._ids))


def retained(bound: int) -> Growing:
    """Retained events."""
    world = wamp(retained_topics=bound)
    publisher = world.joined()
    kept = next(iter(world.router.realms.values())).retained
    return Growing(lambda number: publisher.say([16, number + 1, {"retain": True}, f"t{number}"]), lambda: len(kept))


def hellos(bound: int) -> Growing:
    """Connections that have no session yet."""
    world = wamp()

    def add(number: int) -> None:
        if number < bound:
            world.peer()

    return Growing(add, lambda: len(world.router.hellos), lambda: world.router.sweep(LONG_S))


def polls(bound: int) -> Growing:
    """Long-polling connections."""
    server = Server(Settings())
    (endpoint,) = [part for part in server.parts if isinstance(part, WampEndpoint)]

    def add(number: int) -> None:
        if number < bound:
            endpoint._polls[str(number)] = Poll(
                endpoint.sockets.protocol, "wamp.2.json", Context(), None, NOW, lambda _: None
            )

    return Growing(add, lambda: len(endpoint._polls), lambda: endpoint.sweep(NOW + LONG_S))


# NetworkTables


def visited(bound: int) -> Growing:
    """Topics that requests without a session have published."""
    world = Nt4World(bridge_in=("/in",), topics=bound)

    def add(number: int) -> None:
        with suppress(TooManyTopics):
            world.broker.publish(Event(f"in/{number}", b"1"), world.now, source=object())

    def turn() -> bool:
        world.server.sweep(world.now + LONG_S)
        world.server.turn(world.now + LONG_S)
        return bool(world.tables.tasks)

    return Growing(add, lambda: len(world.tables.topics), turn)


def unrecorded(bound: int) -> Growing:
    """Values that wait until their topics may be recorded again."""
    world = Nt4World(topics=bound)
    StuckLog(world.broker)
    robot = world.peer("robot")

    def add(number: int) -> None:
        if number < bound:
            robot.publish(f"/{number}", number, "double")
            world.flush()
            for value in (1.0, 2.0):
                robot.put((number, 0, 1, value))

    def turn() -> bool:
        world.server.turn(world.now + LONG_S)
        return world.server.bridge.due <= world.now + LONG_S

    return Growing(add, lambda: len(world.server.bridge._unrecorded), turn)


def backlog(bound: int) -> Growing:
    """The newest values of topics, for a client that does not read."""
    kept = Backlog(0)
    topics = [Topic(str(number), number, "int", {}, None, str(number)) for number in range(bound)]

    def add(number: int) -> None:
        if number < bound:
            kept.put(topics[number], [b"12345678"], is_all=False)

    return Growing(add, lambda: len(kept), lambda: kept.take(4_000))


# Clusters


def applied(bound: int) -> Growing:
    """Idempotency keys of all nodes, and what was sent with them."""
    state = StreamState(bound, int(LONG_S))
    state.rules = 3

    def add(number: int) -> None:
        kind = SharedFields("bayeux", "", None, None, None if number % 3 else "ann", None)
        state.number(SimpleNamespace(rows=[Row("a", b"1", kind, str(number), digest=b"12345678")]))  # type: ignore[arg-type]

    return Growing(add, lambda: max(len(state._keys), len(state.digests)))


def noted(bound: int) -> Growing:
    """What a node has made of the latest messages of the stream."""
    state = StateHistory()

    def add(number: int) -> None:
        with mock.patch("halley.cluster.consistency._REMEMBERED", bound):
            state.note(SimpleNamespace(sequence=number, offset=1, time_us=1, checksum=""))  # type: ignore[arg-type]

    return Growing(add, lambda: len(state._recent))


def members(bound: int) -> Growing:
    """The other nodes that are alive."""
    known = Members(SimpleNamespace(away_since=None, options=Cluster(node="n")), NOW)  # type: ignore[arg-type]

    def add(number: int) -> None:
        message = {"node": f"n{number}", "id": f"i{number}", "key": "k", "age_s": 1}
        with mock.patch("halley.cluster.members.MOST_NODES", bound):
            known.receive(json.dumps(message).encode(), NOW)

    return Growing(add, lambda: len(known.others()))


class OneOther:
    """A cluster with one other node (`state.Nodes`), until it `is_gone`."""

    is_gone = False

    def notify(self, kind: str, body: Any) -> None:
        """See `Nodes`."""

    def ask(self, kind: str, body: Any) -> Any:
        """See `Nodes`."""

    def ask_one(self, node: str, kind: str, body: Any) -> Any:
        """See `Nodes`."""

    def alive(self) -> dict[str, dict[str, Any]]:
        """See `Nodes`."""
        return {} if self.is_gone else {"n": {remote_sessions.REPORT_COUNT: [1, 0]}}


def news(bound: int) -> Growing:
    """Sessions at another node, by its news of them, and its end."""
    other = OneOther()
    known = WampWorld(nodes=other).router.remote_sessions
    assert known is not None
    known.sweep(NOW)

    def add(number: int) -> None:
        report = [1, number + 1, "realm1", ON_JOIN, [{"session": number, "authid": "a", "authrole": "r"}]]
        with mock.patch("halley.protocols.wamp.remote_sessions._MOST", bound):
            known.arrived("n", report, NOW)

    def turn() -> bool:
        other.is_gone = True
        return known.sweep(NOW + LONG_S)

    return Growing(add, lambda: sum(len(each.sessions) for each in known._nodes.values()), turn)


class TurnOf:
    """In place of the future by which a read learns that its turn has come, which needs an event loop."""

    def done(self) -> bool:
        """Whether it knows."""
        return False

    def get_loop(self) -> Any:
        """What calls back later: nobody."""
        return SimpleNamespace(call_soon=lambda _: None)

    def set_exception(self, error: Exception) -> None:
        """Learn that it waits no longer."""


def reads(bound: int) -> Growing:
    """Reads of the history that wait for a thread: half of them of one address, the others each of another one."""
    readers = Readers(1, 10.0, bound * READ_BYTES)

    def add(number: int) -> None:
        reader = Reader("most" if number % 2 else str(number), lambda: False)
        with suppress(TimeoutError):
            readers.put(cast("Any", TurnOf()), reader, None)

    def turn() -> bool:
        readers.call_next()
        return readers.waiting > 0

    return Growing(add, lambda: readers.waiting, turn)


GROWING: dict[str, Callable[[int], Growing]] = {
    make.__name__: make
    for make in (
        *(
            keys,
            keys_of_all,
            waiting_publishers,
            tail,
            meters,
            activity,
            busy_activity,
            sessions,
            patterns,
            matches,
            conflated,
        ),
        *(deadlines, decisions, recorded, channels, channels_in_use, ids, retained, hellos, polls),
        *(visited, unrecorded, backlog, applied, noted, members, news, reads),
    )
}
"""What makes each table, with room for so many entries."""
