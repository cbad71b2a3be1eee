"""SUBSCRIBE and UNSUBSCRIBE (Basic Profile, 6.2; Advanced Profile, 5.9), and revocation of a subscription (5.13).

Waiting events are written before a client's subscriptions change, so that no event for a subscription is sent before
SUBSCRIBED or after UNSUBSCRIBED: some clients end the session in that case. Those of a subscription that the client's
rights no longer grant are not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.broker.errors import InvalidName, Refusal, TooManyPatterns
from app.broker.events import Event
from app.broker.topics import Match, Pattern
from app.protocols.wamp import errors, meta_events
from app.protocols.wamp.errors import Refused, refused
from app.protocols.wamp.events import retained_frame
from app.protocols.wamp.messages import (
    SUBSCRIBE,
    SUBSCRIBED,
    UNSUBSCRIBED,
    BadOption,
    Subscribe,
    Unsubscribe,
    flag,
    text,
)
from app.protocols.wamp.names import MATCHES, is_meta
from app.protocols.wamp.session import LiveSubscription

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.router import Router
    from app.protocols.wamp.session import WampSession


def subscribe(engine: Engine, message: Subscribe, now: float) -> None:
    """Subscribe a client to a topic or pattern, and answer with SUBSCRIBED, now or later. Raises `Refused`."""
    session, router = engine.session, engine.router
    assert session is not None
    try:
        pattern = pattern_of(router, session, message.topic, text(message.options, "match"))
        wants_retained = flag(message.options, "get_retained")
    except BadOption as bad:
        raise Refused(errors.INVALID_ARGUMENT, f"{bad.name}: invalid value for this option") from None
    check_right(router, session, pattern)
    if is_meta(pattern):
        _subscribe(engine, message.request, pattern, now, wants_retained=wants_retained)
        return
    engine.line.if_permitted(
        "subscribe",
        pattern,
        lambda now: _subscribe(engine, message.request, pattern, now, wants_retained=wants_retained),
        lambda error: engine.refuse(SUBSCRIBE, message.request, error),
        now,
    )


def pattern_of(router: Router, session: WampSession, uri: str, match: str | None) -> Pattern:
    """Return the pattern for a URI and a match policy (None: exact) in the session's realm. Raises `Refused`."""
    if match is not None and match not in MATCHES:
        raise Refused(errors.INVALID_ARGUMENT, "match: expected exact, prefix or wildcard")
    try:
        return session.realm.pattern(uri, MATCHES[match or "exact"])
    except InvalidName as refusal:
        raise refused(router.broker.counted(refusal)) from None


def check_right(router: Router, session: WampSession, pattern: Pattern) -> None:
    """Check that the session has the right to subscribe to all that a pattern matches. Raises `Refused`."""
    if not router.rights.may(session, "subscribe", pattern):
        raise Refused(errors.NOT_AUTHORIZED)


def _subscribe(engine: Engine, request: int, pattern: Pattern, now: float, *, wants_retained: bool) -> None:
    session, router = engine.session, engine.router
    assert session is not None
    check_right(router, session, pattern)  # again: the rules may have changed while a policy was awaited
    number = router.number_of(session.realm, pattern)
    if pattern not in session.subscriptions:
        _check_room(router, session, pattern)
        engine.take_events(session, now)
        router.broker.subscribe(session, pattern)
        session.subscriptions[pattern].number = number
        live = session.realm.subscriptions.get(pattern)
        is_new = live is None
        if live is None:
            created_us = int((now + router.broker.clock_offset_s) * 1_000_000)
            live = LiveSubscription(number, pattern, created_us)
            session.realm.subscriptions[pattern] = session.realm.numbers[number] = live
        live.sessions[session] = None
        session.live[number] = live
        meta_events.subscribed(router, session, live, now, is_new=is_new)
        router.tell(router.subscribed, session, pattern)
    engine.say([SUBSCRIBED, request, number])
    if wants_retained:
        _send_retained(engine, session, pattern, number, now)


