"""The subscription meta API (Advanced Profile, 14): the realm's live subscriptions, which are those of WAMP sessions.

Only `lookup` and `get_events` also serve topics and patterns without subscribers: each whose events are kept has an id,
for reading its history.

All of them report only what the caller may subscribe to: for a caller that may not, a subscription does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.broker.errors import InvalidName
from app.broker.log import Keeping
from app.broker.topics import Match, Pattern
from app.protocols.wamp import errors, subscribing
from app.protocols.wamp.arguments import check_count, id_of, optional_text, text_of
from app.protocols.wamp.errors import Refused, refused
from app.protocols.wamp.messages import Call
from app.protocols.wamp.realms import is_meta
from app.protocols.wamp.serializers import is_absent
from app.protocols.wamp.uris import MATCHES, check_uri

if TYPE_CHECKING:
    from app.protocols.wamp.engine import Engine
    from app.protocols.wamp.realms import LiveSubscription
    from app.protocols.wamp.router import Router
    from app.protocols.wamp.sessions import WampSession


def numbers(engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.subscription.list`: return the ids of the live subscriptions by match policy."""
    check_count(call.args or [], 0, 0)
    found: dict[str, list[int]] = {match: [] for match in MATCHES}
    for live in session.realm.subscriptions.values():
        if _is_shown(engine, session, live):
            found[live.match].append(live.number)
    return [found]


def lookup(engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.subscription.lookup`: return the id of a topic or pattern; null where it is neither live nor kept."""
    args = call.args or []
    check_count(args, 1, 2)
    options = args[1] if len(args) > 1 and not is_absent(args[1]) else call.kwargs or {}
    if not isinstance(options, dict):
        raise Refused(errors.INVALID_ARGUMENT, "options: expected a dictionary")
    match = optional_text(options, "match")
    pattern = subscribing.pattern_of(engine.router, session, text_of(args[0], "topic"), match)
    subscribing.check_right(engine.router, session, pattern)
    is_known = pattern in session.realm.subscriptions or is_kept(engine.router, pattern)
    return [engine.router.number_of(session.realm, pattern) if is_known else None]


def matching(engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.subscription.match`: return the ids of the live subscriptions that match a topic; null if none does."""
    args, realm = call.args or [], session.realm
    check_count(args, 1, 1)
    try:
        topic = realm.topic(text_of(args[0], "topic"))
    except InvalidName as refusal:
        raise refused(engine.router.broker.counted(refusal)) from None
    heard = engine.router.broker.index.match(topic).subscriptions
    matched = [realm.subscriptions[each.pattern] for each in heard if each.pattern in realm.subscriptions]
    return [[live.number for live in matched if _is_shown(engine, session, live)] or None]


def get(engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.subscription.get`: return the details of a live subscription."""
    check_count(call.args or [], 1, 1)
    return [_live(engine, session, call).shown()]


def subscribers(engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.subscription.list_subscribers`: return the ids of the sessions with a live subscription."""
    check_count(call.args or [], 1, 1)
    return [[subscriber.number for subscriber in _live(engine, session, call).sessions]]


def count_subscribers(engine: Engine, session: WampSession, call: Call, _now: float) -> list[Any]:
    """`wamp.subscription.count_subscribers`: return the number of sessions with a live subscription."""
    check_count(call.args or [], 1, 1)
    return [len(_live(engine, session, call).sessions)]


def remove_subscriber(engine: Engine, session: WampSession, call: Call, now: float) -> list[Any]:
    """`wamp.subscription.remove_subscriber`: revoke a session's subscription (5.13).

    The arguments are the ids of the subscription and the session; the keyword argument `reason` is a URI.
    """
    args = call.args or []
    check_count(args, 2, 2)
    live = _live(engine, session, call)
    subscriber = session.realm.sessions.get(id_of(args[1], "session"))
    if subscriber is None or subscriber not in live.sessions:
        raise Refused(errors.NO_SUCH_SESSION)
    reason = optional_text(call.kwargs or {}, "reason") or errors.REVOKED
    try:
        check_uri(reason, session.realm.grammar)
    except InvalidName:
        raise Refused(errors.INVALID_URI, "reason: expected a URI") from None
    subscribing.revoke(engine.router, subscriber, live, reason, now)
    return []


def is_kept(router: Router, pattern: Pattern) -> bool:
    """Return whether events that match a pattern may be in the history."""
    log = router.broker.recording.log
    if log is None or is_meta(pattern):
        return False
    return pattern.match is not Match.EXACT or log.keeping(pattern.topic) is not Keeping.NOT


def _is_shown(engine: Engine, session: WampSession, live: LiveSubscription) -> bool:
    return engine.router.rights.may(session, "subscribe", live.pattern)


def _live(engine: Engine, session: WampSession, call: Call) -> LiveSubscription:
    live = session.realm.numbers.get(id_of((call.args or [None])[0], "subscription"))
    if live is None or not _is_shown(engine, session, live):
        raise Refused(errors.NO_SUCH_SUBSCRIPTION)
    return live
