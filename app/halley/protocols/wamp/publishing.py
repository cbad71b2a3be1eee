"""PUBLISH: its rights, its audience and its acknowledgement (Basic Profile, 6.1; Advanced Profile, 5.1 to 5.5).

A publication without `acknowledge` is never answered, not even with an error.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from halley.broker.commits import PublishResult
from halley.broker.errors import AudienceTooLong, BadKey, InvalidName, Refusal
from halley.broker.events import Audience, Event, SessionFilter
from halley.broker.traceparent import IN_WAMP
from halley.protocols.contract import ProgramDecisions
from halley.protocols.value_digest import digest_of
from halley.protocols.wamp import errors
from halley.protocols.wamp.errors import InvalidOption, Unportable, Violation, WampError, wamp_error
from halley.protocols.wamp.events import reshaped, to_payload
from halley.protocols.wamp.messages import PUBLISHED, Publish, audience_of, flag_option, ids_option, text_option
from halley.protocols.wamp.names import is_own
from halley.protocols.wamp.serializers import Serializer
from halley.protocols.wamp.session import Realm, WampSession
from halley.protocols.wamp.state import RouterState

_PASSTHRU = ("ppt_scheme", "ppt_serializer", "ppt_cipher", "ppt_keyid")
_PASSTHRU_CHARS = 1_024
_SESSION_LISTS = ("eligible", "exclude")


class Publishing:
    """Publishes what clients publish."""

    def __init__(self, state: RouterState) -> None:
        self._state = state
        self._broker = state.broker

    def publish(self, session: WampSession, message: Publish, now: float) -> None:
        """Publish an event for a client, and answer if the client has asked for that.

        Raises `Violation`, `WampError`.
        """
        if "ppt_scheme" in message.options and has_unannounced_passthru(message, session):
            raise Violation("PUBLISH: payload passthru mode was not announced.")
        event = self.event_of(session, message, now)
        if self._state.environment.policy.has_policy():
            publish = partial(self.submit, session, message, event)
            session.engine.if_permitted("publish", event.topic, message, publish, now)
        else:
            self.submit(session, message, event, now)

    def event_of(self, session: WampSession, message: Publish, now: float) -> Event:
        """Return the event for a client's PUBLISH, after checking rights, limits and options. Raises `WampError`."""
        broker, options = self._broker, message.options
        topic = self._topic(session.realm, message.topic)
        if not self._state.rights.may(session, "publish", topic):
            raise WampError(errors.NOT_AUTHORIZED)
        try:
            broker.check_publish(session, "", now)
            payload, shape = to_payload(message.args, message.kwargs, session.engine.format.serializer)
        except (Refusal, Unportable) as refusal:
            raise wamp_error(refusal) from None
        self._check_size(payload)
        authid = session.lasting_authid
        event = Event(topic, payload, publisher=session.id, protocol="wamp", authid=authid, role=session.role)
        event.shape = shape
        is_plain = not options or (len(options) == 1 and message.is_acknowledged)  # as most are
        if not is_plain or session.realm.disclose == "always":
            _apply_options(event, session, options)
            event.audience = self._audience(options)
            event.idempotency_key = self._key(options)
            if event.idempotency_key is not None:
                event.key_digest = _digest_of(message, payload, session.engine.format.serializer)
        if not is_plain or message.kwargs is not None:
            self._trace(event, message)
        return event

    def submit(self, session: WampSession, message: Publish, event: Event, now: float) -> None:
        """Publish the event of a message through the broker, and answer the message now or when the event is settled.

        A repeat of an idempotency key is not published; it gets the first publication's answer.
        """
        broker, options = self._broker, message.options
        acknowledgement = PublishAck(session, message, session.realm if options.get("retain") is True else None)
        program = self._state.environment.policy
        try:
            earlier = broker.commits.repeated(event, now)
            if earlier is not None:
                acknowledgement.realm = None
                if isinstance(earlier, PublishResult):
                    acknowledgement.published(earlier.publication)
                else:
                    earlier.waiters.append(acknowledgement)
                return
            if program.listeners:
                self._listen(program, session, event)
            is_excluded = options.get("exclude_me") is not False
            pending = broker.publish(event, now, without=session if is_excluded else None, source=session)
        except Refusal as refusal:
            acknowledgement.settled(event, refusal, now)
            return
        except WampError as error:
            acknowledgement.refuse(error, now)
            return
        if pending is not None:
            pending.waiters.append(acknowledgement)
        else:
            acknowledgement.settled(event, None, now)

    def _listen(self, program: ProgramDecisions, session: WampSession, event: Event) -> None:
        """Have the program's listeners see an event; what they change is its payload. Raises `Vetoed`, `WampError`."""
        payload = event.payload
        program.listen(event, session, session.engine.context)
        if event.payload is not payload:
            event.payload, event.shape = reshaped(event.payload, event.shape)
            self._check_size(event.payload)

    def _check_size(self, payload: bytes) -> None:
        if len(payload) > self._broker.limits.data_bytes:
            self._broker.hits["data_bytes"] += 1
            raise WampError(errors.PAYLOAD_SIZE_EXCEEDED)

    def _trace(self, event: Event, message: Publish) -> None:
        """Note what a PUBLISH says of its trace, by an option or else by a keyword argument.

        The keyword argument is for clients whose library passes on only the options that it knows.
        """
        given = message.options.get(IN_WAMP)
        if given is None and message.kwargs is not None:
            given = message.kwargs.get(IN_WAMP)
        if given is not None:
            event.details = self._broker.flows["wamp"].traced(event.details, IN_WAMP, given)

    def _topic(self, realm: Realm, uri: str) -> str:
        """Return the topic of a URI to publish to. Raises `WampError`, also for the router's own topics."""
        try:
            if is_own(uri):
                raise InvalidName(uri)
            return realm.topic(uri)
        except InvalidName as refusal:
            raise wamp_error(self._broker.counted(refusal)) from None

    def _audience(self, options: dict[str, Any]) -> Audience | None:
        try:
            return self._broker.check_audience(audience_of(options)) if options else None
        except AudienceTooLong:
            raise InvalidOption("eligible_authid") from None

    def _key(self, options: dict[str, Any]) -> str | None:
        key = text_option(options, "_idempotency_key")
        try:
            return None if key is None else self._broker.check_key(key)
        except BadKey:
            raise InvalidOption("_idempotency_key") from None


