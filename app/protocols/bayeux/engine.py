"""The Bayeux engine: sessions, their connects and the replies to them. One engine serves all HTTP connections.

It does no I/O and uses no clock (`now` is monotonic seconds), and never raises on bad input. A request goes through
`receive` as a `Conversation`. What happens to a session between requests (events, deadlines, dead sockets) is decided
by the table in `states.py`, whose steps are the methods below `_happen`.

Nothing is lost when a poll's socket dies. Events leave a session's outbox with a `Reply`. Until the transport reports
that the reply is `written`, no further events leave the outbox; if it reports `unwritten`, the events return to the
front of the outbox in their order. With the acknowledge extension they stay in `session.acks` until the client
confirms them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf
from typing import Any

from app.broker.broker import Broker
from app.broker.events import Event
from app.broker.flow import GRACE_S
from app.broker.log import Page, Query
from app.broker.policy import SERVER, Identities, NoIdentities, Rights
from app.broker.sessions import Session
from app.protocols.bayeux import errors, farewells, hot, replay, revoking
from app.protocols.bayeux.advice import Advisor
from app.protocols.bayeux.channels import Channels, is_used
from app.protocols.bayeux.conversation import Conversation
from app.protocols.bayeux.exchanges import Hold, Outcome, Pending, Reply, Request, Transport, Verdict, Wait
from app.protocols.bayeux.hooks import Hooks
from app.protocols.bayeux.messages import encode, encode_data, reply_to
from app.protocols.bayeux.names import Bounds, to_pattern, to_topic
from app.protocols.bayeux.responses import Responses
from app.protocols.bayeux.sessions import DISCONNECTED, DISMISSED, EXPIRED, OUTLIVED, SLOW_CONSUMER, BayeuxSession
from app.protocols.bayeux.states import LIFE, Happening, State, Step
from app.settings import Bayeux

_NO_IDENTITIES = NoIdentities()
_ID_BYTES = 20  # Bayeux 1.0, 3.2: "SHOULD be at least 128 bits"; as hexadecimal it is alphanumeric


class Engine:
    """The Bayeux protocol over the broker's sessions.

    `rights` decides what a session may do, and `identities` what a token proves. `connection_types` is what handshake
    replies offer. `new_id` makes session ids and cookies. `read` reads the history, if there is one.
    """

    def __init__(
        self,
        broker: Broker,
        options: Bayeux,
        rights: Rights,
        hooks: Hooks,
        *,
        identities: Identities = _NO_IDENTITIES,
        connection_types: Sequence[str] = ("long-polling", "callback-polling"),
        new_id: Callable[[], str] = lambda: secrets.token_hex(_ID_BYTES),
        read: Callable[[Query], Awaitable[Page]] | None = None,
    ) -> None:
        self.broker = broker
        self.options = options
        self.rights = rights
        self.identities = identities
        self.hooks = hooks
        self.connection_types = tuple(connection_types)
        self.new_id = new_id
        self.read = read
        self.bounds = Bounds(broker.limits.topic_chars, broker.limits.topic_segments)
        self.channels = Channels(broker.limits.channels, broker.hits)
        self.advisor = Advisor(options)
        self._responses = Responses(hooks, has_timestamp=options.timestamp)
        self.holds_by_browser: dict[str, int] = {}
        # plain counts, read by telemetry
        self.holds = 0
        self.connects = 0
        self.refused: Counter[str] = Counter()  # messages, by error
        self.put_back = 0  # events whose reply did not reach its socket

    # One request

    def receive(self, request: Request, now: float) -> Outcome:
        """Handle a request's messages in order, as far as possible without waiting."""
        return self._go_on(Conversation(self, request, now).steps())

    def resume(self, wait: Wait, verdict: Verdict, now: float) -> Outcome:
        """Continue a request with the result of its `Wait`."""
        assert wait.steps is not None
        return self._go_on(wait.steps, (verdict, now))

    def proceed(self, pending: Pending, now: float) -> None:
        """Continue a request whose publishes are settled; its outcome comes from `answers`."""
        outcome = self._go_on(pending.steps, (Verdict(), now))
        if not isinstance(outcome, Pending):
            self.send(pending.connection, outcome)

    def _go_on(self, steps: Any, news: tuple[Verdict, float] | None = None) -> Outcome:
        try:
            wait: Wait | Pending = steps.send(news)
        except StopIteration as end:
            outcome: Reply | Hold = end.value
            return outcome
        wait.steps = steps
        return wait

    # What a transport reports

    def written(self, reply: Reply) -> None:
        """Note that all of a reply has been written to its socket."""
        session = reply.session
        replay.settled(reply, is_written=True)
        if not reply.is_settled and session is not None and session.unsettled is reply:
            session.unsettled = None
            if session.held is not None and len(session.outbox):
                self.broker.mark_ready(session)
        reply.is_settled = True
        reply.events = []  # replies and connections refer to each other: events must not wait for the garbage collector

    def unwritten(self, reply: Reply) -> None:
        """Return the events of a reply to the session: its connection was lost before all of it was written."""
        session = reply.session
        if not reply.is_settled and session is not None and session.closed is None:
            session.announced = None  # its advice may not have arrived either
            replay.settled(reply, is_written=False)
            if session.acks is None:
                session.outbox.put_back(reply.events)
                self.put_back += len(reply.events)
        self.written(reply)  # the rest is the same as for a written reply

    def gone(self, hold: Hold, now: float) -> None:
        """Note that the peer of a held connect has closed its connection."""
        if hold.session.held is hold:
            self._happen(hold.session, Happening.GONE, now)

    # What the broker calls (sessions.Owner)

    def due(self, session: Session, now: float) -> None:
        """Handle a deadline: the hold or the session has timed out, or the token has expired."""
        assert isinstance(session, BayeuxSession)
        if session.expiry <= now:
            self._happen(session, Happening.CUT, now, OUTLIVED)
        else:
            self._happen(session, Happening.LAPSE, now)

    def flush_session(self, session: Session, now: float) -> Iterable[tuple[Any, Outcome | None]]:
        """Answer a held connect with the new events."""
        assert isinstance(session, BayeuxSession)
        if session.closed is not None:
            return ()
        reply = hot.flush(self, session, now)
        if reply is not None:
            return ((reply.connection, reply),)
        has_news = self.can_take(session) and bool(session.outbox) and not session.open_batches
        if has_news or replay.has_news(session):
            self._happen(session, Happening.EVENTS, now)
        return ()

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Handle a full outbox: answer a held connect with its events, else end the session as a slow consumer."""
        assert isinstance(session, BayeuxSession)
        if session.held is not None and self.can_take(session):
            self._happen(session, Happening.EVENTS, now)
        if not session.outbox.put(event):
            self._happen(session, Happening.CUT, now, SLOW_CONSUMER)

    def rights_changed(self, session: Session, now: float) -> int:
        """Take away the subscriptions that the session's rights no longer grant."""
        assert isinstance(session, BayeuxSession)
        return revoking.take_away(self, session, now)

    # Sessions

    def find(self, client_id: str, request: Request, now: float) -> BayeuxSession | None:
        """The session with that id, if the request may use it; the first request with its cookie binds it to that."""
        session = self.broker.sessions.get(client_id)
        if not isinstance(session, BayeuxSession) or session.role == SERVER:
            return None
        is_scripts = request.transport is Transport.CALLBACK_POLLING  # any site's, with its visitors' cookies (S38)
        if (is_scripts and session.authid is not None) or not session.admits(request.cookies):
            return None
        if session.expiry <= now:  # the sweeper runs only from time to time
            self.due(session, now)
        return session if session.closed is None else None

    def new_session(self, cookies: Sequence[str] = ()) -> BayeuxSession:
        """Create a session, not yet admitted, for the browser that `cookies` identify or for a new one."""
        session = BayeuxSession(self.new_id(), self, self.broker.outbox(), self.options)
        session.join(cookies, self.new_id)
        return session

    def open(self, session: BayeuxSession, now: float) -> None:
        """Admit a session, and notify the hooks. Raises `NoRoom`."""
        self.broker.open(session, now + session.max_interval_s, now)
        session.reads_until = now + GRACE_S
        self.hooks.tell(self.hooks.session_opened, session)

    def heard_from(self, session: BayeuxSession, now: float) -> None:
        """Keep a session for another `max_interval_s`, after any message but a connect."""
        if session.state is not State.HELD:
            self.broker.touch(session, max(session.deadline, now + session.max_interval_s))

    def deliver(
        self, session: BayeuxSession, channel: str, data: Any, message_id: str | int | None, now: float
    ) -> bool:
        """Send an event to one session, subscribed or not; False if the session has ended.

        `message_id` is the id of the message that it answers, if any: cometd.js's remote calls find their caller by it.
        """
        event = Event(to_topic(channel, self.bounds), encode_data(data))
        event.time_us = int(self.wall_s(now) * 1_000_000)
        event.weigh_on(self.broker.waiting)
        if message_id is not None:
            event.frames["bayeux"] = encode({"channel": channel, "id": message_id, "data": data})
        return self.broker.deliver(session, event, now)

    def leave(self, session: BayeuxSession, now: float, *, by_client: bool) -> None:
        """End a session at the request of its client, or else of this program."""
        self._happen(session, Happening.LEAVE, now, DISCONNECTED if by_client else DISMISSED)

    @property
    def is_draining(self) -> bool:
        """Whether the server is draining."""
        return self.advisor.is_draining

    def sweep(self) -> None:
        """Forget channels that are no longer used; to be called about once a second."""
        self.channels.sweep(lambda name: is_used(to_pattern(name, self.bounds), self.broker.index, self.hooks))

    def drain(self, interval_s: Callable[[], float] | None = None) -> list[BayeuxSession]:
        """Stop holding connects and admitting sessions; return the sessions to `release`.

        `interval_s` returns the seconds that a client that is released is to wait before it connects again.
        """
        self.advisor.is_draining = True
        if interval_s is not None:
            self.advisor.drain_interval = interval_s
        sessions = self.broker.sessions.values()
        return [session for session in sessions if isinstance(session, BayeuxSession) and session.held is not None]

    def release(self, session: BayeuxSession, now: float) -> None:
        """Answer a session's held connect because the server is draining."""
        self._happen(session, Happening.DRAIN, now)

    # Connects

    def connect(self, hold: Hold, now: float, *, alone: bool) -> bool:
        """Handle a connect: True if it is held, False if the caller is to reply with `connect_reply`."""
        self.connects += 1
        session = hold.session
        if session.held is not None:
            self._happen(session, Happening.REPLACED, now)
        half_written = session.unsettled
        if half_written is not None and half_written.answers_connect:
            self.unwritten(half_written)
            self.send(half_written.connection, None)
        may_wait = alone and hold.wait_s > 0 and not self.is_draining and not self._has_news(session)
        if may_wait and session.state is State.IDLE:
            limit = self.options.holds_per_browser
            hold.browser = session.browser
            hold.is_crowded = 0 <= limit <= self.holds_by_browser.get(hold.browser, 0)
            self.broker.hits["holds_per_browser"] += hold.is_crowded
        waits = may_wait and not hold.is_crowded
        session.held = hold
        step = self._happen(session, Happening.POLL if waits else Happening.CONNECT, now)
        if step is not Step.HOLD:
            session.held = None
        return step is Step.HOLD

    def answer(self, hold: Hold, now: float, *, with_events: bool = True) -> Reply:
        """Make the response to a connect that was held."""
        reply, events = self.connect_reply(hold, now, with_events=with_events)
        return self.reply_with(hold.session, [reply], events, now, connection=hold.connection, answers_connect=True)

    def connect_reply(self, hold: Hold, now: float, *, with_events: bool) -> tuple[dict[str, Any], list[Event]]:
        """Make the reply to a connect whose session continues, and take the events that go with it."""
        session = hold.session
        reply = reply_to(hold.request, successful=True)
        reply["clientId"] = session.id
        if hold.is_crowded and self.options.browser_interval_s == 0:
            reply["successful"] = False
        advice = self.advisor.due(hold)
        if advice is not None:
            reply["advice"] = advice
        events: list[Event] = []
        ext: dict[str, Any] = {}
        with_events = with_events and self.can_take(session)
        if with_events:
            events = self.take(session, now)
            if session.acks is not None:
                ext["ack"] = session.acks.batch
        if hold.timesync is not None and hold.timesync.is_wanted:
            ext["timesync"] = hold.timesync.answer(self.wall_ms(now))
        ext |= replay.told(self, hold, with_events=with_events)
        if ext:
            reply["ext"] = ext
        self.await_connect(session, self.advisor.interval_s(hold), now)
        return reply, events

    def reply_with(
        self,
        session: BayeuxSession | None,
        messages: Sequence[dict[str, Any]],
        events: list[Event],
        now: float,
        *,
        connection: object = None,
        answers_connect: bool = False,
    ) -> Reply:
        """Make a response of replies and then events, passed through the extensions; with events it is unsettled."""
        parts = self._responses.parts(session, messages, events, self.wall_s(now))
        reply = Reply(parts, session, events, connection, answers_connect=answers_connect, is_last=self.is_draining)
        if session is not None and events:
            session.unsettled = reply
        return reply

    def can_take(self, session: BayeuxSession) -> bool:
        """Whether events may leave the session's outbox: not while a reply with events is being written."""
        return session.unsettled is None

    def take(self, session: BayeuxSession, now: float) -> list[Event]:
        """Take the waiting events for a reply; with the acknowledge extension, after all unacknowledged ones."""
        events = self.broker.take(session, now)
        if session.acks is not None:
            session.outbox.retain(events)
            events = session.acks.close_batch(events)
        return events

    def wall_s(self, now: float) -> float:
        """The wall clock, in seconds."""
        return now + self.broker.clock_offset_s

    def wall_ms(self, now: float) -> int:
        """The wall clock, in milliseconds."""
        return int(self.wall_s(now) * 1000)

    def _has_news(self, session: BayeuxSession) -> bool:
        if (session.acks is not None and len(session.acks)) or replay.has_news(session):
            return True
        return bool(session.outbox) and self.can_take(session) and not session.open_batches

    # The steps of states.LIFE

    def _happen(self, session: BayeuxSession, happening: Happening, now: float, reason: str = EXPIRED) -> Step | None:
        row = LIFE.get((session.state, happening))
        if row is None:
            return None
        was_held = session.state is State.HELD
        session.state, step = row
        hold = session.held
        if was_held and hold is not None:
            self.end_hold(hold)
        if step is Step.HOLD and session.held is not None:
            self.begin_hold(session.held, now)
        elif step is Step.RELEASE and hold is not None:
            self.await_connect(session, self.advisor.interval_s(hold), now)
        elif step is Step.ANSWER_HELD and hold is not None:
            self.send(hold.connection, self.answer(hold, now))
        elif step is Step.ANSWER_EMPTY and hold is not None:
            reply = self.answer(hold, now, with_events=False)
            reply.status = self.options.superseded_status
            session.announced = None  # clients ignore the reply to a connect that they have replaced
            self.send(hold.connection, reply)
        elif step is Step.DISMISS and hold is not None:
            self.send(hold.connection, farewells.dismissal(self, hold, now, is_told=reason == DISMISSED))
        elif step is Step.REFUSE and hold is not None:
            error = errors.EXPIRED_TOKEN if reason == OUTLIVED else errors.SESSION_UNKNOWN
            self.send(hold.connection, farewells.refusal(self, hold, now, error))
        if session.state is State.CLOSED and self.broker.close(session, reason):
            self.broker.hits["max_interval_s"] += reason == EXPIRED
            if session.acks is not None:
                session.acks.clear()
            self.hooks.tell(self.hooks.session_closed, session, reason)
        return step

    def begin_hold(self, hold: Hold, now: float) -> None:
        """Hold a connect, and count it for its browser."""
        self.holds += 1
        self.holds_by_browser[hold.browser] = self.holds_by_browser.get(hold.browser, 0) + 1
        hold.session.reads_until = inf
        self.broker.touch(hold.session, now + hold.wait_s)
        if self.hooks.suspended:
            self.hooks.tell(self.hooks.suspended, hold.session)

    def await_connect(self, session: BayeuxSession, interval_s: float, now: float) -> None:
        """Note that a session has no connect until its client sends the next one, `interval_s` from now."""
        session.reads_until = now + interval_s + GRACE_S
        self.broker.touch(session, now + interval_s + session.max_interval_s)

    def end_hold(self, hold: Hold) -> None:
        """Stop holding a connect, for any reason."""
        hold.session.held = None
        self.holds -= 1
        in_slot = self.holds_by_browser[hold.browser] - 1
        if in_slot:
            self.holds_by_browser[hold.browser] = in_slot
        else:
            del self.holds_by_browser[hold.browser]
        if self.hooks.resumed:
            self.hooks.tell(self.hooks.resumed, hold.session)

    def send(self, connection: object, outcome: Outcome | None) -> None:
        """Have an outcome written to a connection at the end of this turn; None: abort that connection."""
        self.broker.mark_ready(_Answer(connection, outcome))


class _Answer:
    """An outcome for a connection that came outside of a flush of its session (`broker.sessions.Outlet`)."""

    __slots__ = ("_connection", "_outcome", "is_ready")

    def __init__(self, connection: object, outcome: Outcome | None) -> None:
        self._connection = connection
        self._outcome = outcome
        self.is_ready = False

    def flush(self, now: float) -> Iterable[tuple[Any, Outcome | None]]:  # noqa: ARG002 - Outlet's form
        """Return the connection and its outcome."""
        return ((self._connection, self._outcome),)
