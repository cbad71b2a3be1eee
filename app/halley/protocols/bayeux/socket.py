"""Bayeux over a WebSocket: one more way to the one engine, with the session's events written as soon as they come.

A text message is an array of Bayeux messages, or a lone object. It is a `Request` like the body of a POST, and what the
engine returns for it is written as a frame: always an array. A held connect is the heartbeat; events do not end it but
where they must ride with its reply (`BayeuxSession.is_pushed`).

What is written in one turn shares a frame: events first, so that the reply to a publish never overtakes what it stands
for, then the replies in the order of their requests. The reply to a handshake has a frame of its own. So has that to a
request with a subscription, which comes before the events: a client may listen only once it knows of that. A frame has
at most `FRAME_BYTES`, unless one message alone is larger.

The link is paused while the kernel has not taken all that was written. Nothing more is written then: events wait in the
session's outbox, replies here. The events that were written last are unsettled until the link resumes. When the
connection is lost before, they return to the outbox, in front of the others and in order.

Requests are handled one after the other. While one waits (for a program's hook, the history or its next turn) those
behind it stay unread.

In a cluster, a request of a session that another node has is passed on to that node, as the POST that it would be, and
the body of the response is written as one frame. There the session polls: its events come with its connects. Behind a
connect that is held there one more request may be passed on; behind any other those that follow stay unread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, Final

from halley.broker.aging import TimeoutQueue
from halley.broker.events import Event
from halley.broker.flow import GRACE_S
from halley.broker.outbox import OVERHEAD_BYTES
from halley.protocols.bayeux.batches import Batch, Malformed, TooManyMessages, parse
from halley.protocols.bayeux.engine import BayeuxEngine
from halley.protocols.bayeux.fast import usual
from halley.protocols.bayeux.messages import HttpContext
from halley.protocols.bayeux.names import HANDSHAKE
from halley.protocols.bayeux.outcomes import (
    AbortConnection,
    AwaitHook,
    Misdirected,
    Outcome,
    Paused,
    Request,
    Transport,
    Verdict,
)
from halley.protocols.bayeux.publishing import is_publish
from halley.protocols.bayeux.relayed import MOST_RELAYED, SUCCEEDED, Relay, Relayed, RelayedRequest
from halley.protocols.bayeux.replies import framed
from halley.protocols.bayeux.session import BayeuxSession, Hold, Reply
from halley.protocols.contract import (
    ABNORMAL,
    GOING_AWAY,
    INTERNAL_ERROR,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    TOO_BIG,
    TRY_AGAIN_LATER,
    UNSUPPORTED_DATA,
    Close,
    Link,
    WaitFor,
)

_LATE_AT_ONCE: Final = 50
"""Connections that are closed in one turn of the event loop because they have had no session for too long."""


class Sockets:
    """The WebSockets of one server. `wait` awaits what a program's hooks return.

    `relay` passes on requests of sessions that another node of a cluster has; a server alone has none.
    """

    def __init__(self, engine: BayeuxEngine, wait: WaitFor) -> None:
        self.engine = engine
        self.wait = wait
        self.relay: Relay | None = None
        self.open: dict[Socket, None] = {}
        self.hellos: TimeoutQueue[Socket] = TimeoutQueue(engine.options.hello_s)  # those without a session
        self.count_as_activity = engine.options.activity == "client_server"  # the events that are written

    def add(self, socket: Socket, now: float) -> None:
        """Add a connection, which must have a session in time."""
        self.open[socket] = None
        self.hellos.add(socket, now)

    def remove(self, socket: Socket) -> None:
        """Remove a connection that has ended."""
        self.open.pop(socket, None)
        self.hellos.forget(socket)

    def sweep(self, now: float) -> bool:
        """Close the connections that have had no session for too long; whether there are more."""
        for socket in self.hellos.overdue(now, _LATE_AT_ONCE):
            socket.late(now)
        return self.hellos.has_overdue(now)


class Socket:
    """One WebSocket (`contract.Engine`), and what the engine knows as the `connection` of its requests.

    `cookies` are those that the client showed when it connected. `token` is that of its `Authorization: Bearer`.
    """

    __slots__ = (
        "_awaits_node",
        "_context",
        "_cookies",
        "_engine",
        "_frames_key",
        "_is_paused",
        "_late_bytes",
        "_link",
        "_now",
        "_opened_at",
        "_relayed",
        "_replies",
        "_request",
        "_session",
        "_sockets",
        "_token",
        "_unread",
        "_unread_bytes",
        "_unsettled",
        "_welcome",
        "is_over",
        "is_ready",
    )

    def __init__(
        self,
        sockets: Sockets,
        link: Link,
        context: HttpContext,
        now: float,
        cookies: tuple[str, ...] = (),
        token: str | None = None,
    ) -> None:
        self._sockets = sockets
        self._engine = sockets.engine
        self._link = link
        self._context = context
        self._cookies = cookies
        self._opened_at = now
        self._token = token
        self._session: BayeuxSession | None = None  # the latest that a handshake or connect by this socket was for
        self._replies: list[Reply] = []  # to be written at the end of this turn, or when the link resumes
        self._late_bytes = 0  # of those of them that wait for a link that is paused
        self._unsettled: list[Reply] = []  # written, but not all in the kernel
        self._request: Request | None = None  # the one that waits; it has not been handled to its end
        self._unread: deque[bytes] | None = None  # the text messages behind it
        self._unread_bytes = 0
        self._relayed: list[RelayedRequest] = []
        self._awaits_node = False  # what comes next stays unread because of one of them
        self._welcome: Reply | None = None  # the latest reply to a handshake
        self._frames_key = f"bayeux {link.kind}"
        self._is_paused = False
        self.is_over = False
        self._now = now  # the latest time that is known here
        self.is_ready = False
        sockets.add(self, now)

    # What the transport reports

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Sequence[Batch]:
        """Return the Bayeux messages of a text message, all as one item (`Engine.split`).

        A message that is none closes the connection. Those behind a request that waits are read later.
        """
        self._now = now
        if is_binary:
            self._end(UNSUPPORTED_DATA, "binary messages are not accepted", now)
        elif self._request is None and self._unread is None and not self._awaits_node:
            batch = self._read(data, now)
            return () if batch is None else (batch,)
        elif not self.is_over:
            self._unread = self._unread or deque()
            self._unread.append(data)
            self._unread_bytes += len(data) + OVERHEAD_BYTES
            if self._unread_bytes > self._engine.broker.limits.queue_bytes:
                self._engine.broker.hits["queue_bytes"] += 1
                self._end(POLICY_VIOLATION, "too many requests wait", now)
        return ()

    def receive(self, message: Batch, now: float) -> None:
        """Handle the messages of one text message (`Engine.receive`)."""
        if self.is_over:
            return
        self._now = now
        messages = message.messages
        if not messages:  # the ping of Faye's clients
            self._reply(Reply([], None, [], self))
            return
        if self._session is None and self._lacks_cookie(messages[0].get("clientId")):
            self._end(POLICY_VIOLATION, "the browser cookie is missing", now)  # the client's next socket shows it
            return
        request = Request(messages, Transport.WEBSOCKET, self, self._cookies, self._context)
        request.token = self._token
        request.has_big_numbers = message.has_big_numbers
        if self._session is None and any(is_publish(fields.get("channel")) for fields in messages):
            self._sockets.hellos.restart(self, now)
        try:
            outcome = self._engine.receive(request, now)
        except Misdirected as misdirected:
            if self.session is None:
                self._relay(misdirected, message.text, now)
                return
            outcome = self._engine.receive_here(request, now)
        self._act_on(request, outcome, now)

    def paused(self) -> None:
        """Note that not all that was written is in the kernel (`Engine.paused`)."""
        self._is_paused = True

    def resumed(self, now: float) -> None:
        """Note that all of it is, and write what waits at the end of this turn (`Engine.resumed`)."""
        self._is_paused = False
        unsettled, self._unsettled = self._unsettled, []
        for reply in unsettled:
            self._engine.sessions.settle_delayed(reply, now, is_written=True)
        for relayed in [each for each in self._relayed if each.is_written]:
            self._settle(relayed, now)
        self._engine.broker.mark_ready(self)

    def lost(self, now: float) -> None:
        """Take back what had not left, and forget the held connect (`Engine.lost`); the session goes on."""
        if self.is_over:
            return
        self.is_over, self._now = True, now
        self._sockets.remove(self)
        self._unread = None
        sessions = self._engine.sessions
        replies, self._replies = self._replies, []
        for reply in replies:
            sessions.take_back(reply)
        unsettled, self._unsettled = self._unsettled, []
        for reply in unsettled:
            sessions.settle_delayed(reply, now, is_written=False)
        relayed, self._relayed = self._relayed, []
        for each in relayed:
            if each.report_written is not None:
                each.report_written(False)  # noqa: FBT003 - the callback's one meaning
        if self._session is not None:
            sessions.lost(self._session, self, now)
            self._session = None

    # What the engine and its sessions call

    @property
    def session(self) -> BayeuxSession | None:
        """The session that the socket has; None if it has none yet, or that has ended."""
        session = self._session
        return session if session is not None and session.closed is None else None

    def admits(self, session: BayeuxSession) -> bool:
        """Whether requests of a session may come by this socket: one that has a session serves no other."""
        return self.session in (None, session)

    def cookies_for(self, session: BayeuxSession) -> tuple[str, ...]:
        """The cookies that count as shown where a session is bound to one.

        A client may open this socket while it handshakes by POST, as Faye's page does, and get the cookie afterwards.
        Who only knows the id of a session, as from a log, is too late with a socket of its own.
        """
        if session.is_bound and (
            session is self._session or (self._opened_at < session.bound_at and self._is_of_its_time(session))
        ):
            return (session.cookie,)
        return self._cookies

    def _lacks_cookie(self, client_id: object) -> bool:
        """Whether this socket was opened like that, but the request for it came behind the POST that binds the session.

        Since it may be somebody else's, the client has to open another, and sends its messages again. A client treats
        an error as final.
        """
        session = self._engine.broker.sessions.get(client_id) if isinstance(client_id, str) else None
        if not (isinstance(session, BayeuxSession) and session.is_bound):
            return False
        return self._is_of_its_time(session) and not self.cookies_for(session)

    def _is_of_its_time(self, session: BayeuxSession) -> bool:
        return (
            not self._cookies
            and abs(self._opened_at - session.opened_at) <= self._engine.options.hello_s
            and self._context.address == session.address
        )

    def take(self, session: BayeuxSession, now: float) -> None:
        """Have a session, whose events are to be written here from now on, in place of the one before."""
        before, self._session = self._session, session
        if before is not None and before is not session:
            self._engine.sessions.lost(before, self, now)
        self._sockets.hellos.forget(self)

    def await_session(self, now: float) -> None:
        """Give the client `hello_s` for another session: its own has ended."""
        if not self.is_over:
            self._sockets.hellos.restart(self, now)

    def write(self, outcome: Outcome | AbortConnection | Close) -> None:
        """Take an outcome that comes later than its request."""
        request = self._request
        if type(outcome) is AwaitHook:
            assert request is not None
            self._await(request, outcome)
        elif self.is_over:
            self._drop(outcome)
        elif type(outcome) is Reply:
            self._reply(outcome)
        elif type(outcome) is AbortConnection:
            self._end(ABNORMAL, outcome.reason, self._now)
        elif isinstance(outcome, Close):
            self._end(outcome.code, outcome.reason, self._now)
        if request is not None and not request.is_paused:
            self._request = None
            self._engine.broker.mark_ready(self)

    def join(self, outcome: Outcome) -> None:
        """Take the outcome of a request that had to wait, to be written in one frame with the events of this turn.

        Where these ride with the reply to a connect, it comes behind that.
        """
        if self._session is None or self._session.is_pushed:
            self.write(outcome)
        else:
            self._engine.sessions.send(self, outcome)

    # Deadlines and the drain

    def late(self, now: float) -> None:
        """Close the connection because it has had no session for `hello_s`."""
        # Perhaps a handshake that waits for a program's policy, or a connect that another node holds.
        if self._request is not None or self._relayed:
            self._sockets.hellos.restart(self, now)
            return
        self._engine.broker.hits["hello_s"] += 1
        self._end(POLICY_VIOLATION, "no session", now)

    def drain(self, now: float) -> None:
        """Answer the held connect, and close the connection, because the server is draining."""
        sessions, session = self._engine.sessions, self.session
        if session is not None and session.held is not None and session.held.connection is self:
            sessions.drain_session(session, now)
        sessions.send(self, Close([], GOING_AWAY, "the server is shutting down"))

    # Output

    def flush(self, now: float) -> tuple[()]:
        """Handle the next of the messages that were behind another, and write all that is to be written."""
        if self._request is not None or self._awaits_node:
            pass
        elif self._unread:
            data = self._unread.popleft()
            self._unread_bytes -= len(data) + OVERHEAD_BYTES
            batch = self._read(data, now)
            if batch is not None:
                self.receive(batch, now)
            self._engine.broker.mark_ready(self)
        else:
            self._unread = None
        self.send(now)
        return ()

    def send(self, now: float) -> None:
        """Write the session's events and then the replies, as far as the link takes them."""
        session = self._session
        if session is not None and session.socket is self and session.is_pushed:
            self.push(session, now)
        else:
            self._now = now
            self._send_replies(now)

    def push(self, session: BayeuxSession, now: float) -> None:
        """Do what `send` does for the session of this socket, which is pushed. On the hot path."""
        self._now = now
        if self._is_paused:
            session.reads_until = min(session.reads_until, now + GRACE_S)
            return
        if self._replies and not self._has_led(now):
            return
        outbox, broker = session.outbox, self._engine.broker
        session.reads_until = inf
        if self._sockets.count_as_activity and outbox.queue:
            session.active_at = now
        while (outbox.queue or outbox.conflated is not None) and session.unsettled is None:
            events = broker.take(session, now)
            if len(events) > 1:
                events = self._engine.replies.limit_to_reply(session, events, 0, is_script=False)
            elif not events:
                break
            if not self._has_sent(session, events, now):
                return
        if self._replies:
            self._send_replies(now)

    def _has_led(self, now: float) -> bool:
        """Write the replies up to the last one to a subscription; whether all of it is in the kernel."""
        replies, count = self._replies, len(self._replies)
        while not replies[count - 1].subscribes:
            count -= 1
            if not count:
                return True
        self._replies = replies[:count]
        is_in_kernel = self._has_sent(None, [], now)
        self._replies = replies[count:]
        self._late_bytes = sum(len(part) for reply in self._replies for part in reply.parts)
        return is_in_kernel

    def _send_replies(self, now: float) -> None:
        if self._replies and not (self._is_paused or self.is_over):
            self._has_sent(None, [], now)
        if self._relayed:
            self._write_relayed(now)

    def _has_sent(self, session: BayeuxSession | None, events: list[Event], now: float) -> bool:
        """Write events, with all replies behind the last ones; whether all of it is in the kernel."""
        sessions, replies = self._engine.sessions, self._replies
        if len(events) == 1 and not replies and self._engine.replies.is_plain:
            event = events[0]
            frame = event.frames.get(self._frames_key)
            if frame is None:
                frame = event.frames[self._frames_key] = self._link.text(b"[%b]" % self._engine.replies.text_of(event))
            self._link.write([frame])
        else:
            if session is not None and len(session.outbox):
                replies = []  # behind the events of the next frame
            else:
                self._replies, self._late_bytes = [], 0
            texts = [] if session is None else self._engine.replies.texts_of(session, events, now)
            if frames := framed(texts, replies, self._welcome):
                self._link.write([*map(self._link.text, frames)])  # a comprehension would slow the rest down
        if not self._is_stalled():
            for event in events:
                event.refs -= 1  # `QueuedBytes.release`, inlined
                if not event.refs:
                    self._engine.broker.waiting.drop(event)
            for reply in replies:
                sessions.settle(reply)
            self._welcome = None
            return True
        if session is not None:
            session.unsettled = late = Reply([], session, events, self)
            self._unsettled.append(late)
        self._unsettled += replies
        for reply in self._unsettled:
            sessions.delayed(reply, now)
        return False

    def _is_stalled(self) -> bool:
        return self._is_paused  # a call, since compilers take what was read before the write for still true

    # One request

    def _read(self, data: bytes, now: float) -> Batch | None:
        """Read a text message; None, and the connection is closed, if it is not one of Bayeux messages."""
        limits = self._engine.broker.limits
        messages = usual(data, limits)
        if messages is not None:
            return Batch(messages, has_big_numbers=False, text=data)
        try:
            return parse((data,), limits)._replace(text=data)
        except Malformed as wrong:
            if wrong.limit:
                self._engine.broker.hits[wrong.limit] += 1
            if isinstance(wrong, TooManyMessages):
                self._end(TOO_BIG, wrong.text, now)
            else:
                self._end(PROTOCOL_ERROR, "expected an array of Bayeux messages in JSON", now)
            return None

    def _act_on(self, request: Request, outcome: Outcome, now: float) -> None:
        if type(outcome) is Reply:
            if outcome.status == 503:
                self._end(TRY_AGAIN_LATER, "the server is full", now)
                return
            if request.messages[0].get("channel") == HANDSHAKE:
                self._welcome = outcome
            self._reply(outcome)
        elif type(outcome) is AwaitHook:
            self._await(request, outcome)
        elif isinstance(outcome, Paused):
            request.is_paused = True
            self._request = request

    def _reply(self, reply: Reply) -> None:
        self._replies.append(reply)
        self._engine.broker.mark_ready(self)
        if self._is_paused:
            self._late_bytes += sum(map(len, reply.parts))
            if self._late_bytes > self._engine.broker.limits.queue_bytes:
                self._engine.broker.hits["queue_bytes"] += 1
                self._end(POLICY_VIOLATION, "queue full", self._now)

    def _await(self, request: Request, wait: AwaitHook) -> None:
        """Have what a request needs awaited, and go on with it then."""
        request.is_paused = True
        self._request = request

        def resume(value: Any, error: Exception | None, now: float) -> None:
            self._request = None
            try:
                outcome = self._engine.resume(wait, Verdict(value, error), now)
            except Exception:
                self._end(INTERNAL_ERROR, "internal error", now)
                raise
            self._now = now
            if self.is_over:
                self._drop(outcome)
            else:
                self._act_on(request, outcome, now)
                self._engine.broker.mark_ready(self)

        options = self._engine.options
        self._sockets.wait(wait.awaitable, options.policy_s if wait.limit_s is None else wait.limit_s, resume)

    # Requests of sessions that other nodes have

    def _relay(self, misdirected: Misdirected, text: bytes, now: float) -> None:
        """Have the node that has the session of a request answer it."""
        assert self._sockets.relay is not None
        relayed = RelayedRequest(misdirected.request)
        report = self._sockets.relay(misdirected, text, partial(self._act_on_relayed, relayed))
        if isinstance(report, Close):
            self._end(report.code, report.reason, now)
            return
        relayed.report_written = report
        self._relayed.append(relayed)
        self._order_relayed()

    def _act_on_relayed(self, relayed: RelayedRequest, outcome: Relayed, now: float) -> None:
        self._now = now
        if isinstance(outcome, Close):
            self._end(outcome.code, outcome.reason, now)
            return
        if outcome is None:
            self._relayed.remove(relayed)
            try:
                self._act_on(relayed.request, self._engine.receive_here(relayed.request, now), now)
            except Exception:
                self._end(INTERNAL_ERROR, "internal error", now)
                raise
        else:
            relayed.body = outcome
        self._order_relayed()

    def _order_relayed(self) -> None:
        """Leave what comes next unread, unless nothing is passed on but a connect, which may be held.

        With an answer that is not all in the kernel that is over: its node would cut it because of the next connect.
        """
        relayed = self._relayed
        is_held = all(each.request.is_poll and not each.body for each in relayed)
        self._awaits_node = len(relayed) == MOST_RELAYED or not is_held
        self._engine.broker.mark_ready(self)

    def _write_relayed(self, now: float) -> None:
        """Write the answers of other nodes, as far as the link takes them."""
        for relayed in [each for each in self._relayed if each.body and not each.is_written]:
            if self._is_stalled() or self.is_over:
                return
            relayed.is_written = True
            self._link.write([self._link.text(relayed.body)])
            if not self._is_stalled():
                self._settle(relayed, now)

    def _settle(self, relayed: RelayedRequest, now: float) -> None:
        """Note that all of an answer is in the kernel. A request that has succeeded gives the client `hello_s` more."""
        self._relayed.remove(relayed)
        if relayed.report_written is not None:
            relayed.report_written(True)  # noqa: FBT003 - the callback's one meaning
        if self.session is None and SUCCEEDED in relayed.body:
            self._sockets.hellos.restart(self, now)
        self._order_relayed()

    def _drop(self, outcome: Outcome | AbortConnection | Close) -> None:
        """Give back an outcome that came after the end."""
        sessions = self._engine.sessions
        session: BayeuxSession | None = None
        if type(outcome) is Reply:
            sessions.take_back(outcome)
            session = outcome.session
        elif isinstance(outcome, Hold):
            session = outcome.session
        if session is not None:
            sessions.lost(session, self, self._now)

    def _end(self, code: int, reason: str, now: float) -> None:
        """Close the connection, behind what is to be written so far, unless it is over."""
        if self.is_over:
            return
        if code != ABNORMAL:
            self.send(now)
        self._link.write(Close([], code, reason))
        self.lost(now)
