"""The real broker and engine next to the model: each step is done on both, and the results are compared.

A request is processed by the engine and, message by message, by the model; replies and events must be equal. After
every step, so must be what held connects have received in the meantime (`collect`). Replies travel: how one ended, its
`fate`, is reported immediately or, if "later", by a separate step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from protocols.bayeux.model import ABORT, DISMISSED, REFUSED, REPLY, Flight, Model, Peer

from halley.broker.broker import Broker
from halley.broker.policy import DefaultRules
from halley.broker.sessions import Session
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.outcomes import AbortConnection, AwaitHook, Request, Transport, Verdict
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.settings import Bayeux, Limits

if TYPE_CHECKING:
    from halley.protocols.bayeux.messages import Message

LONGEST_INTERVAL_S = 60
_STRANGER = "cookie-of-a-stranger"


@dataclass(frozen=True)
class Op:
    """A message to send: its verb, its channel or patterns, and its sender."""

    verb: str
    names: tuple[str, ...] = ()
    sender: str = "me"  # or "other", with another session's clientId; or "nobody", with none
    timeout_ms: int | None = None
    interval_ms: int | None = None
    ack: str = "newest"  # of the batches received; or "older", or "none"


@dataclass
class Waiting:
    """A publish that the policy has not decided yet."""

    wait: AwaitHook
    peer: Peer
    channel: str
    number: int
    connection: int
    transport: Transport


class ThoughtfulPolicy:
    """A policy that decides later about messages with `slow` in their `ext`."""

    def can_publish(self, _session: object, _channel: str, message: Message) -> Any:
        return _Later() if (message.ext or {}).get("slow") else True


class _Later:
    """An awaitable that the engine must not await."""

    def __await__(self) -> Any:
        raise AssertionError("the engine awaits nothing")


class Connection(int):
    """The number of a connection, which keeps in `late` what is written to it."""

    late: list[tuple[int, Reply | AbortConnection]]

    def __new__(cls, number: int, late: list[tuple[int, Reply | AbortConnection]]) -> Connection:
        made = super().__new__(cls, number)
        made.late = late
        return made

    def write(self, outcome: Reply | AbortConnection) -> None:
        """Keep what is written."""
        self.late.append((int(self), outcome))


class Twins:
    """The engine and the model. Settings are as in `settings.Bayeux` and `settings.Limits`.

    If `hurries`, there is no policy, so that lone publishes leave the engine's general way early.
    """

    def __init__(
        self, *, queue_events: int, slots: int, connect_delivery_only: bool, echoes: bool, hurries: bool = False
    ) -> None:
        options = Bayeux(
            holds_per_browser=slots, connect_delivery_only=connect_delivery_only, broadcast_to_publisher=echoes
        )
        self.options, self.policy_s = options, options.policy_s
        self.broker = Broker(Limits(queue_events=queue_events))
        ids = (f"{number:040x}" for number in count(1))
        hooks = Hooks()
        self.hurries = hurries
        if not hurries:
            hooks.policy = ThoughtfulPolicy()  # type: ignore[assignment]
        rights = DefaultRules(loopback=True, anonymous_publish=True)
        self.engine = BayeuxEngine(self.broker, options, rights, hooks, new_id=lambda: next(ids))
        self.model = Model(
            max_interval_s=options.max_interval_s,
            hold_s=options.hold_s,
            slots=slots,
            slot_interval_s=options.browser_interval_s,
            queue=queue_events,
        )
        self.late: list[
            tuple[int, Reply | AbortConnection]
        ] = []  # what was written to connections after their requests
        self._connections = (Connection(number, self.late) for number in count(1))
        self._numbers = count(1)
        self.got: dict[Peer, list[int]] = {}  # the events that each client has processed
        self.seen: dict[Peer, list[int]] = {}  # with acks: the numbers of the batches that it has processed
        self.flights: list[tuple[Peer, Reply, Flight]] = []  # replies whose fate is not yet reported
        self.held: list[tuple[BayeuxSession, Any]] = []  # the session and the connection of all held connects
        self.waiting: list[Waiting] = []

    # Steps

    def handshake(self, *, acks: bool, cookie: str | None) -> Peer:
        message: dict[str, Any] = {
            "channel": "/meta/handshake",
            "version": "1.0",
            "supportedConnectionTypes": ["long-polling"],
            "ext": {"ack": acks},
        }
        outcome = self.engine.receive(_request([message], cookie), self.model.now)
        assert isinstance(outcome, Reply)
        [reply] = json.loads(outcome.body())
        assert reply["successful"]
        assert reply.get("ext", {}).get("ack", False) is acks
        assert (outcome.set_cookie is None) is (cookie is not None)
        peer = Peer(
            reply["clientId"],
            cookie or outcome.set_cookie or "",
            is_bound=cookie is not None,
            acks=acks,
            deadline=self.model.now + self.model.max_interval_s,
        )
        self.model.peers.append(peer)
        self.got[peer], self.seen[peer] = [], []
        return peer

    def exchange(
        self,
        peer: Peer,
        ops: list[Op],
        shown: str = "own",
        fate: str = "written",
        transport: Transport = Transport.LONG_POLLING,
        other: Peer | None = None,
    ) -> None:
        """Send a request and handle its reply; `shown` selects the cookie that it carries."""
        senders = {"me": peer, "other": other or peer, "nobody": None}
        cookie = {"own": peer.cookie, "none": None, "wrong": _STRANGER}[shown]
        connection = next(self._connections)
        numbers = [next(self._numbers) for _ in ops]
        acks = [self._ack(op, senders[op.sender]) for op in ops]
        messages = [_message(op, senders[op.sender], *more) for op, *more in zip(ops, numbers, acks, strict=True)]
        outcome = self.engine.receive(_request(messages, cookie, transport, connection), self.model.now)

        # The request's session is that of its first message with a clientId (A54).
        named = next((senders[op.sender] for op in ops if op.sender != "nobody"), None)
        session = named if named is not None and self.model.admit(named, cookie) else None
        successes = []
        for op, number in zip(ops, numbers, strict=True):
            sender = senders[op.sender]
            may = session is not None and sender is session and not session.is_over
            if sender is None:  # by POST only
                may = transport is Transport.LONG_POLLING
            if may and op.verb != "connect":
                self._perform(op, number, sender)
            successes.append(may)
        places = [place for place, op in enumerate(ops) if op.verb == "connect"]
        events: list[int] | None = []
        for place in places:  # connects are processed last
            successes[place] = successes[place] and session is not None and not session.is_over
            if session is not None and successes[place]:
                last = place == places[-1]
                events = self._connect(session, ops[place], acks[place], connection, alone=len(ops) == 1, last=last)
                successes[place] = not session.is_over
        if not places and session is not None:
            events = self._ride(session, connection, transport)

        assert isinstance(outcome, Hold if events is None else Reply)
        if isinstance(outcome, Hold):
            self.held.append((outcome.session, outcome.connection))
        else:
            replies = json.loads(outcome.body())
            assert [reply["channel"] for reply in replies[: len(ops)]] == [message["channel"] for message in messages]
            assert [reply["successful"] for reply in replies[: len(ops)]] == successes
            assert [event["data"] for event in replies[len(ops) :]] == events
            self._dispatch(session, outcome, fate)
        self.collect(fate)

    def publish_slowly(self, peer: Peer, channel: str, shown: str, transport: Transport) -> None:
        """Send a publish that the policy does not decide immediately."""
        cookie = {"own": peer.cookie, "none": None, "wrong": _STRANGER}[shown]
        connection, number = next(self._connections), next(self._numbers)
        message = _message(Op("publish", (channel,)), peer, number, None) | {"ext": {"slow": True}}
        outcome = self.engine.receive(_request([message], cookie, transport, connection), self.model.now)
        if not self.model.admit(peer, cookie):
            assert isinstance(outcome, Reply)
            return
        assert isinstance(outcome, AwaitHook)
        if peer.held is None:
            peer.deadline = max(peer.deadline, self.model.now + self.policy_s + self.model.max_interval_s)
        self.waiting.append(Waiting(outcome, peer, channel, number, connection, transport))

    def decide(self, waiting: Waiting, fate: str, *, grants: bool) -> None:
        """Let the policy grant, or let its time run out."""
        self.waiting.remove(waiting)
        verdict = Verdict(value=True) if grants else Verdict(error=TimeoutError())
        outcome = self.engine.resume(waiting.wait, verdict, self.model.now)
        peer = waiting.peer
        may = grants and not peer.is_over
        if may:
            self._perform(Op("publish", (waiting.channel,)), waiting.number, peer)
        events = self._ride(peer, waiting.connection, waiting.transport)
        assert isinstance(outcome, Reply)
        first, *rest = json.loads(outcome.body())
        assert first["successful"] is may
        assert [event["data"] for event in rest] == events
        self._dispatch(peer, outcome, fate)
        self.collect(fate)

    def settle(self, which: int, fate: str) -> None:
        """Report how a reply ended, after other steps."""
        peer, reply, flight = self.flights.pop(which)
        self._report(peer, reply, flight, fate)
        self.collect("written")

    def drop(self, session: BayeuxSession, connection: Any) -> None:
        """Let a client close the socket of a connect that was held, maybe too late to have an effect."""
        for peer in self.model.peers:
            if peer.held == connection:
                self.model.lost(peer)
        self.engine.sessions.lost(session, connection, self.model.now)

    def turn(self, fate: str) -> None:
        """Let the event loop turn."""
        self.model.turn()
        self.broker.flush(self.model.now)
        self.collect(fate)

    def pass_time(self, seconds: float, fate: str) -> None:
        self.model.pass_time(seconds)
        self.broker.due(self.model.now)
        self.collect(fate)

    def dismiss(self, peer: Peer) -> None:
        """End a session as the program does."""
        session = self.engine.sessions.find(peer.id, _request([], peer.cookie), self.model.now)
        assert session is not None
        peer.is_bound = True
        self.engine.sessions.leave(session, self.model.now, by_client=False)
        self.model.end(peer, DISMISSED)
        self.collect("written")

    def drain(self, fate: str) -> None:
        """Begin to shut down, so that handshakes are refused and no connect is held; then undo it."""
        sessions = self.engine.sessions.drain()
        assert {session.id for session in sessions} == {peer.id for peer in self.model.peers if peer.held is not None}
        self.model.is_draining = True
        for session in sessions:
            self.engine.sessions.drain_session(session, self.model.now)
        for peer in self.model.alive():
            if peer.held is not None:
                self.model.answer_held(peer)
        self.collect(fate)
        for peer in self.model.alive():
            self.exchange(peer, [Op("connect")], "own", fate)
        self.engine.replies.advisor.is_draining = self.model.is_draining = False

    def collect(self, fate: str) -> None:
        """Check that held or half answered connects have received exactly what the model expects."""
        for outlet in [each for each in self.broker.ready if not isinstance(each, Session)]:
            self.broker.ready.remove(outlet)
            for link, output in outlet.flush(self.model.now):
                link.write(output)
        while self.late:
            connection, reply = self.late.pop(0)
            peer, end, events = self.model.answers[connection].pop(0)
            assert isinstance(reply, AbortConnection) is (end is ABORT)
            if isinstance(reply, AbortConnection):
                continue
            first, *rest = json.loads(reply.body())
            assert first["channel"] == "/meta/connect"
            assert [message["data"] for message in rest if "data" in message] == events
            if self.model.answers[connection]:  # aborted before it could be written
                self._tell(reply, is_written=False)
            elif end is REPLY:
                self._dispatch(peer, reply, fate)
            else:
                assert first["advice"]["reconnect"] == {DISMISSED: "none", REFUSED: "handshake"}[end]
                self._tell(reply, is_written=True)
        assert not any(self.model.answers.values())

    # How messages take effect in the model

    def _perform(self, op: Op, number: int, sender: Peer | None) -> None:
        if op.verb == "publish":
            self.model.publish(op.names[0], number, without=None if self.options.broadcast_to_publisher else sender)
        elif sender is not None and op.verb == "subscribe":
            sender.patterns.update(op.names)
        elif sender is not None and op.verb == "unsubscribe":
            sender.patterns.difference_update(op.names)
        elif sender is not None:
            self.model.end(sender, DISMISSED)

    def _connect(
        self, peer: Peer, op: Op, ack: int | None, connection: int, *, alone: bool, last: bool
    ) -> list[int] | None:
        peer.interval_s = min((op.interval_ms or 0) / 1000, LONGEST_INTERVAL_S)
        if peer.acks and ack is not None:
            peer.acknowledge(ack)
        wait_s = None if op.timeout_ms is None else op.timeout_ms / 1000
        return self.model.connect(peer, connection, wait_s, alone=alone, last=last)

    def _ride(self, peer: Peer, connection: int, transport: Transport) -> list[int]:
        """Return the events that are sent on a reply to any message but a connect (A51, A66, B17)."""
        may = transport is Transport.LONG_POLLING and not self.options.connect_delivery_only
        if not may or peer.is_over or peer.acks or peer.flight is not None:
            return []
        return self.model.send(peer, connection, answers_connect=False)

    def _ack(self, op: Op, peer: Peer | None) -> int | None:
        """Return the batch that the client acknowledges: the newest, or an older one again."""
        if peer is None or op.verb != "connect" or op.ack == "none":
            return None
        seen = self.seen[peer] or [0]
        return seen[-1] if op.ack == "newest" else seen[len(seen) // 2 - 1]

    # How replies travel

    def _dispatch(self, peer: Peer | None, reply: Reply, fate: str) -> None:
        if peer is None:
            self._tell(reply, is_written=True)
            return
        flight = peer.flight
        if flight is None or flight.connection != reply.connection:
            flight = Flight(0, [], 0, answers_connect=False)  # no events
        if fate == "later":
            self.flights.append((peer, reply, flight))
        else:
            self._report(peer, reply, flight, fate)

    def _report(self, peer: Peer, reply: Reply, flight: Flight, fate: str) -> None:
        """Report how a reply ended, to the client, the model and the engine."""
        is_written = fate == "written"
        if is_written and (peer.flight is flight or not flight.events):
            self._process(peer, flight, json.loads(reply.body()))
        self.model.settle(peer, flight, is_written=is_written)
        self._tell(reply, is_written=is_written)

    def _process(self, peer: Peer, flight: Flight, messages: list[dict[str, Any]]) -> None:
        """Let the client read a reply; with acks a repeated batch replaces the events from its start on."""
        got = self.got[peer]
        if flight.events:
            assert len(got) >= flight.start
            assert peer.acks or len(got) == flight.start
            got[flight.start :] = flight.events
        for message in messages:
            batch = message.get("ext", {}).get("ack")
            if batch is not None and batch > max(self.seen[peer], default=0):
                self.seen[peer].append(batch)

    def _tell(self, reply: Reply, *, is_written: bool) -> None:
        (self.engine.sessions.settle if is_written else self.engine.sessions.take_back)(reply)


def _request(
    messages: list[dict[str, Any]],
    cookie: str | None,
    transport: Transport = Transport.LONG_POLLING,
    connection: int = 0,
) -> Request:
    return Request(messages, transport, connection, () if cookie is None else (cookie,))


def _message(op: Op, sender: Peer | None, number: int, ack: int | None) -> dict[str, Any]:
    message: dict[str, Any] = {"id": number}
    if sender is not None:
        message["clientId"] = sender.id
    if op.verb == "publish":
        return message | {"channel": op.names[0], "data": number}
    message["channel"] = f"/meta/{op.verb}"
    if op.verb == "connect":
        message["connectionType"] = "long-polling"
        wanted = {"timeout": op.timeout_ms, "interval": op.interval_ms}
        advice = {name: value for name, value in wanted.items() if value is not None}
        if advice:
            message["advice"] = advice
        if ack is not None:
            message["ext"] = {"ack": ack}
    elif op.names:
        message["subscription"] = op.names[0] if len(op.names) == 1 else list(op.names)
    return message
