"""CALL: the router's own procedures, which are the only ones (Advanced Profile, 13, 14; Basic Profile, 9).

A procedure gets the caller's session, the call and `now`. It returns the positional arguments of its RESULT, or None
where it answers later. Procedures other than those in `_FREE` need the right to `call` them.
"""

from __future__ import annotations

from collections.abc import Callable
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
    check_count,
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
        self.by_uri: dict[str, Procedure] = {
            "wamp.session.count": sessions.count,
            "wamp.session.list": sessions.list_ids,
            "wamp.session.get": sessions.get,
            "wamp.session.kill": sessions.kill,
            "wamp.session.kill_by_authid": sessions.kill_by_authid,
            "wamp.session.kill_by_authrole": sessions.kill_by_authrole,
            "wamp.session.kill_all": sessions.kill_all,
            "wamp.session.add_testament": testaments.add,
            "wamp.session.flush_testaments": testaments.flush,
            "wamp.subscription.list": subscriptions.list_ids,
            "wamp.subscription.lookup": subscriptions.lookup,
            "wamp.subscription.match": subscriptions.match,
            "wamp.subscription.get_events": history.get_events,
            "wamp.subscription.get": subscriptions.get,
            "wamp.subscription.list_subscribers": subscriptions.list_subscribers,
            "wamp.subscription.count_subscribers": subscriptions.count_subscribers,
            "wamp.subscription.remove_subscriber": subscriptions.remove_subscriber,
        }

    def call(self, session: WampSession, message: Call, now: float) -> None:
        """Call a procedure for a client, and send its RESULT unless it answers later. Raises `WampError`."""
        name = message.procedure
        procedure = self.by_uri.get(name)
        if procedure is None:
            try:
                check_uri(name, session.realm.grammar)
            except InvalidName:
                raise WampError(errors.INVALID_URI) from None
            raise WampError(errors.NO_SUCH_PROCEDURE)
        if name not in _FREE and not self._state.rights.may(session, "call", own_topic(name, session.realm.space)):
            raise WampError(errors.NOT_AUTHORIZED)
        if session.owner.room_bytes() <= 0:
            self._state.broker.hits["queue_bytes"] += 1
            raise WampError(errors.UNAVAILABLE, "too many bytes wait to be sent to this client")
        result = procedure(session, message, now)
        if result is not None:
            session.owner.say([RESULT, message.request, {}, *([result] if result else [])])

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
        authid = self._only_text(call, "authid")
        return [self._kill(session, call, now, lambda other: other.auth.authid == authid)]

    def kill_by_authrole(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.session.kill_by_authrole`: end the sessions of an authrole except the caller's; return their number."""
        role = self._only_text(call, "authrole")
        return [len(self._kill(session, call, now, lambda other: other.role == role))]

    def kill_all(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.session.kill_all`: end all sessions except the caller's; return their number."""
        check_count(call.args or [], 0, 0)
        return [len(self._kill(session, call, now, lambda _other: True))]

    @staticmethod
    def _kill(session: WampSession, call: Call, now: float, is_meant: Callable[[WampSession], bool]) -> list[int]:
        kwargs = call.kwargs or {}
        reason = optional_text_argument(kwargs, "reason") or errors.NORMAL
        message = optional_text_argument(kwargs, "message") or ""
        _check_reason(session, reason)
        victims = [other for other in session.realm.sessions.values() if other is not session and is_meant(other)]
        for victim in victims:
            victim.owner.dismiss(reason, message, now, reason="killed")
        return [victim.number for victim in victims]

    @staticmethod
    def _found(session: WampSession, call: Call) -> WampSession:
        args = call.args or []
        check_count(args, 1, 1)
        found = session.realm.sessions.get(id_argument(args[0], "session"))
        if found is None:
            raise WampError(errors.NO_SUCH_SESSION)
        return found

    @staticmethod
    def _only_text(call: Call, name: str) -> str:
        args = call.args or []
        check_count(args, 1, 1)
        return text_argument(args[0], name)

    @staticmethod
    def _ids(session: WampSession, call: Call) -> list[int]:
        args = call.args or []
        check_count(args, 0, 1)
        wanted = args[0] if args else None
        sessions = session.realm.sessions.values()
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

    def list_ids(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.list`: return the ids of the live subscriptions by match policy."""
        check_count(call.args or [], 0, 0)
        found: dict[str, list[int]] = {match: [] for match in MATCHES}
        for live in session.realm.subscriptions.values():
            if self._subscriber.has_right(session, live.pattern):
                found[live.match].append(live.number)
        return [found]

    def lookup(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.lookup`: return the id of a topic or pattern; null where it is neither live nor kept."""
        args = call.args or []
        check_count(args, 1, 2)
        options = args[1] if len(args) > 1 and not is_absent(args[1]) else call.kwargs or {}
        if not isinstance(options, dict):
            raise InvalidArgument("options", "a dictionary")
        match = optional_text_argument(options, "match")
        pattern = self._subscriber.pattern_of(session, text_argument(args[0], "topic"), match)
        self._subscriber.check_right(session, pattern)
        is_known = pattern in session.realm.subscriptions or self._history.is_kept(pattern)
        return [self._state.subscription_id(session.realm, pattern) if is_known else None]

    def match(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.match`: return the ids of the live subscriptions that match a topic; null if none does."""
        args, realm, broker = call.args or [], session.realm, self._state.broker
        check_count(args, 1, 1)
        try:
            topic = realm.topic(text_argument(args[0], "topic"))
        except InvalidName as refusal:
            raise wamp_error(broker.counted(refusal)) from None
        patterns = [each.pattern for each in broker.index.match(topic).subscriptions]
        matched = [realm.subscriptions[each] for each in patterns if each in realm.subscriptions]
        return [[live.number for live in matched if self._subscriber.has_right(session, live.pattern)] or None]

    def get(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.get`: return the details of a live subscription."""
        check_count(call.args or [], 1, 1)
        return [self._live(session, call).details()]

    def list_subscribers(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.list_subscribers`: return the ids of the sessions with a live subscription."""
        check_count(call.args or [], 1, 1)
        return [[subscriber.number for subscriber in self._live(session, call).sessions]]

    def count_subscribers(self, session: WampSession, call: Call, _now: float) -> list[Any]:
        """`wamp.subscription.count_subscribers`: return the number of sessions with a live subscription."""
        check_count(call.args or [], 1, 1)
        return [len(self._live(session, call).sessions)]

    def remove_subscriber(self, session: WampSession, call: Call, now: float) -> list[Any]:
        """`wamp.subscription.remove_subscriber`: revoke a session's subscription (5.13).

        The arguments are the ids of the subscription and the session; the keyword argument `reason` is a URI.
        """
        args = call.args or []
        check_count(args, 2, 2)
        live = self._live(session, call)
        subscriber = session.realm.sessions.get(id_argument(args[1], "session"))
        if subscriber is None or subscriber not in live.sessions:
            raise WampError(errors.NO_SUCH_SESSION)
        reason = optional_text_argument(call.kwargs or {}, "reason") or errors.REVOKED
        _check_reason(session, reason)
        self._subscriber.revoke(subscriber, live, reason, now)
        return []

    def _live(self, session: WampSession, call: Call) -> LiveSubscription:
        live = session.realm.numbers.get(id_argument((call.args or [None])[0], "subscription"))
        if live is None or not self._subscriber.has_right(session, live.pattern):
            raise WampError(errors.NO_SUCH_SUBSCRIPTION)
        return live


def _check_reason(session: WampSession, reason: str) -> None:
    """Check that the reason for the end of a session or subscription is a URI. Raises `WampError`."""
    try:
        check_uri(reason, session.realm.grammar)
    except InvalidName:
        raise WampError(errors.INVALID_URI, "reason: expected a URI") from None
