"""A session: one client's state in the broker, the same for every protocol; its deadline, and its place in the history.

A session that replays has a cursor instead of a queue: below the committed head it reads pages of the history as its
client polls. When it has read up to the head it is live, and receives recorded events as they are committed; when its
outbox overflows it reads pages again. Each change happens in one step of the event loop, so no event is missed between.

The deadlines of all sessions are in one heap. Most deadlines move while they wait (each poll moves one), so only a move
to an earlier time touches the heap: an entry whose session's deadline is later by now is put back when its time is
reached. Each session has exactly one live entry, whose number is its `alarm`, never later than its deadline. Others of
the session are stale. They are dropped at their time, or, where they are many, a few with each session that ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any, Protocol

from halley.broker.events import Event
from halley.broker.limits import Meter, sharer_of
from halley.broker.names import Pattern, receiving_patterns
from halley.broker.outbox import Outbox
from halley.broker.policy import ANONYMOUS, ANONYMOUS_ROLE, SERVER, Identity, Proof
from halley.broker.subscriptions import Subscription


class Cursor:
    """The patterns that a session replays, each with the offset up to which it has been given all matching events.

    `given` are the publications that the session received before it began to replay and that the log had not committed
    by then: they are not delivered a second time.
    """

    __slots__ = ("_after", "_starts", "given", "is_live")

    def __init__(self, given: frozenset[int] = frozenset()) -> None:
        self.given = given
        self.is_live = True
        self._after: dict[Pattern, int] = {}
        self._starts: dict[Pattern, int] = {}  # where each began: earlier events are not owed to the session

    def __contains__(self, pattern: object) -> bool:
        return pattern in self._after

    def seek(self, pattern: Pattern, after: int, head: int) -> None:
        """Replay `pattern` from the event after offset `after` on; `head` is the log's last offset."""
        if after < head:
            self.fall_back(head)
        self._after[pattern] = self._starts[pattern] = after

    def drop(self, pattern: Pattern) -> None:
        """Stop replaying `pattern`, as when its subscription ends; no effect if it is not replayed."""
        self._after.pop(pattern, None)
        self._starts.pop(pattern, None)

    def skip(self, pattern: Pattern, reached: int) -> None:
        """Note that no event of `pattern` up to offset `reached` can be given any more."""
        self._after[pattern] = max(self._after[pattern], reached)

    def fall_back(self, reached: int) -> None:
        """Go back to reading the history; if the session was live, it has been given everything up to `reached`."""
        if self.is_live:
            self.is_live = False
            self.advance(reached)

    def advance(self, reached: int) -> None:
        """Note that everything up to offset `reached` has been given."""
        for pattern, after in self._after.items():
            if after < reached:
                self._after[pattern] = reached

    def reread(self, event: Event) -> bool:
        """Have a waiting event read again from the history; False, and nothing changed, if that would not find it."""
        if not self.can_reread(event):
            return False
        for pattern in self._rereading(event):
            self._after[pattern] = min(self._after[pattern], event.position - 1)
        return True

    def can_reread(self, event: Event) -> bool:
        """Whether a waiting event would be found by reading the history again."""
        return event.publication not in self.given and bool(self._rereading(event))

    def wanted(self) -> tuple[tuple[Pattern, int], ...]:
        """Each pattern with the offset after which its events are still to be read, if the session is not live."""
        return tuple(self._after.items())

    def after(self, topic: str) -> float:
        """The offset above which events of a topic are still to be given; infinity if no pattern matches the topic."""
        return min((self._after.get(pattern, inf) for pattern in receiving_patterns(topic)), default=inf)

    def reached(self, head: int, missing: Iterable[Event]) -> dict[Pattern, int]:
        """The offset of each pattern up to which a client has everything.

        `head` is the log's last offset. `missing` are events that were counted as given but have not arrived.
        """
        reached = {pattern: head if self.is_live else after for pattern, after in self._after.items()}
        for event in missing:
            for pattern in self._rereading(event):
                reached[pattern] = min(reached[pattern], event.position - 1)
        return reached

    def _rereading(self, event: Event) -> list[Pattern]:
        """The patterns for which an event was given; none if the event is not on disk."""
        starts = self._starts
        patterns = receiving_patterns(event.topic)
        return [pattern for pattern in patterns if pattern in starts and event.position > starts[pattern]]


Outputs = tuple[tuple[Any, Any], ...]
"""What is to be written: links (`protocols.contract.Link`), each with its output."""


