"""Publishes on their way through the log: stored, then delivered, then acknowledged.

An event of a durable topic is appended to the log and is not delivered yet. When it is on disk the log reports it
(`committed`); only then is it delivered to its subscribers, and acknowledged. An event that is only recorded is
delivered immediately and written afterwards. Later events of the same publisher stay behind its undelivered one,
recorded or not. The log also reports the events that it could not write (`refused`). Until it has reported an event,
the broker keeps a `Pending` for it.

The log reports in the order in which events were appended, so the committed position, `tail.head`, is the only border
between history and live: sessions that replay receive recorded events from `committed` only (`sessions.Cursor`).

Where several servers share a log (`begin`), the events of the others arrive through it too, and every recorded event is
delivered when it has its place in the log: else two servers would deliver in two orders.

A publisher that got no reply can repeat its publish with the same idempotency key, and the event is published once.
A publish with its key and another topic or other data is not a repeat, and is refused; where it is not known what was
sent first, the topic alone decides (`is_repeat`). A key belongs to an authid, so one client cannot use up another's
keys; all anonymous clients share theirs. When there are too many keys, those of the anonymous go first
(`shared_table.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

from halley.broker.errors import HistoryUnavailable, KeyReused, LogShareReached, OutcomeUnknown, Refusal
from halley.broker.events import BOTH, COMMITTED, Event, EventRange, Stage
from halley.broker.faults import Report, for_each, notify, raise_fault
from halley.broker.flow import Delays
from halley.broker.pending import Entry, Pending
from halley.broker.ports import Durability, Erasure, Log
from halley.broker.sessions import Session
from halley.broker.shared_table import SharedTable
from halley.broker.writers import Writers
from halley.settings import History

_NONE, _DURABLE = Durability.NONE, Durability.DURABLE  # an attribute of an enum costs CPython 3.11 a call

_EXPIRED_AT_ONCE = 100
"""Events whose publishers are notified in one turn of the event loop that they have waited too long."""


class Tail:
    """The latest committed events, at most `max_bytes` bytes, without a hole. `head` is the log's last offset."""

    def __init__(self, max_bytes: int) -> None:
        self.head = 0
        self._max_bytes = max_bytes
        self._entries: deque[Event | EventRange] = deque()
        self._nbytes = 0

    def append(self, entry: Event | EventRange) -> None:
        """Add what follows, which is on disk; offsets lost before it must have been passed to `skip_to`."""
        self.head = entry.position
        self._entries.append(entry)
        self._nbytes += entry.nbytes
        while self._nbytes > self._max_bytes:
            self._nbytes -= self._entries.popleft().nbytes

    def skip_to(self, head: int) -> None:
        """Set the last offset and drop all events: those before are read from disk."""
        self.head = head
        self._entries.clear()
        self._nbytes = 0

    def erase(self, erasure: Erasure) -> None:  # noqa: ARG002 - a part of the log must have no hole
        """Drop all events (`ports.Erasable`); they are read from disk from now on."""
        self.skip_to(self.head)

    def after(self, offset: int) -> list[Event] | None:
        """All events above `offset`; None if the tail does not reach back that far."""
        found: list[Event] = []
        reached = self.head  # the last offset before those found
        for entry in reversed(self._entries):
            if reached <= offset:
                break
            if isinstance(entry, EventRange):
                reached = entry.first - 1
                found += reversed(entry.events(entry.topics))
            else:
                reached -= 1
                found.append(entry)
        found.reverse()
        return None if reached > offset else found[offset - reached :]


class PublishResult(NamedTuple):
    """What is remembered of a published event; `position` is 0 if it was not recorded, or is not recorded yet."""

    topic: str
    position: int
    publication: int
    key_digest: bytes | None = None


def is_repeat(event: Event, first: Event | PublishResult) -> bool:
    """Whether an event is the same as the first with its key, as far as that is known: its topic, and what was sent."""
    if event.topic != first.topic:
        return False
    own, known = event.key_digest, first.key_digest
    return own is None or known is None or own == known


