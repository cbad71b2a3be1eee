"""The broker: sessions come and go, subscribe and publish; events end up in the outboxes of those who hear them.

Every method is one atomic step. The broker calls nobody but a session's own engine (`sessions.Owner`): it marks
sessions `ready` when events wait for them, and `wake` (given by whoever runs the event loop) says that a flush is due,
so that however many events come in one turn of the loop, each session is woken once.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Protocol

from app.broker.activity import Activity
from app.broker.deadlines import Deadlines
from app.broker.errors import (
    HistoryUnavailable,
    MemoryShort,
    NotForAll,
    RateLimited,
    Refusal,
    TooManyFromAddress,
    TooManyPatterns,
    TooManySessions,
    TooManySubscriptions,
    TooMuchWaiting,
)
from app.broker.flow import Flow
from app.broker.index import TopicIndex
from app.broker.meters import Meters
from app.broker.newest import Conflation
from app.broker.outbox import Outbox
from app.broker.publications import Publications, new_key
from app.broker.recording import Recording
from app.broker.topics import Match
from app.broker.watermark import Watermark
from app.settings import History, Ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from app.broker.events import Event
    from app.broker.sessions import Session
    from app.broker.topics import Pattern
    from app.broker.values import Values
    from app.settings import Limits

_HISTORY, _TICKS = History(), Ticks()
_CLOCK_STEP_US = 1_000_000
"""Less than this is no step: clocks are kept right by small ones."""

FLUSHED_AT_ONCE = 500
"""Sessions flushed in one turn of the loop; the others wait for the next, so that no burst delays reading."""


class Room(Protocol):
    """How many subscriptions a session may have, and how many of them with a wildcard."""

    @property
    def subscriptions(self) -> int:
        """All of them."""

    @property
    def patterns(self) -> int:
        """The latter."""


class Broker:
    """Who is here, who hears what, and what waits for whom."""

    def __init__(
        self,
        limits: Limits,
        wake: Callable[[], None] = lambda: None,
        history: History = _HISTORY,
        ticks: Ticks = _TICKS,
    ) -> None:
        self.limits = limits
        self.wake = wake
        self.clock_offset_s = 0.0  # wall clock minus the clock of `now`; kept true by whoever has the clocks
        self.sessions: dict[str, Session] = {}
        self.index = TopicIndex()
        self.deadlines = Deadlines()
        self.ready: deque[Session] = deque()
        self.account_of: Callable[[str], str | None] = lambda _address: None  # given by whoever knows addresses
        self.meters = Meters(limits.publishes_per_s, limits.publish_burst)  # of accounts that publish without a session
        self.waiting = Watermark(limits.waiting_bytes)  # bytes of events that somebody has yet to get
        self.memory = Watermark(float("inf"))  # bytes of the process; told by whoever can measure it
        self.recording = Recording(history, self._spread, self.counted)
        self.publications = Publications(new_key())
        self.values: Values | None = None  # given by whoever keeps them, where NetworkTables is served
        self._conflation = Conflation(limits.conflated_topics, limits.conflated_bytes)
        self._latest_us = 0  # the time of the latest event
        self._sessions_of: Counter[str] = Counter()  # by account
        self.activity = Activity(ticks.remembered_topics)
        self.flows: defaultdict[str, Flow] = defaultdict(Flow)  # by protocol
        self.published = self.delivered = self.overflows = 0  # plain counts, read by telemetry, as those below
        self.dropped = 0  # events that still waited when their session ended, and that nobody can replay
        self.opened: Counter[str] = Counter()  # by protocol
        self.closed: Counter[str] = Counter()  # by reason
        self.hits: Counter[str] = Counter()  # how often a limit said no, by its setting; all rooms count here

    def outbox(self) -> Outbox:
        """A new outbox with the bounds that hold for each session."""
        return Outbox(self.limits.queue_events, self.limits.queue_bytes, self._conflation)

    @property
    def conflated(self) -> int:
        """How many values were dropped for newer ones of their topics, by sessions that read too slowly."""
        return self._conflation.dropped

    def counted(self, refusal: Refusal) -> Refusal:
        """The same, and counted if a limit was the reason."""
        if refusal.limit:
            self.hits[refusal.limit] += 1
        return refusal

    # Sessions

    def check_admission(self, session: Session) -> None:
        """Whether there is room for one more. Raises `NoRoom`."""
        self.check_load()
        if len(self.sessions) >= self.limits.sessions:
            raise self.counted(TooManySessions())
        if session.account is not None and self._sessions_of[session.account] >= self.limits.sessions_per_address:
            raise self.counted(TooManyFromAddress())

    def check_load(self) -> None:
        """Whether memory allows more of what makes it grow. Raises `NoRoom`."""
        if self.waiting.is_over:
            raise self.counted(TooMuchWaiting())
        if self.memory.is_over:
            raise self.counted(MemoryShort())

    def open(self, session: Session, deadline: float, now: float) -> None:
        """Admit a session. Raises `NoRoom`."""
        self.check_admission(session)
        session.opened_at = now
        self.sessions[session.id] = session
        if session.account is not None:
            self._sessions_of[session.account] += 1
            session.meter = self.meters.new()
        self.deadlines.add(session, min(deadline, session.expiry))
        self.opened[session.protocol] += 1

    def close(self, session: Session, reason: str) -> bool:
        """End a session and all it held, for `reason`; False if it had ended before."""
        if session.closed is not None:
            return False
        session.closed = reason
        session.heard = tuple(session.subscriptions)
        for pattern in session.heard:
            self.index.remove(pattern, session)
        session.subscriptions.clear()
        self.dropped += sum(not event.position for event in session.outbox)
        session.outbox.clear()
        del self.sessions[session.id]
        if session.account is not None:
            self._sessions_of[session.account] -= 1
            if not self._sessions_of[session.account]:  # addresses are many: none is kept for nothing
                del self._sessions_of[session.account]
        self.deadlines.remove(session)
        self.closed[reason] += 1
        if self.values is not None:
            self.values.closed(session)
        return True

    def touch(self, session: Session, deadline: float) -> None:
        """Give a session another deadline, or its token's where that comes first."""
        if session.closed is None:
            session.deadline = deadline = min(deadline, session.expiry)
            if session.alarm is not None and deadline < session.alarm[0]:
                self.deadlines.move(session, deadline)

    def due(self, now: float) -> None:
        """Turn to the owner of each session whose deadline has come.

        An owner's fault ends that session and no other; it is raised again when all have had their turn.
        """
        faults: list[Exception] = []
        for session in self.deadlines.due(now):
            try:
                if session.closed is None:
                    session.owner.due(session, now)
            except Exception as fault:  # noqa: BLE001 - raised below
                faults.append(fault)
                self.close(session, "fault")  # else it would come up first in every sweep, and never end
        if faults:
            raise faults[0]

    # Subscriptions and events

    def check_room(self, session: Session, patterns: list[Pattern], bounds: Room | None = None) -> None:
        """Whether a session may have these subscriptions as well, by `bounds` of its protocol's own if there are any.

        Raises `TooManySubscriptions` or `TooManyPatterns`.
        """
        bounds = bounds or self.limits
        wanted = session.subscriptions.keys() | patterns
        if len(wanted) > bounds.subscriptions:
            raise self.counted(TooManySubscriptions())
        if sum(pattern.match is not Match.EXACT for pattern in wanted) > bounds.patterns:
            raise self.counted(TooManyPatterns())

    def subscribe(self, session: Session, pattern: Pattern) -> bool:
        """Let a session hear `pattern`; False if it did already, or has ended."""
        if session.closed is not None or pattern in session.subscriptions:
            return False
        session.subscriptions[pattern] = self.index.add(pattern, session)
        if self.values is not None:
            self.values.hearers_changed()
        return True

    def unsubscribe(self, session: Session, pattern: Pattern) -> bool:
        """Undo `subscribe`; False if there was nothing to undo."""
        if session.subscriptions.pop(pattern, None) is None:
            return False
        self.index.remove(pattern, session)
        if self.values is not None:
            self.values.hearers_changed()
        return True

    def check_publish(self, session: Session | None, address: str, now: float) -> None:
        """Whether `session`, or else `address`, may publish now. Raises `RateLimited`, `NoRoom`."""
        if self.waiting.is_over or self.memory.is_over:
            self.check_load()
        if session is not None:
            is_admitted = session.meter is None or session.meter.admits(now)
        else:
            account = self.account_of(address)
            is_admitted = account is None or self.meters.admits(account, now)
        if not is_admitted:
            raise self.counted(RateLimited())

    def publish(self, event: Event, now: float, *, without: Session | None = None, source: object = None) -> None:
        """Stamp an event and put it into the outbox of everyone who hears its topic (but `without`).

        If that must wait until the log has it, the event is pending: append to its `waiters` who wants to know.
        `source` is what publishes, a session or a request without one; its events stay in order.
        What is to be a value becomes one, and never waits (`values.py`).
        Raises `HistoryUnavailable`; of values `WrongType`, `NotForAll`, `TooManyTopics`.
        """
        if self.values is not None and self.values.takes(event.topic):
            self._publish_value(self.values, event, now, without, source)
        else:
            self._issue(event, now, without, source)
        self.published += 1
        self.flows[event.protocol].published += 1
        self.activity.note(event.topic, now)

    def announce(self, event: Event, now: float, *, without: Session | None = None) -> None:
        """Publish for the server itself, which counts as nobody's publish."""
        self._issue(event, now, without)

    def show(self, event: Event, now: float, *, without: Session | None = None) -> None:
        """Deliver a value at once to everyone who hears its topic (but `without`), and to nobody who replays.

        It gets a time and a publication, where it has none yet, and never goes to the log.
        """
        if not event.publication:
            self._stamp(event, now)
        event.without = without
        self._spread(event, now, is_new=True, is_final=False)
        event.without = None  # values are kept, and must keep no session

    def keep(self, event: Event, now: float) -> bool:
        """Hand a value of its own to the log, where its topic is recorded; never durable (design 7.13).

        Only who replays hears it: when it is on disk, or at once where the log does not take it.
        Returns whether the log took it.
        """
        self._stamp(event, now)
        if self.recording.keep(event, now):
            return True
        self._spread(event, now, is_new=False, is_final=True)
        return False

    def latest(self, patterns: Collection[Pattern], most: int, now: float) -> list[Event]:
        """The last values of topics that match any, the youngest `most`, oldest first; each has a publication."""
        events = [] if self.values is None else self.values.latest(patterns, most)
        for event in events:
            if not event.publication:  # nobody has published it since the server was started
                self._stamp(event, now)
        return events

    def show_latest(self, session: Session, patterns: Collection[Pattern], now: float) -> None:
        """Deliver the last values of topics that match any to one session, as if they had been published now.

        The youngest, as many as a queue has room for: who asks again and again must not hold the loop for long.
        """
        for event in self.latest(patterns, self.limits.queue_events, now):
            self.deliver(session, event, now)

    def _publish_value(self, values: Values, event: Event, now: float, without: Session | None, source: object) -> None:
        if event.audience is not None or event.chosen is not None:
            raise NotForAll
        self._stamp(event, now)
        try:
            values.publish(event, now, without, source)
        except Refusal as refusal:
            raise self.counted(refusal) from None
        self.recording.remember(event)

    def _stamp(self, event: Event, now: float) -> None:
        event.time_us = self._time_us(now)
        event.publication = self.publications.next()

    def _issue(self, event: Event, now: float, without: Session | None = None, source: object = None) -> None:
        event.time_us = self._time_us(now)  # as `_stamp` does, written out: every publish comes by
        event.publication = self.publications.next()
        event.without = without
        recording = self.recording
        if recording.log is not None or event.idempotency_key is not None:
            event.source = source
            try:
                recording.take(event, now)
            except HistoryUnavailable as refusal:
                raise self.counted(refusal) from None
        if event.is_pending:
            self.index.hearers(event.topic)  # in the publisher's turn: a commit brings very many events at once
        else:
            self._spread(event, now, is_new=True, is_final=not event.is_recorded)

    def _time_us(self, now: float) -> int:
        """The wall clock. Where it is set back a little, as it is all the time, it stands still instead."""
        time_us = int((now + self.clock_offset_s) * 1_000_000)
        if time_us < self._latest_us < time_us + _CLOCK_STEP_US:
            return self._latest_us
        self._latest_us = time_us
        return time_us

    def _spread(self, event: Event, now: float, is_new: bool, is_final: bool) -> None:  # noqa: FBT001 - see there
        """Deliver to everyone who hears the topic; see `Recording` for the two flags."""
        without, audience, chosen = event.without, event.audience, event.chosen
        if is_final:
            event.without = event.source = None  # events that are kept must keep no session
        hearers = self.index.hearers(event.topic)
        if not hearers:
            return
        event.weigh_on(self.waiting)
        for session in hearers:
            cursor = session.cursor
            if session is without or not (is_new if cursor is None else is_final):
                continue
            if audience is not None and not audience.admits(session.authid, session.role):
                continue
            if chosen is not None and not chosen.admits(session.id):
                continue
            if cursor is not None and (
                (event.position and not cursor.is_live)  # it will read it
                or (not is_new and event.publication in cursor.given)
            ):
                continue
            self.deliver(session, event, now)

    def deliver(self, session: Session, event: Event, now: float) -> bool:
        """Put an event into one session's outbox, subscribed or not; False if the session has ended."""
        if session.closed is not None:
            return False
        if not session.outbox.put(event):
            if session.cursor is not None and event.position:
                session.cursor.fall_back(event.position - 1)
                return True
            self.overflows += 1
            self.hits[session.outbox.limit(event)] += 1
            session.owner.overflow(session, event, now)
            self.delivered += session.closed is None
            return session.closed is None
        self.delivered += 1
        self.mark_ready(session)
        return True

    def take(self, session: Session, now: float) -> list[Event]:
        """What waits for a session and is to be written to its client now. The hot path."""
        events = session.outbox.take()
        if events:
            flow = self.flows[session.protocol]
            flow.delivered += len(events)
            if session.cursor is None:  # what is read again from the history has not waited for so long
                flow.delays.note(int((now + self.clock_offset_s) * 1_000_000) - events[0].time_us)
        return events

    def mark_ready(self, session: Session) -> None:
        """Have a session flushed in the next turn."""
        if not session.is_ready:
            session.is_ready = True
            self.ready.append(session)
            if len(self.ready) == 1:
                self.wake()

    def flush(self, now: float) -> None:
        """Turn to the owners of the sessions that are ready, at most `FLUSHED_AT_ONCE`."""
        try:
            for _ in range(min(len(self.ready), FLUSHED_AT_ONCE)):
                session = self.ready.popleft()
                session.is_ready = False
                if session.closed is None:
                    session.owner.flush(session, now)
        finally:  # else one owner's fault would leave the sessions behind it unflushed for ever
            if self.ready:
                self.wake()
