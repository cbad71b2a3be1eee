"""Random sequences of all that can happen to Bayeux sessions, on the real broker and engine and on the model.

After every step both must agree: which connects are answered and with which events, which sessions exist, when each of
them ends, and which slots are taken (C2). A failing run is printed as the shortest sequence that fails.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from protocols.bayeux.twins import LONGEST_INTERVAL_S, Op, Twins
from support.broker import waiting_bytes

from halley.protocols.bayeux.names import to_subscription
from halley.protocols.bayeux.outcomes import Transport

if TYPE_CHECKING:
    from protocols.bayeux.model import Peer

CHANNELS = ["/a", "/a/b", "/a/b/c", "/b"]
PATTERNS = [*CHANNELS, "/*", "/**", "/a/*", "/a/**", "/a/b/**"]
BROWSERS = ["cookie-of-browser-1", "cookie-of-browser-2"]
MOST_PEERS = 4


def often(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for mostly `usual`, to which failing runs are also reduced."""
    return st.sampled_from([usual] * 8 + list(rare))


channels = st.sampled_from(CHANNELS)
publishes = st.builds(Op, st.just("publish"), st.tuples(channels), often("me", "other", "nobody"))
connects = st.builds(
    Op,
    st.just("connect"),
    sender=often("me", "other"),
    timeout_ms=often(None, 0, 5_000, 3_600_000),
    interval_ms=often(None, 0, 5_000, 3_600_000),
    ack=often("newest", "older", "older", "none", "none"),
)
subscribes = st.builds(
    Op,
    st.sampled_from(["subscribe", "unsubscribe"]),
    st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3).map(tuple),
    often("me", "other"),
)
batches = st.lists(st.one_of(publishes, publishes, publishes, subscribes, connects), min_size=2, max_size=6)
clients = st.tuples(st.booleans(), st.sampled_from([None, None, *BROWSERS]), st.sampled_from([*PATTERNS, ""]))
cookies = often("own", "none", "none", "wrong")
fates = often("written", *["unwritten"] * 3, *["later"] * 4)
transports = often(Transport.LONG_POLLING, Transport.CALLBACK_POLLING)
numbers = st.integers(0, 99)


