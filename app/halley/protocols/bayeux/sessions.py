"""The sessions of all Bayeux clients and their polls: which connects are held, what ends a hold, and their replies.

What happens to a session between its requests (events, deadlines, dead sockets, changed rights) is decided by the table
in `session.py`; `Sessions` does what the table says.

Nothing is lost when a poll's socket dies. Events leave a session's outbox with a `Reply`. Until the transport settles
that reply, no further events leave the outbox; if it takes the reply back, the events return to the front of the outbox
in their order. With the acknowledge extension they stay in `session.acks` until the client confirms them.

A session whose latest connect came by a WebSocket has its events written there at once (`BayeuxSession.is_pushed`), and
the connect stays held. Its next connect may come by another WebSocket or by a poll: what the former one had not written
yet goes the new way, and a connect that is still held there is answered with the advice to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any

from halley.broker.broker import Broker
from halley.broker.events import Event
from halley.broker.flow import GRACE_S
from halley.broker.names import is_reserved
from halley.broker.policy import SERVER, Rights
from halley.broker.sessions import FAULT, Outputs, Session
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.history import Replayer
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.lazy import Laziness
from halley.protocols.bayeux.messages import encode, encode_data
from halley.protocols.bayeux.names import CONNECT, NameLimits, topics
from halley.protocols.bayeux.outcomes import (
    CALLBACK_POLLING,
    LONG_POLLING,
    WEBSOCKET,
    AbortConnection,
    LateOutcome,
    Outcome,
    Request,
    Transport,
)
from halley.protocols.bayeux.replies import Replies
from halley.protocols.bayeux.revoking import revoke
from halley.protocols.bayeux.session import (
    DISCONNECTED,
    DISMISSED,
    DRAINED,
    EXPIRED,
    INACTIVE,
    ROWS,
    SLOW_CONSUMER,
    TOKEN_EXPIRED,
    Action,
    BayeuxSession,
    Hold,
    Reply,
    Trigger,
)
from halley.protocols.contract import INTERNAL_ERROR, POLICY_VIOLATION, Close
from halley.settings import Bayeux, Lazy

_CHECK_S = 1.0
"""How often it is checked whether the answer that a client is reading has been written."""


class Sessions:
    """The sessions of all clients, which it owns (`broker.sessions.SessionHandler`), and their connects.

    `new_id` makes the ids of sessions and browsers. `holds_by_browser` are the numbers of held connects, by the browser
    that they count for. `connects` counts connects, and `put_back` the events whose reply did not reach its socket.
    """

    def __init__(
        self,
        broker: Broker,
        options: Bayeux,
        rights: Rights,
        hooks: Hooks,
        replies: Replies,
        history: Replayer,
        lazy: Iterable[Lazy],
        new_id: Callable[[], str],
    ) -> None:
        self.broker = broker
        self.options = options
        self.rights = rights
        self.hooks = hooks
        self.replies = replies
        self.advisor = replies.advisor
        self.history = history
        self._inactive_s = 0.0 if options.activity == "off" else options.activity_s
        self.new_id = new_id
        self.bounds = NameLimits(broker.limits.topic_chars, broker.limits.topic_segments)
        self.to_topic = topics(self.bounds)
        self.laziness = Laziness(broker, lazy, options.lazy_s, self.bounds)
        self.holds_by_browser: dict[str, int] = {}
        self.connects = 0
        self.put_back = 0
        # The hooks' own lists, and a setting: as attributes of what is compiled they are found faster.
        self._extensions, self._suspended, self._resumed = hooks.extensions, hooks.suspended, hooks.resumed
        self._has_timestamps = options.timestamp
        self._most_holds = inf if options.holds_per_browser < 0 else options.holds_per_browser

    @property
    def holds(self) -> int:
        """The number of connects that are being held."""
        return sum(self.holds_by_browser.values())

    # What a transport reports

    def settle(self, reply: Reply) -> None:
        """Note that all of a reply has been written to its socket, or that it was taken back."""
        session = reply.session
        if session is not None:
            if session.replay is not None:
                self.history.settled(reply, is_written=True)
            if session.unsettled is reply:
                session.unsettled = None
                if (session.held is not None or session.socket is not None) and len(session.outbox):
                    self.broker.mark_ready(session)
        reply.is_settled = True
        for event in reply.events:
            event.refs -= 1  # `QueuedBytes.release`, inlined
            if not event.refs:
                self.broker.waiting.drop(event)
        reply.events = []

    def take_back(self, reply: Reply) -> None:
        """Return the events of a reply to its session: the connection was lost before all of it was written."""
        session = reply.session
        if not reply.is_settled and session is not None and session.closed is None:
            session.forget_advice()  # its advice may not have arrived either
            self.history.settled(reply, is_written=False)
            session.last_lazy = None
            if session.acks is None:
                events, reply.events = reply.events, []
                session.outbox.put_back(events)
                self.put_back += sum(not is_reserved(event.topic) for event in events)
        self.settle(reply)

    def delayed(self, reply: Reply, now: float) -> None:
        """Note that a reply is not all written yet: its session's time stands still until `settle_delayed`."""
        session = reply.session
        if session is not None:
            session.delayed += 1
            reply.left_s = 0.0 if session.state == "held" else session.deadline - now

    def settle_delayed(self, reply: Reply, now: float, *, is_written: bool) -> None:
        """Settle a reply that was `delayed`, or take it back."""
        if is_written:
            self.settle(reply)
        else:
            self.take_back(reply)
        session = reply.session
        if session is not None:
            session.delayed -= 1
            if session.state != "held":
                self.broker.touch(session, max(session.deadline, now + reply.left_s))

    def lost(self, session: BayeuxSession, connection: Any, now: float) -> None:
        """Note that a connection was lost; no effect if the session's connect on it has been answered.

        If its events went by that connection, a WebSocket, they wait for its next connect from now on.
        """
        held = session.held
        if held is not None and held.connection is connection:
            self._apply(session, "lost", now)
        if session.socket is connection:
            session.socket = None
            session.reads_until = min(session.reads_until, now + GRACE_S)

    # What the broker calls (sessions.SessionHandler)

    def due(self, session: Session, now: float) -> None:
        """Handle a deadline: the hold or the session has timed out, or the token has expired."""
        assert isinstance(session, BayeuxSession)
        if session.expiry <= now:
            self._apply(session, "cut", now, TOKEN_EXPIRED)
        elif session.delayed and session.state != "held":
            self.broker.touch(session, now + _CHECK_S)  # `settle_delayed` moves it again
        elif not self.laziness.are_due(session, now):
            self._apply(session, "timeout", now)

    def flush_session(self, session: Session, now: float) -> Outputs:
        """Write the new events, or answer a held connect with them, or because there is news of a replay."""
        assert isinstance(session, BayeuxSession)
        if self.laziness.is_used and self.laziness.is_deferred(session, now) and not self._has_news(session, now):
            return ()
        if session.socket is not None and session.is_pushed:
            session.socket.push(session, now)
            return ()
        if session.held is None:
            return ()
        has_events = session.outbox.queue and session.unsettled is None and not session.open_batches  # nearly always
        if not has_events and not self._has_news(session, now):
            return ()
        reply = self._transition(session, "events", now)
        return () if reply is None else ((reply.connection, reply),)

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Handle a full outbox: have it written if its client reads, else end the session as a slow consumer."""
        assert isinstance(session, BayeuxSession)
        socket = session.socket
        if socket is not None and session.is_pushed:
            socket.send(now)
        elif session.held is not None and session.unsettled is None:
            batches, session.open_batches = session.open_batches, 0  # better sent before the others than lost
            self._apply(session, "events", now)
            session.open_batches = batches
        if not session.outbox.put(event):
            self._end_slow(session, now)

    def too_slow(self, session: Session, now: float) -> None:
        """End a session as a slow consumer, and cut the connection on which a reply is still on its way."""
        assert isinstance(session, BayeuxSession)
        if session.unsettled is not None:
            self._cut_off(session.unsettled, SLOW_CONSUMER)
        self._end_slow(session, now)

    def rights_changed(self, session: Session, now: float) -> int:
        """Take away the subscriptions that the session's rights no longer grant; return their number."""
        assert isinstance(session, BayeuxSession)
        send = partial(self.send_to, session, now=now)
        return revoke(session, self.broker, self.rights, self.hooks, self.history, send)

    def fail(self, session: Session, now: float) -> None:
        """End the session, and refuse a held connect: the client has to begin another (`SessionHandler.fail`)."""
        assert isinstance(session, BayeuxSession)
        socket = session.socket
        self._apply(session, "cut", now, FAULT)
        if socket is not None:
            self.send(socket, Close([], INTERNAL_ERROR, FAULT))

    # Sessions

    def find(self, client_id: str, request: Request, now: float) -> BayeuxSession | None:
        """The session with that id, if the request may use it; the first request with its cookie binds it to that."""
        session = self.broker.sessions.get(client_id)
        if not isinstance(session, BayeuxSession) or session.role == SERVER:
            return None
        transport = request.transport
        if transport is not LONG_POLLING:
            # A script's request is any site's, with its visitors' cookies (S38).
            if transport is CALLBACK_POLLING and session.authid is not None:
                return None
            if transport is WEBSOCKET:
                if not request.connection.admits(session):
                    return None
                return session if self.admits(session, request.connection.cookies_for(session), now) else None
        return session if self.admits(session, request.cookies, now) else None

    def admits(self, session: BayeuxSession, cookies: Sequence[str], now: float) -> bool:
        """Whether a session continues, and a request with these cookies may use it."""
        if not session.admits(cookies, now):
            return False
        if session.expiry <= now:  # the sweeper runs only from time to time
            self.due(session, now)
        return session.closed is None

    def move(self, session: BayeuxSession, socket: Any, now: float) -> None:
        """Have a session's events go by a WebSocket from now on, or with None by replies to polls."""
        if session.socket is socket:
            return
        if (socket is None) is not (session.socket is None):
            session.forget_advice()
        session.socket = socket
        if socket is not None:
            socket.take(session, now)
            if len(session.outbox):
                self.broker.mark_ready(session)

    def begin(self, now: float) -> None:
        """Admit sessions and hold connects from now on, and end the clients' sessions that an earlier run has left."""
        self.advisor.is_draining = False
        for session in tuple(self.broker.sessions.values()):
            if isinstance(session, BayeuxSession) and session.role != SERVER:
                self._apply(session, "cut", now, DRAINED)

    def open(self, session: BayeuxSession, now: float) -> None:
        """Admit a session, and notify the hooks. Raises `AtCapacity`."""
        self.broker.open(session, now + session.max_interval_s, now)
        session.reads_until = now + GRACE_S
        session.active_at = now
        self.hooks.notify(self.hooks.session_opened, session)

    def keep_alive(self, session: BayeuxSession, now: float) -> None:
        """Keep a session for another `max_interval_s`, after any message but a connect."""
        session.active_at = now
        deadline = now + session.max_interval_s
        if session.state != "held" and session.deadline < deadline:
            self.broker.touch(session, deadline)

    def deliver(
        self, session: BayeuxSession, channel: str, data: Any, message_id: str | int | None, now: float
    ) -> bool:
        """Send an event to one session, subscribed or not; False if the session has ended.

        `message_id` is the id of the message that it answers, if any: cometd.js's remote calls find their caller by it.
        """
        event = Event(self.to_topic(channel), encode_data(data))
        if message_id is not None:
            event.frames["bayeux"] = encode({"channel": channel, "id": message_id, "data": data})
        return self.send_to(session, event, now)

    def send_to(self, session: BayeuxSession, event: Event, now: float) -> bool:
        """Send an event, which gets its time, to one session as `deliver` does."""
        event.time_us = int(self.wall_s(now) * 1_000_000)
        return self.broker.deliver(session, event, now)

    def leave(self, session: BayeuxSession, now: float, *, by_client: bool) -> None:
        """End a session at the request of its client, or else of this program."""
        self._apply(session, "leave", now, DISCONNECTED if by_client else DISMISSED)

    def drain(self, interval_s: Callable[[], float] | None = None) -> list[BayeuxSession]:
        """Stop holding connects and admitting sessions; return the sessions to `drain_session`.

        `interval_s` returns the seconds that a client that is released is to wait before it connects again.
        """
        self.advisor.is_draining = True
        if interval_s is not None:
            self.advisor.drain_interval = interval_s
        sessions = self.broker.sessions.values()
        return [session for session in sessions if isinstance(session, BayeuxSession) and session.held is not None]

    def drain_session(self, session: BayeuxSession, now: float) -> None:
        """Answer a session's held connect because the server is draining."""
        self._apply(session, "drain", now)

    # Connects and their replies

    def connect(self, hold: Hold, now: float) -> bool:
        """Handle a connect: True if it is held, False if the caller is to reply with `connect_reply`."""
        self.connects += 1
        session = hold.session
        if session.held is not None:
            self._replace(session.held, hold, now)
        half_written = session.unsettled
        if (
            half_written is not None
            and half_written.connection is not hold.connection
            and (half_written.answers_connect or half_written.connection is session.socket)
        ):
            self._cut_off(half_written, "replaced")
        if session.socket is not hold.socket:
            self.move(session, hold.socket, now)
        waits = hold.wait_s > 0 and not self.advisor.is_draining and not self._has_news(session, now)
        is_full = self._most_holds <= self.holds_by_browser.get(session.browser, 0)
        if is_full and waits and session.state == "idle" and hold.socket is None:
            self.broker.hits["holds_per_browser"] += 1
            hold.has_other_clients = hold.wants_advice = True
            waits = False
        if self._inactive_s and now - session.active_at > self._inactive_s and session.state == "idle":
            self._transition(session, "poll", now, hold)
            self._apply(session, "leave", now, INACTIVE)  # it is answered at the end of this turn
        else:
            self._transition(session, "poll" if waits else "connect", now, hold)
        return hold.browser != ""

    def connect_reply(self, hold: Hold, now: float, spent_bytes: int = 0) -> tuple[dict[str, Any], list[Event]]:
        """Make the reply to a connect whose session continues, with its events; other replies have `spent_bytes`."""
        more, events = self._advice_and_events(hold, now, spent_bytes)
        return self.replies.to_connect(hold, more), events

    def _advice_and_events(self, hold: Hold, now: float, spent_bytes: int = 0) -> tuple[dict[str, Any], list[Event]]:
        """Take the events that go with the reply to a connect, and return its advice and `ext`; few have any."""
        session = hold.session
        more: dict[str, Any] = {}
        interval_s = session.interval_s if session.client_interval_s is None else session.client_interval_s
        if hold.has_other_clients:
            interval_s = self.advisor.interval_s(hold)
        if (
            session.announced_interval_s != interval_s
            or session.announced_hold_s != session.hold_s
            or hold.wants_advice
            or self.advisor.is_draining
        ):
            more["advice"] = self.advisor.for_reply(hold, interval_s)
        carries_events = True
        if (
            not hold.carries_events
            or session.unsettled is not None
            or session.open_batches
            or (session.socket is not None and session.is_pushed)  # they are written before it
        ):
            carries_events, events = False, []
        elif session.acks is None:
            events = self.broker.take(session, now)
            if len(events) > 1:
                events = self.replies.limit_to_reply(session, events, spent_bytes, is_script=hold.is_script)
        else:
            events = self.replies.take(session, now, spent_bytes, is_script=hold.is_script)
        if session.acks is not None or session.cursor is not None or hold.timesync is not None:
            ext = self.replies.connect_ext(hold, now, with_events=carries_events)
            ext |= self.history.reply_ext(hold, with_events=carries_events)
            if ext:
                more["ext"] = ext
        if self._inactive_s and events and self.options.activity == "client_server":
            session.active_at = now
        session.reads_until = now + interval_s + GRACE_S
        self.broker.touch(session, now + interval_s + session.max_interval_s)
        return more, events

    def reply_to_connect(self, hold: Hold, now: float) -> Reply:
        """Make the response to a connect that was sent alone."""
        session, message_id = hold.session, hold.message_id
        more, events = self._advice_and_events(hold, now)
        if more or type(message_id) is not str or self._extensions or self._has_timestamps:
            reply = self.replies.make(session, [self.replies.to_connect(hold, more)], events, now, hold.connection)
        else:  # the same text; neither id has anything to escape (`messages.is_id`)
            text = f'{{"id":"{message_id}","channel":"{CONNECT}","successful":true,"clientId":"{session.id}"}}'
            reply = self.replies.of_texts(session, [text.encode()], events, events, hold.connection)
        reply.answers_connect = True
        return reply

    def events_with_reply(
        self,
        session: BayeuxSession,
        transport: Transport,
        now: float,
        spent_bytes: Callable[[], int] | None = None,
    ) -> list[Event]:
        """Take the waiting events that may go with a reply without a connect (Bayeux 1.0, 5.2).

        `spent_bytes` returns the bytes of the replies that they go with, if these are more than a publish's.
        """
        if (
            not len(session.outbox)
            or session.closed is not None
            or session.unsettled is not None
            or session.acks is not None
            or session.cursor is not None
            or session.connect_delivery_only
            or session.open_batches
            or session.socket is not None  # by which they go
            or transport is not LONG_POLLING
        ):
            return []
        return self.replies.take(session, now, 0 if spent_bytes is None else spent_bytes())

    def write_later(self, request: Request, outcome: Outcome) -> None:
        """Have the outcome of a request written that had to wait for the disk, or for its turn."""
        if request.transport is WEBSOCKET:
            request.connection.join(outcome)
        else:
            self.send(request.connection, outcome)

    def send(self, connection: Any, outcome: Outcome | AbortConnection | Close) -> None:
        """Have an outcome written to a connection at the end of this turn."""
        self.broker.mark_ready(LateOutcome(connection, outcome))

    def _cut_off(self, reply: Reply, reason: str) -> None:
        """Take back a reply that is not all written, and cut its connection."""
        self.take_back(reply)
        self.send(reply.connection, AbortConnection(reason))

    def _end_slow(self, session: BayeuxSession, now: float) -> None:
        socket = session.socket
        self._apply(session, "cut", now, SLOW_CONSUMER)
        if socket is not None:
            self.send(socket, Close([], POLICY_VIOLATION, "queue full"))

    def wall_s(self, now: float) -> float:
        """The wall clock, in seconds."""
        return now + self.broker.clock_offset_s

    def _has_news(self, session: BayeuxSession, now: float) -> bool:
        """Whether a connect is to be answered: events may go with its reply, or the replay has something to report."""
        if session.open_batches:
            return False
        outbox = session.outbox
        if (
            (outbox.queue or outbox.conflated is not None)
            and session.unsettled is None
            and not self.laziness.is_deferred(session, now)
        ):
            return not session.is_pushed
        if session.acks is not None and len(session.acks) and session.held is None:  # to be sent once more
            return True
        return session.cursor is not None and self.history.has_output(session)

    # Transitions

    def _replace(self, held: Hold, hold: Hold, now: float) -> None:
        """Answer a held connect because of a newer one."""
        if held.connection is hold.connection:
            held.wants_advice = False
        elif held.socket is not None or hold.socket is not None:
            # Two tabs would take the session from each other without a pause.
            held.has_other_clients = held.wants_advice = True
        self._apply(held.session, "replaced", now)

    def _apply(self, session: BayeuxSession, trigger: Trigger, now: float, reason: str = EXPIRED) -> None:
        """Make a transition, and have the reply to the held connect written, if that ends with it."""
        reply = self._transition(session, trigger, now, None, reason)
        if reply is not None:
            self.send(reply.connection, reply)

    def _transition(
        self, session: BayeuxSession, trigger: Trigger, now: float, hold: Hold | None = None, reason: str = EXPIRED
    ) -> Reply | None:
        """Do what the table in `session.py` says; the only place where a session's state changes.

        `hold` is the new connect, for `connect` and `poll`; `reason` is why the session ends, if it does. Returns the
        reply to the connect that was held, which the caller is to have written.
        """
        row = ROWS[session.state].get(trigger)
        if row is None:
            return None
        state, action = row
        session.state = state
        held, reply = session.held, None
        if held is not None:
            self._end_hold(held)
            try:
                if action == "answer_held":
                    reply = self.reply_to_connect(held, now)
                    is_usual = type(held) is Hold and held.timesync is None and not held.wants_advice
                    if is_usual:  # as the next one may be
                        held.connection, session.reusable_hold = None, held
                    return reply
                reply = self._last_reply(held, action, now, reason)
            except Exception:
                self.send(
                    held.connection, AbortConnection(FAULT)
                )  # its client would wait for an answer that never comes
                raise
            finally:
                if state == "closed":
                    self._close(session, reason, now)
        elif hold is not None and action == "hold":
            self._begin_hold(hold, now)
        elif state == "closed":
            self._close(session, reason, now)
        return reply

    def _close(self, session: BayeuxSession, reason: str, now: float) -> None:
        """End a session in the broker, and notify the hooks and the session's WebSocket."""
        socket, session.socket = session.socket, None
        if self.broker.close(session, reason):
            self.broker.hits["max_interval_s"] += reason == EXPIRED
            self.hooks.notify(self.hooks.session_closed, session, reason)
        if socket is not None:
            socket.await_session(now)

    def _last_reply(self, held: Hold, action: Action, now: float, reason: str) -> Reply | None:
        """Make the reply to a connect that is no longer held, for any reason but events and its timeout."""
        session = held.session
        if action == "release":
            interval_s = self.advisor.interval_s(held)
            session.reads_until = now + interval_s + GRACE_S
            self.broker.touch(session, now + interval_s + session.max_interval_s)
        elif action == "answer_empty":
            held.carries_events = False
            reply = self.reply_to_connect(held, now)
            if held.socket is None:
                reply.status = self.options.superseded_status
                session.forget_advice()  # clients ignore the reply to a connect that they have replaced
            return reply
        elif action == "dismiss":
            return self.replies.dismiss(held, self.history.reply_ext, now, is_by_server=reason != DISCONNECTED)
        elif action == "refuse":
            error = errors.EXPIRED_TOKEN if reason == TOKEN_EXPIRED else errors.SESSION_UNKNOWN
            return self.replies.refuse_connect(held, error, now)
        return None

    def _begin_hold(self, hold: Hold, now: float) -> None:
        """Hold a connect, and count it for its browser."""
        session = hold.session
        session.held = hold
        holds = self.holds_by_browser
        hold.browser = browser = session.browser if session.socket is None else session.id
        holds[browser] = holds.get(browser, 0) + 1
        session.reads_until = inf
        self.broker.touch(session, now + hold.wait_s)
        if self.laziness.is_used:
            self.laziness.begin(hold, now)
        if self._suspended:
            self.hooks.notify(self._suspended, session)

    def _end_hold(self, hold: Hold) -> None:
        """Stop holding a connect, for any reason."""
        hold.session.held = None
        holds, browser = self.holds_by_browser, hold.browser
        others = holds[browser] - 1
        if others:
            holds[browser] = others
        else:
            del holds[browser]
        if self._resumed:
            self.hooks.notify(self._resumed, hold.session)
