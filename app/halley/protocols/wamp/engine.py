"""The WAMP engine of one connection: the effect of its messages in each state, and the replies.

The engine does no I/O and never raises on bad input: it is asked for its output at the end of each turn. It never stops
reading. Requests that wait for a policy, for the disk or for a page of the history are answered later, and what the
client publishes or subscribes to after such a request is queued behind it (`session.RequestQueue`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

from halley.broker.events import Event
from halley.broker.flow import GRACE_S
from halley.broker.names import Pattern
from halley.broker.sessions import FAULT, Outputs, Session
from halley.protocols.contract import INTERNAL_ERROR, NORMAL, POLICY_VIOLATION, PROTOCOL_ERROR, Close, Context, Link
from halley.protocols.wamp import errors
from halley.protocols.wamp.errors import TAKE_TOKENS, TooManyRefused, Undecodable, Violation, WampError
from halley.protocols.wamp.events import event_frame
from halley.protocols.wamp.handshake import Handshake
from halley.protocols.wamp.history import EventHistory
from halley.protocols.wamp.messages import (
    ABORT,
    CALL,
    CHALLENGE,
    ERROR,
    GOODBYE,
    PUBLISH,
    REGISTER,
    SUBSCRIBE,
    UNREGISTER,
    UNSUBSCRIBE,
    WELCOME,
    Abort,
    Authenticate,
    Call,
    Cancel,
    Goodbye,
    Hello,
    Message,
    Publish,
    Register,
    Subscribe,
    Unregister,
    Unsubscribe,
    read,
)
from halley.protocols.wamp.meta_queries import MetaApiQueries
from halley.protocols.wamp.procedures import Procedures
from halley.protocols.wamp.publishing import Publishing
from halley.protocols.wamp.serializers import Format
from halley.protocols.wamp.session import WampSession
from halley.protocols.wamp.state import RouterState
from halley.protocols.wamp.subscribing import Subscribing
from halley.protocols.wamp.testaments import Testaments
from halley.settings import Verb

SLOW_CONSUMER = "slow_consumer"
LOST = "connection_lost"
VIOLATED = "protocol_violation"
LEFT = "goodbye"
GIVEN_UP = "aborted"
REFUSED = "refused"
"""The reasons why a session ended, or never began."""

_REQUESTS: dict[type, tuple[int, str]] = {
    Publish: (PUBLISH, "publish"),
    Subscribe: (SUBSCRIBE, "subscribe"),
    Unsubscribe: (UNSUBSCRIBE, "unsubscribe"),
    Call: (CALL, "call"),
    Register: (REGISTER, "register"),
    Unregister: (UNREGISTER, "unregister"),
}
"""The code of each request's message type, which its ERROR repeats, and its name in the log."""


class Handlers:
    """What handles the requests of all sessions; shared by the engines of one router.

    `by_type` has a handler for each type of request; it is called with the session, the message and the time.
    """

    def __init__(self, state: RouterState) -> None:
        self.subscribing = Subscribing(state)
        publishing = Publishing(state)
        self.testaments = Testaments(state, publishing)
        history = EventHistory(state, self.subscribing)
        self.queries = MetaApiQueries(state, self.subscribing)
        self.procedures = Procedures(state, self.subscribing, history, self.testaments, self.queries)
        self.by_type: dict[type, Callable[[WampSession, Any, float], None]] = {
            Publish: publishing.publish,
            Subscribe: self.subscribing.subscribe,
            Unsubscribe: self.subscribing.unsubscribe,
            Call: self.procedures.call,
            Register: self.procedures.register,
            Unregister: self.procedures.unregister,
        }


