"""CALL: the router's own procedures, which are the only ones (Advanced Profile, 13, 14; Basic Profile, 9).

A procedure gets the caller's session, the call, with as many arguments as it takes, and `now`. It returns the
positional arguments of its RESULT, or None where it answers later. Procedures other than those in `_FREE` need the
right to `call` them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from halley.broker.errors import InvalidName
from halley.protocols.wamp import errors
from halley.protocols.wamp.errors import InvalidArgument, WampError, wamp_error
from halley.protocols.wamp.history import EventHistory
from halley.protocols.wamp.messages import (
    RESULT,
    Call,
    Register,
    Unregister,
    id_argument,
    optional_text_argument,
    text_argument,
)
from halley.protocols.wamp.meta_queries import Merge, MetaApiQueries, pattern_of, to_json
from halley.protocols.wamp.names import MATCHES, check_uri, own_topic
from halley.protocols.wamp.serializers import is_absent
from halley.protocols.wamp.session import WampSession
from halley.protocols.wamp.state import RouterState
from halley.protocols.wamp.subscribing import Subscribing
from halley.protocols.wamp.testaments import Testaments

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
        self,
        state: RouterState,
        subscribing: Subscribing,
        history: EventHistory,
        testaments: Testaments,
        queries: MetaApiQueries,
    ) -> None:
        self._state = state
        sessions = SessionProcedures(queries)
        subscriptions = SubscriptionProcedures(state, subscribing, history, queries)
        self.by_uri: dict[str, tuple[Procedure, int, int]] = {
            "wamp.session.count": (sessions.count, 0, 1),
            "wamp.session.list": (sessions.list_ids, 0, 1),
            "wamp.session.get": (sessions.get, 1, 1),
            "wamp.session.kill": (sessions.kill, 1, 1),
            "wamp.session.kill_by_authid": (sessions.kill_by_authid, 1, 1),
            "wamp.session.kill_by_authrole": (sessions.kill_by_authrole, 1, 1),
            "wamp.session.kill_all": (sessions.kill_all, 0, 0),
            "wamp.session.add_testament": (testaments.add, 1, 3),
            "wamp.session.flush_testaments": (testaments.flush, 0, 0),
            "wamp.subscription.list": (subscriptions.list_ids, 0, 0),
            "wamp.subscription.lookup": (subscriptions.lookup, 1, 2),
            "wamp.subscription.match": (subscriptions.match, 1, 1),
            "wamp.subscription.get_events": (history.get_events, 0, 1),
            "wamp.subscription.get": (subscriptions.get, 1, 1),
            "wamp.subscription.list_subscribers": (subscriptions.list_subscribers, 1, 1),
            "wamp.subscription.count_subscribers": (subscriptions.count_subscribers, 1, 1),
            "wamp.subscription.remove_subscriber": (subscriptions.remove_subscriber, 2, 2),
        }
        """Each procedure with the least and the greatest number of its positional arguments.

        A further one is refused, since its caller means something by it, such as a limit.
        """

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

    def __init__(self, queries: MetaApiQueries) -> None:
        self._queries = queries

    def count(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.session.count`: return the number of sessions, or of those with one of some authroles."""
        question = {"what": "count", "roles": _roles(call)}
        return self._queries.ask(session, call, question, lambda counts, _: [sum(counts)], now)

    def list_ids(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.session.list`: return the ids of the sessions, or of those with one of some authroles."""
        question = {"what": "list", "roles": _roles(call)}
        return self._queries.ask(session, call, question, lambda lists, _: [_joined(lists)], now)

    def get(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.session.get`: return the details of a session. Raises `WampError`."""
        question = {"what": "session", "session": id_argument(_first(call), "session")}
        return self._queries.ask(session, call, question, _the_session, now)

    def kill(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.session.kill`: end a session other than the caller's own. Raises `WampError`."""

        def merge(lists: list[list[int]], _now: float) -> list[Any]:
            if not any(lists):
                raise WampError(errors.NO_SUCH_SESSION)
            return []

        return self._kill(session, call, "number", id_argument(_first(call), "session"), merge, now)

    def kill_by_authid(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.session.kill_by_authid`: end the sessions of an authid except the caller's; return their ids."""
        authid = text_argument(_first(call), "authid")
        return self._kill(session, call, "authid", authid, lambda lists, _: [_joined(lists)], now)

    def kill_by_authrole(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.session.kill_by_authrole`: end the sessions of an authrole except the caller's; return their number."""
        role = text_argument(_first(call), "authrole")
        return self._kill(session, call, "role", role, lambda lists, _: [len(_joined(lists))], now)

    def kill_all(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.session.kill_all`: end all sessions except the caller's; return their number."""
        return self._kill(session, call, "all", None, lambda lists, _: [len(_joined(lists))], now)

    def _kill(
        self, session: WampSession, call: Call, by: str, wanted: str | int | None, merge: Merge, now: float
    ) -> list[Any] | None:
        kwargs = call.kwargs or {}
        reason = optional_text_argument(kwargs, "reason") or errors.KILLED
        message = optional_text_argument(kwargs, "message") or ""
        _check_reason(session, reason)
        question = {
            "what": "kill",
            "by": by,
            "wanted": wanted,
            "caller": session.number,
            "reason": reason,
            "message": message,
        }
        return self._queries.ask(session, call, question, merge, now)


class SubscriptionProcedures:
    """The subscription meta API (Advanced Profile, 14): the realm's live subscriptions, which are WAMP sessions'.

    Only `lookup` and `get_events` also serve topics and patterns without subscribers: each whose events are kept has an
    id, for reading its history. All procedures report only what the caller may subscribe to: for a caller that may not,
    a subscription does not exist.
    """

    def __init__(
        self, state: RouterState, subscribing: Subscribing, history: EventHistory, queries: MetaApiQueries
    ) -> None:
        self._state = state
        self._subscribing = subscribing
        self._history = history
        self._queries = queries

    def list_ids(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.subscription.list`: return the ids of the live subscriptions by match policy."""

        def merge(lists: list[list[Any]], _now: float) -> list[Any]:
            found: dict[str, list[int]] = {match: [] for match in MATCHES}
            for number, match in self._may_know(session, lists):
                found[match].append(number)
            return [found]

        return self._queries.ask(session, call, {"what": "live"}, merge, now)

    def lookup(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.subscription.lookup`: return the id of a topic or pattern; null where it is neither live nor kept."""
        args = call.args or []
        options = args[1] if len(args) > 1 and not is_absent(args[1]) else call.kwargs or {}
        if not isinstance(options, dict):
            raise InvalidArgument("options", "a dictionary")
        match = optional_text_argument(options, "match")
        pattern = self._subscribing.pattern_of(session, text_argument(_first(call), "topic"), match)
        self._subscribing.check_right(session, pattern)

        def merge(is_live: list[bool], _now: float) -> list[Any]:
            return [self._state.subscription_id(session.realm, pattern) if any(is_live) else None]

        if self._history.is_kept(pattern):
            return merge([True], now)
        question = {"what": "is_live", "pattern": to_json(pattern, match or "exact")}
        return self._queries.ask(session, call, question, merge, now)

    def match(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.subscription.match`: return the ids of the live subscriptions that match a topic; null if none does."""
        try:
            topic = session.realm.topic(text_argument(_first(call), "topic"))
        except InvalidName as refusal:
            raise wamp_error(self._state.broker.counted(refusal)) from None

        def merge(lists: list[list[Any]], _now: float) -> list[Any]:
            return [[number for number, _ in self._may_know(session, lists)] or None]

        return self._queries.ask(session, call, {"what": "match", "topic": topic}, merge, now)

    def get(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.subscription.get`: return the details of a live subscription; it was created when it first was."""
        return self._ask(session, call, lambda found, _: [min((each["details"] for each in found), key=_created)], now)

    def list_subscribers(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.subscription.list_subscribers`: return the ids of the sessions with a live subscription."""
        return self._ask(session, call, lambda found, _: [_joined([each["sessions"] for each in found])], now)

    def count_subscribers(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.subscription.count_subscribers`: return the number of sessions with a live subscription."""
        return self._ask(session, call, lambda found, _: [sum(len(each["sessions"]) for each in found)], now)

    def remove_subscriber(self, session: WampSession, call: Call, now: float) -> list[Any] | None:
        """`wamp.subscription.remove_subscriber`: revoke a session's subscription (5.13).

        The arguments are the ids of the subscription and the session; the keyword argument `reason` is a URI.
        """

        def revoked(answers: list[bool], _now: float) -> list[Any]:
            if not answers:
                raise WampError(errors.NO_SUCH_SESSION)
            return []

        def merge(found: list[Any], now: float) -> list[Any] | None:
            number = id_argument((call.args or [])[1], "session")
            if not any(number in each["sessions"] for each in found):
                raise WampError(errors.NO_SUCH_SESSION)
            reason = optional_text_argument(call.kwargs or {}, "reason") or errors.REVOKED
            _check_reason(session, reason)
            subscription = id_argument(_first(call), "subscription")
            question = {"what": "revoke", "subscription": subscription, "session": number, "reason": reason}
            return self._queries.ask(session, call, question, revoked, now)

        return self._ask(session, call, merge, now)

    def _ask(self, session: WampSession, call: Call, merge: Merge, now: float) -> list[Any] | None:
        """Ask about the subscription that the first argument names. Raises `WampError` if it does not exist."""

        def merged(found: list[Any], now: float) -> list[Any] | None:
            known = [each for each in found if self._may_know(session, [[each["shown"]]])]
            if not known:
                raise WampError(errors.NO_SUCH_SUBSCRIPTION)
            return merge(known, now)

        question = {"what": "subscription", "subscription": id_argument(_first(call), "subscription")}
        return self._queries.ask(session, call, question, merged, now)

    def _may_know(self, session: WampSession, lists: list[list[Any]]) -> list[tuple[int, str]]:
        """The subscriptions that the caller may subscribe to, each once: the ids and the match policies."""
        found = {number: (match, topic) for each in lists for number, match, topic in each}
        return [
            (number, row[0])
            for number, row in found.items()
            if self._subscribing.has_right(session, pattern_of([*row]))
        ]


def _the_session(found: list[dict[str, Any]], _now: float) -> list[Any]:
    if not found:
        raise WampError(errors.NO_SUCH_SESSION)
    return found[:1]


def _joined(lists: list[list[int]]) -> list[int]:
    return [number for each in lists for number in each]


def _created(details: dict[str, Any]) -> str:
    return str(details["created"])


def _roles(call: Call) -> list[str] | None:
    """The authroles that are asked for; None for all."""
    wanted = _first(call)
    if is_absent(wanted):
        return None
    return [text_argument(role, "authroles") for role in (wanted if isinstance(wanted, list) else [wanted])]


def _first(call: Call) -> Any:
    return call.args[0] if call.args else None


def _check_reason(session: WampSession, reason: str) -> None:
    """Check that the reason for the end of a session or subscription is a URI. Raises `WampError`."""
    try:
        check_uri(reason, session.realm.grammar)
    except InvalidName:
        raise WampError(errors.INVALID_URI, "reason: expected a URI") from None
