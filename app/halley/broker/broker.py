"""The broker: sessions open, subscribe, publish and close; events are put into the outboxes of their subscribers.

Every method is one atomic step, and raises nothing but a `Refusal`, before anything has changed. The broker calls only
a session's own engine (`sessions.SessionHandler`), and what follows its changes, which are complete by then
(`faults.py`). It marks a session as ready when events wait for it, and calls `wake` when a flush is due. So each
session is flushed once per turn of the loop, regardless of the number of events.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

from halley.broker.census import Census
from halley.broker.commits import Commits
from halley.broker.errors import (
    AtCapacity,
    AudienceTooLong,
    BadKey,
    HistoryUnavailable,
    KeyTooLong,
    MemoryShort,
    RateLimited,
    Refusal,
    SubscriptionsTooLarge,
    TooManyFromAddress,
    TooManyPatterns,
    TooManySessions,
    TooManySubscriptions,
)
from halley.broker.events import BOTH, COMMITTED, LIVE, Audience, Event, Publications, Stage, new_key
from halley.broker.faults import Report, notify, raise_fault
from halley.broker.flow import Flow, RecentTopics
from halley.broker.limits import Watermark, subscription_bytes
from halley.broker.names import Match, Pattern
from halley.broker.outbox import Conflation, Outbox
from halley.broker.pending import Pending
from halley.broker.ports import Erasable, Erasure, Work
from halley.broker.rates import Rates
from halley.broker.sessions import FAULT, Deadlines, Flushable, Session, SessionObserver
from halley.broker.shares import Shares
from halley.broker.subscriptions import TopicIndex
from halley.broker.values import LastValues
from halley.broker.waiting import QueuedBytes
from halley.broker.writers import Writers
from halley.settings import History, Limits, Ticks, Token, User, Wamp

_HISTORY, _TICKS = History(), Ticks()
_KEY = re.compile(r"[\x20-\x7e]+")
_CLOCK_STEP_US = 1_000_000  # a clock that is set back by less is being adjusted, as time synchronization does often
_PIECE = 25  # sessions flushed between two looks at the time

FLUSHED_AT_ONCE = 500
"""Sessions flushed in one turn of the loop; the others wait for the next, so that a burst does not delay reading."""

LARGE_FAN_OUT = 64
"""An event with more subscribers is delivered after others, so that a lone subscriber does not wait behind them."""

DUE_AT_ONCE = 50
"""Deadlines looked at in one turn of the loop: those of many sessions that came together pass together."""


class Broker:  # with 30 attributes each would be found less fast: CPython shares at most 29 names among objects
    """The sessions, their subscriptions, and the events that wait to be delivered."""

    def __init__(
        self,
        limits: Limits,
        history: History = _HISTORY,
        ticks: Ticks = _TICKS,
        *,
        wake: Callable[[], None] = lambda: None,
        account_of: Callable[[str], str | None] = lambda _address: None,
        has_rules: Callable[[], bool] = lambda: False,
        report: Report = raise_fault,
    ) -> None:
        """Make a broker without sessions.

        `wake` is called when a flush is due, by the code that runs the event loop, and `account_of` returns the account
        of an address, or None if nothing is charged to it. `has_rules` returns whether an operator has written access
        rules. `report` receives what those raise that the broker calls.
        """
        self.limits = limits
        self.wake = wake
        self.account_of = account_of
        self.clock_offset_s = 0.0  # wall clock minus the clock of `now`; updated by the code that reads the clocks
        self.sessions: dict[str, Session] = {}
        self.census = Census()
        self.index: TopicIndex[Session] = TopicIndex()
        self.deadlines = Deadlines()
        self.ready: deque[Session | Flushable] = deque()
        self.ready_later: deque[Session | Flushable] = deque()  # those of which there are many
        self.waiting = QueuedBytes(limits.waiting_bytes)
        self.shares = Shares(limits, self.waiting, account_of)
        self.memory = Watermark(float("inf"))  # bytes of the process; who can measure them sets these and the limit
        self.hits: Counter[str] = Counter()  # limits that were reached, by setting; counted here for all packages
        writers = Writers(history, account_of, self.sessions, has_rules)
        self.commits = Commits(history, self.hits, writers, self._fan_out, self.counted, self._subscribed, report)
        self.publications = Publications(new_key())
        self.activity = RecentTopics(ticks.remembered_topics)
        self.holders: list[Erasable] = [self.commits.tail, self.commits.keys, self.activity]
        self.observers: list[SessionObserver] = []
        self.values = LastValues(self.commits, self._stamp, self._fan_out, self.counted, report)
        self._conflation = Conflation(limits.conflated_topics, limits.conflated_bytes)
        self._latest_us = 0  # the time of the latest event
        self.flows: defaultdict[str, Flow] = defaultdict(Flow)  # by protocol
        self.published = self.delivered = self.overflows = 0  # plain counts read by telemetry, like those below
        self.dropped = 0  # events that were `undelivered` when their session ended
        self.closed: Counter[str] = Counter()  # by reason
        self.rates = Rates(limits, account_of, self.hits)

    def add_observer(self, observer: SessionObserver) -> None:
        """Report sessions and their subscriptions to `observer` from now on, after those that were added before."""
        self.observers.append(observer)

    def add_holder(self, holder: Erasable) -> None:
        """Have `holder` take part in every erasure from now on."""
        self.holders.append(holder)

    def remove_holder(self, holder: Erasable) -> None:
        """Have `holder` take part in no erasure from now on, since it has nothing any more."""
        self.holders.remove(holder)

    def outbox(self) -> Outbox:
        """Create an outbox with the bounds that apply to every session."""
        return Outbox(self.limits.queue_events, self.limits.queue_bytes, self._conflation, self.waiting)

    @property
    def conflated(self) -> int:
        """Count of values that were replaced by newer ones of their topics because a session read too slowly."""
        return self._conflation.dropped

    def counted(self, refusal: Refusal) -> Refusal:
        """Count `refusal` in `hits` if a limit was the reason, and return it."""
        if refusal.limit:
            self.hits[refusal.limit] += 1
        return refusal

    @property
    def queued(self) -> int:
        """The number of events in all outboxes."""
        return sum(len(session.outbox) for session in self.sessions.values())

    # Sessions

    def check_admission(self, session: Session) -> None:
        """Check that one more session may be opened. Raises `AtCapacity`."""
        self.check_load()
        if len(self.sessions) >= self.limits.sessions:
            raise self.counted(TooManySessions())
        if self.census.charged(session.account) >= self.limits.sessions_per_address:
            raise self.counted(TooManyFromAddress())

    def check_load(self, account: str | None = None) -> None:
        """Check that what waits, for `account`, and the process's memory are within limits. Raises `AtCapacity`."""
        if (refusal := self.load_refusal(account)) is not None:
            raise self.counted(refusal)

    def load_refusal(self, account: str | None = None) -> AtCapacity | None:
        """What `check_load` would raise now, which is not counted; None if it would raise nothing."""
        if self.waiting.is_over and (refusal := self.shares.refusal(account)) is not None:
            return refusal
        return MemoryShort() if self.memory.is_over else None

    def open(self, session: Session, deadline: float, now: float) -> None:
        """Admit a session, with a deadline in monotonic seconds. Raises `AtCapacity`."""
        self.check_admission(session)
        if self.shares.are_asked:
            self.check_load(self.shares.begin(session))
        session.opened_at = now
        self.sessions[session.id] = session
        self.census.begin(session)
        if session.account is not None:
            session.meter = self.rates.publishes.new()
        self.deadlines.add(session, min(deadline, session.expiry))
        self._notify(lambda observer: observer.opened(session))
        if session.subscriptions:  # a program may have subscribed it before its handshake was granted
            self.note_subscribed(session, [*session.subscriptions])

    def close(self, session: Session, reason: str) -> bool:
        """End a session and remove all that it held; False if it had already ended, or was never admitted.

        `reason` is one word, counted in `closed` and kept as `session.closed`.
        """
        if session.closed is not None:
            return False
        session.closed = reason
        session.former_subscriptions = tuple(session.subscriptions)
        for pattern in session.former_subscriptions:
            self.index.remove(pattern, session)
        session.subscriptions.clear()
        session.subscription_bytes = 0
        self.dropped += session.outbox.undelivered
        session.clear()
        is_admitted = self.sessions.get(session.id) is session
        if is_admitted:
            self.shares.left(session)
            del self.sessions[session.id]
            self.census.end(session)
            self.deadlines.remove(session)
            self.closed[reason] += 1
        self.values.notify(lambda values: values.closed(session))
        if is_admitted:
            self._notify(lambda observer: observer.closed(session, reason))
        session.former_subscriptions = ()  # a connection may still refer to the session, and must not keep its names
        return is_admitted

    def _notify(self, note: Callable[[SessionObserver], None]) -> None:
        notify(self.observers, note, self.commits.report, "observer")

    def touch(self, session: Session, deadline: float) -> None:
        """Move a session's deadline (monotonic seconds), but not beyond the expiry of its token."""
        if session.closed is None:
            if deadline > session.expiry:  # noqa: PLR1730 - a call of `min` would cost more
                deadline = session.expiry
            session.deadline = deadline
            if deadline < session.alarm_at:
                self.deadlines.move(session, deadline)

    def due(self, now: float) -> bool:
        """Call the owners of sessions whose deadline has passed, `DUE_AT_ONCE` at most; whether there may be more.

        It also drops what the index no longer needs, a piece at a time. An owner's exception ends that session.
        """
        if self.index.has_stale:
            self.index.drop_stale()
        for session in self.deadlines.due(now, DUE_AT_ONCE):
            self._ask("deadline", session, lambda session: session.owner.due(session, now), now)
        return self.index.has_stale or self.deadlines.next() <= now

    def rights_changed(self, is_current: Callable[[Token | User | None], bool], now: float) -> tuple[int, int]:
        """Take away what changed rights no longer grant.

        Sessions whose credential is not `is_current` end as if their tokens had expired. Of the others, the
        subscriptions end that their rights no longer grant. Returns the numbers of these sessions and of these
        subscriptions. An owner's exception ends its session.
        """
        withdrawn = {session for session in self.sessions.values() if not is_current(session.proof.credential)}
        taken = 0

        def apply(session: Session) -> None:
            nonlocal taken
            if session in withdrawn:
                session.expiry = now
                session.owner.due(session, now)
            else:
                taken += session.owner.rights_changed(session, now)

        # Those that end come last: their testaments are delivered by the new rights.
        for session in sorted(self.sessions.values(), key=withdrawn.__contains__):
            self._ask("rights", session, apply, now)
        return len(withdrawn), taken

    def _ask(self, what: str, session: Session, ask: Callable[[Session], None], now: float) -> None:
        """Have the owner of a session act on it, unless it has ended; a session whose owner fails ends."""
        if session.closed is None:
            try:
                ask(session)
            except Exception as fault:  # noqa: BLE001 - reported
                self.fail(what, session, fault, now)

    def fail(self, what: str, session: Session, fault: Exception, now: float) -> None:
        """End a session whose owner has failed: what its client has got is not known, and it learns that so.

        Else a deadline would be due first in every sweep, and an event might be missing without a sign.
        """
        self.commits.report(what, fault)
        notify((session.owner,), lambda owner: owner.fail(session, now), self.commits.report, what)
        self.close(session, FAULT)

    # Subscriptions and events

    def check_capacity(self, session: Session, patterns: list[Pattern], bounds: Limits | Wamp | None = None) -> None:
        """Check that a session may have these subscriptions too, within `bounds` or else the general limits.

        Raises `TooManySubscriptions`, `SubscriptionsTooLarge` or `TooManyPatterns`.
        """
        bounds = bounds or self.limits
        new = set(patterns) - session.subscriptions.keys()
        if len(session.subscriptions) + len(new) > bounds.subscriptions:
            raise self.counted(TooManySubscriptions())
        if session.subscription_bytes + sum(map(subscription_bytes, new)) > self.limits.subscription_bytes:
            raise self.counted(SubscriptionsTooLarge())
        wanted = session.subscriptions.keys() | new
        if sum(pattern.match is not Match.EXACT for pattern in wanted) > bounds.patterns:
            raise self.counted(TooManyPatterns())

    def subscribe(self, session: Session, pattern: Pattern) -> bool:
        """Subscribe a session to `pattern`; False if it is already subscribed, or has ended."""
        if session.closed is not None or pattern in session.subscriptions:
            return False
        subscription = self.index.add(pattern, session)
        session.subscriptions[subscription.pattern] = subscription  # all sessions keep the same name
        session.subscription_bytes += subscription_bytes(pattern)
        self.values.notify(lambda values: values.subscribers_changed())
        if session.id in self.sessions:  # else it is noted when the session is opened
            self.note_subscribed(session, [pattern])
        return True

    def unsubscribe(self, session: Session, pattern: Pattern) -> bool:
        """Remove a session's subscription to `pattern`; False if it has none."""
        if session.subscriptions.pop(pattern, None) is None:
            return False
        session.subscription_bytes -= subscription_bytes(pattern)
        self.index.remove(pattern, session)
        self.values.notify(lambda values: values.subscribers_changed())
        if session.id in self.sessions:
            self.note_unsubscribed(session, [pattern])
        return True

    def note_subscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Notify the observers; for protocols that keep subscriptions of their own."""
        self._notify(lambda observer: observer.subscribed(session, names))

    def note_unsubscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Notify the observers; for protocols that keep subscriptions of their own."""
        self._notify(lambda observer: observer.unsubscribed(session, names))

    def check_publish(self, session: Session | None, address: str, now: float, authid: str | None = None) -> None:
        """Check that `session`, or else `authid` at `address`, may publish now. Raises `RateLimited`, `AtCapacity`."""
        if self.waiting.is_over or self.memory.is_over or (session is None and self.shares.are_asked):
            self.check_load(self.shares.visit(authid, address) if session is None else session.sharer)
        if session is not None:
            is_admitted = session.meter is None or session.meter.admits(now)
        else:
            account = self.account_of(address)
            is_admitted = account is None or self.rates.publishes.admits(account, now)
        if not is_admitted:
            raise self.counted(RateLimited())

    def check_key(self, key: str) -> str:
        """Return `key` if clients may use it as an idempotency key. Raises `BadKey`."""
        if not _KEY.fullmatch(key):
            raise BadKey
        if len(key) > self.commits.options.key_chars:
            raise self.counted(KeyTooLong())
        return key

    def check_audience(self, audience: Audience) -> Audience | None:
        """Return `audience` if it restricts anything, else None. Raises `AudienceTooLong`."""
        if audience.chars > self.limits.audience_chars:
            raise self.counted(AudienceTooLong())
        return None if audience == Audience() else audience

    def publish(
        self, event: Event, now: float, without: Session | None = None, source: object = None
    ) -> Pending | None:
        """Stamp an event with its time and publication, and put it into its subscribers' outboxes.

        The session `without` receives nothing. If the event must be stored before it is delivered, returns it as
        pending: append to its `waiters` to be notified of the result. `source` is the publisher, a session or a
        request without one; events of one source stay in order. An event on a topic with a last value becomes that
        value and is never stored before (`ports.Values`).
        Raises `HistoryUnavailable` and `LogShareReached`; for values also `WrongType`, `NotForAll`, `TooManyTopics` and
        `NoHome`. In a cluster a value that is set at another node is pending too.
        """
        keeper = self.values.keeper
        if keeper is not None and keeper.accepts(event.topic):
            pending = self.values.publish(keeper, event, now, without, source)
        else:
            pending = self._issue(event, now, without, source)
        self.published += 1
        self.flows[event.protocol].published += 1
        self.activity.note(event.topic, now)
        return pending

    def publish_no_value(self, value: Pending, now: float) -> None:
        """Publish an event of which another server has found that it is not a value, although `Values.accepts` said so.

        Its waiters are notified now, or when it is stored.
        """
        try:
            pending = self._issue(value.event, now, value.without, value.source)
        except Refusal as refusal:
            self.commits.settle_value(value, refusal, now)
            return
        if pending is None:
            self.commits.settle_value(value, None, now)
        else:
            pending.waiters += value.waiters

    def announce(self, event: Event, now: float, *, without: Session | None = None) -> None:
        """Publish an event of the server itself; it is not counted as a client's publish.

        It is delivered without waiting for its commit, also where its topic is durable: what cannot be recorded is
        counted as lost.
        """
        self._issue(event, now, without, is_own=True)

    def erase(self, erasure: Erasure) -> list[Work]:
        """Notify all `holders` of an erasure; returns what remains to be done on disk, by a thread.

        What a holder raises is raised here: the erasure is not complete, and may be repeated.
        """
        return [work for holder in self.holders if (work := holder.erase(erasure)) is not None]

    def _stamp(self, event: Event, now: float) -> None:
        """Give an event its publication and its time; a small step of the clock backwards repeats the latest time."""
        time_us = int((now + self.clock_offset_s) * 1_000_000)
        if not time_us < self._latest_us < time_us + _CLOCK_STEP_US:
            self._latest_us = time_us
        event.time_us = self._latest_us
        event.publication = self.publications.next()

    def _issue(
        self, event: Event, now: float, without: Session | None = None, source: object = None, *, is_own: bool = False
    ) -> Pending | None:
        self._stamp(event, now)
        commits = self.commits
        if commits.log is not None or event.idempotency_key is not None:
            try:
                pending = commits.take(event, now, without, source, is_own=is_own)
            except (HistoryUnavailable, RateLimited) as refusal:
                raise self.counted(refusal) from None
            if pending is not None:
                if pending.is_delivered:
                    self._fan_out(event, now, LIVE, without)
                    return None
                if event.topic not in self.index.cache:
                    self.index.match(event.topic)  # in the publisher's turn: a commit delivers many events
                return pending
        self._fan_out(event, now, BOTH, without)
        return None

    def _fan_out(self, event: Event, now: float, stage: Stage, without: Session | None) -> None:
        """Deliver an event to the subscribers of its topic, except `without`, that it is due to at this stage."""
        index, topic = self.index, event.topic
        subscribers, event.matched = index.cache.get(topic) or index.match(topic)
        if not subscribers:
            return
        audience, chosen = event.audience, event.chosen
        is_live, is_committed = stage is not COMMITTED, stage is not LIVE
        ready = self.ready if len(subscribers) <= LARGE_FAN_OUT else self.ready_later
        woken: list[Session] = []
        full: list[Session] = []
        count = 0
        for session in subscribers:
            cursor = session.cursor
            if cursor is None:
                if not is_live:
                    continue
            elif (
                not is_committed
                or (event.position and not cursor.is_live)  # the session will read it from the history
                or (not is_live and event.publication in cursor.given)
            ):
                continue
            if session is without or (audience is not None and not audience.admits(session.authid, session.role)):
                continue
            if chosen is not None and not chosen.admits(session.id):
                continue
            # `deliver` and `mark_ready`, inlined: a publish can have thousands
            if session.closed is None and session.outbox.put_uncounted(event):
                count += 1
                if not session.is_ready:
                    session.is_ready = True
                    woken.append(session)
            else:
                full.append(session)
        self.delivered += count
        self.waiting.retain(event, count)
        ready.extend(woken)
        if woken and len(ready) == len(woken):
            self.wake()
        for session in full:  # when all others have it: what their owners do may be published, too
            self._overflow(session, event, now)

    def _subscribed(self, topics: Sequence[str]) -> set[str]:
        return {topic for topic in topics if len(self.index.match(topic).subscribers) > 0}

    def deliver(self, session: Session, event: Event, now: float) -> bool:
        """Put an event into one session's outbox, subscribed or not; False if the session has ended.

        If the outbox overflows, a session that replays reads recorded events from the history again; for
        any other the owner's `overflow` decides.
        """
        if session.closed is not None or not session.outbox.put(event):
            return self._overflow(session, event, now)
        self.delivered += 1
        self.mark_ready(session)
        return True

    def _overflow(self, session: Session, event: Event, now: float) -> bool:
        """Deliver an event to a session that has ended, or whose outbox is full; False if it has not been taken."""
        if session.closed is not None:
            return False
        if session.cursor is not None and event.position:
            session.cursor.fall_back(event.position - 1)
            return True
        self.overflows += 1
        self.hits[session.outbox.limit(event)] += 1
        try:
            session.owner.overflow(session, event, now)
        except Exception as fault:  # noqa: BLE001 - reported
            self.fail("overflow", session, fault, now)
        is_open = session.id in self.sessions  # compiled, `closed` would still be None here
        if not is_open:  # a program's hook may have ended it before the owner put the event into its outbox
            session.clear()
        self.delivered += is_open
        return is_open

    def take(self, session: Session, now: float) -> list[Event]:
        """Take the events that wait for a session, to be written to its client. On the hot path.

        The caller releases them (`QueuedBytes.release`) when they are written to a connection with a bound of its own.
        """
        events = session.outbox.take()
        if events:
            flow = self.flows[session.protocol]
            flow.delivered += len(events)
            if session.cursor is None and now <= session.reads_until and not events[0].is_lazy:  # see `flow.py`
                flow.note_delay(events[0].time_us, now, self.clock_offset_s)
        return events

    def give_back(self, session: Session, events: Sequence[Event]) -> None:
        """Return the last of the events that `take` returned: they did not fit, and are to be taken later."""
        session.outbox.put_back(events)
        self.flows[session.protocol].delivered -= len(events)

    def mark_ready(self, outlet: Session | Flushable) -> None:
        """Have a session or another outlet flushed in the next turn of the loop."""
        self._mark(outlet, self.ready)

    def mark_ready_later(self, outlet: Session | Flushable) -> None:
        """Have an outlet flushed that has time: one of many, or one that takes long; it does not delay the others."""
        self._mark(outlet, self.ready_later)

    def _mark(self, outlet: Session | Flushable, ready: deque[Session | Flushable]) -> None:
        if not outlet.is_ready:
            outlet.is_ready = True
            ready.append(outlet)
            if len(ready) == 1:
                self.wake()

    def flush(self, now: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Ask the outlets that are ready what is to be written, at most `FLUSHED_AT_ONCE`, and write it to their links.

        Those that have time are flushed in turns with the others, and are counted by themselves. What is left when
        `is_over`, or becomes ready meanwhile, is flushed in the next turn. A session ends of which the owner or the
        link raises an exception, since events may have been lost on the way.
        """
        now_ready, later = len(self.ready), len(self.ready_later)
        if not later and now_ready <= _PIECE:  # as nearly always
            self._flush(self.ready, now_ready, now)
        else:
            for flushed in range(0, min(max(now_ready, later), FLUSHED_AT_ONCE), _PIECE):
                if flushed and is_over():
                    break
                self._flush(self.ready, min(_PIECE, now_ready - flushed), now)
                self._flush(self.ready_later, min(_PIECE, later - flushed), now)
        if self.ready or self.ready_later:
            self.wake()

    def _flush(self, ready: deque[Session | Flushable], count: int, now: float) -> None:
        for _ in range(count):
            outlet = ready.popleft()
            try:
                if isinstance(outlet, Session):  # whose attributes are found faster than those of any outlet
                    outlet.is_ready = False
                    outputs = outlet.owner.flush_session(outlet, now)
                else:
                    outlet.is_ready = False
                    outputs = outlet.flush(now)
                for link, output in outputs:
                    link.write(output)
            except Exception as fault:  # noqa: BLE001 - reported
                if isinstance(outlet, Session) and outlet.closed is None:
                    self.fail("flush", outlet, fault, now)
                else:
                    self.commits.report("flush", fault)