class Flushable(Protocol):
    """What can have something to be written, apart from a session with events: an engine, or an answer that came late.

    `is_ready` is the broker's: true while it waits in `Broker.ready` to be flushed.
    """

    is_ready: bool

    def flush(self, now: float) -> Outputs:
        """Return what is to be written now."""


FAULT = "fault"
"""The reason for which a session ends whose owner has failed."""


class SessionHandler(Protocol):
    """The engine behind a session, with the methods that the broker and the session call."""

    def due(self, session: Session, now: float) -> None:
        """Handle a deadline that has passed: move it, or close the session."""

    def flush_session(self, session: Session, now: float) -> Outputs:
        """Return what is to be written because of the events in the session's outbox."""

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Handle an outbox that is full: make room and take `event`, or close the session."""

    def too_slow(self, session: Session, now: float) -> None:
        """End the session, and any answer that is on its way to its client, which reads too slowly for the others.

        The session may have ended, and only its last answer be left.
        """

    def rights_changed(self, session: Session, now: float) -> int:
        """Take away the subscriptions that the session's rights no longer grant, and the events that wait for them.

        Returns the number of these subscriptions.
        """

    def fail(self, session: Session, now: float) -> None:
        """End the session and its client's connection, because another of these methods has raised an exception.

        Nothing may be done here that depends on the events of the session: one of them may be the cause.
        """


class SessionObserver(Protocol):
    """Something that follows the sessions of all protocols, such as the log."""

    def opened(self, session: Session) -> None:
        """Note that a session was admitted."""

    def closed(self, session: Session, reason: str) -> None:
        """Note that a session has ended; `session.former_subscriptions` are the subscriptions that it had."""

    def subscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Note that a session has subscribed to patterns, or to names as its protocol writes them."""

    def unsubscribed(self, session: Session, names: Sequence[Pattern | str]) -> None:
        """Note that a session has ended such subscriptions; not those that end with the session."""


class Session:
    """A client's identity, subscriptions and undelivered events.

    `deadline` is never None: a session that nothing would end is a leak (CometD #674, #1134, #1716). Only
    `Broker.touch` moves it, which keeps the heap of deadlines correct, and never beyond `expiry`, when the token that
    the session began with expires. Both are monotonic seconds; `expiry` is infinity if the token does not expire.
    `proof` is what its client has proved. `authid` and `role` are from it, unless the client is anonymous: `authid` is
    None then, random (WAMP) or the name that the client gave itself (NetworkTables). `opened_at` is when the session
    was admitted. Its client counts as ready for events until `reads_until`, infinity while it is (`flow.py`); the owner
    sets it. `cursor` is None until the session asks for the history. `account` is the address whose limit of sessions
    this one counts towards, or None; `meter` bounds its publishes.
    """

    __slots__ = (
        "account",
        "address",
        "alarm",
        "alarm_at",
        "authid",
        "closed",
        "cursor",
        "deadline",
        "expiry",
        "former_subscriptions",
        "id",
        "is_ready",
        "meter",
        "opened_at",
        "outbox",
        "owner",
        "proof",
        "protocol",
        "reads_until",
        "role",
        "subscription_bytes",
        "subscriptions",
        "user_agent",
    )

    def __init__(self, session_id: str, protocol: str, owner: SessionHandler, outbox: Outbox) -> None:
        self.id = session_id
        self.protocol = protocol
        self.owner = owner
        self.outbox = outbox
        self.authid: str | None = None
        self.role = ANONYMOUS_ROLE
        self.proof = ANONYMOUS
        self.expiry = inf
        self.address = ""  # of the peer that began it
        self.user_agent = ""
        self.account: str | None = None
        self.meter: Meter | None = None
        self.subscriptions: dict[Pattern, Subscription[Session]] = {}
        self.subscription_bytes = 0  # the memory that they take
        self.cursor: Cursor | None = None
        self.opened_at = 0.0
        self.reads_until = inf
        self.deadline = 0.0
        self.alarm = 0  # the number of the one live entry in the heap of deadlines; 0: there is none
        self.alarm_at = -inf  # when that entry's time is reached
        self.is_ready = False  # waits in Broker.ready
        self.closed: str | None = None  # why it ended
        self.former_subscriptions: tuple[Pattern, ...] = ()  # the subscriptions that it had, while its end is noted

    def clear(self) -> None:
        """Drop the events that wait for a session that has ended."""
        self.outbox.clear()

    def waiting(self) -> list[Event]:
        """All events that wait for the session's client; one can be in it twice."""
        return [*self.outbox]

    def on_their_way(self) -> Sequence[Event]:
        """Those of them that are in an answer that is not all written yet, also once the session has ended."""
        return ()

    def most_waiting_bytes(self) -> int:
        """The most that all of them may count as waiting, found in a moment where none is on its way."""
        return self.outbox.most_waiting_bytes + sum([event.nbytes for event in self.on_their_way()])

    def prove(self, proof: Proof, clock_offset_s: float) -> None:
        """Give a session that is about to begin the identity that its client has proved.

        `clock_offset_s` is by how much the wall clock is ahead of the monotonic one.
        """
        self.proof = proof
        self.authid, self.role = proof.authid, proof.role
        if proof.expires_s is not None:
            self.expiry = proof.expires_s - clock_offset_s

    def identity(self, address: str) -> Identity:
        """Who asks by a request or connection from this IP address."""
        is_proved = self.proof.role != ANONYMOUS_ROLE or self.role == SERVER
        return Identity(self.authid, self.role, self.proof.claims, self.protocol, address, is_proved=is_proved)

    @property
    def sharer(self) -> str:
        """Whose part of a bound that all share it uses; a name that its client only gave itself does not count."""
        return sharer_of(self.proof.authid, self.account, self.id)

    def subscription_names(self) -> Sequence[Pattern | str]:
        """The subscriptions that the session has, or had when its end is noted.

        They are patterns, or names as its protocol writes them.
        """
        return list(self.subscriptions if self.closed is None else self.former_subscriptions)

    @property
    def lasting_authid(self) -> str | None:
        """The authid that names the same client in its next session too; None if the client is anonymous.

        Events, idempotency keys and the log have it. Audiences apply to `authid`, which in WAMP an anonymous session
        has too: a random one, which its client learns from WELCOME.
        """
        return None if self.role == ANONYMOUS_ROLE else self.authid


