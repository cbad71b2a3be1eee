"""The hot path: the three most frequent cases, inlined for speed.

They are a lone connect that is held, a held connect that events end, and a lone publish. Each function does exactly
what the general path does (`Conversation`, `Engine.connect`, `Engine.answer`), or declines by returning None or False
without any effect. It declines if anything about the message, its session or the program's hooks is unusual. Tests run
every sequence over both paths and check that they give the same bytes and the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from app.broker.errors import InvalidName, Refusal
from app.broker.events import Event
from app.protocols.bayeux.exchanges import Hold, Pending, Reply
from app.protocols.bayeux.messages import ECHOED_CHARS, ID, encode, encode_data, event_frame, reply_to
from app.protocols.bayeux.names import META, SERVICE, to_topic
from app.protocols.bayeux.publishing import fault_of
from app.protocols.bayeux.sessions import BayeuxSession
from app.protocols.bayeux.states import State

if TYPE_CHECKING:
    from app.protocols.bayeux.engine import Engine


def receive(
    engine: Engine, fields: dict[str, Any], cookies: Sequence[str], connection: object, now: float
) -> Reply | Hold | Pending | None:
    """Serve a long-polling request with one plain message of a session; None if it is anything else."""
    client_id, message_id = fields.get("clientId"), fields.get("id")
    if (
        type(client_id) is not str
        or len(fields) != 4
        or engine.advisor.is_draining
        or engine.hooks.extensions
        or not (type(message_id) is int or (type(message_id) is str and ID.fullmatch(message_id)))
    ):
        return None
    session = engine.broker.sessions.get(client_id)
    if type(session) is not BayeuxSession or session.unsettled is not None or session.expiry <= now:
        return None
    if not session.admits(cookies):
        return None
    if fields.get("channel") != "/meta/connect":
        return _publish(engine, session, fields, connection, now) if "data" in fields else None
    # Hold the connect if nothing waits: the row (IDLE, POLL) of `states.LIFE`.
    limit, browser = engine.options.holds_per_browser, session.browser
    if (
        session.state is not State.IDLE
        or session.acks is not None
        or session.cursor is not None
        or len(session.outbox)
        or session.hold_s <= 0
        or fields.get("connectionType") != "long-polling"
        or (limit >= 0 and engine.holds_by_browser.get(browser, 0) >= limit)
    ):
        return None
    engine.connects += 1
    session.client_interval_s = None
    session.state = State.HELD
    session.held = hold = Hold(session, connection, fields, session.hold_s, browser)
    engine.begin_hold(hold, now)
    return hold


def flush(engine: Engine, session: BayeuxSession, now: float) -> Reply | None:
    """Answer a held connect with the waiting events: the row (HELD, EVENTS) of `states.LIFE`."""
    hold, events = session.held, session.outbox
    if (
        hold is None
        or session.unsettled is not None
        or not len(events)
        or session.open_batches
        or session.acks is not None
        or session.cursor is not None
        or hold.wants_advice
        or hold.timesync is not None
        or engine.advisor.is_draining
        or engine.hooks.extensions
        or engine.options.timestamp
        or (message_id := hold.request.get("id")) is None
    ):
        return None
    interval_s = session.interval_s if session.client_interval_s is None else session.client_interval_s
    if session.announced != (session.hold_s, interval_s, False):
        return None
    session.state = State.IDLE
    engine.end_hold(hold)
    taken = engine.broker.take(session, now)
    engine.await_connect(session, interval_s, now)
    reply = b'{"id":%b,"channel":"/meta/connect","successful":true,"clientId":"%b"}' % (
        orjson.dumps(message_id),
        session.id.encode(),
    )
    parts = [reply, *[event.frames.get("bayeux") or event_frame(event) for event in taken]]
    session.unsettled = Reply(parts, session, taken, hold.connection, True)  # noqa: FBT003 - it answers a connect
    return session.unsettled


def _publish(
    engine: Engine, session: BayeuxSession, fields: dict[str, Any], connection: object, now: float
) -> Reply | Pending | None:
    """Publish to a plain channel for which the program has no hooks; None if the general path must do it."""
    hooks, broker, channel = engine.hooks, engine.broker, fields.get("channel")
    if (
        type(channel) is not str
        or len(channel) > ECHOED_CHARS
        or channel.startswith((META, SERVICE))
        or channel[-1:] == "*"
        or hooks.policy is not None
        or hooks.listeners
        or hooks.authorizers
        or hooks.channel_created
        or engine.options.timestamp
    ):
        return None
    try:
        topic = to_topic(channel, engine.bounds)
    except InvalidName:
        return None
    payload = encode_data(fields["data"])
    if len(payload) > broker.limits.data_bytes or topic == "meta" or not engine.rights.may(session, "publish", topic):
        return None
    if broker.waiting.is_over or broker.memory.is_over or not (session.meter is None or session.meter.admits(now)):
        return None  # a meter that refuses takes no token, so the general path gets the same result
    engine.heard_from(session, now)
    event = Event(topic, payload, publisher=session.id, authid=session.authid, role=session.role)
    without = None if session.broadcast_to_publisher else session
    if broker.recording.log is None and broker.values is None:  # then it cannot be refused, and is settled immediately
        broker.publish(event, now, without=without)
        return _accepted(engine, session, fields, connection, now)
    return _Publish(engine, session, fields, connection).begin(event, without, now)


class _Publish:
    """A publish that may have to be stored first, or whose data may not be a value of its topic's type."""

    __slots__ = ("connection", "engine", "fields", "session")

    def __init__(self, engine: Engine, session: BayeuxSession, fields: dict[str, Any], connection: object) -> None:
        self.engine = engine
        self.session = session
        self.fields = fields
        self.connection = connection

    def begin(self, event: Event, without: BayeuxSession | None, now: float) -> Reply | Pending:
        """Publish the event; return the reply, or `Pending` if the event must be stored first."""
        try:
            self.engine.broker.publish(event, now, without=without, source=self.session)
        except Refusal as refusal:
            return _refused(self.engine, self.session, self.fields, self.connection, refusal, now)
        if event.is_pending:
            event.waiters.append(self)
            return Pending(self.connection)
        return _accepted(self.engine, self.session, self.fields, self.connection, now)

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Send the reply for an event that is stored or refused (`broker.events.Waiter`)."""
        if refusal is None:
            reply = _accepted(self.engine, self.session, self.fields, self.connection, now, event.position)
        else:
            reply = _refused(self.engine, self.session, self.fields, self.connection, refusal, now)
        reply.is_last = self.engine.is_draining  # the drain may have begun meanwhile
        self.engine.send(self.connection, reply)


def _accepted(
    engine: Engine,
    session: BayeuxSession,
    fields: dict[str, Any],
    connection: object,
    now: float,
    position: int = 0,
) -> Reply:
    """The reply to a successful publish, with the events that wait for the publisher."""
    part = b'{"id":%b,"channel":%b,"successful":true}' % (orjson.dumps(fields["id"]), orjson.dumps(fields["channel"]))
    if position:
        part = b'%b,"ext":{"position":%d}}' % (part[:-1], position)
    reply = Reply([part], session, [], connection)
    if len(session.outbox):
        _let_ride(engine, session, reply, now)
    return reply


def _refused(
    engine: Engine,
    session: BayeuxSession,
    fields: dict[str, Any],
    connection: object,
    refusal: Refusal,
    now: float,
) -> Reply:
    """The reply to a refused publish, with the events that wait for the publisher."""
    error = fault_of(refusal).error
    engine.refused[error.partition(":")[0]] += 1
    reply = Reply([encode(reply_to(fields, successful=False) | {"error": error})], session, [], connection)
    if len(session.outbox):
        _let_ride(engine, session, reply, now)
    return reply


def _let_ride(engine: Engine, session: BayeuxSession, reply: Reply, now: float) -> None:
    is_plain = session.acks is None and session.cursor is None
    may_ride = is_plain and not session.connect_delivery_only and not session.open_batches
    if may_ride and session.unsettled is None and session.closed is None:
        reply.events = engine.broker.take(session, now)
        reply.parts.extend(map(event_frame, reply.events))
        session.unsettled = reply
