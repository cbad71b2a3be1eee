"""CALL: the router's own procedures, which are the only ones (Advanced Profile, 13, 14; Basic Profile, 9).

A procedure gets the caller's session, the call, with as many arguments as it takes, and `now`. It returns the
positional arguments of its RESULT, or None where it answers later. Procedures other than those in `_FREE` need the
right to `call` them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Never

from app.broker.errors import InvalidName
from app.protocols.wamp import errors
from app.protocols.wamp.errors import InvalidArgument, WampError, wamp_error
from app.protocols.wamp.history import EventHistory
from app.protocols.wamp.messages import (
    RESULT,
    Call,
    Register,
    Unregister,
    id_argument,
    optional_text_argument,
    text_argument,
)
from app.protocols.wamp.names import MATCHES, check_uri, own_topic
from app.protocols.wamp.serializers import is_absent
from app.protocols.wamp.session import LiveSubscription, WampSession
from app.protocols.wamp.state import RouterState
from app.protocols.wamp.subscribing import Subscriber
from app.protocols.wamp.testaments import Testaments

Procedure = Callable[[WampSession, Call, float], list[Any] | None]

_FREE = frozenset(
    {
        "wamp.session.add_testament",
        "wamp.session.flush_testaments",
        "wamp.subscription.get_events",
        "wamp.subscription.lookup",
    }
)
"""Procedures that need no right to `call`; where they need one, they check the right to subscribe or publish."""


class Procedures:
    """All procedures, by their URIs."""

    def __init__(
        self, state: RouterState, subscriber: Subscriber, history: EventHistory, testaments: Testaments
    ) -> None:
        self._state = state
        sessions, subscriptions = SessionProcedures(), SubscriptionProcedures(state, subscriber, history)
        self.by_uri: dict[str, tuple[Procedure, int, float]] = {
            "wamp.session.count": (sessions.count, 0, 1),
            "wamp.session.list": (sessions.list_ids, 0, 1),
            "wamp.session.get": (sessions.get, 1, 1),
            "wamp.session.kill": (sessions.kill, 1, 1),
            "wamp.session.kill_by_authid": (sessions.kill_by_authid, 1, 1),
            "wamp.session.kill_by_authrole": (sessions.kill_by_authrole, 1, 1),
            "wamp.session.kill_all": (sessions.kill_all, 0, 0),
            "wamp.session.add_testament": (testaments.add, 1, 3),
            "wamp.session.flush_testaments": (testaments.flush, 0, inf),
            "wamp.subscription.list": (subscriptions.list_ids, 0, 0),
            "wamp.subscription.lookup": (subscriptions.lookup, 1, 2),
            "wamp.subscription.match": (subscriptions.match, 1, 1),
            "wamp.subscription.get_events": (history.get_events, 0, inf),
            "wamp.subscription.get": (subscriptions.get, 1, 1),
            "wamp.subscription.list_subscribers": (subscriptions.list_subscribers, 1, 1),
            "wamp.subscription.count_subscribers": (subscriptions.count_subscribers, 1, 1),
            "wamp.subscription.remove_subscriber": (subscriptions.remove_subscriber, 2, 2),
        }
        """Each procedure with the least and the greatest number of its positional arguments."""

    def call(self, session: WampSession, message: Call, now: float) -> None:
        """Call a procedure for a client, and send its RESULT unless it answers later. Raises `WampError`."""
        name = message.procedure
        if name not in self.by_uri:
            try:
                check_uri(name, session.realm.grammar)
            except InvalidName:
                raise WampError(errors.INVALID_URI) from None
            raise WampError(errors.NO_SUCH_PROCEDURE)
        if name not in _FREE and not self._state.rights.may(session, "call", own_topic(name, session.realm.space)):
            raise WampError(errors.NOT_AUTHORIZED)
        if session.engine.room_bytes() <= 0:
            self._state.broker.hits["queue_bytes"] += 1
            raise WampError(errors.UNAVAILABLE, "too many bytes wait to be sent to this client")
        procedure, least, greatest = self.by_uri[name]
        if not least <= len(message.args or ()) <= greatest:
            raise WampError(errors.INVALID_ARGUMENT, f"expected {least} to {greatest} positional arguments")
        result = procedure(session, message, now)
        if result is not None:
            session.engine.say([RESULT, message.request, {}, *([result] if result else [])])

    def register(self, _session: WampSession, _message: Register, _now: float) -> Never:
        """Refuse a REGISTER: clients cannot offer procedures. Raises `WampError`."""
        raise WampError(errors.NOT_AUTHORIZED, "clients cannot register procedures")

    def unregister(self, _session: WampSession, _message: Unregister, _now: float) -> Never:
        """Refuse an UNREGISTER: there are no registrations. Raises `WampError`."""
        raise WampError(errors.NO_SUCH_REGISTRATION)


class SessionProcedures:
    """The session meta API (Advanced Profile, 13): procedures that list and kill the realm's sessions."""

    def count(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.session.count`: return the number of sessions, or of those with one of some authroles."""
        return [len(self._ids(session, call))]

    def list_ids(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.session.list`: return the ids of the sessions, or of those with one of some authroles."""
        return [self._ids(session, call)]

    def get(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.session.get`: return the details of a session. Raises `WampError`."""
        return [self._found(session, call).details()]

    def kill(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.session.kill`: end a session other than the caller's own. Raises `WampError`."""
        found = self._found(session, call)
        if found is session:
            raise WampError(errors.NO_SUCH_SESSION)
        self._kill(session, call, now, lambda other: other is found)
        return []

    def kill_by_authid(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.session.kill_by_authid`: end the sessions of an authid except the caller's; return their ids."""
        authid = text_argument(_first(call), "authid")
        return [self._kill(session, call, now, lambda other: other.auth.authid == authid)]

    def kill_by_authrole(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.session.kill_by_authrole`: end the sessions of an authrole except the caller's; return their number."""
        role = text_argument(_first(call), "authrole")
        return [len(self._kill(session, call, now, lambda other: other.role == role))]

    def kill_all(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.session.kill_all`: end all sessions except the caller's; return their number."""
        return [len(self._kill(session, call, now, lambda _other: True))]

    @staticmethod
    def _kill(session: WampSession, call: Call, now: float, is_meant: Callable[[WampSession], bool]) -> list[int]:
        kwargs = call.kwargs or {}
        reason = optional_text_argument(kwargs, "reason") or errors.NORMAL
        message = optional_text_argument(kwargs, "message") or ""
        _check_reason(session, reason)
        victims = [other for other in session.realm.sessions.values() if other is not session and is_meant(other)]
        for victim in victims:
            victim.engine.dismiss(reason, message, now, reason="killed")
        return [victim.number for victim in victims]

    @staticmethod
    def _found(session: WampSession, call: Call) -> WampSession:
        found = session.realm.sessions.get(id_argument(_first(call), "session"))
        if found is None:
            raise WampError(errors.NO_SUCH_SESSION)
        return found

    @staticmethod
    def _ids(session: WampSession, call: Call) -> list[int]:
        wanted, sessions = _first(call), session.realm.sessions.values()
        if is_absent(wanted):
            return [other.number for other in sessions]
        roles = wanted if isinstance(wanted, list) else [wanted]
        asked = {text_argument(role, "authroles") for role in roles}
        return [other.number for other in sessions if other.role in asked]


class SubscriptionProcedures:
    """The subscription meta API (Advanced Profile, 14): the realm's live subscriptions, which are WAMP sessions'.

    Only `lookup` and `get_events` also serve topics and patterns without subscribers: each whose events are kept has an
    id, for reading its history. All procedures report only what the caller may subscribe to: for a caller that may not,
    a subscription does not exist.
    """

    def __init__(self, state: RouterState, subscriber: Subscriber, history: EventHistory) -> None:
        self._state = state
        self._subscriber = subscriber
        self._history = history

    def list_ids(self, session: WampSession, _call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.list`: return the ids of the live subscriptions by match policy."""
        found: dict[str, list[int]] = {match: [] for match in MATCHES}
        for live in session.realm.subscriptions.values():
            if self._subscriber.has_right(session, live.pattern):
                found[live.match].append(live.number)
        return [found]

    def lookup(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.lookup`: return the id of a topic or pattern; null where it is neither live nor kept."""
        args = call.args or []
        options = args[1] if len(args) > 1 and not is_absent(args[1]) else call.kwargs or {}
        if not isinstance(options, dict):
            raise InvalidArgument("options", "a dictionary")
        match = optional_text_argument(options, "match")
        pattern = self._subscriber.pattern_of(session, text_argument(_first(call), "topic"), match)
        self._subscriber.check_right(session, pattern)
        is_known = pattern in session.realm.subscriptions or self._history.is_kept(pattern)
        return [self._state.subscription_id(session.realm, pattern) if is_known else None]

    def match(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.match`: return the ids of the live subscriptions that match a topic; null if none does."""
        realm, broker = session.realm, self._state.broker
        try:
            topic = realm.topic(text_argument(_first(call), "topic"))
        except InvalidName as refusal:
            raise wamp_error(broker.counted(refusal)) from None
        patterns = [each.pattern for each in broker.index.match(topic).subscriptions]
        matched = [realm.subscriptions[each] for each in patterns if each in realm.subscriptions]
        return [[live.number for live in matched if self._subscriber.has_right(session, live.pattern)] or None]

    def get(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.get`: return the details of a live subscription."""
        return [self._live(session, call).details()]

    def list_subscribers(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.list_subscribers`: return the ids of the sessions with a live subscription."""
        return [[subscriber.number for subscriber in self._live(session, call).sessions]]

    def count_subscribers(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.count_subscribers`: return the number of sessions with a live subscription."""
        return [len(self._live(session, call).sessions)]

    def remove_subscriber(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.subscription.remove_subscriber`: revoke a session's subscription (5.13).

        The arguments are the ids of the subscription and the session; the keyword argument `reason` is a URI.
        """
        live = self._live(session, call)
        subscriber = session.realm.sessions.get(id_argument((call.args or [])[1], "session"))
        if subscriber is None or subscriber not in live.sessions:
            raise WampError(errors.NO_SUCH_SESSION)
        reason = optional_text_argument(call.kwargs or {}, "reason") or errors.REVOKED
        _check_reason(session, reason)
        self._subscriber.revoke(subscriber, live, reason, now)
        return []

    def _live(self, session: WampSession, call: Call) -> LiveSubscription:
        live = session.realm.numbers.get(id_argument(_first(call), "subscription"))
        if live is None or not self._subscriber.has_right(session, live.pattern):
            raise WampError(errors.NO_SUCH_SUBSCRIPTION)
        return live


def _first(call: Call) -> Any:
    return call.args[0] if call.args else None


def _check_reason(session: WampSession, reason: str) -> None:
    """Check that the reason for the end of a session or subscription is a URI. Raises `WampError`."""
    try:
        check_uri(reason, session.realm.grammar)
    except InvalidName:
        raise WampError(errors.INVALID_URI, "reason: expected a URI") from None