def _check_room(router: Router, session: WampSession, pattern: Pattern) -> None:
    broker = router.broker
    try:
        broker.check_room(session, [pattern], router.options)
        is_form_new = pattern.match is Match.WILDCARD and not broker.index.has_form(pattern)
        if is_form_new and broker.index.wildcard_forms >= router.options.wildcard_forms:
            broker.hits["wildcard_forms"] += 1
            raise TooManyPatterns
    except Refusal as refusal:
        raise refused(refusal) from None


def _send_retained(engine: Engine, session: WampSession, pattern: Pattern, number: int, now: float) -> None:
    """Send the youngest retained events that the client may receive, as many as fit into its queue."""
    router = engine.router
    left_bytes = engine.room_bytes()
    if left_bytes <= 0:  # the search costs too, and a client may repeat it
        router.broker.hits["queue_bytes"] += 1
        return
    frames: list[bytes] = []
    for event in reversed(_retained(router, session, pattern, now)):
        frame = retained_frame(event, number, pattern, engine.format)
        left_bytes -= len(frame)
        if left_bytes < 0:
            router.broker.hits["queue_bytes"] += 1
            break
        frames.append(frame)
    if frames:
        engine.write(frames[::-1])


def _retained(router: Router, session: WampSession, pattern: Pattern, now: float) -> list[Event]:
    """Return the realm's retained events and the last NetworkTables values; of the same topic, the younger one."""
    most = router.options.retained_events
    retained = session.realm.retained.of(pattern, session, most)
    values = router.broker.latest([pattern], most, now) if session.realm.is_shared else []
    if not values:
        return retained
    youngest: dict[str, Event] = {}
    for event in sorted((*retained, *values), key=_age):
        youngest[event.topic] = event
    return sorted(youngest.values(), key=_age)[-most:]


def _age(event: Event) -> int:
    return event.time_us


def unsubscribe(engine: Engine, message: Unsubscribe, now: float) -> None:
    """End a client's subscription, and answer with UNSUBSCRIBED. Raises `Refused` if the session does not have it."""
    session = engine.session
    assert session is not None
    live = session.live.get(message.subscription)
    if live is None:
        raise Refused(errors.NO_SUCH_SUBSCRIPTION)
    engine.take_events(session, now)
    leave(engine.router, session, live, now)
    engine.say([UNSUBSCRIBED, message.request])


def leave(router: Router, session: WampSession, live: LiveSubscription, now: float) -> None:
    """Remove a session from a subscription, which ends with its last subscriber."""
    router.broker.unsubscribe(session, live.pattern)
    forget(router, session, live, now)
    router.tell(router.unsubscribed, session, live.pattern)


def forget(router: Router, session: WampSession, live: LiveSubscription, now: float) -> None:
    """Remove a session from a subscription after the broker has removed it, and publish the meta events."""
    del session.live[live.number]
    del live.sessions[session]
    if not live.sessions:
        del session.realm.subscriptions[live.pattern], session.realm.numbers[live.number]
    meta_events.unsubscribed(router, session, live, now, is_last=not live.sessions)


def revoke(router: Router, session: WampSession, live: LiveSubscription, reason: str, now: float) -> None:
    """Revoke a client's subscription, after its waiting events; a client that has announced revocation is notified."""
    session.owner.take_events(session, now)
    _revoke(router, session, live, reason, now)


def take_away(router: Router, session: WampSession, now: float) -> int:
    """Revoke the subscriptions that the session's rights no longer grant; return their number."""
    denied = [live for live in session.live.values() if not _is_granted(router, session, live.pattern)]
    for live in denied:
        _revoke(router, session, live, errors.NOT_AUTHORIZED, now)
    return len(denied)


def _is_granted(router: Router, session: WampSession, pattern: Pattern) -> bool:
    try:
        check_right(router, session, pattern)
    except Refused:
        return False
    return True


def _revoke(router: Router, session: WampSession, live: LiveSubscription, reason: str, now: float) -> None:
    leave(router, session, live, now)
    if session.announces_revocation:
        session.owner.say([UNSUBSCRIBED, 0, {"subscription": live.number, "reason": reason}])
