"""PUBLISH: its rights, its audience and its acknowledgement (Basic Profile, 6.1; Advanced Profile, 5.1 to 5.5).

A publication without `acknowledge` is never answered, not even with an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from app.broker.errors import InvalidName, Refusal
from app.broker.events import Audience, Chosen, Event
from app.broker.keys import Published
from app.protocols.wamp import errors
from app.protocols.wamp.errors import Refused, refused
from app.protocols.wamp.events import stored
from app.protocols.wamp.messages import (
    PUBLISH,
    PUBLISHED,
    BadOption,
    Publish,
    TooLong,
    Violation,
    audience_of,
    flag,
    ids,
    text,
)
from app.protocols.wamp.names import is_own
from app.protocols.wamp.serializers import Serializer, Unportable

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.session import Realm, WampSession

_KEY = re.compile(r"[\x20-\x7e]+")
_PASSTHRU = ("ppt_scheme", "ppt_serializer", "ppt_cipher", "ppt_keyid")
_PASSTHRU_CHARS = 1_024
_SESSION_LISTS = ("eligible", "exclude")


def is_acknowledged(message: Publish) -> bool:
    """Return whether the publisher has asked for PUBLISHED or ERROR."""
    return message.options.get("acknowledge") is True


def publish(engine: Engine, message: Publish, now: float) -> None:
    """Publish an event for a client, and answer if the client has asked for that. Raises `Violation`."""
    session = engine.session
    assert session is not None
    try:
        if has_unannounced_passthru(message, session):
            raise Violation("PUBLISH: payload passthru mode was not announced.")
        event = event_of(engine, session, message, engine.format.serializer, now)
    except Refused as error:
        refuse(engine, message, error)
        return
    engine.line.if_permitted(
        "publish",
        event.topic,
        lambda now: hand_over(engine, session, message, event, now),
        lambda error: refuse(engine, message, error),
        now,
    )


def event_of(engine: Engine, session: WampSession, message: Publish, serializer: Serializer, now: float) -> Event:
    """Return the event for a client's PUBLISH, after checking rights, limits and options. Raises `Refused`.

    `serializer` is the one that has unpacked the message.
    """
    router, options = engine.router, message.options
    topic = topic_of(router.broker.counted, session, message.topic)
    if not router.rights.may(session, "publish", topic):
        raise Refused(errors.NOT_AUTHORIZED)
    try:
        router.broker.check_publish(session, "", now)
        payload, shape = stored(message.args, message.kwargs, serializer)
        if len(payload) > router.broker.limits.data_bytes:
            router.broker.hits["data_bytes"] += 1
            raise Refused(errors.PAYLOAD_SIZE_EXCEEDED)
        authid = session.lasting_authid
        event = Event(topic, payload, publisher=session.id, protocol="wamp", authid=authid, role=session.role)
        event.shape = shape
        if options or session.realm.disclose == "always":
            _heed(event, session, options)
            event.audience = _audience(engine, options)
            event.idempotency_key = _key(engine, options)
    except BadOption as bad:
        raise Refused(errors.INVALID_ARGUMENT, f"{bad.name}: invalid value for this option") from None
    except (Refusal, Unportable) as refusal:
        raise refused(refusal) from None
    return event


def topic_of(counted: Any, session: WampSession, uri: str) -> str:
    """Return the topic of a URI that a client publishes to. Raises `Refused`, also for the router's own topics.

    `counted` is `Broker.counted`, which counts the limits that refuse a name.
    """
    try:
        if is_own(uri):
            raise InvalidName(uri)
        return session.realm.topic(uri)
    except InvalidName as refusal:
        raise refused(counted(refusal)) from None


def hand_over(engine: Engine, session: WampSession, message: Publish, event: Event, now: float) -> None:
    """Publish the event of a message through the broker, and answer the message now or when the event is settled.

    A repeat of an idempotency key is not published; it gets the first publication's answer.
    """
    broker = engine.router.broker
    request = message.request if is_acknowledged(message) else None
    through = _Through(engine, session, request, session.realm if message.options.get("retain") is True else None)
    try:
        earlier = broker.recording.repeated(event, now)
        if earlier is not None:
            through.realm = None
            if isinstance(earlier, Published):
                through.published(earlier.publication)
            else:
                earlier.waiters.append(through)
            return
        is_excluded = message.options.get("exclude_me") is not False
        broker.publish(event, now, without=session if is_excluded else None, source=session)
    except Refusal as refusal:
        through.settled(event, refusal, now)
        return
    if event.is_pending:
        event.waiters.append(through)
    else:
        through.settled(event, None, now)


class _Through:
    """The waiter for an event that a client has published (`broker.events.Waiter`)."""

    __slots__ = ("engine", "realm", "request", "session")

    def __init__(self, engine: Engine, session: WampSession, request: int | None, realm: Realm | None) -> None:
        self.engine = engine
        self.session = session
        self.request = request  # None: no answer was asked for
        self.realm = realm  # the realm that retains the event, if any

    def settled(self, event: Event, refusal: Refusal | None, now: float) -> None:  # noqa: ARG002 - Waiter's form
        """Retain and acknowledge the event, or answer with ERROR (`Waiter.settled`).

        An event whose outcome is unknown may still be delivered later; it is not retained then.
        """
        if refusal is None:
            if self.realm is not None:
                self.realm.retained.keep(event)
            self.published(event.publication)
        elif self.request is not None:
            if self.engine.session is self.session:
                self.engine.refuse(PUBLISH, self.request, refused(refusal))
        else:
            self.engine.router.unacknowledged[refused(refusal).uri] += 1

    def published(self, publication: int) -> None:
        """Answer with PUBLISHED and the id of the publication, if that was asked for."""
        if self.request is not None and self.engine.session is self.session:
            self.engine.say([PUBLISHED, self.request, publication])


def refuse(engine: Engine, message: Publish, error: Refused) -> None:
    """Answer a PUBLISH with ERROR if the publisher has asked for an answer; count the refusal otherwise."""
    if is_acknowledged(message):
        engine.refuse(PUBLISH, message.request, error)
    else:
        engine.router.unacknowledged[error.uri] += 1


def has_unannounced_passthru(message: Publish, session: WampSession) -> bool:
    """Return whether a PUBLISH uses payload passthru mode though its publisher has not announced it (5.8)."""
    scheme = message.options.get("ppt_scheme")
    return isinstance(scheme, str) and bool(scheme) and not session.announces_passthru


def _heed(event: Event, session: WampSession, options: dict[str, Any]) -> None:
    """Apply the options that concern the event itself. Raises `BadOption`, `Refused`."""
    if "enc_algo" in options:
        raise Refused(errors.INVALID_ARGUMENT, "enc_algo: this older payload transparency is not supported")
    for name in ("acknowledge", "exclude_me", "retain"):
        flag(options, name)
    details: dict[str, Any] = {}
    if flag(options, "disclose_me") and session.realm.disclose == "never":
        raise Refused(errors.DISCLOSURE_DISALLOWED)
    if flag(options, "disclose_me") or session.realm.disclose == "always":
        standing = session.standing
        details = {
            "publisher": session.number,
            "publisher_authid": standing.authid,
            "publisher_authrole": standing.authrole,
        }
    if text(options, "ppt_scheme"):
        passed = {name: text(options, name) for name in _PASSTHRU}
        named = {name: value for name, value in passed.items() if value is not None}
        if sum(map(len, named.values())) > _PASSTHRU_CHARS:
            raise BadOption("ppt_scheme")
        details |= named
    if details:
        event.details = orjson.dumps(details).decode()
    eligible, excluded = (ids(options, name) for name in _SESSION_LISTS)
    if eligible is not None or excluded is not None:
        event.is_fleeting = True  # session ids have no meaning later (A7.37)
        event.chosen = Chosen(None if eligible is None else _texts(eligible), _texts(excluded or ()))


def _texts(numbers: tuple[int, ...]) -> frozenset[str]:
    return frozenset(map(str, numbers))


def _audience(engine: Engine, options: dict[str, Any]) -> Audience | None:
    limits = engine.router.broker.limits
    try:
        return audience_of(options, limits.audience_chars)
    except TooLong:
        engine.router.broker.hits["audience_chars"] += 1
        raise


def _key(engine: Engine, options: dict[str, Any]) -> str | None:
    key = text(options, "_idempotency_key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise BadOption("_idempotency_key")
    if len(key) > engine.router.broker.recording.options.key_chars:
        engine.router.broker.hits["key_chars"] += 1
        raise BadOption("_idempotency_key")
    return key
