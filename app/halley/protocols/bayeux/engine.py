"""The Bayeux engine: it handles requests. One engine serves all HTTP connections.

It does no I/O and uses no clock (`now` is monotonic seconds), and never raises on bad input.

The messages of a request are handled strictly in order (Bayeux 1.0, 5.2), except that connects come last: the effects
of the other messages on the session are then part of the connect's reply, so that a client that batches
`[connect, publish]` gets its event without delay. Replies keep the order of the request; events follow them.

Where a request has to wait, for a program's hook or for the disk, its handling goes on later: it is a generator
(`outcomes.Steps`), which yields what is to be awaited. A long request waits for others, too: it is handled in pieces,
one in each turn of the loop (`RequestHandler.is_long`). Nearly all requests need nothing of that: `fast.py` has them.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.names import Pattern
from halley.broker.policy import Identities, NoIdentities, Rights
from halley.broker.ports import Page, Query, Reader
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.authorization import Authorization, Channels
from halley.protocols.bayeux.errors import BayeuxError
from halley.protocols.bayeux.extensions import Timesync
from halley.protocols.bayeux.fast import FastPath
from halley.protocols.bayeux.handshake import HandshakeHandler
from halley.protocols.bayeux.history import Replayer
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.messages import Message, reply_to
from halley.protocols.bayeux.names import CONNECT, HANDSHAKE, META, SERVICE, SUBSCRIBE
from halley.protocols.bayeux.outcomes import (
    WEBSOCKET,
    AwaitHook,
    AwaitTurn,
    Deferred,
    Misdirected,
    Outcome,
    Paused,
    Request,
    Steps,
    Verdict,
    kind_of_hold,
)
from halley.protocols.bayeux.publishing import PublishHandler, is_publish, names_predecessor
from halley.protocols.bayeux.replies import Replies, turned
from halley.protocols.bayeux.request import RequestHandler, client_id_of
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.protocols.bayeux.sessions import Sessions
from halley.protocols.bayeux.subscribing import SubscribeHandler
from halley.settings import Bayeux, Lazy

_NO_IDENTITIES = NoIdentities()
_UNUSUAL: Final = frozenset((META, SERVICE[: len(META)]))  # beginnings of names, of this length:
_UNUSUAL_CHARS: Final = len(META)
_USUAL_FIELDS: Final = 4  # channel, clientId, id, and connectionType or data
_LOCAL_FIELDS: Final = 2  # channel and data
_ID_BYTES = 20  # Bayeux 1.0, 3.2: "SHOULD be at least 128 bits"; as hexadecimal it is alphanumeric


def new_id() -> str:
    """Make the id of a session or a browser, which nobody can guess."""
    return secrets.token_hex(_ID_BYTES)


class BayeuxEngine:
    """Handles requests; `sessions` keeps what lasts longer than one of them, and `replies` makes what is written.

    `rights` decides what a session may do, and `identities` what a token proves. `connection_types` is what handshake
    replies offer. `new_id` makes session ids and cookies. `read` reads the history, if there is one.

    In a cluster `node_of` returns the id of the other node that has the session with a given id, which lives for a
    given time without a request; None if none has it. `lazy` are the rules of the settings.
    """

    def __init__(  # noqa: PLR0913 - what a server has
        self,
        broker: Broker,
        options: Bayeux,
        rights: Rights,
        hooks: Hooks,
        *,
        identities: Identities = _NO_IDENTITIES,
        connection_types: Sequence[str] = ("long-polling", "callback-polling"),
        new_id: Callable[[], str] = new_id,
        read: Callable[[Query, Reader], Awaitable[Page]] | None = None,
        node_of: Callable[[str, float], str | None] | None = None,
        lazy: Sequence[Lazy] = (),
    ) -> None:
        self.broker = broker
        self.options = options
        self.hooks = hooks
        self.identities = identities
        self._node_of = node_of
        self.replies = Replies(broker, options, hooks, connection_types)
        history = Replayer(broker, options, hooks, self.replies.advisor, read)
        self.sessions = Sessions(broker, options, rights, hooks, self.replies, history, lazy, new_id)
        self.bounds = bounds = self.sessions.bounds
        self._history = history
        self._authorization = authorization = Authorization(broker, rights, hooks, bounds)
        self._handshakes = HandshakeHandler(self.sessions, identities, authorization)
        self._publishes = PublishHandler(broker, rights, hooks, self.sessions, authorization)
        self._subscriptions = SubscribeHandler(broker, hooks, bounds, history, authorization)
        self.fast = FastPath(self.sessions, self.replies, self._publishes, identities, hooks)

    # What a transport calls

    def receive(self, request: Request, now: float) -> Outcome:
        """Handle a request's messages in order, as far as possible without waiting. Raises `Misdirected`."""
        messages = request.messages
        if len(messages) == 1:
            outcome = self.fast.receive(request, messages[0], now)
            if outcome is not None:
                return outcome
        if self._node_of is not None:
            self._check_node(request, self._node_of)
        return self.receive_here(request, now)

    def receive_here(self, request: Request, now: float) -> Outcome:
        """Handle a request, even if its session is another node's; it is unknown then."""
        return self._go_on(self._steps(RequestHandler(self.sessions, self.identities, request, now)))

    def resume(self, wait: AwaitHook, verdict: Verdict, now: float) -> Outcome:
        """Continue a request with the result of its `AwaitHook`."""
        assert wait.steps is not None
        return self._go_on(wait.steps, (verdict, now))

    # What the program does with sessions

    def subscribe(self, session: BayeuxSession, name: str, pattern: Pattern, now: float) -> None:
        """Subscribe a session to a pattern, without asking whether it may; no effect if the session has ended.

        A session that replays gets its events from now on. The subscription is the program's own from now on, also if
        the client had it before: changed rules leave it.
        """
        if session.closed is None:
            self._subscriptions.add(session, {name: pattern}, {}, now)
            if pattern in session.subscriptions:  # no hook has ended it
                session.subscriptions[pattern].sessions[session] = True

    def unsubscribe(self, session: BayeuxSession, name: str, pattern: Pattern) -> None:
        """End a session's subscription to a pattern, and what it has yet to replay of that; no effect without one."""
        if pattern in session.subscriptions:
            self._subscriptions.remove(session, {name: pattern})

    # What the server calls

    def begin(self, now: float) -> None:
        """Admit sessions and hold connects from now on, without what an earlier run has left."""
        self._handshakes.begin()
        self.sessions.begin(now)

    @property
    def channels(self) -> Channels:
        """The names of the channels in use, and of those that `sweep` has not forgotten yet."""
        return self._authorization.channels

    def sweep(self, now: float) -> bool:
        """Forget channels that are no longer used; to be called a few times a second. True if there are more."""
        return self._authorization.sweep(now)

    # One request

    def _check_node(self, request: Request, node_of: Callable[[str, float], str | None]) -> None:
        """Check that the request's session, if it has one, is not another node's. Raises `Misdirected`."""
        if request.session is not None or request.messages[0].get("channel") == HANDSHAKE:
            return
        client_id = client_id_of(request)
        if client_id is not None and client_id not in self.broker.sessions:
            node = node_of(client_id, self.options.max_interval_s)
            if node is not None:
                raise Misdirected(node, request)

    def _go_on(self, steps: Steps, result: tuple[Verdict, float] | None = None) -> Outcome:
        """Continue a request's steps until they end, with its reply or hold, or have to wait."""
        try:
            wait = steps.send(result)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            outcome: Reply | Hold = end.value
            return outcome
        wait.steps = steps
        if isinstance(wait, Paused):
            wait.proceed = self._proceed
        if isinstance(wait, AwaitTurn):
            self.broker.mark_ready_later(wait)
        return wait

    def _proceed(self, wait: Paused, now: float) -> None:
        """Continue a request whose publishes are settled, or whose turn it is; its outcome is written later."""
        assert wait.steps is not None
        outcome = self._go_on(wait.steps, (Verdict(), now))
        if not isinstance(outcome, Deferred):
            wait.request.is_paused = isinstance(outcome, AwaitHook)
            self.sessions.write_later(wait.request, outcome)

    def _steps(self, handler: RequestHandler) -> Steps:
        """Handle a request's messages in their order; connects come last. Returns the reply, or the hold."""
        messages, replies = handler.request.messages, handler.replies
        if messages[0].get("channel") == HANDSHAKE:
            # Bayeux 1.0, 4.1.1: "any other messages in the same request MUST be ignored".
            return (yield from self._handshakes.steps(handler, messages[0]))
        handler.choose_session()
        connects: list[tuple[int, Message]] = []
        for fields in messages:
            if handler.is_long():
                if handler.held_back and names_predecessor(fields):
                    yield from handler.commits()  # events of two turns are stored or refused apart
                yield from handler.next_turn()
            if handler.held_back and not is_publish(fields.get("channel")):
                yield from handler.commits()
            try:
                reply = self.fast.publish_in_batch(handler, fields)
                if reply is not None:
                    replies.append(reply)
                    continue
                message = handler.read(fields)
                if message.channel == CONNECT:
                    connects.append((len(replies), message))
                    replies.append({})
                else:
                    replies.append((yield from self._answer(handler, message)))
            except BayeuxError as fault:
                replies.append(
                    self.replies.refusal_within_rate(handler.session, fields, fault, handler.address, handler.now)
                )
        return (yield from self._finish(handler, connects))

    def _answer(self, handler: RequestHandler, message: Message) -> Steps:
        """Handle any message but a handshake or connect, and return its reply. Raises `BayeuxError`."""
        channel = message.channel
        handler.has_paused = False
        reply = reply_to(message.sent, successful=True)
        # By exact name: a prefix match once let /meta/subscribe/x past the checks of Faye (CVE-2020-11020).
        if channel == SUBSCRIBE:
            yield from self._subscriptions.subscribe(handler, message, reply)
        elif channel == "/meta/unsubscribe":
            yield from self._subscriptions.unsubscribe(handler, message, reply)
        elif channel == "/meta/disconnect":
            session = handler.session_of(message)
            reply["clientId"] = session.id
            self.sessions.leave(session, handler.now, by_client=True)
        elif channel == HANDSHAKE:
            raise BayeuxError(errors.HANDSHAKE_NOT_FIRST)
        else:
            yield from self._publishes.publish(handler, message, reply)
        return reply

    def _finish(self, handler: RequestHandler, connects: Sequence[tuple[int, Message]] = ()) -> Steps:
        """Handle a request's connects, each with the place of its reply, once its publishes are settled.

        Returns its reply, or the hold.
        """
        yield from handler.commits()
        if handler.latest:
            self._subscriptions.deliver_last_values(handler)
        request, replies, session = handler.request, handler.replies, handler.session
        events: list[Event] = []
        for place, message in connects:
            try:
                hold = self._hold_of(handler, message)
            except BayeuxError as fault:
                replies[place] = self.replies.refusal(session, message.sent, fault)
                continue
            hold.carries_events = is_last = place == connects[-1][0]
            if is_last and self._history.is_behind(hold.session):
                is_newest, handler.now = yield from self._history.catch_up(hold, handler.now)
                if not is_newest:
                    replies[place] = self._late_reply(hold, handler.now)
                    continue
            if self.sessions.connect(hold, handler.now):
                return hold
            if hold.session.closed is not None:  # by a hook that was notified of the older connect's end
                replies[place] = self.replies.refusal(session, message.sent, BayeuxError(errors.SESSION_UNKNOWN))
                continue
            spent_bytes = handler.reply_bytes() if is_last and len(hold.session.outbox) else 0
            replies[place], events = self.sessions.connect_reply(hold, handler.now, spent_bytes)
        if not connects and session is not None:
            events = self.sessions.events_with_reply(session, request.transport, handler.now, handler.reply_bytes)
        reply = self.replies.make(session, [*replies, *handler.extra], events, handler.now, request.connection)
        reply.answers_connect = bool(connects)
        if request.transport is WEBSOCKET and any(message.get("channel") == SUBSCRIBE for message in request.messages):
            reply.subscribes = True
            reply.parts = turned(reply.parts, len(reply.parts) - len(replies) - len(handler.extra))  # events come last
        return reply

    def _hold_of(self, handler: RequestHandler, message: Message) -> Hold:
        """Make the hold that a connect asks for. Raises `BayeuxError`."""
        session = handler.session_of(message)
        offered = self.replies.connection_types
        if message.fields.get("connectionType") not in offered:
            raise BayeuxError(errors.CONNECTION_TYPES_UNSUPPORTED.format(",".join(offered)))
        hold_s = session.hold_s if len(handler.request.messages) == 1 else 0.0
        kind = kind_of_hold(handler.request.transport)
        hold = kind(session, handler.request.connection, message.sent.get("id"), hold_s)
        interval_s = None
        if message.advice is not None:
            hold.wants_advice = True
            timeout_ms, interval_ms = message.milliseconds("timeout"), message.milliseconds("interval")
            if timeout_ms is not None:
                hold.wait_s = min(timeout_ms / 1000, hold_s)
            if interval_ms is not None:
                interval_s = min(interval_ms / 1000, self.options.max_client_interval_s)
        session.client_interval_s = interval_s
        if message.ext is not None:
            batch = message.ext.get("ack")
            if session.acks is not None and type(batch) is int:
                session.outbox.release(session.acks.acknowledge(batch))
            hold.timesync = Timesync.read(message.ext, self.sessions.wall_s(handler.now))
        return hold

    def _late_reply(self, hold: Hold, now: float) -> dict[str, Any]:
        """Make the reply to a connect that a newer one has overtaken; it does not move the session's deadline."""
        session, deadline = hold.session, hold.session.deadline
        hold.carries_events = False
        reply, _ = self.sessions.connect_reply(hold, now)
        self.broker.touch(session, deadline)
        session.forget_advice()  # clients ignore this reply
        return reply
