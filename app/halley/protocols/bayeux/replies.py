"""Replies and what they carry: the advice to clients, and as many events as fit, each as the extensions pass it on.

An answer has events up to `bayeux.answer_bytes`, counted as they are written. CometD's Java client gives up at an
answer of 1 MiB, and would get the same one again on each connect. So events that do not fit into an answer stay in the
session's outbox, and the next connect is answered at once. Only one event alone may be larger.

With the acknowledge extension, events are added to those that are unacknowledged only while all of them fit: what a
client has lost can always be sent again in one answer, with one number for all of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any

from halley.broker.broker import Broker
from halley.broker.errors import RateLimited
from halley.broker.events import Event
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.errors import BayeuxError
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.messages import (
    ReplyMessage,
    body_of,
    decode_data,
    encode,
    escaped_bytes,
    event_frame,
    replay_frame,
    reply_to,
)
from halley.protocols.bayeux.names import CONNECT, HANDSHAKE, to_subscription
from halley.protocols.bayeux.outcomes import Transport
from halley.protocols.bayeux.session import DISCONNECTED, DISMISSED, INACTIVE, BayeuxSession, Hold, Reply
from halley.settings import Bayeux

WEBSOCKET = Transport.WEBSOCKET.value

_REPLY_BYTES = 1_024
"""For what is around the events: the reply to one message, brackets, the name of a JSONP callback."""

FRAME_BYTES = 60_000
"""The most bytes of one frame of a WebSocket: CometD's Java client reads 65,536, and would return for more for ever."""

_TIMESTAMP_BYTES = len(',"timestamp":"2026-11-21T22:10:44.12"')
_POSITION_BYTES = len('"":9007199254740991,')
"""What a connect reply has for each pattern of a session that replays, in addition to its name."""


def count_fitting(
    session: BayeuxSession,
    events: Sequence[Event],
    left_bytes: float,
    *,
    is_script: bool,
    has_timestamps: bool,
    in_z85: bool,
) -> int:
    """The number of the first of these events that fit into `left_bytes` of an answer, after all unacknowledged ones.

    Without unacknowledged events it is at least one. If `is_script`, they are written with JSONP's escapes. What a
    program's extensions add to events is not known before they are written, and does not count. `in_z85` is as in
    `event_frame`.
    """
    frame = _frame_for(session)
    around_bytes = len(",") + (_TIMESTAMP_BYTES if has_timestamps else 0)
    left_bytes -= _REPLY_BYTES
    if session.cursor is not None:
        for pattern in session.subscriptions:
            left_bytes -= len(to_subscription(pattern)) + _POSITION_BYTES
    sent_again = [] if session.acks is None else list(session.acks)
    for number, event in enumerate((*sent_again, *events)):
        text = frame(event, in_z85)
        left_bytes -= (escaped_bytes(text) if is_script else len(text)) + around_bytes
        if left_bytes < 0 and number >= (len(sent_again) or 1):
            return number - len(sent_again)
    return len(events)


