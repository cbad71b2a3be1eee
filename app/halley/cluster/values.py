"""The values of NetworkTables at every node (`broker.ports.Values`): the home has them, the others know them.

At the home all is as on a server alone: a publication of another protocol becomes a value there, and values reach the
subscribers. Subscribers at other nodes get what the home records: the newest value of each topic, at most once every
`nt4.record_every_s`, in the stream if the topic is recorded, else past it (`Commits.keep`).

Every other node has a mirror of the home's shared topics with their last values. From it a node gives the last values
to whom asks for them, and knows what is a value.

    SPACE.v.set    a request to the home: a line of JSON, [term, time], and a frame of the publications of one turn of a
                   node's loop. The answer has for each null, or why it was refused. Only the home subscribes to it, so
                   NATS says at once if there is none: then the publisher is refused, and nothing has changed. A home
                   whose time is over does not answer, since another one may; without an answer the outcome is unknown.
                   `time` is the home's own clock in its latest heartbeat, so that it can refuse what was under way for
                   longer than `_LATE_S`: a robot must not get what was set before a network came back
    SPACE.v.all    a request to the home for all: one line of JSON, [term, changes, topics], and a frame of their values
    "nt4"          news of the home to all others: [term, number of this change, topic, whether it is there]

A mirror begins with `SPACE.v.all`, and goes on with the news and with the values that arrive as events. Changes are
numbered, and the home's heartbeat has the number of the last one, so a node that has missed one asks for all again; it
also does after it was cut off from NATS. Each home has another `term`: late news of an earlier one is passed over.

What is set at another node is answered a round trip later; what the same session publishes next to other topics may be
delivered before. The home does not know the session: a topic that such a publication begins does not end with it, but
`nt4.visitor_topic_s` after its last value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from heapq import nlargest
from itertools import chain, repeat
from sys import maxsize
from time import monotonic
from typing import Any, Protocol

import orjson

from halley.broker.broker import Broker
from halley.broker.errors import (
    InboxFull,
    NoHome,
    OutcomeUnknown,
    Refusal,
    TooManyTopics,
    WrongType,
)
from halley.broker.events import Event
from halley.broker.names import Match, Pattern, matcher
from halley.broker.pending import Pending
from halley.broker.ports import Erasure, Values
from halley.broker.sessions import Session
from halley.cluster.bounds import EventTooLarge, are_topics, is_within_bounds
from halley.cluster.exchange import NodeExchange
from halley.cluster.frames import FRAME_BYTES, BadFrame, UnrecordedFields, events_of, pack, row_of, unpack_unrecorded
from halley.cluster.requests import NobodyAnswers, RequestRefused, answer, ask, refuse
from halley.cluster.tasks import Tasks
from halley.nats.client import AwayErrors, NoServerAvailable
from halley.nats.wire import Message

NEWS = "nt4"
_ALL = Pattern(Match.DESCENDANTS, "")
_CHECK_S = 0.5
_LATE_S = 3.0
_ALL_S = 5.0
_NO_VALUE, _NO_HOME, _WRONG_TYPE, _TOO_MANY_TOPICS = "no_value", "no_home", "wrong_type", "too_many_topics"


class ValueStore(Protocol):
    """NetworkTables of this node."""

    @property
    def bridge(self) -> Values:
        """The values of the shared topics at this node: those of the cluster while it is the home."""

    def serves(self, now: float) -> bool:
        """Whether this node is the home."""


class ClusterValues:
    """The values, as one node has them; `local` has those that are here while this node is the home.

    It is a `broker.ports.Holder` too. Its methods are for the event loop.
    """

    def __init__(self, exchange: NodeExchange, broker: Broker, local: ValueStore, flush: Callable[[], None]) -> None:
        """`flush` is called in each turn that has settled or delivered something."""
        self._nats = nats = exchange.nats
        self._members = members = exchange.members
        self._exchange = exchange
        self._broker = broker
        self._local = local
        self._serves = local.serves
        self._flush = flush
        self._to_set, self._for_all = f"{nats.space}.v.set", f"{nats.space}.v.all"
        self._topics: dict[str, Event | None] = {}
        self._term = self._changes = 0
        self._is_stale = True
        self._doubted = -1  # the home's number of changes that was not this node's, when it looked last
        self._sets: list[Pending] = []  # publications that the home is to make values
        self._waiting_bytes = 0
        self._tasks = Tasks("nt4_values")
        self._ends: list[Callable[[], None]] = []
        exchange.answer(NEWS, self._changed)
        members.report(NEWS, lambda: [self._term, self._changes, monotonic()] if self._is_home else None)
        broker.values.keep_in(self, self.arrived)
        broker.add_holder(self)

    def begin(self) -> None:
        """Keep the mirror up to date, while NATS is there."""
        self._tasks.repeat(self._check, _CHECK_S)

    async def close(self) -> None:
        """End what is under way; who waits for the home learns that the outcome is unknown."""
        await self._tasks.cancel()
        sets, self._sets = self._sets, []
        self._settle(sets, [_NO_HOME] * len(sets))

    @property
    def _is_home(self) -> bool:
        return self._serves(monotonic())

    # As the home

    def activate(self, term: int) -> None:
        """Be the home from now on; topics are still to be created."""
        self._term, self._changes, self._topics = term, 0, {}
        self._ends += [
            self._nats.subscribe(self._to_set, self._asked_to_set),
            self._nats.subscribe(self._for_all, self._asked_for_all),
        ]

    def deactivate(self) -> None:
        """Stop answering other nodes as the home; the mirror is stale until it is copied from the next one."""
        self._is_stale = True
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    def topic_changed(self, topic: str, is_there: bool) -> None:  # noqa: FBT001 - a callback of the tables
        """Let the others know that a shared topic was created or deleted at the home."""
        self._change(topic, is_there=is_there)
        self._exchange.notify(NEWS, [self._term, self._changes, topic, is_there])

    def _asked_to_set(self, message: Message) -> None:
        now = monotonic()
        head, _, frame = message.data.partition(b"\n")
        try:
            term, asked_at = orjson.loads(head)
            is_late = term != self._term or now - asked_at > _LATE_S
            events = unpack_unrecorded(frame)
        except (BadFrame, ValueError, TypeError):
            self._exchange.foreign += 1
            return
        if not self._serves(now):
            return
        outcomes = [_NO_HOME if is_late else self._set(event, now) for event in events]
        self._nats.publish(message.reply, orjson.dumps(outcomes))
        self._flush()

    def _set(self, event: Event, now: float) -> Any:
        inner = self._local.bridge
        if not inner.accepts(event.topic):
            return _NO_VALUE
        try:
            inner.publish(event, now, None, None)
        except WrongType as refusal:
            return [_WRONG_TYPE, refusal.type_name]
        except TooManyTopics:
            return _TOO_MANY_TOPICS
        self._broker.activity.note(event.topic, now)
        return None

    def _asked_for_all(self, message: Message) -> None:
        if not self._is_home:
            refuse(self._nats, message.reply, _NO_HOME)
            return
        head = orjson.dumps([self._term, self._changes, [*self._topics]])
        values = [row_of(event, is_stamped=True) for event in self._local.bridge.latest([_ALL], maxsize)]
        self._tasks.start(answer(self._nats, message.reply, head + b"\n" + pack("", 0, values)))

    # As any other node

    async def _check(self) -> None:
        if self._is_home:
            return
        if self._nats.away_since is not None:
            self._is_stale = True
            return
        found = self._home_fields()
        if found is None:  # there is no home: what the last one had is all that is known
            return
        term, changes, _ = found
        is_doubtful = term == self._term and changes != self._changes
        if self._is_stale or term != self._term or (is_doubtful and changes == self._doubted):
            await self._copy()
        self._doubted = changes if is_doubtful else -1

    def _home_fields(self) -> list[Any] | None:
        """What the home sends in its heartbeat, of which there may be two for a moment."""
        found: list[Any] = [each.heartbeat.get(NEWS) for each in self._members.others()]
        return max(filter(_is_home, found), default=None)

    async def _copy(self) -> None:
        """Ask the home for all; if it does not answer, the next look does."""
        try:
            found = await ask(self._nats, self._for_all, {}, _ALL_S)
            head, _, values = found.partition(b"\n")
            term, changes, topics = orjson.loads(head)
            are_good = type(term) is type(changes) is int and type(topics) is list and are_topics(topics)
            events = unpack_unrecorded(values)
        except (NobodyAnswers, RequestRefused, TimeoutError):
            return
        except (BadFrame, ValueError, TypeError):
            are_good = False
        if not are_good:
            self._exchange.foreign += 1
        elif not self._is_home:
            self._term, self._changes, self._topics = term, changes, dict.fromkeys(topics)
            self._topics |= {event.topic: event for event in events}
            self._is_stale = False

    def _changed(self, _node: str, news: Any) -> None:
        """Take the home's news that a topic was created or deleted; if one is missing, all is copied again.

        Raises `ValueError`, `TypeError` for what is none.
        """
        term, number, topic, is_there = news
        if not (type(term) is type(number) is int and type(is_there) is bool and are_topics([topic])):
            raise TypeError
        if self._is_home or self._is_stale or term != self._term or number <= self._changes:
            return
        if number != self._changes + 1:
            self._is_stale = True
        else:
            self._change(topic, is_there=is_there)

    def _change(self, topic: str, *, is_there: bool) -> None:
        self._changes += 1
        if is_there:
            self._topics[topic] = None
        else:
            self._topics.pop(topic, None)

    def arrived(self, event: Event) -> None:
        """Take a value that has arrived as an event."""
        if event.topic in self._topics and not self._is_home:
            self._topics[event.topic] = event

    def erase(self, erasure: Erasure) -> None:
        """Forget the values that an erasure concerns (`Holder`)."""
        for topic, event in self._topics.items():
            if event is not None and erasure.concerns(topic, event.authid):
                self._topics[topic] = None

    # What the broker asks (`broker.ports.Values`)

    def accepts(self, topic: str) -> bool:
        """Whether events that are published on a topic become its value."""
        return self._local.bridge.accepts(topic) or (topic in self._topics and not self._is_home)

    def publish(self, event: Event, now: float, without: Session | None, source: object) -> Pending | None:
        """Make an event a value here, or have the home do it: then the event is pending.

        Raises `NoHome`, `InboxFull`, `EventTooLarge`, `WrongType`, `TooManyTopics`.
        """
        if self._serves(now):
            self._local.bridge.publish(event, now, without, source)
            return None
        if self._nats.away_since is not None or self._home_fields() is None:
            raise NoHome
        if not is_within_bounds(event):
            raise EventTooLarge
        if self._waiting_bytes and self._waiting_bytes + event.nbytes > self._broker.commits.options.inbox_bytes:
            raise InboxFull
        self._waiting_bytes += event.nbytes
        if not self._sets:
            asyncio.get_running_loop().call_soon(self._send)
        pending = Pending(event, source, without)
        self._sets.append(pending)
        return pending

    def latest(self, patterns: Collection[Pattern], most: int) -> list[Event]:
        """The last values of topics that match any pattern, as new events: the newest `most`, oldest first."""
        if self._is_home:
            return self._local.bridge.latest(patterns, most)
        known = self._topics
        wanted = dict.fromkeys(pattern.topic for pattern in patterns if pattern.match is Match.EXACT)
        for is_wanted in [matcher(pattern) for pattern in patterns if pattern.match is not Match.EXACT]:
            wanted.update(dict.fromkeys(filter(is_wanted, known)))
        found = [event for event in map(known.get, wanted) if event is not None]
        newest = nlargest(most, found, key=lambda event: event.nt4_time_us or 0)
        return events_of([row_of(event, is_stamped=True) for event in reversed(newest)])

    def closed(self, session: Session) -> None:
        """Remove a session from the publishers of its topics."""
        self._local.bridge.closed(session)

    def subscribers_changed(self) -> None:
        """Note that a session of another protocol has subscribed or unsubscribed."""
        self._local.bridge.subscribers_changed()

    # Setting values from here

    def _send(self) -> None:
        sets, self._sets = self._sets, []
        while sets:
            nbytes = count = 0
            while count < len(sets) and nbytes < FRAME_BYTES:
                nbytes += sets[count].event.nbytes
                count += 1
            self._tasks.start(self._ask_home(sets[:count]))
            sets = sets[count:]

    async def _ask_home(self, sets: list[Pending]) -> None:
        outcomes: list[Any]
        term, _, home_s = self._home_fields() or (0, 0, 0)
        head = orjson.dumps([term, home_s])
        try:
            frame = pack("", 0, [_row(each) for each in sets])
            found = orjson.loads((await self._nats.request(self._to_set, head + b"\n" + frame)).data)
            outcomes = found if isinstance(found, list) else []
        except NoServerAvailable:
            outcomes = [_NO_HOME] * len(sets)
        except (ValueError, *AwayErrors):
            outcomes = []
        except asyncio.CancelledError:
            self._settle(sets, [])
            raise
        self._settle(sets, outcomes)

    def _settle(self, sets: list[Pending], outcomes: list[Any]) -> None:
        """Settle publications as the home has answered; the outcome is unknown of those of which it says nothing."""
        now = monotonic()
        for each, outcome in zip(sets, chain(outcomes, repeat("")), strict=False):
            self._waiting_bytes -= each.event.nbytes
            if outcome == _NO_VALUE:
                self._broker.publish_no_value(each, now)  # its topic has ended at the home
            else:
                self._broker.commits.settle_value(each, _refusal_of(outcome), now)
        self._flush()


def _is_home(found: Any) -> bool:
    """Whether a heartbeat has what a home says of itself."""
    match found:
        case [int(), int(), int() | float()]:
            return True
    return False


def _refusal_of(outcome: Any) -> Refusal | None:
    """What the home's answer for a publication means, besides `_NO_VALUE`; None if it has become a value."""
    match outcome:
        case None:
            return None
        case "no_home":
            return NoHome()
        case "too_many_topics":
            return TooManyTopics()
        case ["wrong_type", str(type_name)]:
            return WrongType(type_name)
    return OutcomeUnknown()


def _row(each: Pending) -> Any:
    """The row of a publication; the session that is not to receive it goes with it."""
    excluded = () if each.without is None else (each.without.id,)
    event = each.event
    return row_of(event, is_stamped=True)._replace(
        stamp=UnrecordedFields(event.time_us, event.publication, None, excluded)
    )