_STALE_ENTRIES_KEPT = 1_000

_MOVED_AT_ONCE = 4
"""More than one session adds, so that the former heap is empty long before the next one has too many stale entries."""

_Entry = tuple[float, int, Session]
"""When a session is due at the earliest, the number of the entry, and the session."""


class Deadlines:
    """The sessions that are watched, and the time at which each is due (monotonic seconds)."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._former: list[_Entry] = []  # a heap with many stale entries, from which the others are moved
        self._count = 0  # numbers the entries; it also breaks ties, so that sessions are never compared
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, session: Session, deadline: float) -> None:
        """Watch a session that is not watched yet; it is due at `deadline`, in monotonic seconds."""
        self._live += 1
        session.deadline = deadline
        self._arm(session)

    def move(self, session: Session, deadline: float) -> None:
        """Change the deadline of a watched session."""
        session.deadline = deadline
        if deadline < session.alarm_at:
            self._arm(session)

    def remove(self, session: Session) -> None:
        """Stop watching a session; its entry is dropped when its time is reached."""
        session.alarm, session.alarm_at = 0, -inf
        self._live -= 1
        if self._former:
            self._drop_stale()
        elif len(self._heap) > 2 * self._live + _STALE_ENTRIES_KEPT:
            self._former, self._heap = self._heap, []

    def next(self) -> float:
        """The earliest time at which `due` may return a session; infinity when nothing is watched."""
        earliest = self._earliest()
        return earliest[0][0] if earliest else inf

    def due(self, now: float, most: int | None = None) -> list[Session]:
        """The sessions whose deadline has passed; each is watched until its owner moves its deadline or closes it.

        At most `most` entries are looked at: there are more while the time of `next` has passed.
        """
        sessions = []
        for _ in range(len(self._heap) + len(self._former) if most is None else most):
            heap = self._earliest()
            if not heap or heap[0][0] > now:
                break
            _, number, session = heapq.heappop(heap)
            if number != session.alarm:
                continue
            if session.deadline > now:
                self._arm(session)
            else:
                sessions.append(session)
        for session in sessions:
            self._arm(session)
        return sessions

    def _earliest(self) -> list[_Entry]:
        """The heap whose first entry is the earlier one; an empty one if there is none."""
        if not self._former or (self._heap and self._heap[0] < self._former[0]):
            return self._heap
        return self._former

    def _drop_stale(self) -> None:
        for _ in range(min(_MOVED_AT_ONCE, len(self._former))):
            entry = self._former.pop()  # a heap without its last entry is a heap
            if entry[1] == entry[2].alarm:
                heapq.heappush(self._heap, entry)

    def _arm(self, session: Session) -> None:
        self._count += 1
        session.alarm, session.alarm_at = self._count, session.deadline
        if session.deadline < inf:  # an entry without an end would never be dropped, nor the session that it refers to
            heapq.heappush(self._heap, (session.deadline, self._count, session))