class Advisor:
    """Makes advice, by which clients learn how and when to connect again (Bayeux 1.0, 3.4).

    Advice always has all of `reconnect`, `interval` and `timeout`: cometd.js replaces its earlier advice by its own
    defaults plus these. It is sent in reply to the handshake, to a session's first connect, to a connect that failed or
    carried its own advice, and whenever it differs from the last advice sent; other connect replies carry none.
    `drain_interval` returns the seconds that clients shall wait during a drain.
    """

    def __init__(self, options: Bayeux) -> None:
        self._options = options
        self.is_draining = False
        self.drain_interval: Callable[[], float] = lambda: 0.0

    def advice(self, session: BayeuxSession, reconnect: str = "retry") -> dict[str, Any]:
        """Advice for a client with a session."""
        return {"reconnect": reconnect, "interval": _ms(session.own_interval_s), "timeout": _ms(session.hold_s)}

    def without_session(self, reconnect: str) -> dict[str, Any]:
        """Advice for a client that has no session on this server."""
        return {"reconnect": reconnect, "interval": 0, "timeout": _ms(self._options.hold_s)}

    def for_refusal(
        self, session: BayeuxSession | None, fields: dict[str, Any], fault: BayeuxError
    ) -> dict[str, Any] | None:
        """The advice in the reply to a message that is refused, if there is any.

        `fields` are the message as it was sent, and `session` is the request's, if there is one. A client whose session
        lives is to connect again, but not at once: Faye's would repeat the same connect without a pause. What an
        extension drops is answered without advice, as CometD does: clients then try again at their own pace, while
        "none" would stop them for good.
        """
        channel = fields.get("channel")
        if channel not in (HANDSHAKE, CONNECT) or fault.error == errors.MESSAGE_DELETED:
            return fault.advice
        if channel == HANDSHAKE:
            # Without "none" cometd.js would repeat a handshake that can never succeed forever.
            return {**self.without_session("none"), **(fault.advice or {})}
        if fault.advice is not None:
            return fault.advice
        if session is None or session.closed is not None or fields.get("clientId") != session.id:
            # A client that disconnected or was dismissed during this request shall not return; an expired one shall
            # (#921).
            is_over = session is not None and session.closed in (DISCONNECTED, DISMISSED, INACTIVE)
            return self.without_session("none" if is_over else "handshake")
        session.forget_advice()  # the reply to its next connect is to take this interval back
        return {**self.advice(session), "interval": _ms(max(session.own_interval_s, self._options.refused_interval_s))}

    def interval_s(self, hold: Hold) -> float:
        """The seconds that a client is to wait after the reply to `hold`."""
        own_s = hold.session.own_interval_s
        return max(own_s, self._options.browser_interval_s) if hold.has_other_clients else own_s

    def for_reply(self, hold: Hold, interval_s: float) -> dict[str, Any]:
        """The advice in the reply to `hold`, after which its client is to wait for `interval_s`."""
        session = hold.session
        if self.is_draining:
            return {**self.advice(session), "interval": _ms(self.drain_interval())}
        if not hold.has_other_clients:
            session.announced_hold_s, session.announced_interval_s = session.hold_s, interval_s
            return self.advice(session)
        session.forget_advice()  # this is for one connect only
        polls = self._options.browser_interval_s > 0
        advice = self.advice(session, "retry" if polls else "none")
        return {**advice, "interval": _ms(interval_s), "multiple-clients": True}


