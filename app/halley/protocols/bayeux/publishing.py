"""A publish, from the message to the broker: rights, idempotency, audience, and the reply once it is settled.

A publish that must reach the disk first leaves its reply open; the request continues with the next publish meanwhile,
so that a batch is one group for the log.

`ext.audience` says who may receive the event, as the four fields of `broker.events.Audience`; one that is missing or
null does not restrict:

    {"eligible_authids": ["ann"], "eligible_roles": ["staff"], "excluded_authids": [...], "excluded_roles": [...]}

An audience only narrows the set of subscribers, so every publisher may give one. An unknown field is refused: a
misspelt name must not publish the event to all subscribers.

Of all else in `ext`, subscribers get `traceparent` (`broker/traceparent.py`) and what `bayeux.forwarded_ext` names, and
nothing more: CometD forwards even tokens. A `traceparent` in the header of the request is that of all its publishes,
except of those that have their own.
"""

from __future__ import annotations

from typing import Any

from halley.broker.broker import Broker
from halley.broker.commits import PublishResult
from halley.broker.errors import AudienceTooLong, BadKey, InvalidName, RateLimited, Refusal
from halley.broker.events import Audience, Event
from halley.broker.names import Match, Pattern
from halley.broker.pending import Pending
from halley.broker.policy import ANONYMOUS, Proof, Rights
from halley.broker.traceparent import IN_BAYEUX
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.authorization import Authorization
from halley.protocols.bayeux.binary import bytes_of
from halley.protocols.bayeux.errors import BayeuxError, fault_of
from halley.protocols.bayeux.hooks import Hooks
from halley.protocols.bayeux.idempotency import KEY, key_digest
from halley.protocols.bayeux.messages import ABSENT, Message, encode_data
from halley.protocols.bayeux.names import META, SERVICE, NameLimits, is_wildcard, to_pattern
from halley.protocols.bayeux.outcomes import Request, Steps, Transport
from halley.protocols.bayeux.request import RequestHandler
from halley.protocols.bayeux.session import BayeuxSession
from halley.protocols.bayeux.sessions import Sessions

_AUDIENCE_FIELDS = frozenset(Audience._fields)
_FORWARDED_BYTES = 1_024
"""Of one field of `ext` that is forwarded, as JSON: it says what the data is, and is not data itself."""


def is_publish(channel: object) -> bool:
    """Whether `channel`, which may be any JSON value, is one whose messages are published to the broker."""
    return isinstance(channel, str) and not channel.startswith((META, SERVICE))


def names_predecessor(fields: dict[str, Any]) -> bool:
    """Whether a message says by `ext.after` which publish must have been made before it."""
    ext = fields.get("ext")
    return isinstance(ext, dict) and "after" in ext


