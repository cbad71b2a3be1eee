"""The WAMP engine of one connection: the effect of its messages in each state, and the replies.

The engine does no I/O and never raises on bad input: its output goes to the router, which passes it to the link. It
never stops reading. Requests that wait for a policy, for the disk or for a page of the history are answered later, and
what the client publishes or subscribes to after such a request waits in line behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from app.broker.events import Event
from app.broker.flow import GRACE_S
from app.broker.sessions import Session
from app.protocols.contract import NORMAL, POLICY_VIOLATION, PROTOCOL_ERROR, Close, Context, Link
from app.protocols.wamp import calls, errors, joining, publishing, subscribing
from app.protocols.wamp.authentication import Pending
from app.protocols.wamp.delivery import event_frame
from app.protocols.wamp.errors import Refused
from app.protocols.wamp.formats import Format
from app.protocols.wamp.line import Line
from app.protocols.wamp.messages import (
    ABORT,
    CALL,
    ERROR,
    GOODBYE,
    PUBLISH,
    REGISTER,
    SUBSCRIBE,
    UNREGISTER,
    UNSUBSCRIBE,
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
    Violation,
    read,
)
from app.protocols.wamp.serializers import Undecodable

if TYPE_CHECKING:
    from app.protocols.wamp.joining import Applicant
    from app.protocols.wamp.router import Router
    from app.protocols.wamp.sessions import WampSession

SLOW_CONSUMER = "slow_consumer"
LOST = "connection_lost"
VIOLATED = "protocol_violation"
LEFT = "goodbye"
GIVEN_UP = "aborted"
"""The reasons why a session ended."""


class Engine:
    """Speaks WAMP with one peer (`contract.Engine`); the owner of its session in the broker.

    `deadline` is when the peer must have a session or, after our GOODBYE, have sent its own; None while it has one.
    """

    __slots__ = (
        "_close",
        "_frames",
        "_frames_bytes",
        "_has_left",
        "_is_over",
        "_is_paused",
        "_is_too_slow",
        "_next_request",
        "applicant",
        "challenge",
        "context",
        "deadline",
        "format",
        "is_leaving",
        "is_ready",
        "line",
        "link",
        "router",
        "session",
    )

    def __init__(self, router: Router, link: Link, context: Context) -> None:
        self.router = router
        self.link = link
        self.format = Format.of(link)
        self.context = context
        self.session: WampSession | None = None
        self.applicant: Applicant | None = None
        self.challenge: Pending | None = None  # while the applicant's answer is awaited
        self.deadline: float | None = None
        self.is_leaving = False  # our GOODBYE has been sent
        self._has_left = False  # the client has ended a session with GOODBYE and may begin another
        self._is_over = False
        self._is_paused = False
        self._is_too_slow = False
        self.line = Line(self)
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
            self.violated(f"A {'binary' if is_binary else 'text'} message is not allowed with {form.subprotocol}.", now)
            return ()
        if not form.is_batched:
            return (data,)
        try:
            return form.split(data, self.router.options.batch_messages)
        except Undecodable:
            self.violated("The message cannot be decoded.", now)
            return ()

    def receive(self, message: bytes, now: float) -> None:
        """Process one serialized message (`Engine.receive`); a message that is not valid ends the connection."""
        if self._is_over:
            return
        try:
            unpacked = self.format.serializer.unpack(message, self.router.broker.limits)
            self._take(read(unpacked), len(message), now)
        except Undecodable:
            self.violated("The message cannot be decoded.", now)
        except Violation as violation:
            self.violated(str(violation), now)

    def violated(self, message: str, now: float) -> None:
        """End the session and the connection for a protocol violation; the ABORT carries `message`."""
        if not self.is_leaving:
            self.abort(errors.PROTOCOL_VIOLATION, message, now, reason=VIOLATED, code=PROTOCOL_ERROR)

    def paused(self) -> None:
        """Note that the link accepts nothing for now (`Engine.paused`)."""
        self._is_paused = True

    def resumed(self, now: float) -> None:  # noqa: ARG002 - the flush gets its own `now`
        """Note that the link accepts data again, and have waiting events written (`Engine.resumed`)."""
        self._is_paused = False
        if self.session is not None and len(self.session.outbox):
            self.router.broker.mark_ready(self.session)

    def lost(self, now: float) -> None:
        """End the session because its connection was lost (`Engine.lost`)."""
        if not self._is_over:
            self._is_over = True
            self._frames.clear()
            self.router.forget(self)
            self._end(LOST, now)

    # What the broker reports (sessions.Owner)

    def due(self, session: Session, now: float) -> None:  # noqa: ARG002 - an engine has one session
        """End the session because its token has expired (`Owner.due`)."""
        self.dismiss(errors.TOKEN_EXPIRED, "the token has expired", now, reason="token_expired")

    def flush_session(self, session: Session, now: float) -> Iterable[tuple[Link, list[bytes] | Close]]:  # noqa: ARG002
        """Return all that is to be written to the peer (`Owner.flush_session`): an engine has one session."""
        return self.flush(now)

    def take_events(self, session: Session, now: float) -> None:
        """Move the events in the session's outbox to what is to be written, behind earlier replies."""
        self.write(self._event_frames(session, now))

    def _event_frames(self, session: Session, now: float) -> list[bytes]:
        """Take the events from the session's outbox, as EVENT messages; none while the link is paused.

        This is the hot path: an event knows which subscriptions it was matched by.
        """
        frames: list[bytes] = []
        if self._is_paused:
            session.reads_until = min(session.reads_until, now + GRACE_S)
            return frames
        if not len(session.outbox):
            return frames
        form = self.format
        key = form.key
        for event in self.router.broker.take(session, now):
            for subscription in event.matched:
                number = subscription.number
                if number and session in subscription.sessions:
                    frame = event.frames.get((number, key))
                    frames.append(frame or event_frame(event, number, subscription.pattern, form))
        session.reads_until = inf
        if len(session.outbox):  # more values waited outside the queue than one turn may send
            self.router.broker.mark_ready(session)
        return frames

    def overflow(self, session: Session, event: Event, now: float) -> None:
        """Handle an overflow of the outbox (`Owner.overflow`).

        A peer that reads gets its events now. Any other is closed as a slow consumer at the end of the turn, once the
        broker has finished its fan-out.
        """
        if not self._is_paused and self.room_bytes() > 0:
            self.take_events(session, now)
            session.outbox.put(event)
        else:
            self._is_too_slow = True
        self.router.broker.mark_ready(self)

    def rights_changed(self, session: Session, now: float) -> int:  # noqa: ARG002 - an engine has one session
        """Revoke the subscriptions that the session's rights no longer grant (`Owner.rights_changed`)."""
        assert self.session is not None
        return subscribing.take_away(self.router, self.session, now)

    def flush(self, now: float) -> Iterable[tuple[Link, list[bytes] | Close]]:
        """Return all that is to be written to the peer at the end of this turn (`Outlet.flush`).

        A slow consumer is closed with GOODBYE, and its waiting events are dropped.
        """
        if self._is_too_slow and not self._is_over:
            goodbye = [] if self.session is None else [[GOODBYE, {"message": SLOW_CONSUMER}, errors.KILLED]]
            self._end_with(goodbye, POLICY_VIOLATION, SLOW_CONSUMER, now, SLOW_CONSUMER)
        frames, self._frames, self._frames_bytes = self._frames, [], 0
        if self.session is not None:
            frames += self._event_frames(self.session, now)
        close, self._close = self._close, None
        if close is not None:
            return ((self.link, close._replace(frames=frames + close.frames)),)
        return ((self.link, frames),) if frames else ()

    # Output

    def say(self, message: list[Any]) -> None:
        """Send a message; where too much waits for a peer that does not read, mark it as a slow consumer."""
        if self._is_over:
            return
        self.write([self.format.write(message)])
        if self._is_paused and self.room_bytes() < 0 and not self._is_too_slow:
            self._is_too_slow = True
            self.router.broker.hits["queue_bytes"] += 1

    def write(self, frames: list[bytes]) -> None:
        """Send frames that are already encoded."""
        if frames:
            self._frames += frames
            self._frames_bytes += sum(map(len, frames))
            self.router.broker.mark_ready(self)

    def room_bytes(self) -> int:
        """Return how many more bytes may be queued for the peer; below 0 where it is too much already."""
        return self.router.broker.limits.queue_bytes - self.link.backlog_bytes - self._frames_bytes

    def refuse(self, kind: int, request: int, refused: Refused) -> None:
        """Answer a request with an ERROR; `kind` is the code of the request's message type."""
        self.router.refused_to(self.session, _NAMES[kind], refused.uri)
        text = [[refused.text]] if refused.text else []
        self.say([ERROR, kind, request, {}, refused.uri, *text])

    def abort(
        self, uri: str, message: str, now: float, *, reason: str = GIVEN_UP, code: int = POLICY_VIOLATION
    ) -> None:
        """Send ABORT with the error `uri` and close the connection, with or without a session.

        `reason` is why the session ended, `code` the WebSocket close code.
        """
        if not self._is_over:
            self.router.refused_to(self.session, "session", uri)
            self._end_with([[ABORT, {"message": message}, uri]], code, uri, now, reason)

    def dismiss(self, uri: str, message: str, now: float, *, reason: str) -> None:
        """End the session with GOODBYE; the connection stays until the peer's GOODBYE, for `wamp.kill_s` at most."""
        if self.session is None or self.is_leaving:
            return
        self.take_events(self.session, now)
        self.say([GOODBYE, {"message": message} if message else {}, uri])
        self.is_leaving = True
        self.router.await_goodbye(self, now)
        self._end(reason, now)

    def late(self, now: float) -> None:
        """Close the connection because the peer sent no HELLO, AUTHENTICATE or GOODBYE before the deadline."""
        if self.is_leaving or (self._has_left and self.applicant is None):
            self._end_with([], NORMAL, errors.GOODBYE_AND_OUT, now, LEFT)
        else:
            self.router.broker.hits["hello_s"] += 1
            self.abort(
                errors.PROTOCOL_VIOLATION, "HELLO or AUTHENTICATE was not received in time.", now, code=PROTOCOL_ERROR
            )

    def _end_with(self, messages: list[list[Any]], code: int, why: str, now: float, reason: str) -> None:
        self._is_over = True
        self.router.forget(self)
        form = self.format
        self._close = Close([form.write(message) for message in messages], code, why)
        self.router.broker.mark_ready(self)
        self._end(reason, now)

    def _end(self, reason: str, now: float) -> None:
        """Release the session, or the id that was reserved for one, for any reason of its end."""
        session, self.session = self.session, None
        applicant, self.applicant = self.applicant, None
        self.challenge = None
        self.line = Line(self)
        if session is not None:
            self.router.leave(session, reason, now)
        elif applicant is not None:
            self.router.forget_number(applicant.number)

    # What is received

    def _take(self, message: Message, nbytes: int, now: float) -> None:
        if self.is_leaving:
            if isinstance(message, Goodbye):
                self._end_with([], NORMAL, errors.GOODBYE_AND_OUT, now, LEFT)
            return
        if self.session is None:
            self._take_stranger(message, now)
            return
        if self.router.options.strict_request_ids:
            self._check_request(message)
        if not self.line.takes(message, nbytes):
            self.act(message, now)

    def _take_stranger(self, message: Message, now: float) -> None:
        if isinstance(message, Hello) and self.challenge is None:
            joining.hello(self, message, now)
        elif isinstance(message, Authenticate) and self.challenge is not None:
            joining.authenticate(self, message, now)
        elif isinstance(message, Abort):
            self.given_up(now)
        else:
            name = type(message).__name__.upper()
            raise Violation(f"{name} was received instead of {'HELLO' if self.challenge is None else 'AUTHENTICATE'}.")

    def act(self, message: Message, now: float) -> None:
        """Carry out a message of the session's client. Raises `Violation`."""
        act = _ACTS.get(type(message))
        if act is None:
            raise Violation(f"{type(message).__name__.upper()} is not allowed within a session.")
        act(self, message, now)

    def _check_request(self, message: Message) -> None:
        """Check that request ids are 1, 2, 3 and so on (Basic Profile, 2.1.2; strict mode). Raises `Violation`."""
        request = getattr(message, "request", None)
        if request is not None and not isinstance(message, Cancel):
            if request != self._next_request:
                raise Violation("The request id is not the next in sequence.")
            self._next_request += 1

    def joined(self, session: WampSession) -> None:
        """Take over the session that WELCOME begins."""
        self.session = session
        self.applicant = self.challenge = None
        self._next_request = 1
        self.router.forget(self)

    def given_up(self, now: float) -> None:
        """Close the connection after the client's ABORT, which is never answered."""
        self._end_with([], NORMAL, "", now, GIVEN_UP)

    def goodbye(self, message: Goodbye, now: float) -> None:  # noqa: ARG002 - its reason does not matter
        """Answer the client's GOODBYE and end the session; the client may send HELLO again (Basic Profile, 4.3)."""
        if self.session is not None:
            self.take_events(self.session, now)
        self.say([GOODBYE, {}, errors.GOODBYE_AND_OUT])
        self._end(LEFT, now)
        self._has_left = True
        self.router.await_hello(self, now)