class Replies:
    """Makes replies, and passes them and their events through the extensions.

    `connection_types` is what replies to handshakes offer; `refused` counts refusals by code.
    """

    def __init__(self, broker: Broker, options: Bayeux, hooks: Hooks, connection_types: Sequence[str]) -> None:
        self.advisor = Advisor(options)
        self.connection_types = tuple(connection_types)
        self.refused: Counter[str] = Counter()
        self._broker = broker
        self._options = options
        self._hooks = hooks
        self._extensions, self._has_timestamps = hooks.extensions, options.timestamp  # here they are found faster
        self._in_z85 = options.bytes == "z85"

    @property
    def is_plain(self) -> bool:
        """Whether all subscribers get the same text of an event: no extension and no timestamp is added to it."""
        return not (self._extensions or self._has_timestamps)

    def make(
        self,
        session: BayeuxSession | None,
        messages: Sequence[ReplyMessage],
        events: list[Event],
        now: float,
        connection: Any,
    ) -> Reply:
        """Make a reply of messages and then events, passed through the extensions; with events it is unsettled.

        Without extensions an event is encoded once for all its subscribers. With extensions it is encoded for each
        subscriber: an extension may add to it, change it or keep it back.
        """
        if self._extensions or self._has_timestamps:
            texts = self._extended(session, messages, events, now)
            reply = self.of_texts(session, texts, [], events, connection)
            if session is not None and session.socket is connection:
                reply.parts = turned(texts, len(messages))
            return reply
        parts = [encode(message) for message in messages] if len(messages) > 1 else [encode(messages[0])]
        return self.of_texts(session, parts, events, events, connection)

    def of_texts(
        self,
        session: BayeuxSession | None,
        parts: list[bytes],
        unencoded: Sequence[Event],
        events: list[Event],
        connection: Any,
    ) -> Reply:
        """Make a reply of `parts` and then the events that are `unencoded`; `events` are all that it carries."""
        if session is not None and session.replay is not None:
            frame = _frame_for(session)
            parts += [frame(event, self._in_z85) for event in unencoded]
        else:
            for event in unencoded:
                parts.append(event.frames.get("bayeux") or event_frame(event, self._in_z85))
        reply = Reply(parts, session, events, connection)
        if self.advisor.is_draining:
            reply.is_last = True
        if events and session is not None:
            session.unsettled = reply
            if session.socket is not None and session.socket is connection:  # events come first
                reply.parts = turned(parts, len(parts) - len(unencoded))
        return reply

    def take(
        self, session: BayeuxSession, now: float, spent_bytes: float = 0, *, is_script: bool = False
    ) -> list[Event]:
        """Take the waiting events that fit into an answer; with acknowledgements, after all unacknowledged ones.

        `spent_bytes` are those of the answer's replies.
        """
        events = self.limit_to_reply(session, self._broker.take(session, now), spent_bytes, is_script=is_script)
        if session.acks is not None:
            session.outbox.retain(events)
            events = session.acks.close_batch(events)
            for event in events:  # they wait in the reply too, until that is settled
                self._broker.waiting.retain(event)
        return events

    def limit_to_reply(
        self, session: BayeuxSession, events: list[Event], spent_bytes: float, *, is_script: bool
    ) -> list[Event]:
        """Those of the events, which were taken, that fit into an answer; the others return to the outbox."""
        if len(events) > 1 or (events and session.acks):
            most_bytes = self._options.answer_bytes if session.socket is None else FRAME_BYTES
            left_bytes, stamped, in_z85 = most_bytes - spent_bytes, self._has_timestamps, self._in_z85
            count = count_fitting(
                session, events, left_bytes, is_script=is_script, has_timestamps=stamped, in_z85=in_z85
            )
            if count < len(events):
                self._broker.give_back(session, events[count:])
                del events[count:]
        return events

    def to_connect(self, hold: Hold, more: dict[str, Any]) -> dict[str, Any]:
        """The reply to a connect whose session continues, with `more` fields."""
        message = begin_reply(hold, successful=not hold.has_other_clients or self._options.browser_interval_s != 0)
        message["clientId"] = hold.session.id
        return message | more

    def refuse_connect(self, hold: Hold, error: str, now: float) -> Reply:
        """Make the reply to a connect whose session has ended: its client is to begin another."""
        message = begin_reply(hold, successful=False)
        message["error"] = error
        message["advice"] = self.advisor.without_session("handshake")
        return self.make(None, [message], [], now, hold.connection)

    def dismiss(
        self, hold: Hold, replay_ext: Callable[..., dict[str, Any]], now: float, *, is_by_server: bool
    ) -> Reply:
        """Make the reply, with the last events, to a connect whose session is disconnected.

        `is_by_server`: add a `/meta/disconnect` message, since the client did not ask for it itself. `replay_ext`
        returns the `ext` of a session that replays.
        """
        session = hold.session
        message = begin_reply(hold, successful=True)
        message["advice"] = self.advisor.advice(session, "none")
        may_take = session.unsettled is None and not session.is_pushed
        if session.is_pushed:
            session.socket.send(now)
        # All of them, of any size: no other answer follows.
        events = self.take(session, now, -inf) if may_take else []
        if session.replay is not None:
            message["ext"] = replay_ext(hold, with_events=may_take)
        messages = [message, {"channel": "/meta/disconnect", "successful": True}] if is_by_server else [message]
        # Frames of a session that replays differ.
        reply = self.make(None if session.replay is None else session, messages, events, now, hold.connection)
        if events:  # they wait until it is written, though the session ends
            reply.session, session.unsettled = session, reply
        return reply

    def connect_ext(self, hold: Hold, now: float, *, with_events: bool) -> dict[str, Any]:
        """What CometD's extensions have in the `ext` of the reply to a connect, which may come with events."""
        session = hold.session
        ext: dict[str, Any] = {}
        if with_events and session.acks is not None:
            ext["ack"] = session.acks.batch
        if hold.timesync is not None and hold.timesync.is_wanted:
            ext["timesync"] = hold.timesync.answer(now + self._broker.clock_offset_s)
        return ext

    def refusal_within_rate(
        self, session: BayeuxSession | None, fields: dict[str, Any], fault: BayeuxError, address: str, now: float
    ) -> dict[str, Any]:
        """Make the reply to a message that is refused; beyond the rate of refusals, that it comes too fast."""
        if not errors.takes_token(fault.error) or self._broker.rates.admit_refusal(session, address, now):
            return self.refusal(session, fields, fault)
        fault = BayeuxError(errors.denial(str(fields.get("channel")), RateLimited.reason))
        return self.refusal(session, fields, fault, is_reported=False)

    def refusal(
        self, session: BayeuxSession | None, fields: dict[str, Any], fault: BayeuxError, *, is_reported: bool = True
    ) -> dict[str, Any]:
        """Make the reply to a message that is refused; count that, and report denials to the hooks if `is_reported`.

        `fields` are the message as it was sent, and `session` is the request's, if there is one.
        """
        self.refused[fault.error.partition(":")[0]] += 1
        if is_reported and errors.is_denial(fault.error):
            self._hooks.notify([self._hooks.message_refused], session, fields, fault.error)
        reply = reply_to(fields, successful=False)
        reply["error"] = fault.error
        if fields.get("channel") == HANDSHAKE:
            reply["supportedConnectionTypes"] = list(self.connection_types)
        advice = self.advisor.for_refusal(session, fields, fault)
        if advice is not None:
            reply["advice"] = advice
        if fault.ext is not None:
            reply["ext"] = fault.ext
        return reply

    def offered(self, transport: Transport) -> list[str]:
        """The connection types in the reply to a handshake: `websocket` first if that came by one."""
        if transport is not Transport.WEBSOCKET:
            return list(self.connection_types)
        return [WEBSOCKET, *(each for each in self.connection_types if each != WEBSOCKET)]

    def texts_of(self, session: BayeuxSession, events: Sequence[Event], now: float) -> list[bytes]:
        """The texts of events that are written without a reply, as the extensions pass them on."""
        if self._extensions or self._has_timestamps:
            return self._extended(session, (), events, now)
        return [event.frames.get("bayeux") or event_frame(event, self._in_z85) for event in events]

    def text_of(self, event: Event) -> bytes:
        """The text of an event that all subscribers get, where they are plain (`is_plain`)."""
        return event_frame(event, self._in_z85)

    def _extended(
        self, session: BayeuxSession | None, messages: Sequence[ReplyMessage], events: Sequence[Event], now: float
    ) -> list[bytes]:
        """The JSON texts of messages and then events, as the extensions pass them on, or with timestamps."""
        frame, in_z85 = _frame_for(session), self._in_z85
        objects = [decode_data(message) if isinstance(message, bytes) else message for message in messages]
        replies = [self._passed_on(session, message, now, is_event=False) for message in objects]
        added = [self._passed_on(session, decode_data(frame(event, in_z85)), now, is_event=True) for event in events]
        return [part for part in (*replies, *added) if part is not None]

    def _passed_on(
        self, session: BayeuxSession | None, fields: dict[str, Any], now: float, *, is_event: bool
    ) -> bytes | None:
        """A message as the extensions return it, encoded; None if they keep an event back (replies cannot be)."""
        if self._options.timestamp:  # Bayeux 1.0, 3.11: ISO 8601, "SHOULD be GMT"
            at = datetime.fromtimestamp(now + self._broker.clock_offset_s, UTC)
            fields["timestamp"] = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 10_000:02}"
        unchanged = encode(fields)
        if not self._hooks.extensions:
            return unchanged
        changed = self._hooks.outgoing(session, fields)
        if changed is None:
            return None if is_event else unchanged
        try:
            return encode(changed)
        except TypeError as error:  # the extension returned something that is not JSON: send the message unchanged
            self._hooks.report("extension.outgoing", error)
            return unchanged


