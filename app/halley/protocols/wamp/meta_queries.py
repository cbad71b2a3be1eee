"""Queries of the meta API in a cluster: each node answers for its own sessions and subscriptions.

A procedure of the meta API asks: this node answers at once, the others, if there are any, within a second. What the
procedure makes of all answers is the result; where a node has not answered, `RESULT.Details._complete` is false.

Questions and answers are JSON values. A question has `realm` and `what`, the name of a method below; the methods are
called with the realm, the question and `now`, and return None where this node has nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from halley.broker.names import Pattern
from halley.protocols.wamp.messages import RESULT, Call
from halley.protocols.wamp.names import MATCHES, own_topic
from halley.protocols.wamp.session import LiveSubscription, Realm, WampSession
from halley.protocols.wamp.state import RouterState
from halley.protocols.wamp.subscribing import Subscribing
from halley.settings import Verb

KIND = "wamp.meta_api"
_WAIT_S = 5.0
"""More than the port waits for the other nodes (`state.Nodes`)."""

_ORDERS = ("kill", "revoke")
"""Questions that have an effect at each node, at once."""

Question = dict[str, Any]
Merge = Callable[[list[Any], float], "list[Any] | None"]
"""Makes the arguments of a RESULT of the answers that are not None; None if it has asked again. Raises `WampError`."""


class MetaApiQueries:
    """Asks the nodes of a cluster, and answers for this one."""

    def __init__(self, state: RouterState, subscribing: Subscribing) -> None:
        self._state = state
        self._subscribing = subscribing
        self._answers: dict[str, Callable[[Realm, Question, float], Any]] = {
            "count": self._count,
            "list": self._list,
            "session": self._session,
            "kill": self._kill,
            "live": self._live,
            "match": self._match,
            "is_live": self._is_live,
            "subscription": self._subscription,
            "revoke": self._revoke,
        }

    def ask(self, session: WampSession, call: Call, question: Question, merge: Merge, now: float) -> list[Any] | None:
        """Return what `merge` makes of all answers, or None where the call is answered later. Raises `WampError`."""
        nodes, realm = self._state.environment.nodes, session.realm
        if nodes is None:
            return merge(_not_none([self._answer(realm, question, now)]), now)
        session.requests.check_capacity()
        own = self._answer(realm, question, now)
        asked = nodes.ask(KIND, {"realm": realm.name, **question})
        resume = partial(self._resume, session, call, merge, own)
        session.engine.wait_for(call, asked, _WAIT_S, resume, needs=_needed_for(call, question, realm))
        return None

    def _resume(
        self,
        session: WampSession,
        call: Call,
        merge: Merge,
        own: Any,
        found: tuple[list[Any], bool] | None,
        _error: Exception | None,
        now: float,
    ) -> None:
        answers, is_complete = found or ([], False)
        result = merge(_not_none([own, *answers]), now)
        if result is not None:
            details = {} if is_complete else {"_complete": False}
            session.engine.say([RESULT, call.request, details, *([result] if result else [])])

    def answer(self, question: Question, now: float) -> Any:
        """Answer another node's question; None where this node has nothing to say."""
        realm = self._state.realms.get(question["realm"])
        return None if realm is None else self._answer(realm, question, now)

    def _answer(self, realm: Realm, question: Question, now: float) -> Any:
        return self._answers[question["what"]](realm, question, now)

    # Sessions

    def _count(self, realm: Realm, question: Question, now: float) -> int:
        return len(self._list(realm, question, now))

    def _list(self, realm: Realm, question: Question, _now: float) -> list[int]:
        roles = question["roles"]
        return [each.number for each in realm.sessions.values() if roles is None or each.role in roles]

    def _session(self, realm: Realm, question: Question, _now: float) -> dict[str, Any] | None:
        found = realm.sessions.get(question["session"])
        return None if found is None else found.details()

    def _kill(self, realm: Realm, question: Question, now: float) -> list[int]:
        """End the sessions that are meant by number, authid or role, or all, except that of the caller."""
        wanted, caller = question["wanted"], question["caller"]
        tests: dict[str, Callable[[WampSession], bool]] = {
            "number": lambda each: each.number == wanted,
            "authid": lambda each: each.auth.authid == wanted,
            "role": lambda each: each.role == wanted,
            "all": lambda _each: True,
        }
        is_victim = tests[question["by"]]
        victims = [each for each in realm.sessions.values() if each.number != caller and is_victim(each)]
        for victim in victims:
            victim.engine.dismiss(question["reason"], question["message"], now, reason="killed")
        return [victim.number for victim in victims]

    # Subscriptions

    def _live(self, realm: Realm, _question: Question, _now: float) -> list[Any]:
        return [_row(live) for live in realm.subscriptions.values()]

    def _match(self, realm: Realm, question: Question, _now: float) -> list[Any]:
        found = self._state.broker.index.match(question["topic"]).subscriptions
        return [_row(realm.subscriptions[each.pattern]) for each in found if each.pattern in realm.subscriptions]

    def _is_live(self, realm: Realm, question: Question, _now: float) -> bool:
        return pattern_of(question["pattern"]) in realm.subscriptions

    def _subscription(self, realm: Realm, question: Question, _now: float) -> dict[str, Any] | None:
        live = realm.numbers.get(question["subscription"])
        if live is None:
            return None
        sessions = [each.number for each in live.sessions]
        return {"shown": _row(live), "details": live.details(), "sessions": sessions}

    def _revoke(self, realm: Realm, question: Question, now: float) -> bool | None:
        live = realm.numbers.get(question["subscription"])
        session = realm.sessions.get(question["session"])
        if live is None or session is None or session not in live.sessions:
            return None
        self._subscribing.revoke(session, live, question["reason"], now)
        return True


def _needed_for(call: Call, question: Question, realm: Realm) -> tuple[Verb, str | Pattern] | None:
    """The right that a caller must still have when all answers are there; None where the question was an order."""
    if question["what"] in _ORDERS:
        return None
    if question["what"] == "is_live":  # `lookup`, which shows what its caller may subscribe to
        return "subscribe", pattern_of(question["pattern"])
    return "call", own_topic(call.procedure, realm.space)


def _not_none(answers: list[Any]) -> list[Any]:
    return [each for each in answers if each is not None]


def _row(live: LiveSubscription) -> list[Any]:
    """A subscription as a JSON value: its id, its match policy, and its topic."""
    return [live.number, *to_json(live.pattern, live.match)]


def to_json(pattern: Pattern, match: str) -> list[str]:
    """A pattern as a JSON value."""
    return [match, pattern.topic]


def pattern_of(value: list[str]) -> Pattern:
    """The pattern that `to_json` wrote."""
    match, topic = value
    return Pattern(MATCHES[match], topic)