_NAMES = {
    PUBLISH: "publish",
    SUBSCRIBE: "subscribe",
    UNSUBSCRIBE: "unsubscribe",
    CALL: "call",
    REGISTER: "register",
    UNREGISTER: "unregister",
}


def _or_refuse(code: int, act: Callable[[Engine, Any, float], None]) -> Callable[[Engine, Any, float], None]:
    """Wrap a handler so that the `Refused` that it raises is answered with an ERROR for the message type `code`."""

    def acted(engine: Engine, message: Any, now: float) -> None:
        try:
            act(engine, message, now)
        except Refused as refused:
            engine.refuse(code, message.request, refused)

    return acted


def _cancel(_engine: Engine, _message: Cancel, _now: float) -> None:
    """Ignore a CANCEL: the call has been answered, or will be soon."""


def _register(engine: Engine, message: Register, _now: float) -> None:
    engine.refuse(REGISTER, message.request, Refused(errors.NOT_AUTHORIZED, "clients cannot register procedures"))


def _unregister(engine: Engine, message: Unregister, _now: float) -> None:
    engine.refuse(UNREGISTER, message.request, Refused(errors.NO_SUCH_REGISTRATION))


def _abort(engine: Engine, _message: Abort, now: float) -> None:
    engine.given_up(now)


_ACTS: dict[type, Callable[[Engine, Any, float], None]] = {
    Publish: publishing.publish,
    Subscribe: _or_refuse(SUBSCRIBE, subscribing.subscribe),
    Unsubscribe: _or_refuse(UNSUBSCRIBE, subscribing.unsubscribe),
    Call: _or_refuse(CALL, calls.call),
    Cancel: _cancel,
    Register: _register,
    Unregister: _unregister,
    Goodbye: Engine.goodbye,
    Abort: _abort,
}
"""The messages that a session's client may send; any other is a protocol violation."""
