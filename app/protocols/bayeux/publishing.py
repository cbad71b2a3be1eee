"""A publish, from the message to the broker: rights, idempotency, and the reply once it is settled.

Each function is one part of a `Conversation`, which it gets as `talk`. A publish that must reach the disk first leaves
its reply open; the conversation continues with the next publish meanwhile, so that a batch is one group for the log.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from app.broker.errors import (
    InvalidName,
    NotForAll,
    OutcomeUnknown,
    RateLimited,
    Refusal,
    TooManyTopics,
    WrongType,
)
from app.broker.events import Audience, Event
from app.broker.keys import Published
from app.broker.policy import Identity
from app.protocols.bayeux import asking, errors
from app.protocols.bayeux.audience import TooLong, audience_of
from app.protocols.bayeux.exchanges import Pending, Transport, Verdict, Wait
from app.protocols.bayeux.identity import visitor
from app.protocols.bayeux.messages import ABSENT, Fault, Message, encode_data
from app.protocols.bayeux.names import META, SERVICE, is_wildcard, to_pattern, to_topic
from app.protocols.bayeux.sessions import BayeuxSession

if TYPE_CHECKING:
    from app.protocols.bayeux.conversation import Conversation

Steps = Generator[Wait | Pending, tuple[Verdict, float], Any]

_KEY = re.compile(r"[\x20-\x7e]+")


def is_publish(channel: object) -> bool:
    """Whether `channel`, which may be any JSON value, is one whose messages are published to the broker."""
    return isinstance(channel, str) and not channel.startswith((META, SERVICE))


def publish(talk: Conversation, message: Message, reply: dict[str, Any]) -> Steps:
    """Publish a message; `reply` is completed now, or when the event is settled. Raises `Fault`."""
    engine, channel = talk.engine, message.channel
    topic = _topic(talk, channel)
    if channel.startswith(META) or channel == META[:-1]:
        raise Fault(errors.PUBLISH_DENIED.format(errors.DENIED_BY_POLICY))
    session, identity = _publisher(talk, message)
    payload = _encode(talk, message)
    if not engine.rights.may(session, "publish", topic, identity):
        is_told = session is not None or engine.rights.are_written
        raise Fault(errors.PUBLISH_DENIED.format(errors.DENIED_BY_POLICY) if is_told else errors.SESSION_UNKNOWN)
    _check_predecessor(talk, message, identity)
    _check_rate(talk, session)
    yield from asking.may_publish(talk, session, channel, message)
    if session is not None and session.closed is not None:  # it ended while the policy was awaited
        raise Fault(errors.SESSION_UNKNOWN)
    asking.bring_into_being(talk, channel)
    event = Event(topic, payload, publisher=session.id if session else None, authid=identity.authid, role=identity.role)
    if not channel.startswith(SERVICE):
        event.idempotency_key = _key(talk, message)
        if _was_published(talk, event, reply, message):
            return
        event.audience = _audience(talk, message)
    if asking.listen(talk, session, topic, message, payload):
        event.payload = _encode(talk, message)
    if channel.startswith(SERVICE):
        yield from asking.serve(talk, session, topic, message)
        return
    without = session if session is not None and not session.broadcast_to_publisher else None
    try:
        engine.broker.publish(event, talk.now, without=without, source=session or talk)
    except Refusal as refusal:
        raise fault_of(refusal) from None
    if event.is_pending:
        talk.hold_back(event, reply, message)


def fault_of(refusal: Refusal) -> Fault:
    """The error for an event that the broker or the log refused, or of which the log has not reported the result."""
    match refusal:
        case WrongType():
            return Fault(errors.VALUE_TYPE_MISMATCH.format(refusal))
        case NotForAll():
            return Fault(errors.VALUE_FOR_SOME)
        case TooManyTopics():
            return Fault(errors.TOO_MANY_TOPICS)
        case OutcomeUnknown():
            return Fault(errors.HISTORY_OUTCOME_UNKNOWN)
        case _:
            return Fault(errors.HISTORY_UNAVAILABLE)


def _publisher(talk: Conversation, message: Message) -> tuple[BayeuxSession | None, Identity]:
    if message.client_id is not None or talk.request.session is not None:
        session = talk.session_of(message)
        return session, Identity(session.authid, session.role)
    if talk.request.transport is not Transport.LONG_POLLING:  # a <script> must not publish
        raise Fault(errors.SESSION_UNKNOWN)
    return None, visitor(talk.engine, talk.request, talk.now)


def _was_published(talk: Conversation, event: Event, reply: dict[str, Any], message: Message) -> bool:
    """Whether this publish is a repeat; it is then answered like the first, after waiting for it if need be."""
    try:
        earlier = talk.engine.broker.recording.repeated(event, talk.now)
    except Refusal:
        raise Fault(errors.IDEMPOTENCY_KEY_REUSED) from None
    if isinstance(earlier, Published) and earlier.position:
        reply["ext"] = {"position": earlier.position}
    elif isinstance(earlier, Event):
        talk.hold_back(earlier, reply, message)
    return earlier is not None


def _check_predecessor(talk: Conversation, message: Message, identity: Identity) -> None:
    """Check that the publish named by `ext.after` was made, so that a repeated one is not overtaken by this one."""
    after = _key(talk, message, "after")
    if after is None:
        return
    own = _key(talk, message)
    keys, now = talk.engine.broker.recording.keys, talk.now
    if not keys.has(identity.authid, after, now) and not (own and keys.has(identity.authid, own, now)):
        raise Fault(errors.PREDECESSOR_UNKNOWN)


def _key(talk: Conversation, message: Message, name: str = "idempotency_key") -> str | None:
    key = (message.ext or {}).get(name)
    if key is None:
        return None
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise Fault(errors.IDEMPOTENCY_KEY_INVALID)
    recording = talk.engine.broker.recording
    if len(key) > recording.options.key_chars:
        talk.engine.broker.hits["key_chars"] += 1
        raise Fault(errors.IDEMPOTENCY_KEY_INVALID)
    return key


def _audience(talk: Conversation, message: Message) -> Audience | None:
    try:
        return audience_of((message.ext or {}).get("audience"), talk.engine.broker.limits.audience_chars)
    except TooLong:
        talk.engine.broker.hits["audience_chars"] += 1
        raise


def _check_rate(talk: Conversation, session: BayeuxSession | None) -> None:
    address = talk.request.context.address if session is None and talk.request.context is not None else ""
    try:
        talk.engine.broker.check_publish(session, address, talk.now)
    except RateLimited as refusal:
        raise Fault(errors.PUBLISH_DENIED.format(refusal.reason)) from None
    except Refusal:
        raise Fault(errors.OVERLOADED) from None


def _topic(talk: Conversation, channel: str) -> str:
    try:
        if is_wildcard(channel):
            to_pattern(channel, talk.engine.bounds)
            raise Fault(errors.CHANNEL_IS_WILDCARD.format(channel))
        return to_topic(channel, talk.engine.bounds)
    except InvalidName as refusal:
        talk.engine.broker.counted(refusal)
        raise Fault(errors.CHANNEL_INVALID) from None


def _encode(talk: Conversation, message: Message) -> bytes:
    """The message's data as JSON text. Raises `Fault` if it is missing or too large."""
    if message.data is ABSENT:
        raise Fault(errors.DATA_MISSING)
    try:
        payload = encode_data(message.data)
    except TypeError as error:  # an extension is at fault: the received message was JSON
        talk.engine.hooks.report("extension.incoming", error)
        raise Fault(errors.MESSAGE_DELETED) from None
    if len(payload) > talk.engine.broker.limits.data_bytes:
        talk.engine.broker.hits["data_bytes"] += 1
        raise Fault(errors.DATA_TOO_LARGE)
    return payload
