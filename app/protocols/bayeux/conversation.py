"""One request, from its first message to its reply.

Messages are handled strictly in order (Bayeux 1.0, 5.2), except that connects come last: the effects of the other
messages on the session are then part of the connect's reply, so that a client that batches `[connect, publish]` gets
its event without delay. Replies keep the order of the request; events follow them.

The steps are a generator, so that waiting for an async policy is one expression: the generator yields a `Wait` and is
sent a `Verdict` with the new time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from app.broker.errors import InvalidName, Refusal
from app.broker.events import Event
from app.broker.topics import Pattern
from app.protocols.bayeux import asking, errors, replay
from app.protocols.bayeux.exchanges import Hold, Pending, Reply, Request, Transport, Verdict, Wait
from app.protocols.bayeux.handshake import shake_hands
from app.protocols.bayeux.messages import (
    Fault,
    Message,
    reply_to,
)
from app.protocols.bayeux.names import SERVICE, to_pattern
from app.protocols.bayeux.publishing import fault_of, is_publish, publish
from app.protocols.bayeux.sessions import DISCONNECTED, DISMISSED, BayeuxSession
from app.protocols.bayeux.timesync import Timesync
from app.protocols.json_text import has_out_of_range

if TYPE_CHECKING:
    from app.protocols.bayeux.engine import Engine

Steps = Generator[Wait | Pending, tuple[Verdict, float], Any]

HANDSHAKE = "/meta/handshake"
CONNECT = "/meta/connect"


class Conversation:
    """The handling of one request: its session, its replies so far, and the publishes that they wait for."""

    def __init__(self, engine: Engine, request: Request, now: float) -> None:
        self.engine = engine
        self.request = request
        self.now = now
        self.session: BayeuxSession | None = request.session
        self._client_id: str | None = None
        self._replies: list[dict[str, Any]] = []
        self.beside: list[dict[str, Any]] = []  # replies of services to a sender without a session
        self._held_back: dict[Event, list[tuple[dict[str, Any], dict[str, Any]]]] = {}  # (reply, message) pairs
        self._latest: dict[Pattern, None] = {}  # new subscriptions that asked for the last values
        self._pending: Pending | None = None  # waits for the events of `_held_back`

    def steps(self) -> Generator[Wait | Pending, tuple[Verdict, float], Reply | Hold]:
        """Handle the request's messages, and return its reply or hold."""
        messages = self.request.messages
        if messages[0].get("channel") == HANDSHAKE:
            # Bayeux 1.0, 4.1.1: "any other messages in the same request MUST be ignored".
            return (yield from shake_hands(self, messages[0]))
        self._choose_session()
        connects: list[tuple[int, Message]] = []
        for fields in messages:
            if self._held_back and not is_publish(fields.get("channel")):
                yield from self._publishes()
            try:
                message = self.read(fields)
                if message.channel == CONNECT:
                    connects.append((len(self._replies), message))
                    self._replies.append({})
                else:
                    self._replies.append((yield from self._answer(message)))
            except Fault as fault:
                self._replies.append(self.refusal(fields, fault))
        yield from self._publishes()
        self._show_latest()
        outcome: Reply | Hold = yield from self._finish(connects)
        return outcome

    # Publishes on their way to the disk

    def hold_back(self, event: Event, reply: dict[str, Any], message: Message) -> None:
        """Keep a reply open until its event is settled."""
        self._held_back.setdefault(event, []).append((reply, message.sent))
        event.waiters.append(self)

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Complete the replies that wait for an event, which is stored or refused (`broker.events.Waiter`)."""
        for reply, fields in self._held_back.pop(event, ()):
            if refusal is not None:
                reply.clear()
                reply.update(self.refusal(fields, fault_of(refusal)))
            elif event.position:
                reply["ext"] = {"position": event.position}
        if self._pending is not None and not self._held_back:
            pending, self._pending = self._pending, None
            self.engine.proceed(pending, now)

    def _publishes(self) -> Steps:
        """Wait until no reply is held back."""
        if self._held_back:
            self._pending = Pending(self.request.connection)
            _, self.now = yield self._pending

    def _finish(self, connects: list[tuple[int, Message]]) -> Steps:
        events: list[Event] = []
        for place, message in connects:
            try:
                hold = self._poll(message)
            except Fault as fault:
                self._replies[place] = self.refusal(message.sent, fault)
                continue
            is_last = place == connects[-1][0]
            if is_last and replay.is_behind(hold.session) and not (yield from replay.catch_up(self, hold)):
                self._replies[place] = replay.answer_late(self.engine, hold, self.now)
                continue
            if self.engine.connect(hold, self.now, alone=len(self.request.messages) == 1):
                return hold
            if hold.session.closed is not None:  # by a hook that was notified of the older connect's end
                self._replies[place] = self.refusal(message.sent, Fault(errors.SESSION_UNKNOWN))
                continue
            self._replies[place], events = self.engine.connect_reply(hold, self.now, with_events=is_last)
        if not connects:
            events = self._events_beside()
        return self.engine.reply_with(
            self.session,
            [*self._replies, *self.beside],
            events,
            self.now,
            connection=self.request.connection,
            answers_connect=bool(connects),
        )

    def _events_beside(self) -> list[Event]:
        """Take the waiting events that may go with a reply without a connect (Bayeux 1.0, 5.2)."""
        session = self.session
        if (
            session is None
            or session.closed is not None
            or session.acks is not None
            or session.cursor is not None
            or session.connect_delivery_only
            or session.open_batches
            or self.request.transport is not Transport.LONG_POLLING
            or not self.engine.can_take(session)
        ):
            return []
        return self.engine.broker.take(session, self.now)

    # Reading and refusing

    def read(self, fields: dict[str, Any]) -> Message:
        """Check one message and pass it through the extensions. Raises `Fault`."""
        message = Message(fields, self.request.context)
        if self.request.has_odd_numbers and has_out_of_range(fields):
            raise Fault(errors.NUMBER_OUT_OF_RANGE)
        hooks = self.engine.hooks
        if hooks.extensions:
            seen = hooks.incoming(self._session_if_known(message), dict(fields))
            if seen is None:
                raise Fault(errors.MESSAGE_DELETED)
            message = Message(seen, self.request.context, sent=fields)
        return message

    def _choose_session(self) -> None:
        """Choose the request's session: that of its first message with a clientId, even if that message is refused."""
        named = (fields["clientId"] for fields in self.request.messages if isinstance(fields.get("clientId"), str))
        self._client_id = next(named, None)
        if self._client_id is not None and self.session is None:
            self.session = self.engine.find(self._client_id, self.request, self.now)
            if self.session is not None:
                self.engine.heard_from(self.session, self.now)

    def _session_if_known(self, message: Message) -> BayeuxSession | None:
        """The session of a message; None if it names another than the request's (A54), or the session has ended."""
        if self.request.session is None and (message.client_id is None or message.client_id != self._client_id):
            return None
        return self.session if self.session is not None and self.session.closed is None else None

    def session_of(self, message: Message) -> BayeuxSession:
        """The session of a message. Raises `Fault` if it has none."""
        session = self._session_if_known(message)
        if session is None:
            raise Fault(errors.SESSION_UNKNOWN)
        return session

    def refusal(self, fields: dict[str, Any], fault: Fault) -> dict[str, Any]:
        """The reply to a message that is refused; the refusal is counted, and denials are reported to the hooks."""
        self.engine.refused[fault.error.partition(":")[0]] += 1
        if errors.is_denial(fault.error):
            self.engine.hooks.tell(self.engine.hooks.message_refused, self.session, fields, fault.error)
        reply = reply_to(fields, successful=False)
        reply["error"] = fault.error
        advice = fault.advice
        if fields.get("channel") == HANDSHAKE:
            # Without "none" cometd.js would repeat a handshake that can never succeed forever.
            advice = {**self.engine.advisor.for_stranger("none"), **(advice or {})}
        elif fields.get("channel") == CONNECT and advice is None:
            # A client that disconnected or was dismissed during this request shall not return; an expired one shall
            # (#921).
            is_over = self.session is not None and self.session.closed in (DISCONNECTED, DISMISSED)
            may_return = fault.error == errors.SESSION_UNKNOWN and not is_over
            advice = self.engine.advisor.for_stranger("handshake" if may_return else "none")
        if advice is not None:
            reply["advice"] = advice
        if fault.ext is not None:
            reply["ext"] = fault.ext
        return reply

    # Connect

    def _poll(self, message: Message) -> Hold:
        """Make the hold that a connect asks for. Raises `Fault`."""
        engine = self.engine
        session = self.session_of(message)
        if message.fields.get("connectionType") not in engine.connection_types:
            raise Fault(errors.CONNECTION_TYPES_UNSUPPORTED.format(",".join(engine.connection_types)))
        timeout_ms = message.milliseconds("timeout")
        interval_ms = message.milliseconds("interval")
        wait_s = session.hold_s if timeout_ms is None else min(timeout_ms / 1000, session.hold_s)
        session.client_interval_s = (
            None if interval_ms is None else min(interval_ms / 1000, engine.options.max_client_interval_s)
        )
        batch = (message.ext or {}).get("ack")
        if session.acks is not None and isinstance(batch, int) and not isinstance(batch, bool):
            session.outbox.release(session.acks.acknowledge(batch))
        timesync = Timesync.read(message.ext, engine.wall_ms(self.now))
        return Hold(
            session,
            self.request.connection,
            message.sent,
            wait_s,
            wants_advice=message.advice is not None,
            timesync=timesync,
        )

    # All messages but handshake and connect

    def _answer(self, message: Message) -> Steps:
        """Handle any message but a handshake or connect, and return its reply. Raises `Fault`."""
        channel = message.channel
        reply = reply_to(message.sent, successful=True)
        # By exact name: a prefix match once let /meta/subscribe/x past the checks of Faye (CVE-2020-11020).
        if channel == "/meta/subscribe":
            session = self.session_of(message)
            ext = yield from self._subscribe(session, message)
            reply["clientId"] = session.id
            if ext is not None:
                reply["ext"] = ext
        elif channel == "/meta/unsubscribe":
            session = self.session_of(message)
            self._unsubscribe(session, message)
            reply["clientId"] = session.id
        elif channel == "/meta/disconnect":
            session = self.session_of(message)
            reply["clientId"] = session.id
            self.engine.leave(session, self.now, by_client=True)
        elif channel == HANDSHAKE:
            raise Fault(errors.HANDSHAKE_NOT_FIRST)
        else:
            yield from publish(self, message, reply)
        return reply

    def _subscribe(self, session: BayeuxSession, message: Message) -> Steps:
        """Subscribe to all of a message's names or none (A46): all are checked before the first takes effect.

        Returns the reply's `ext`, or None.
        """
        engine = self.engine
        wanted: dict[str, Pattern] = {}
        for name in message.subscriptions():
            pattern = self._pattern(name)
            self._check_right(session, pattern)
            if not name.startswith(SERVICE):  # Bayeux 1.0, 2.2.3: answered, never recorded
                wanted[name] = pattern
        self._check_room(session, list(wanted.values()))
        for name in wanted:
            yield from asking.may_subscribe(self, session, name, message)
        if session.closed is not None:  # it ended while the policy was awaited
            raise Fault(errors.SESSION_UNKNOWN)
        for pattern in wanted.values():
            self._check_right(session, pattern)  # again: the rules may have changed meanwhile
        self._check_room(session, list(wanted.values()))
        positions = replay.wishes(engine, session, message, wanted)
        ext = None if positions is None else replay.seek(engine, session, positions)
        for name, pattern in wanted.items():
            asking.bring_into_being(self, name)
            if engine.broker.subscribe(session, pattern):
                engine.hooks.tell(engine.hooks.subscribed, session, name)
            if message.ext is not None and message.ext.get("latest") is True:
                self._latest[pattern] = None
        return ext

    def _show_latest(self) -> None:
        """Deliver the last values once for the whole request: very many values may match."""
        if self.session is not None:
            wanted = [pattern for pattern in self._latest if pattern in self.session.subscriptions]
            self.engine.broker.show_latest(self.session, wanted, self.now)

    def _check_right(self, session: BayeuxSession, pattern: Pattern) -> None:
        is_meta = pattern.topic.partition("/")[0] == "meta"
        if is_meta or not self.engine.rights.may(session, "subscribe", pattern):
            raise Fault(errors.SUBSCRIBE_DENIED.format(errors.DENIED_BY_POLICY))

    def _check_room(self, session: BayeuxSession, patterns: list[Pattern]) -> None:
        try:
            self.engine.broker.check_room(session, patterns)
        except Refusal as refusal:
            raise Fault(errors.SUBSCRIBE_DENIED.format(refusal.reason)) from None

    def _unsubscribe(self, session: BayeuxSession, message: Message) -> None:
        patterns = {name: self._pattern(name) for name in message.subscriptions()}
        replay.forget(session, patterns.values())
        for name, pattern in patterns.items():
            if self.engine.broker.unsubscribe(session, pattern):
                self.engine.hooks.tell(self.engine.hooks.unsubscribed, session, name)

    def _pattern(self, name: str) -> Pattern:
        try:
            return to_pattern(name, self.engine.bounds)
        except InvalidName as refusal:
            self.engine.broker.counted(refusal)
            raise Fault(errors.SUBSCRIPTION_INVALID) from None
