"""The look at whose events wait, about once a second while more than half of `limits.waiting_bytes` is used.

It finds the accounts that have more than their share (`shares.py`), each event counted once for an account, however
many of its queues have it. What counts is all that waits for an account's sessions: queues, values set apart, events
that are not acknowledged, and answers that are on their way, also of sessions that have ended. Where another account
has had a session or has published since the look before, sessions of those that have more are ended as slow readers,
until what is left is within the share, or the whole below half.

Those that end are an account's largest, and of these first the ones whose clients have read nothing for longest. What a
queue weighs is what it alone keeps in memory: of an event that waits in four places, a quarter. The share is divided
among an account's queues evenly, and what the small ones leave goes to the others (max-min fairness). A queue that is
within its part is never ended: so one of many users behind an address loses nothing because another one fills it.

The events of all sessions can be many millions, so the look goes on over many turns of the event loop, each with the
same amount of work. The sessions change meanwhile. What they have is looked at again before one is ended, and one is
ended in each turn: what that has freed is known in the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf
from typing import Final

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.policy import SERVER
from halley.broker.sessions import Session

CHECK_S: Final = 1.0
"""From the beginning of a look to the next; one begins at once when the bound is reached, where all may be refused."""

WORK_AT_ONCE: Final = 3_000
"""Events that are looked at in one turn of the event loop, in at most a few milliseconds; one queue is never split."""

_SESSION_WORK = 10
"""What it takes to find a session's account, in events."""


class Sharing:
    """The look, of which each sweep does a part."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._due = -inf
        self._was_full = False  # whether the bound was reached when the latest look began
        self._now = 0.0
        self._steps: Iterator[int] | None = None  # what is left of a look that has begun

    def sweep(self, now: float) -> bool:
        """Begin a look if one is due, or go on with it; whether there is more to do."""
        shares, steps = self._broker.shares, self._steps
        if steps is None:
            shares.drop_written()
            if not shares.are_asked:
                shares.rest()
                return False
            is_full = self._broker.waiting.is_over
            if now < self._due and (self._was_full or not is_full):
                return False
            self._due, self._was_full = now + CHECK_S, is_full
            steps = self._scan()
        self._now, self._steps = now, None  # an exception ends the look
        left = WORK_AT_ONCE
        for work in steps:
            left -= work
            if left <= 0:
                self._steps = steps
                return True
        return False

    def _scan(self) -> Iterator[int]:
        """Find who has more than a share, and end queues of theirs; yields the work of each step."""
        broker, shares = self._broker, self._broker.shares
        share_bytes, seen = shares.share_bytes, shares.seen()
        queues: defaultdict[str, list[Session]] = defaultdict(list)
        most_bytes: defaultdict[str, int] = defaultdict(int)
        for session in [*broker.sessions.values(), *shares.departed]:
            if session.role == SERVER:  # the program's own
                continue
            account = session.sharer
            seen.add(account)
            nbytes = session.most_waiting_bytes()
            if nbytes:
                queues[account].append(session)
                most_bytes[account] += nbytes
            yield _SESSION_WORK + len(session.on_their_way())
        over: list[str] = []
        for account, sessions in queues.items():
            yield 1
            if most_bytes[account] > share_bytes:
                union = _Union()
                for session in sessions:
                    yield union.add(session)
                    if union.nbytes > share_bytes:
                        over.append(account)
                        break
        shares.over, shares.is_one_alone = set(over), len(seen) == 1
        if not shares.is_one_alone:
            for account in over:
                yield from self._relieve(account, queues[account])

    def _relieve(self, account: str, sessions: list[Session]) -> Iterator[int]:
        """End an account's largest queues, the slowest first, until all others are within its share."""
        shares = self._broker.shares
        share_bytes = shares.share_bytes
        by_weight: list[tuple[float, int, Session]] = []  # heaps: to sort all at once could take too long
        for number, session in enumerate(sessions):
            events = session.waiting()
            heappush(by_weight, (_weight(events), number, session))
            yield _SESSION_WORK + len(events)
        union, part, left = _Union(), share_bytes, share_bytes
        while by_weight:
            part = left / len(by_weight)
            if by_weight[0][0] > part:
                break
            weight, _, session = heappop(by_weight)
            left -= weight
            yield union.add(session)
        by_speed: list[tuple[float, float, int, Session]] = []
        for weight, number, session in by_weight:
            heappush(by_speed, (-session.reads_until, weight, number, session))
            yield _SESSION_WORK
        beyond: list[Session] = []
        while by_speed:
            session = heappop(by_speed)[3]
            if union.nbytes <= share_bytes:
                yield union.add(session)
            if union.nbytes > share_bytes:
                beyond.append(session)
                yield _SESSION_WORK
        for session in reversed(beyond):
            if not shares.are_asked:
                return
            events = session.waiting()
            yield _SESSION_WORK + len(events)
            if _weight(events) > part:  # else its client has read meanwhile
                self._end(session)
                yield WORK_AT_ONCE
        if all(session.closed is not None for session in beyond):
            shares.over.discard(account)

    def _end(self, session: Session) -> None:
        self._broker.hits["waiting_share"] += 1
        try:
            session.owner.too_slow(session, self._now)
        except Exception as fault:  # noqa: BLE001 - reported
            self._broker.fail("share", session, fault, self._now)


class _Union:
    """The events that wait for some sessions, each counted once."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._events: set[Event] = set()

    def add(self, session: Session) -> int:
        """Add the events that wait for a session; returns the work that it was."""
        events = session.waiting()
        if not self._events.issuperset(events):  # many queues of an account have the same events
            fresh = set(events) - self._events
            self.nbytes += sum([event.nbytes for event in fresh])
            self._events |= fresh
        return _SESSION_WORK + len(events)


def _weight(events: list[Event]) -> float:
    """The bytes of the events that wait here alone, with a part of those that wait in other places too."""
    return sum([event.nbytes / max(1, event.refs) for event in events])
