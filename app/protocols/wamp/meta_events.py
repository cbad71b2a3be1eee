"""Meta events: the router's own publications about sessions and subscriptions (Advanced Profile, 13 and 14).

They are published to topics of the realm that clients cannot publish to. Subscriptions to these topics cause no meta
events. An event about a subscription is sent only to sessions that may subscribe to the same topic or pattern. The
order is the same where a connection is lost: on_create, on_subscribe; on_unsubscribe, on_delete; on_leave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.broker.events import Chosen, Event
from app.broker.policy import SERVER
from app.broker.topics import Pattern
from app.protocols.wamp.payloads import stored
from app.protocols.wamp.realms import is_meta
from app.protocols.wamp.serializers import JSON
from app.protocols.wamp.uris import own_topic

if TYPE_CHECKING:
    from app.protocols.wamp.realms import LiveSubscription
    from app.protocols.wamp.router import Router
    from app.protocols.wamp.sessions import WampSession

ON_JOIN, ON_LEAVE = "wamp.session.on_join", "wamp.session.on_leave"
ON_CREATE, ON_DELETE = "wamp.subscription.on_create", "wamp.subscription.on_delete"
ON_SUBSCRIBE, ON_UNSUBSCRIBE = "wamp.subscription.on_subscribe", "wamp.subscription.on_unsubscribe"


def joined(router: Router, session: WampSession, now: float) -> None:
    """Publish that a session has begun."""
    _publish(router, session, ON_JOIN, [session.shown()], now)


def left(router: Router, session: WampSession, now: float) -> None:
    """Publish that a session has ended."""
    standing = session.standing
    _publish(router, session, ON_LEAVE, [session.number, standing.authid, standing.authrole], now)


def subscribed(router: Router, session: WampSession, live: LiveSubscription, now: float, *, is_new: bool) -> None:
    """Publish that a session has subscribed; `is_new` says whether it is the first subscriber."""
    if is_meta(live.pattern):
        return
    if is_new:
        _publish(router, session, ON_CREATE, [session.number, live.shown()], now, live.pattern)
    _publish(router, session, ON_SUBSCRIBE, [session.number, live.number], now, live.pattern)


def unsubscribed(router: Router, session: WampSession, live: LiveSubscription, now: float, *, is_last: bool) -> None:
    """Publish that a session has unsubscribed; `is_last` says whether it was the last subscriber."""
    if is_meta(live.pattern):
        return
    _publish(router, session, ON_UNSUBSCRIBE, [session.number, live.number], now, live.pattern)
    if is_last:
        _publish(router, session, ON_DELETE, [session.number, live.number], now, live.pattern)


def _publish(
    router: Router, session: WampSession, uri: str, args: list[Any], now: float, about: Pattern | None = None
) -> None:
    """Publish a meta event to the subscribers in the session's realm, except the session itself.

    An event `about` a pattern is sent only to those who may subscribe to that pattern.
    """
    topic, may = own_topic(uri, session.realm.space), router.rights.may
    hearers = [
        each for each in router.broker.index.subscribers(topic) if about is None or may(each, "subscribe", about)
    ]
    if not hearers:
        return
    payload, shape = stored(args, None, JSON)
    event = Event(topic, payload, protocol="wamp", role=SERVER)
    event.shape = shape
    event.chosen = None if about is None else Chosen(frozenset(each.id for each in hearers))
    router.broker.announce(event, now, without=session)