def _frame_for(session: BayeuxSession | None) -> Callable[[Event, bool], bytes]:
    """The encoding of events for a session; None for a reply without one."""
    has_positions = session is not None and session.replay is not None and session.replay.in_data
    return replay_frame if has_positions else event_frame


def begin_reply(hold: Hold, *, successful: bool) -> dict[str, Any]:
    """The fields that every reply to a connect has."""
    reply: dict[str, Any] = {} if hold.message_id is None else {"id": hold.message_id}
    reply["channel"] = CONNECT
    reply["successful"] = successful
    return reply


def framed(texts: list[bytes], replies: list[Reply], welcome: Reply | None) -> list[bytes]:
    """Return the texts of events, and then those of replies, as WebSocket messages of `FRAME_BYTES` at most.

    The reply that is the `welcome`, and one without messages, are messages of their own.
    """
    frames: list[bytes] = []
    nbytes = sum(map(len, texts)) + len(texts)
    for reply in replies:
        parts = reply.parts
        is_alone = reply is welcome or not parts
        total = sum(map(len, parts)) + len(parts)
        if texts and (is_alone or nbytes + total > FRAME_BYTES):  # its events stay together with it
            frames.append(body_of(texts))
            texts, nbytes = [], 0
        if is_alone:
            frames.append(body_of(parts))
            continue
        for part in parts:
            if texts and nbytes + len(part) > FRAME_BYTES:
                frames.append(body_of(texts))
                texts, nbytes = [], 0
            texts.append(part)
            nbytes += len(part) + 1
    if texts:
        frames.append(body_of(texts))
    return frames


def turned(parts: list[bytes], replies: int) -> list[bytes]:
    """Return the parts of a reply with that many of the first ones at its end."""
    return parts[replies:] + parts[:replies]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
