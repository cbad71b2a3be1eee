"""What Bayeux clients must receive and when sessions must end, in a model as plain as possible, to test the engine.

It has no outboxes, heaps or bytes: a session is the list of all events that it is owed, and the number of them that
have certainly arrived. Its user reports what happens; the model returns the events of each reply and, in `answers`, the
end of every connect that was held or half answered. It imports nothing from Halley.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

REPLY, ABORT, DISMISSED, REFUSED = "reply", "abort", "dismissed", "refused"


def matches(pattern: str, channel: str) -> bool:
    """Bayeux 1.0, 2.2.1: `*` matches one more segment, `**` one or more."""
    parent, _, last = pattern.rpartition("/")
    if last == "**":
        return channel.startswith(parent + "/")
    return channel.rpartition("/")[0] == parent if last == "*" else channel == pattern


@dataclass(eq=False)
class Flight:
    """A reply with events that is on its way: which of the owed events it carries, and for what kind of request."""

    start: int
    events: list[int]
    connection: int
    answers_connect: bool


@dataclass(eq=False)
class Peer:
    """A session: what its client is owed, and how much of it has arrived."""

    id: str
    cookie: str
    is_bound: bool
    acks: bool
    deadline: float
    patterns: set[str] = field(default_factory=set)
    owed: list[int] = field(default_factory=list)  # every event it must receive, in the order of publishing
    arrived: int = 0  # the number of them that have certainly arrived
    batches: list[int] = field(default_factory=list)  # with acks: the number of events owed when each batch was closed
    flight: Flight | None = None
    held: int | None = None  # the connection of its held connect
    browser: str = ""  # the browser whose slot the held connect takes
    has_polled: bool = False
    interval_s: float = 0.0
    is_over: bool = False

    def waiting(self) -> list[int]:
        """Return the events that the next reply must carry."""
        in_flight = len(self.flight.events) if self.flight and not self.acks else 0
        return self.owed[self.arrived + in_flight :]

    def acknowledge(self, batch: int) -> None:
        """The client has acknowledged all events that were sent under this number or an earlier one."""
        if batch > 0 and self.batches:
            self.arrived = max(self.arrived, self.batches[min(batch, len(self.batches)) - 1])


class Model:
    """The server as its clients see it."""

    def __init__(self, *, max_interval_s: float, hold_s: float, slots: int, slot_interval_s: float, queue: int) -> None:
        self.max_interval_s, self.hold_s = max_interval_s, hold_s
        self.slots, self.slot_interval_s, self.queue = slots, slot_interval_s, queue
        self.now = 1_000.0  # not 0, so that a forgotten `now +` is seen
        self.is_draining = False
        self.peers: list[Peer] = []
        self.answers: defaultdict[int, list[tuple[Peer, str, list[int]]]] = defaultdict(list)
        """The ends of connects that were held or half answered, in order: how each ended, and with which events."""

    def alive(self) -> list[Peer]:
        return [peer for peer in self.peers if not peer.is_over]

    def holds(self) -> Counter[str]:
        return Counter(peer.browser for peer in self.peers if peer.held is not None)

    def admit(self, peer: Peer, cookie: str | None) -> bool:
        """Whether a request with this cookie may use the session; from the first match on, every cookie must match."""
        if peer.is_over or (cookie != peer.cookie and (cookie is not None or peer.is_bound)):
            return False
        peer.is_bound = peer.is_bound or cookie == peer.cookie
        if peer.held is None:
            peer.deadline = max(peer.deadline, self.now + self.max_interval_s)
        return True

    def publish(self, channel: str, event: int, *, without: Peer | None = None) -> None:
        """Owe all subscribers an event; a session whose queue is full, even after an answered hold, ends."""
        for peer in self.alive():
            if peer is without or not any(matches(pattern, channel) for pattern in peer.patterns):
                continue
            if self.is_full(peer) and peer.held is not None and peer.flight is None:
                self.answer_held(peer)
            if self.is_full(peer):
                self.end(peer, REFUSED)
            else:
                peer.owed.append(event)

    def is_full(self, peer: Peer) -> bool:
        """Whether the queue is full; with acks, events that are sent and not acknowledged count."""
        return (len(peer.owed) - peer.arrived if peer.acks else len(peer.waiting())) >= self.queue

    def connect(
        self, peer: Peer, connection: int, wait_s: float | None, *, alone: bool, last: bool
    ) -> list[int] | None:
        """Return the events of the reply, or None if the connect is held; it can also end the session."""
        if peer.held is not None:
            self.answer_held(peer, with_events=False)
        if peer.flight is not None and peer.flight.answers_connect:
            self.answers[peer.flight.connection].append((peer, ABORT, []))
            self.settle(peer, peer.flight, is_written=False)
            if peer.is_over:
                return []
        has_news = bool(peer.waiting()) and peer.flight is None
        may_wait = alone and peer.has_polled and wait_s != 0 and not has_news and not self.is_draining
        peer.has_polled = True
        browser = peer.cookie if peer.is_bound else peer.id
        is_crowded = may_wait and self.slots >= 0 and self.holds()[browser] >= self.slots
        if may_wait and not is_crowded:
            peer.held, peer.browser = connection, browser
            peer.deadline = self.now + min(self.hold_s, self.hold_s if wait_s is None else wait_s)
            return None
        return self.answer(peer, connection, with_events=last, is_crowded=is_crowded)

    def answer(self, peer: Peer, connection: int, *, with_events: bool, is_crowded: bool = False) -> list[int]:
        """Answer a connect: the client has `max_interval_s` for the next one, and gets all waiting events."""
        interval_s = max(peer.interval_s, self.slot_interval_s) if is_crowded else peer.interval_s
        peer.deadline = self.now + interval_s + self.max_interval_s
        if not with_events or peer.flight is not None:
            return []
        peer.batches.append(len(peer.owed))
        return self.send(peer, connection, answers_connect=True)

    def send(self, peer: Peer, connection: int, *, answers_connect: bool) -> list[int]:
        events = peer.waiting()[: self.queue]  # more, if some were put back, waits for the next reply
        if events:
            peer.flight = Flight(peer.arrived, events, connection, answers_connect)
        return events

    def answer_held(self, peer: Peer, *, with_events: bool = True) -> None:
        assert peer.held is not None
        connection, peer.held = peer.held, None
        self.answers[connection].append((peer, REPLY, self.answer(peer, connection, with_events=with_events)))

    def settle(self, peer: Peer, flight: Flight, *, is_written: bool) -> None:
        """The transport reports whether a reply was written; a second report, or one after an abort, has no effect."""
        if peer.flight is not flight:
            return
        peer.flight = None
        if is_written and not peer.acks:
            peer.arrived += len(flight.events)

    def turn(self) -> None:
        """The event loop turns: waiting events leave by held connects."""
        for peer in self.alive():
            if peer.held is not None and peer.waiting() and peer.flight is None:
                self.answer_held(peer)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for peer in [peer for peer in self.alive() if peer.deadline <= self.now]:
            if peer.held is not None:
                self.answer_held(peer)
            else:
                self.end(peer, REFUSED)

    def lost(self, peer: Peer) -> None:
        peer.held = None
        peer.deadline = self.now + peer.interval_s + self.max_interval_s

    def end(self, peer: Peer, farewell: str) -> None:
        """End a session and answer its held connect; a client that was dismissed still gets the waiting events."""
        if peer.held is not None:
            last = peer.waiting()[: self.queue] if farewell is DISMISSED and peer.flight is None else []
            self.answers[peer.held].append((peer, farewell, last))
        peer.held, peer.is_over = None, True
        peer.patterns.clear()