class PublishAck:
    """Acknowledges an event that a client has published, when it is settled (`broker.pending.Waiter`).

    `realm` is the realm that retains the event, if any.
    """

    __slots__ = ("message", "realm", "session")

    def __init__(self, session: WampSession, message: Publish, realm: Realm | None) -> None:
        self.session = session
        self.message = message
        self.realm = realm

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:
        """Retain and acknowledge the event, or answer with ERROR (`Waiter.settled`).

        An event whose outcome is unknown may still be delivered later; it is not retained then.
        """
        if refusal is None:
            if self.realm is not None:
                self.realm.retained.keep(event)
            self.published(event.publication)
        else:
            self.refuse(wamp_error(refusal), now)

    def refuse(self, error: WampError, now: float) -> None:
        """Answer with ERROR, if that was asked for and the session has not ended; else it is counted."""
        if not self.message.is_acknowledged or self.session.engine.session is self.session:
            self.session.engine.refuse(self.message, error, now)

    def published(self, publication: int) -> None:
        """Answer with PUBLISHED and the id of the publication, if that was asked for."""
        if self.message.is_acknowledged and self.session.engine.session is self.session:
            self.session.engine.say([PUBLISHED, self.message.request, publication])


def _digest_of(message: Publish, payload: bytes, serializer: Serializer) -> bytes:
    """The digest of what a PUBLISH has as `payload`, but for its trace, which may be another one in a repeat."""
    if message.kwargs is not None and IN_WAMP in message.kwargs:
        others = {name: value for name, value in message.kwargs.items() if name != IN_WAMP}
        payload, _ = to_payload(message.args, others or None, serializer)
    return digest_of(payload)


def has_unannounced_passthru(message: Publish, session: WampSession) -> bool:
    """Return whether a PUBLISH uses payload passthru mode though its publisher has not announced it (5.8)."""
    scheme = message.options.get("ppt_scheme")
    return isinstance(scheme, str) and bool(scheme) and not session.announces_passthru


def _apply_options(event: Event, session: WampSession, options: dict[str, Any]) -> None:
    """Apply the options that concern the event itself. Raises `WampError`."""
    if "enc_algo" in options:
        raise WampError(errors.INVALID_ARGUMENT, "enc_algo: this older payload transparency is not supported")
    for name in ("acknowledge", "exclude_me", "retain"):
        flag_option(options, name)
    details: dict[str, Any] = {}
    if flag_option(options, "disclose_me") and session.realm.disclose == "never":
        raise WampError(errors.DISCLOSURE_DISALLOWED)
    if flag_option(options, "disclose_me") or session.realm.disclose == "always":
        details = {
            "publisher": session.number,
            "publisher_authid": session.auth.authid,
            "publisher_authrole": session.auth.authrole,
        }
    if text_option(options, "ppt_scheme"):
        passed = {name: text_option(options, name) for name in _PASSTHRU}
        named = {name: value for name, value in passed.items() if value is not None}
        if sum(map(len, named.values())) > _PASSTHRU_CHARS:
            raise InvalidOption("ppt_scheme")
        details |= named
    if details:
        event.details = orjson.dumps(details).decode()
    eligible, excluded = (ids_option(options, name) for name in _SESSION_LISTS)
    if eligible is not None or excluded is not None:
        event.is_transient = True  # session ids have no meaning later (A7.37)
        event.chosen = SessionFilter(None if eligible is None else _texts(eligible), _texts(excluded or ()))


def _texts(numbers: tuple[int, ...]) -> frozenset[str]:
    return frozenset(map(str, numbers))