class WampEngine:
    """Speaks WAMP with one peer (`contract.Engine`); the owner of its session in the broker.

    While the peer has no session, and after our GOODBYE, it must say something in time: see `RouterState`.
    """

    __slots__ = (
        "_close",
        "_frames",
        "_frames_bytes",
        "_handlers",
        "_handshake",
        "_has_left",
        "_is_leaving",
        "_is_over",
        "_is_paused",
        "_is_too_slow",
        "_link",
        "_next_request",
        "_state",
        "context",
        "format",
        "is_ready",
        "session",
    )

    def __init__(self, state: RouterState, handlers: Handlers, link: Link, context: Context) -> None:
        self._state = state
        self._handlers = handlers
        self._link = link
        self.format = Format.of(link)
        self.context = context
        self.session: WampSession | None = None
        self._handshake = Handshake(state)
        self._is_leaving = False  # our GOODBYE has been sent
        self._has_left = False  # the client has ended a session with GOODBYE and may begin another
        self._is_over = False
        self._is_paused = False
        self._is_too_slow = False
        self._next_request = 1
        self._frames: list[bytes] = []  # to be written at the end of this turn
        self._frames_bytes = 0
        self._close: Close | None = None  # what ends the connection at the end of this turn
        self.is_ready = False

    # What the transport reports

    def split(self, data: bytes, now: float, *, is_binary: bool) -> Sequence[bytes]:
        """Return the messages of one transport message (`Engine.split`).

        A malformed batch and a frame of the wrong kind are protocol violations, and yield no message.
        """
        form = self.format
        if is_binary is not form.serializer.is_binary:
            kind = "binary" if is_binary else "text"
            self._violated(f"A {kind} message is not allowed with {form.subprotocol}.", now)
            return ()
        if not form.is_batched:
            return (data,)
        try:
            return form.split(data, self._state.options.batch_messages)
        except Undecodable:
            self._violated("The message cannot be decoded.", now)
            return ()

    def receive(self, message: bytes, now: float) -> None:
        """Process one serialized message (`Engine.receive`); a message that is not valid ends the connection."""
        if self._is_over:
            return
        try:
            unpacked = self.format.serializer.unpack(message, self._state.broker.limits)
            self._accept(read(unpacked), len(message), now)
        except Undecodable:
            self._violated("The message cannot be decoded.", now)
        except Violation as violation:
            self._violated(str(violation), now)

    def paused(self) -> None:
        """Note that the link accepts nothing for now (`Engine.paused`)."""
        self._is_paused = True

    def resumed(self, now: float) -> None:  # noqa: ARG002 - the flush gets its own `now`
        """Note that the link accepts data again, and have waiting events written (`Engine.resumed`)."""
        self._is_paused = False
        if self.session is not None and len(self.session.outbox):
            self._state.broker.mark_ready(self.session)

    def lost(self, now: float) -> None:
        """End the session because its connection was lost (`Engine.lost`)."""
        if not self._is_over:
            self._is_over = True
            self._frames.clear()
            self._state.await_nothing(self)
            self._end(LOST, now)

    # Deadlines of a connection without a session, and the drain

    def await_hello(self, now: float) -> None:
        """Give the peer `wamp.hello_s` to send HELLO and authenticate."""
        self._state.hellos.restart(self, now)

    def late(self, now: float) -> None:
        """Close the connection because the peer sent no HELLO, AUTHENTICATE or GOODBYE before the deadline."""
        if self._is_leaving or (self._has_left and not self._handshake.is_begun):
            self._end_with([], NORMAL, errors.GOODBYE_AND_OUT, now, LEFT)
        else:
            self._state.broker.hits["hello_s"] += 1
            text = "HELLO or AUTHENTICATE was not received in time."
            self._abort(errors.PROTOCOL_VIOLATION, text, now, code=PROTOCOL_ERROR)

    def drain(self, now: float) -> None:
        """End the client's session, or refuse it one, because the server is draining."""
        if self.session is not None:
            self.dismiss(errors.SYSTEM_SHUTDOWN, "", now, reason="drained")
        elif not self._is_leaving:
            self._abort(errors.SYSTEM_SHUTDOWN, "The server is shutting down.", now)

    # What the broker reports (sessions.SessionHandler)

    def due(self, session: Session, now: float) -> None:  # noqa: ARG002 - an engine has one session
        """End the session because its token has expired (`SessionHandler.due`)."""
        self.dismiss(errors.TOKEN_EXPIRED, "the token has expired", now, reason="token_expired")

    def take_events(self, session: Session, now: float) -> None:
        """Move the events in the session's outbox to what is to be written, behind earlier replies."""
        frames: list[bytes] = []
        self._add_events(frames, session, now)
        self.write(frames)

    def _add_events(self, frames: list[bytes], session: Session, now: float) -> None:
        """Take the events from the session's outbox, and append them as EVENT messages; none while the link is paused.

        This is the hot path: an event knows which subscriptions it was matched by.
        """
        if self._is_paused:
            session.reads_until = min(session.reads_until, now + GRACE_S)
            return
        broker, form = self._state.broker, self.format
        key = form.key
        events = broker.take(session, now)
        if not events:
            return
        for event in events:
            event.refs = refs = event.refs - 1  # `QueuedBytes.release`, inlined
            if not refs:
                broker.waiting.drop(event)
            for subscription in event.matched:
                number = subscription.number
                if number and session in subscription.sessions:
                    frame = event.frames.get((number, key))
                    frames.append(frame or event_frame(event, number, subscription.pattern, form))
        session.reads_until = inf
        if session.outbox.has_more:  # more values waited outside the queue than one turn may send
            broker.mark_ready(session)

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Handle an overflow of the outbox (`SessionHandler.overflow`).

        A peer that reads gets its events now. Any other is closed as a slow consumer at the end of the turn, once the
        broker has finished its fan-out.
        """
        if not self._is_paused and self.room_bytes() > 0:
            self.take_events(session, now)
            session.outbox.put(event)
        else:
            self._is_too_slow = True
        self._state.broker.mark_ready(self)

    def too_slow(self, session: Session, now: float) -> None:  # noqa: ARG002 - SessionHandler's form
        """Close the peer as a slow consumer at the end of the turn (`SessionHandler.too_slow`)."""
        self._is_too_slow = True
        self._state.broker.mark_ready(self)

    def rights_changed(self, session: Session, now: float) -> int:  # noqa: ARG002 - an engine has one session
        """Revoke the subscriptions that the session's rights no longer grant (`SessionHandler.rights_changed`)."""
        assert self.session is not None
        return self._handlers.subscribing.revoke_denied(self.session, now)

    def fail(self, session: Session, now: float) -> None:  # noqa: ARG002 - an engine has one session
        """End the session and the connection without what waits to be written (`SessionHandler.fail`)."""
        self._frames, self._frames_bytes = [], 0
        goodbye = [GOODBYE, {"message": FAULT}, errors.KILLED]
        self._end_with([goodbye], INTERNAL_ERROR, FAULT, now, FAULT)

    def flush(self, now: float) -> Outputs:
        """Return all that is to be written to the peer at the end of this turn (`Flushable.flush`)."""
        return self.flush_session(self.session, now)

    def flush_session(self, session: Session | None, now: float) -> Outputs:  # noqa: ARG002
        """Return the same because of the session's events (`SessionHandler.flush_session`): an engine has one session.

        A slow consumer is closed with GOODBYE, and its waiting events are dropped.
        """
        if self._is_too_slow and not self._is_over:
            goodbye = [] if self.session is None else [[GOODBYE, {"message": SLOW_CONSUMER}, errors.KILLED]]
            self._end_with(goodbye, POLICY_VIOLATION, SLOW_CONSUMER, now, SLOW_CONSUMER)
        frames: list[bytes] = []
        if self._frames:
            frames, self._frames, self._frames_bytes = self._frames, frames, 0
        if self.session is not None:
            self._add_events(frames, self.session, now)
        if self._close is not None:
            close, self._close = self._close, None
            return ((self._link, close._replace(frames=frames + close.frames)),)
        return ((self._link, frames),) if frames else ()

    # Output

    def say(self, message: list[Any]) -> None:
        """Send a message; where too much waits for a peer that does not read, mark it as a slow consumer."""
        if self._is_over:
            return
        frame = self.format.write(message)
        self._frames.append(frame)
        self._frames_bytes += len(frame)
        self._state.broker.mark_ready(self)
        if self._is_paused and self.room_bytes() < 0 and not self._is_too_slow:
            self._is_too_slow = True
            self._state.broker.hits["queue_bytes"] += 1

    def write(self, frames: list[bytes]) -> None:
        """Send frames that are already encoded."""
        if frames:
            self._frames += frames
            self._frames_bytes += sum(map(len, frames))
            self._state.broker.mark_ready(self)

    def room_bytes(self) -> int:
        """Return how many more bytes may be queued for the peer; below 0 where it is too much already."""
        return self._state.broker.limits.queue_bytes - self._link.backlog_bytes - self._frames_bytes

    def refuse(self, request: Message, error: WampError, now: float) -> None:
        """Answer a request with ERROR; a publication that is not acknowledged is only counted."""
        is_logged = True
        if error.uri in TAKE_TOKENS and self.session is not None:
            is_logged = self._state.broker.rates.admit_refusal(self.session, "", now)
        if not is_logged:
            error = TooManyRefused()
        if isinstance(request, Publish) and not request.is_acknowledged:
            self._state.unacknowledged[error.uri] += 1
            return
        kind, name = _REQUESTS[type(request)]
        self._state.note_refusal(self.session, name, error.uri, is_logged=is_logged)
        text = [[error.text]] if error.text else []
        self.say([ERROR, kind, request.request, {}, error.uri, *text])  # type: ignore[union-attr]  # a request has one

    def dismiss(self, uri: str, message: str, now: float, *, reason: str) -> None:
        """End the session with GOODBYE; the connection stays until the peer's GOODBYE, for `wamp.kill_s` at most."""
        if self.session is None or self._is_leaving:
            return
        self.take_events(self.session, now)
        self.say([GOODBYE, {"message": message} if message else {}, uri])
        self._is_leaving = True
        self._state.goodbyes.restart(self, now)
        self._end(reason, now)

    def _violated(self, message: str, now: float) -> None:
        """End the session and the connection for a protocol violation; the ABORT carries `message`."""
        if not self._is_leaving:
            self._abort(errors.PROTOCOL_VIOLATION, message, now, reason=VIOLATED, code=PROTOCOL_ERROR)

    def _abort(
        self, uri: str, message: str, now: float, *, reason: str = GIVEN_UP, code: int = POLICY_VIOLATION
    ) -> None:
        """Send ABORT with the error `uri` and close the connection, with or without a session.

        `reason` is why the session ended, `code` the WebSocket close code.
        """
        if not self._is_over:
            self._state.note_refusal(self.session, "session", uri)
            self._end_with([[ABORT, {"message": message}, uri]], code, uri, now, reason)

    def _end_with(self, messages: list[list[Any]], code: int, why: str, now: float, reason: str) -> None:
        self._is_over = True
        self._state.await_nothing(self)
        form = self.format
        self._close = Close([form.write(message) for message in messages], code, why)
        self._state.broker.mark_ready(self)
        self._end(reason, now)

    def _end(self, reason: str, now: float) -> None:
        """Release the session, or the id that was reserved for one, for any reason of its end."""
        session, self.session = self.session, None
        self._handshake.abandon()
        if session is not None:
            self._state.leave(session, reason, now)
            self._handlers.testaments.publish(session, now)
            self._state.meta.left(session, now)

    # What is received

    def _accept(self, message: Message, nbytes: int, now: float) -> None:
        session = self.session
        if self._is_leaving:
            if isinstance(message, Goodbye):
                self._end_with([], NORMAL, errors.GOODBYE_AND_OUT, now, LEFT)
        elif session is None:
            self._join(message, now)
        else:
            if self._state.options.strict_request_ids:
                self._check_request(message)
            if session.requests.must_wait(message):
                try:
                    session.requests.enqueue(message, nbytes)
                except WampError as error:
                    self.refuse(message, error, now)
            else:
                self._dispatch(session, message, now)

    def _join(self, message: Message, now: float) -> None:
        """Carry out a message of a client without a session. Raises `Violation`."""
        handshake = self._handshake
        try:
            if isinstance(message, Hello) and not handshake.is_challenged:
                found = handshake.hello(self, message, now)
            elif isinstance(message, Authenticate) and handshake.is_challenged:
                found = handshake.authenticate(self, message, now)
            elif isinstance(message, Abort):
                self._give_up(now)
                return
            else:
                name, expected = type(message).__name__.upper(), "AUTHENTICATE" if handshake.is_challenged else "HELLO"
                raise Violation(f"{name} was received instead of {expected}.")
        except WampError as error:
            self._abort(error.uri, error.text, now, reason=REFUSED)
            return
        if isinstance(found, WampSession):
            self.session = found
            self._next_request = 1
            self._state.await_nothing(self)
            self.say([WELCOME, found.number, handshake.welcome(found)])
        else:
            self.say([CHALLENGE, *found.challenge])

    def _check_request(self, message: Message) -> None:
        """Check that request ids are 1, 2, 3 and so on (Basic Profile, 2.1.2; strict mode). Raises `Violation`."""
        request = getattr(message, "request", None)
        if request is not None and not isinstance(message, Cancel):
            if request != self._next_request:
                raise Violation("The request id is not the next in sequence.")
            self._next_request += 1

    def _dispatch(self, session: WampSession, message: Message, now: float) -> None:
        """Carry out a message of the session's client. Raises `Violation` for one that it may not send."""
        handler = self._handlers.by_type.get(type(message))
        if handler is not None:
            try:
                handler(session, message, now)
            except WampError as error:
                self.refuse(message, error, now)
        elif isinstance(message, Goodbye):
            self._goodbye(session, now)
        elif isinstance(message, Abort):
            self._give_up(now)
        elif not isinstance(message, Cancel):  # a call has been answered, or will be soon
            raise Violation(f"{type(message).__name__.upper()} is not allowed within a session.")

    def _give_up(self, now: float) -> None:
        """Close the connection after the client's ABORT, which is never answered."""
        self._end_with([], NORMAL, "", now, GIVEN_UP)

    def _goodbye(self, session: WampSession, now: float) -> None:
        """Answer the client's GOODBYE and end the session; the client may send HELLO again (Basic Profile, 4.3)."""
        self.take_events(session, now)
        self.say([GOODBYE, {}, errors.GOODBYE_AND_OUT])
        self._end(LEFT, now)
        self._has_left = True
        self.await_hello(now)

    # Requests that are answered later

    def if_permitted(
        self,
        verb: Verb,
        what: str | Pattern,
        request: Message,
        then: Callable[[float], None],
        now: float,
        *,
        blocks: bool = True,
    ) -> None:
        """Call `then` with the time, now or later, if the program's own policy allows what the rules have allowed.

        `request` is the message that is refused otherwise. `blocks` makes the requests behind it wait meanwhile.
        Raises `WampError` where the policy denies it at once.
        """
        assert self.session is not None
        permission = self._state.environment.policy.permit(verb, what, self.session, self.context)

        def decided(is_allowed: object, error: Exception | None, now: float) -> None:
            if error is not None:
                raise WampError(errors.AUTHORIZATION_FAILED)
            if is_allowed is not True:
                raise WampError(errors.NOT_AUTHORIZED)
            then(now)

        if isinstance(permission, bool):
            decided(permission, None, now)
        else:
            limit_s = self._state.environment.policy_s
            self.wait_for(request, permission, limit_s, decided, needs=(verb, what), blocks=blocks)

    def wait_for(
        self,
        request: Message,
        awaitable: Awaitable[Any],
        limit_s: float,
        then: Callable[[Any, Exception | None, float], None],
        *,
        needs: tuple[Verb, str | Pattern] | None,
        blocks: bool = False,
    ) -> None:
        """Await something for `limit_s` seconds at most, then call `then` with its value or error, and the time.

        A `WampError` of `then` is the answer to `request`. `then` is not called if the session has ended, nor if the
        rules do not grant any more what the request `needs`; None: it has been done, and is acknowledged. `blocks`
        makes the requests behind this one wait.
        """
        session = self.session
        assert session is not None
        session.requests.begin(blocks=blocks)

        def resume(value: Any, error: Exception | None, now: float) -> None:
            session.requests.end(blocks=blocks)
            if not self._has(session):
                return
            try:
                try:
                    if needs is not None and not self._state.rights.may(session, *needs):
                        raise WampError(errors.NOT_AUTHORIZED)
                    then(value, error, now)
                except WampError as refusal:
                    self.refuse(request, refusal, now)
                while self._has(session) and (message := session.requests.dequeue()) is not None:
                    self._dispatch(session, message, now)
            except Violation as violation:
                self._violated(str(violation), now)

        self._state.environment.wait(awaitable, limit_s, resume)

    def _has(self, session: WampSession) -> bool:
        """Whether `session` is still the one that the connection has."""
        return self.session is session