class IdempotencyKeys:
    """The keys used recently: at most `most`, each for `age_s` seconds.

    Times are those of the monotonic clock: a wall clock can be set, and keys would be forgotten too early. A key of an
    earlier run has a time before the start of this one. `hits["keys"]` counts, by the next sweep, those that were
    forgotten before their age for want of room.
    """

    def __init__(self, most: int, age_s: float, hits: Counter[str]) -> None:
        self._most = most
        self._age_s = age_s
        self._hits = hits
        self._dropped = 0  # not counted yet: to add to a Counter takes longer than all else in `remember`
        self._known: SharedTable[tuple[str | None, str], tuple[float, Pending | PublishResult]]
        self._known = SharedTable(lambda known: known[0])

    def __len__(self) -> int:
        return len(self._known)

    def find(self, event: Event, key: str, now: float) -> Pending | PublishResult | None:
        """What was published with the key of `event`; None if the key is unknown or expired.

        Raises `KeyReused` if that was another event.
        """
        known, authid = self._known, event.authid
        entry = (known.anonymous if authid is None else known.others).get((authid, key))
        if entry is None or now - entry[0] > self._age_s:
            return None
        found = entry[1]
        if not is_repeat(event, found.event if isinstance(found, Pending) else found):
            raise KeyReused
        return found

    def has(self, authid: str | None, key: str, now: float) -> bool:
        """Whether an event was published with that key, or is pending."""
        found = self._known.of(is_anonymous=authid is None).get((authid, key))
        return found is not None and now - found[0] <= self._age_s

    def remember(self, authid: str | None, key: str, what: Pending | PublishResult, now: float) -> None:
        """Store a key that is used now, or whose event is settled; one is dropped when there are too many."""
        known = self._known
        anonymous, others, name = known.anonymous, known.others, (authid, key)
        table = anonymous if authid is None else others
        table[name] = (now, what)
        table.move_to_end(name)
        if len(anonymous) + len(others) > self._most and now - known.make_room(self._most)[0] <= self._age_s:
            self._dropped += 1

    def digests(self) -> dict[int, bytes]:
        """The digests that are known of what was sent with the keys, by the position of the event."""
        found = (what for _, (_, what) in self._known.items() if isinstance(what, PublishResult))
        return {each.position: each.key_digest for each in found if each.position and each.key_digest is not None}

    def erase(self, erasure: Erasure) -> None:
        """Drop what is known of what was sent (`ports.Erasable`): keys stay, so that a repeat brings nothing back."""
        concerned = [
            (name, used_at, what)
            for name, (used_at, what) in self._known.items()
            if isinstance(what, PublishResult) and erasure.concerns(what.topic, name[0])
        ]
        for name, used_at, what in concerned:
            self._known.of(is_anonymous=name[0] is None)[name] = (used_at, what._replace(key_digest=None))

    def forget(self, authid: str | None, key: str) -> None:
        """Remove a key whose event was refused: a repeat is a new attempt."""
        self._known.of(is_anonymous=authid is None).pop((authid, key), None)

    def sweep(self, now: float) -> bool:
        """Remove keys that are expired, some in each turn of the event loop; whether there are more."""
        if self._dropped and self._most:
            self._hits["keys"] += self._dropped
            self._dropped = 0
        return self._known.drop_expired(lambda known: now - known[0] > self._age_s)