class PublishHandler:
    """Publishes the messages of requests."""

    def __init__(
        self, broker: Broker, rights: Rights, hooks: Hooks, sessions: Sessions, authorization: Authorization
    ) -> None:
        self._broker = broker
        self._rights = rights
        self._hooks = hooks
        self._bounds = sessions.bounds
        self._to_topic = sessions.to_topic
        self._laziness = sessions.laziness
        self._forwarded = tuple(name for name in sessions.options.forwarded_ext if name != IN_BAYEUX)
        self._reads_bytes = sessions.options.bytes == "z85"
        self._authorization = authorization

    def publish(self, handler: RequestHandler, message: Message, reply: dict[str, Any]) -> Steps:
        """Publish a message; `reply` is completed now, or when the event is settled. Raises `BayeuxError`."""
        channel, request = message.channel, handler.request
        topic = self._topic(channel)
        session, visitor = None, ANONYMOUS
        if message.client_id is not None or request.session is not None:
            session = handler.session_of(message)
        elif request.transport is Transport.CALLBACK_POLLING:  # a <script> must not publish
            raise BayeuxError(errors.SESSION_UNKNOWN)
        else:
            visitor = handler.visitor()
        is_service = channel.startswith(SERVICE)
        are_bytes = self._reads_bytes and not is_service and self._take_bytes(message)
        event = self._event(session, topic, self._data(message), visitor)
        traceparent: object = request.traceparent
        if message.ext is not None and not is_service:
            event.details = self._details(message.ext, without="binary" if are_bytes else "")
            traceparent = message.ext.get(IN_BAYEUX, traceparent)
            self._take_key(message, event)
            if message.ext.get("lazy") is True:
                self._laziness.mark(event)
        if traceparent is not None and not is_service:
            event.details = self._broker.flows["bayeux"].traced(event.details, IN_BAYEUX, traceparent)
        self._check_predecessor(message, event, handler.now)
        self._check_rate(request, session, handler.now, visitor.authid)
        wanted = {channel: Pattern(Match.EXACT, topic)}
        yield from self._authorization.authorize(handler, session, "publish", wanted, message, visitor)
        self._authorization.ensure_channel(channel, handler.now)
        if not is_service:
            if self._was_published(handler, event, reply, message):
                return
            event.audience = self._audience(message)
        if self._authorization.listen(session, topic, message, event.payload):
            event.payload = self._encode(self._data(message))
        if is_service:
            yield from self._authorization.serve(handler, session, topic, message)
            return
        pending = self._issue(event, session, session or handler, handler.now)
        if pending is not None:
            handler.hold_back(pending, reply, message.sent)

    def publish_usual(
        self, request: Request, session: BayeuxSession | None, fields: dict[str, Any], now: float
    ) -> Pending | None:
        """Publish as `publish` does where there is no `ext`, no token and no hook. Returns the event if it is pending.

        Raises `BayeuxError`.
        """
        event = self._event(session, self._topic(fields["channel"]), fields["data"])
        if request.traceparent is not None:
            event.details = self._broker.flows["bayeux"].traced(None, IN_BAYEUX, request.traceparent)
        self._check_rate(request, session, now)
        return self._issue(event, session, session or request, now)

    def _event(self, session: BayeuxSession | None, topic: str, data: object, visitor: Proof = ANONYMOUS) -> Event:
        """Make the event, if the session may publish it, or without one the visitor. Raises `BayeuxError`."""
        payload = self._encode(data)
        if not self._rights.may(session, "publish", topic, visitor):
            self._authorization.check_rules(session, "publish", topic, visitor)
        if session is None:
            return Event(topic, payload, authid=visitor.authid, role=visitor.role)
        return Event(topic, payload, session.id, "bayeux", session.authid, session.role)

    def _check_rate(
        self, request: Request, session: BayeuxSession | None, now: float, authid: str | None = None
    ) -> None:
        """Check that a session, or without one the request's address or `authid`, may publish now.

        Raises `BayeuxError`.
        """
        address = "" if session is not None else request.address
        try:
            self._broker.check_publish(session, address, now, authid)
        except RateLimited as refusal:
            raise BayeuxError(errors.PUBLISH_DENIED.format(refusal.reason)) from None
        except Refusal:
            raise BayeuxError(errors.OVERLOADED) from None

    def _issue(self, event: Event, session: BayeuxSession | None, source: object, now: float) -> Pending | None:
        """Publish an event through the broker, and return it if it is pending. Raises `BayeuxError`.

        Events of one `source` stay in order.
        """
        without = None if session is None or session.broadcast_to_publisher else session
        try:
            return self._broker.publish(event, now, without, source)
        except Refusal as refusal:
            raise fault_of(refusal) from None

    def _was_published(self, handler: RequestHandler, event: Event, reply: dict[str, Any], message: Message) -> bool:
        """Whether this publish is a repeat; it is then answered like the first, after waiting for it if need be."""
        try:
            earlier = self._broker.commits.repeated(event, handler.now)
        except Refusal as refusal:
            raise fault_of(refusal) from None
        if isinstance(earlier, PublishResult) and earlier.position:
            reply["ext"] = {"position": earlier.position}
        elif isinstance(earlier, Pending):
            handler.hold_back(earlier, reply, message.sent)
        return earlier is not None

    def _take_key(self, message: Message, event: Event) -> None:
        """Give an event the idempotency key of its message, if that has one, and the digest of what came with it."""
        event.idempotency_key = self._key(message, KEY)
        if event.idempotency_key is not None:
            event.key_digest = key_digest(message, event.payload)

    def _check_predecessor(self, message: Message, event: Event, now: float) -> None:
        """Check that the publish named by `ext.after` was made, so that a repeated one is not overtaken by this one."""
        after = self._key(message, "after")
        if after is None:
            return
        own = self._key(message, KEY)
        keys, authid = self._broker.commits.keys, event.authid
        if not keys.has(authid, after, now) and not (own and keys.has(authid, own, now)):
            raise BayeuxError(errors.PREDECESSOR_UNKNOWN)

    def _key(self, message: Message, name: str) -> str | None:
        key = (message.ext or {}).get(name)
        if key is None:
            return None
        if not isinstance(key, str):
            raise BayeuxError(errors.IDEMPOTENCY_KEY_INVALID)
        try:
            return self._broker.check_key(key)
        except BadKey:
            raise BayeuxError(errors.IDEMPOTENCY_KEY_INVALID) from None

    def _audience(self, message: Message) -> Audience | None:
        """The audience in `ext.audience`; None if it does not restrict. Raises `BayeuxError`.

        Each name is kept once and in order, so that equal audiences are the same text in the log.
        """
        value = (message.ext or {}).get("audience")
        if value is None:
            return None
        if not isinstance(value, dict) or not value.keys() <= _AUDIENCE_FIELDS:
            raise BayeuxError(errors.AUDIENCE_INVALID)
        named = {field: _names(names) for field, names in value.items() if names is not None}
        try:
            return self._broker.check_audience(Audience(**named))
        except AudienceTooLong:
            raise BayeuxError(errors.AUDIENCE_INVALID) from None

    def _take_bytes(self, message: Message) -> bool:
        """Whether a message has just bytes; its data is then what stands for these in all protocols."""
        text = bytes_of(message.data, message.ext)
        if text is not None:
            message.data = text
        return text is not None

    def _details(self, ext: dict[str, Any], without: str) -> str | None:
        """The fields of `ext` that subscribers get, as a JSON object; None if there are none. Raises `BayeuxError`."""
        named = {name: ext[name] for name in self._forwarded if name in ext and name != without}
        try:
            if any(len(encode_data(value)) > _FORWARDED_BYTES for value in named.values()):
                raise BayeuxError(errors.EXT_TOO_LARGE)
            return encode_data(named).decode() if named else None
        except TypeError as error:
            raise self._no_json(error) from None

    def _topic(self, channel: str) -> str:
        """The topic of a channel that can be published to. Raises `BayeuxError`."""
        try:
            topic = self._to_topic(channel)
        except InvalidName as refusal:
            if is_wildcard(channel) and is_pattern(channel, self._bounds):
                raise BayeuxError(errors.CHANNEL_IS_WILDCARD.format(channel)) from None
            self._broker.counted(refusal)
            raise BayeuxError(errors.CHANNEL_INVALID) from None
        if topic[:4] == "meta" and (topic == "meta" or channel.startswith(META)):  # the slice is for speed
            raise BayeuxError(errors.PUBLISH_DENIED.format(errors.DENIED_BY_POLICY))
        return topic

    def _data(self, message: Message) -> object:
        if message.data is ABSENT:
            raise BayeuxError(errors.DATA_MISSING)
        return message.data

    def _encode(self, data: object) -> bytes:
        """Data as JSON text. Raises `BayeuxError` if it is too large."""
        try:
            payload = encode_data(data)
        except TypeError as error:
            raise self._no_json(error) from None
        if len(payload) > self._broker.limits.data_bytes:
            self._broker.hits["data_bytes"] += 1
            raise BayeuxError(errors.DATA_TOO_LARGE)
        return payload

    def _no_json(self, error: TypeError) -> BayeuxError:
        """Report an extension that is at fault: the received message was JSON."""
        self._hooks.report("extension.incoming", error)
        return BayeuxError(errors.MESSAGE_DELETED)


def is_pattern(channel: str, bounds: NameLimits) -> bool:
    """Whether a name with a wildcard is valid."""
    try:
        to_pattern(channel, bounds)
    except InvalidName:
        return False
    return True


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BayeuxError(errors.AUDIENCE_INVALID)
    return tuple(sorted(set(value)))