class Sessions(RuleBasedStateMachine):
    """The engine and the model, and the steps that can happen to them."""

    queue_events = 1_000
    hurries = False  # whether lone publishes leave the general way early

    @initialize(
        slots=st.sampled_from([1, 1, 2, -1, 0]),
        connect_delivery_only=often(False, True),
        echoes=often(True, False),
        clients=st.lists(clients, min_size=2, max_size=3),
    )
    def start(self, slots: int, connect_delivery_only: bool, echoes: bool, clients: list[Any]) -> None:
        self.twins = Twins(
            queue_events=self.queue_events,
            slots=slots,
            connect_delivery_only=connect_delivery_only,
            echoes=echoes,
            hurries=self.hurries,
        )
        self.model = self.twins.model
        for client in clients:
            self.handshake(client)

    @precondition(lambda self: len(self.model.alive()) < MOST_PEERS)
    @rule(client=clients)
    def handshake(self, client: tuple[bool, str | None, str]) -> None:
        """Begin a session; most clients subscribe and poll immediately, as real ones do."""
        acks, cookie, pattern = client
        peer = self.twins.handshake(acks=acks, cookie=cookie)
        if pattern:
            self.twins.exchange(peer, [Op("subscribe", (pattern,))])
            self.twins.exchange(peer, [Op("connect")])

    @rule(fate=fates)
    def everyone_polls(self, fate: str) -> None:
        """Let all sessions poll, as clients do."""
        for peer in self.model.alive():
            self.twins.exchange(peer, [Op("connect")], "own", fate)

    @rule(who=numbers, op=connects, shown=cookies, fate=fates)
    def poll(self, who: int, op: Op, shown: str, fate: str) -> None:
        self.twins.exchange(self.pick(who), [op], shown, fate)

    @rule(who=numbers, other=numbers, ops=st.lists(publishes, min_size=1, max_size=4), shown=cookies, fate=fates)
    def publish(self, who: int, other: int, ops: list[Op], shown: str, fate: str) -> None:
        self.twins.exchange(self.pick(who), ops, shown, fate, other=self.pick(other))

    @rule(who=numbers, op=subscribes, shown=cookies, fate=fates)
    def subscribe(self, who: int, op: Op, shown: str, fate: str) -> None:
        self.twins.exchange(self.pick(who), [op], shown, fate)

    @rule(who=numbers, other=numbers, ops=batches, shown=cookies, fate=fates, transport=transports)
    def batch(self, who: int, other: int, ops: list[Op], shown: str, fate: str, transport: Transport) -> None:
        self.twins.exchange(self.pick(who), ops, shown, fate, transport, self.pick(other))

    @rule(who=numbers, before=batches, after=batches, fate=fates, happens=often(False, True, True))
    def leave(self, who: int, before: list[Op], after: list[Op], fate: str, happens: bool) -> None:
        """Send a disconnect in the middle of a batch."""
        if happens:
            self.twins.exchange(self.pick(who), [*before, Op("disconnect"), *after], "own", fate)

    @precondition(lambda self: not self.hurries)
    @rule(who=numbers, channel=channels, shown=cookies, transport=transports)
    def publish_slowly(self, who: int, channel: str, shown: str, transport: Transport) -> None:
        """Publish to a channel about which the policy decides later."""
        self.twins.publish_slowly(self.pick(who), channel, shown, transport)

    @precondition(lambda self: self.twins.waiting)
    @rule(which=numbers, fate=fates, grants=often(True, False))
    def decide(self, which: int, fate: str, grants: bool) -> None:
        """Let the policy decide; the session can have ended in the meantime."""
        self.twins.decide(self.twins.waiting[which % len(self.twins.waiting)], fate, grants=grants)

    @rule(fate=fates)
    def turn(self, fate: str) -> None:
        self.twins.turn(fate)

    @precondition(lambda self: self.twins.flights)
    @rule(which=numbers, fate=st.sampled_from(["written", "unwritten"]))
    def settle(self, which: int, fate: str) -> None:
        self.twins.settle(which % len(self.twins.flights), fate)

    @precondition(lambda self: self.twins.held)
    @rule(which=numbers)
    def drop(self, which: int) -> None:
        held = self.twins.held
        self.twins.drop(*held[-1 - which % min(len(held), MOST_PEERS)])

    @rule(seconds=often(1, 4, 5, 9, 10, 25, 40), fate=fates)
    def pass_time(self, seconds: int, fate: str) -> None:
        self.twins.pass_time(seconds, fate)

    @rule(who=numbers, happens=often(False, True, True))
    def dismiss(self, who: int, happens: bool) -> None:
        if happens and not self.pick(who).is_over:
            self.twins.dismiss(self.pick(who))

    @rule(fate=fates, happens=often(False, True, True))
    def drain(self, fate: str, happens: bool) -> None:
        if happens:
            self.twins.drain(fate)

    def pick(self, who: int) -> Peer:
        """Return one of the living sessions, or the one that ended last."""
        over = [peer for peer in self.model.peers if peer.is_over]
        peers = self.model.alive() + over[-1:]
        return peers[who % len(peers)]

    # Invariants

    @invariant()
    def same_sessions(self) -> None:
        """Both have the same sessions, with equal deadlines, holds, queues and pending replies; queues are bounded."""
        sessions = self.twins.broker.sessions
        assert sessions.keys() == {peer.id for peer in self.model.alive()}
        for peer in self.model.alive():
            session: Any = sessions[peer.id]
            assert session.deadline == peer.deadline
            assert (session.held.connection if session.held else None) == peer.held
            assert (session.unsettled.connection if session.unsettled else None) == (
                peer.flight.connection if peer.flight else None
            )
            waiting = len(session.outbox) + (len(session.acks) if session.acks is not None else 0)
            assert waiting == len(peer.waiting())
            assert waiting <= 2 * self.queue_events
            assert session.unsettled is None or len(session.unsettled.events) <= self.queue_events

    @invariant()
    def deadlines_are_watched(self) -> None:
        """Every session has exactly one live entry in the heap, no later than its deadline; no other entry is live."""
        deadlines = self.twins.broker.deadlines
        entries = [entry for entry in deadlines._heap if entry[1] == entry[2].alarm]
        assert Counter(entry[2].id for entry in entries) == Counter(self.twins.broker.sessions.keys())
        assert len(deadlines) == len(entries)
        assert all(time <= session.deadline for time, _, session in entries)

    @invariant()
    def slots_are_counted(self) -> None:
        """For each browser, the number of slots taken is the number of its held connects."""
        assert self.twins.engine.sessions.holds_by_browser == self.model.holds()
        assert self.twins.engine.sessions.holds == self.model.holds().total()

    @invariant()
    def subscriptions_are_shared(self) -> None:
        """The index has each subscription of a living session once, and no others."""
        index = {
            to_subscription(pattern): {session.id for session in subscription.sessions}
            for pattern, subscription in self.twins.broker.index.subscriptions.items()
        }
        names = {name for peer in self.model.alive() for name in peer.patterns}
        assert index == {name: {peer.id for peer in self.model.alive() if name in peer.patterns} for name in names}

    @invariant()
    def what_waits_is_counted_once(self) -> None:
        """Each event counts once, from the first place where it waits until it waits nowhere any more."""
        replies = [reply for _, reply, _ in self.twins.flights]
        assert self.twins.broker.waiting.value == waiting_bytes(self.twins.broker, replies)

    @invariant()
    def nothing_is_skipped(self) -> None:
        """A client has processed the first of the events that it is owed, in order, none twice, none missing."""
        for peer, got in self.twins.got.items():
            assert got == peer.owed[: len(got)]
            assert len(got) >= peer.arrived

    def teardown(self) -> None:
        """Check that all clients get all their events; and that no session is left after all clients fall silent."""
        twins = getattr(self, "twins", None)
        if twins is None:
            return
        while twins.waiting:
            twins.decide(twins.waiting[0], "written", grants=True)
        while twins.flights:
            twins.settle(0, "written")
        for peer in self.model.alive():
            for _ in range(3):
                twins.exchange(peer, [Op("connect", timeout_ms=0)])
            assert twins.got[peer] == peer.owed
        twins.pass_time(self.model.hold_s, "later")
        twins.pass_time(LONGEST_INTERVAL_S + self.model.max_interval_s, "later")
        twins.turn("later")
        assert not twins.broker.sessions
        assert not len(twins.broker.deadlines)
        assert not twins.broker.index.subscriptions
        assert not twins.engine.sessions.holds_by_browser
        assert twins.broker.waiting.value == 0


TestSessions = Sessions.TestCase


class FullSessions(Sessions):
    """The same steps with outboxes so small that sessions end by overflow."""

    queue_events = 3


TestFullSessions = FullSessions.TestCase


class HastySessions(Sessions):
    """The same steps without a policy."""

    hurries = True


TestHastySessions = HastySessions.TestCase


class FullHastySessions(FullSessions):
    """The same steps without a policy, with small outboxes."""

    hurries = True


TestFullHastySessions = FullHastySessions.TestCase