class Commits:
    """The broker's connection to its log, if it has one. `hits` counts the limits that are reached.

    `fan_out` delivers an event to its subscribers except one session, and `subscribed` returns those of some topics
    that have subscribers. `report` receives what waiters and others raise that are notified of the events.
    """

    def __init__(
        self,
        options: History,
        hits: Counter[str],
        writers: Writers,
        fan_out: Callable[[Event, float, Stage, Session | None], None],
        counted: Callable[[Refusal], Refusal] = lambda refusal: refusal,
        subscribed: Callable[[Sequence[str]], Collection[str]] = lambda topics: topics,
        report: Report = raise_fault,
    ) -> None:
        self.options = options
        self.log: Log | None = None
        self.tail = Tail(options.tail_bytes)
        self.keys = IdempotencyKeys(options.keys, options.key_age_s, hits)
        self._writers = writers
        self.writers: Writers | None = None  # the same, while they are asked for each event that is to be recorded
        self.pending: deque[Pending] = deque()  # in the log's order
        self._expired = 0  # how many of them, from the first on, have had their turn in `expire`
        self._fan_out = fan_out
        self._counted = counted
        self._subscribed = subscribed
        self.report = report
        self.reach: Callable[[int], Awaitable[bool]] | None = None
        self.value_arrived: Callable[[Event], None] | None = None  # called with each value of another server
        self._share: Callable[[Event], None] | None = None
        self._undelivered: dict[object, int] = {}  # how many, by source
        self.delays = Delays()  # until events were on disk: for each group the event that waited longest
        # plain counts, read by telemetry
        self.recorded = 0
        self.refusals = 0  # of durable events
        self.lost = 0  # events that were delivered, and then not written
        self.lost_values = 0  # the same for NetworkTables values

    def begin(
        self,
        log: Log,
        head: int,
        share: Callable[[Event], None] | None = None,
        reach: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        """Begin to use a log, of which `head` is the last offset.

        `share` and `reach` are given where other servers have the same log. The first sends them an event that is not
        recorded. The second waits, not for long, until this server has got as far as an offset that they may have
        reached; it returns False if the server has not, and does not know that nobody has.
        """
        self.log, self._share, self.reach = log, share, reach
        self.tail.skip_to(head)
        self._writers.begin(head)
        self._ask()

    def end(self) -> None:
        """Stop using the log: events that are published from now on are delivered without being recorded."""
        self.log = self._share = self.reach = self.writers = None

    # Out to the log

    def take(
        self, event: Event, now: float, without: Session | None = None, source: object = None, *, is_own: bool = False
    ) -> Pending | None:
        """Append a stamped event to the log if its topic is recorded, or if an undelivered one of its source is there.

        Returns None if the event is not there. Else it is to be delivered now to those that do not replay if it
        `is_delivered`, and otherwise when it is settled. Raises `HistoryUnavailable` if there is no room for an event
        that must wait, and `LogShareReached` if its publisher has written its share of the log; then nothing is done.
        One of the server's own (`is_own`) is never refused, does not wait, and is not durable.
        """
        log, pending = self.log, None
        durability = _NONE if log is None or event.is_transient else log.durability_of(event.topic)
        is_durable = durability is _DURABLE and not is_own
        must_wait = is_durable or (source is not None and source in self._undelivered)
        if log is not None and (must_wait or durability is not _NONE):
            if self.writers is not None and durability is not _NONE and not is_own:
                self._check_writer(self.writers, event, source, now)
            pending = Pending(event, source, without, now)
            pending.is_recorded = durability is not _NONE
            pending.is_durable = is_durable
            pending.is_delivered = not must_wait and self._share is None
            try:
                log.append(pending)
            except Exception as fault:  # noqa: BLE001 - the event is not there
                refusal = self._unavailable(fault)
                if must_wait:
                    self.refusals += 1
                    raise refusal from None
                self.lost += 1
                pending = None
            else:
                self.pending.append(pending)
                if not pending.is_delivered:
                    self._undelivered[source] = self._undelivered.get(source, 0) + 1
        if pending is None and self._share is not None:
            self._share_it(event)
        if event.idempotency_key is not None:
            self.remember(event, now, pending)
        return pending

    def _check_writer(self, writers: Writers, event: Event, source: object, now: float) -> None:
        """Note who writes an event that is to be recorded, if it may be. Raises `LogShareReached`."""
        if event.publisher != writers.usual:
            writers.check(event, source, self.tail.head + len(self.pending), now)
            self._ask()

    def measured(self, nbytes: int, first: int, now: float) -> None:
        """Note the size of the log on disk, and its first offset; to be called once a second."""
        self._writers.measured(nbytes, first, self.tail.head + len(self.pending), now)
        self._ask()

    def _ask(self) -> None:
        self.writers = self._writers if self.log is not None and self._writers.are_asked else None

    def _unavailable(self, fault: Exception) -> HistoryUnavailable:
        """The refusal with which the log has taken nothing; another exception of the log is reported."""
        if isinstance(fault, HistoryUnavailable):
            return fault
        self.report("log", fault)
        return HistoryUnavailable()

    def _share_it(self, event: Event) -> None:
        """Send an event that is not recorded to the other servers, where there are any."""
        if self._share is not None:
            notify((event,), self._share, self.report, "share")

    def record_value(self, event: Event, now: float) -> bool:
        """Append a stamped value to the log, to be written but not waited for, even if its topic is durable.

        False if its topic is not recorded, or the log has no room for it. Other servers get it all the same.
        """
        if self.log is None or self.log.durability_of(event.topic) is _NONE:
            self._share_it(event)
            return False
        if self.writers is not None:
            try:
                self._check_writer(self.writers, event, None, now)
            except LogShareReached as refusal:
                self._counted(refusal)
                self.lost_values += 1
                self._share_it(event)
                return False
        pending = Pending(event, since=now)
        pending.is_delivered = True
        try:
            self.log.append(pending)
        except Exception as fault:  # noqa: BLE001 - the value is not there
            self._unavailable(fault)
            self.lost_values += 1
            return False
        self.pending.append(pending)
        return True

    # What the log reports

    def committed(self, group: Sequence[Entry], first: int, now: float) -> None:
        """Deliver a group, the oldest pending events; the recorded ones are on disk, at the offsets from `first` on."""
        if first != self.tail.head + 1:  # the log has lost some events, and continues above them
            self.tail.skip_to(first - 1)
        if group:
            self.delays.note(int((now - self.pending[0].since) * 1_000_000))
        for_each(group, self._settle, now, self.report, "commit")

    def refused(self, group: Sequence[Entry], refusal: Refusal, now: float) -> None:
        """Settle a group, the oldest pending events, with `refusal`: they were not written, or that is not known.

        Those that are not durable are delivered now, if they were not before.
        """

        def refuse(entry: Entry, now: float) -> None:
            pending = self.pending[0]
            if pending.is_durable:
                self.refusals += 1
            elif pending.is_recorded:
                self.lost += pending.event.nt4_type is None
                self.lost_values += pending.event.nt4_type is not None
            self._settle(entry, now, refusal=refusal if pending.is_durable else None, is_written=False)

        for_each(group, refuse, now, self.report, "commit")

    def withdrawn(self, group: Sequence[Pending], refusal: Refusal, now: float) -> None:
        """Settle pending events with `refusal` before others that came first: the log has not begun to store them."""
        ahead = frozenset(group)
        self.pending = deque([*group, *[pending for pending in self.pending if pending not in ahead]])
        self._expired = 0
        self.refused(group, refusal, now)

    def arrived(self, entries: Sequence[Event | EventRange], now: float, without: Session | None = None) -> None:
        """Deliver events of other servers; those that are recorded are on disk, at their `position`.

        The session `without` does not receive them.
        """
        for entry in entries:
            if isinstance(entry, EventRange):
                self._reached(entry.first, entry)
                self.recorded += entry.count
                wanted = self._subscribed(entry.topics)
                events = entry.events(wanted) if len(wanted) > 0 else []
            else:
                events = [entry]
                if entry.position:
                    self._reached(entry.position, entry)
                    self.recorded += 1
                    if entry.idempotency_key is not None:
                        self.remember(entry, now)
                if entry.nt4_type is not None and self.value_arrived is not None:
                    notify((entry,), self.value_arrived, self.report, "values")
            for event in events:
                self._fan_out(event, now, BOTH, without)

    def _reached(self, first: int, entry: Event | EventRange) -> None:
        """Add what has its place in the log from the offset `first` on."""
        if first != self.tail.head + 1:
            self.tail.skip_to(first - 1)
        self.tail.append(entry)
        if self.writers is not None:
            self.writers.note_others(entry.position)

    def repeated_late(self, pending: Pending, first: PublishResult, now: float) -> None:
        """Settle the oldest pending event: another server's event with its key, `first`, came before it in the log.

        It is not delivered. Its publisher is answered like that of the first, or with `KeyReused` where it does not
        repeat that one.
        """
        assert pending.event.idempotency_key is not None
        self.delivered_before(pending, first, now)

    def delivered_before(self, pending: Pending, first: PublishResult | None, now: float) -> None:
        """Settle the oldest pending event, which was delivered as `first` already.

        None: whether and as which is not known, so its publisher gets `OutcomeUnknown`.
        """
        event, waiters, pending.waiters = pending.event, pending.waiters, []
        self._settle(pending, now, refusal=KeyReused(), is_written=False)
        pending.waiters = waiters
        if first is None:
            self.refusals += pending.is_durable
            self._notify(pending, self._counted(OutcomeUnknown()), now)
            return
        if event.idempotency_key is not None:
            self.keys.remember(event.authid, event.idempotency_key, first, now)
        event.position, event.publication = first.position, first.publication
        self._notify(pending, None if is_repeat(event, first) else KeyReused(), now)

    def settle_value(self, pending: Pending, refusal: Refusal | None, now: float) -> None:
        """Settle a value that another server has taken or refused; it was pending, but not in the log."""
        event = pending.event
        if event.idempotency_key is not None:
            if refusal is None:
                self.remember(event, now)
            else:
                self.keys.forget(event.authid, event.idempotency_key)
        self._notify(pending, None if refusal is None else self._counted(refusal), now)

    def expire(self, now: float) -> bool:
        """Report `OutcomeUnknown` to waiters after `history.commit_s`; their events may still be committed.

        Some events have their turn at a time; returns whether there are more.
        """
        for _ in range(_EXPIRED_AT_ONCE):
            if self._expired == len(self.pending):
                return False
            pending = self.pending[self._expired]
            if pending.since + self.options.commit_s > now:
                return False
            self._expired += 1
            if pending.waiters:
                self._notify(pending, self._counted(OutcomeUnknown()), now)
        return True

    def remember(self, event: Event, now: float, pending: Pending | None = None) -> None:
        """Remember under its idempotency key, which it has, an event that is published, or is not yet delivered."""
        assert event.idempotency_key is not None
        if pending is None or pending.is_delivered:
            published = PublishResult(event.topic, event.position, event.publication, event.key_digest)
            self.keys.remember(event.authid, event.idempotency_key, published, now)
        else:
            self.keys.remember(event.authid, event.idempotency_key, pending, now)

    def repeated(self, event: Event, now: float) -> Pending | PublishResult | None:
        """What was published before with the key of `event`; None if that is unknown or `event` has no key.

        Raises `KeyReused`, or `OutcomeUnknown` where the first has waited for too long (`expire`).
        """
        if event.idempotency_key is None:
            return None
        found = self.keys.find(event, event.idempotency_key, now)
        if isinstance(found, Pending) and found.since <= now - self.options.commit_s:
            raise self._counted(OutcomeUnknown())
        return found

    def _settle(self, entry: Entry, now: float, *, refusal: Refusal | None = None, is_written: bool = True) -> None:
        """Settle the oldest pending event: number it if it is on disk, deliver it or not, and notify its waiters."""
        pending = self.pending.popleft()
        assert pending is entry
        if self._expired:
            self._expired -= 1
        event, stage = pending.event, COMMITTED
        if not pending.is_delivered:
            stage = BOTH
            left = self._undelivered.pop(pending.source) - 1
            if left:
                self._undelivered[pending.source] = left
        if is_written and pending.is_recorded:
            event.position = self.tail.head + 1
            if event.frames:
                event.frames.clear()  # they were made without the position
            self.tail.append(event)
            self.recorded += 1
        elif is_written:
            self._share_it(event)
        if refusal is None:
            if event.idempotency_key is not None:
                self.remember(event, now)
            self._fan_out(event, now, stage, pending.without)
        elif event.idempotency_key is not None:
            self.keys.forget(event.authid, event.idempotency_key)
        for waiter in pending.waiters:  # as `_notify` does, without a call more
            try:
                waiter.settled(event, refusal, now)
            except Exception as fault:  # noqa: BLE001 - reported: the others wait, too
                self.report("waiter", fault)

    def _notify(self, pending: Pending, refusal: Refusal | None, now: float) -> None:
        """Notify the waiters of an event, of which each is notified once."""
        waiters, pending.waiters = pending.waiters, []
        for waiter in waiters:
            try:
                waiter.settled(pending.event, refusal, now)
            except Exception as fault:  # noqa: BLE001 - reported: the others wait, too
                self.report("waiter", fault)
