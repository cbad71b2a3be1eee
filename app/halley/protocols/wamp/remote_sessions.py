"""The sessions at the other nodes of a cluster, as the subscribers at this node know them.

A node reports to the others each session that begins or ends (`state.SESSION`), and in its heartbeat how many reports
there were (`REPORT_COUNT`). Here each other node has a list of its sessions. What is added to a list is published as
`wamp.session.on_join`, what is removed from it as `on_leave`, and nothing else is. So a subscriber receives exactly one
`on_join` for each session that is added and one `on_leave` for each that is removed, even if reports are lost, repeated
or reordered.

The list of a node that is gone is emptied. A node that is new, was started again, is back after it was gone, or has
sent more reports than have arrived, is asked for its sessions, page by page. Those on the list that are in none of the
pages, and were not reported meanwhile, are removed.

There may be thousands of these events, and of subscribers. They are published in several turns of the event loop, and
`_AT_ONCE` in a sweep, so that a client with a slow connection is not taken for a slow consumer.
"""

from __future__ import annotations

import sys
from functools import partial
from heapq import nsmallest
from math import inf
from typing import Any, NamedTuple

from halley.protocols.wamp.serializers import JSON
from halley.protocols.wamp.session import Realm
from halley.protocols.wamp.state import ON_JOIN, ON_LEAVE, Nodes, RouterState

LIST = "wamp.sessions"
"""The kind of questions for a page of a node's sessions: `{"after": NUMBER}`, those with greater numbers."""

REPORT_COUNT = "wamp"
"""The field of a heartbeat that says how many reports the node has sent: [RUN, COUNT]."""

_AT_ONCE = 500
_IN_A_TURN = 500
"""Changes of lists and deliveries, together."""

_PAGE_BYTES = 262_144
_WAIT_S = 5.0
"""More than the port waits for another node (`state.Nodes`)."""

_AGAIN_S = 1.0
"""After which a node is asked for its list once more."""

_MOST = 100_000
"""Sessions on a node's list, more than a node can serve; nothing is published about further ones."""


class RemoteSessions:
    """The sessions at all other nodes; and what this one answers about its own."""

    def __init__(self, state: RouterState, nodes: Nodes) -> None:
        self._state = state
        self._others = nodes
        self._nodes: dict[str, _Node] = {}
        self._is_asking = False
        self._checked_at = -inf
        self._room = 0

    # For the other nodes

    def report_count(self) -> list[int]:
        """How many reports this node has sent since its start (`REPORT_COUNT`)."""
        meta = self._state.meta
        return [meta.run, meta.reports]

    def page(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question for this node's sessions (`LIST`)."""
        after = question["after"]
        sessions = {
            number: session
            for realm in self._state.realms.values()
            for number, session in realm.sessions.items()
            if number > after
        }
        rows: list[list[Any]] = []
        nbytes = 0
        for number in nsmallest(_AT_ONCE, sessions):
            session = sessions[number]
            row = [session.realm.name, session.details()]
            nbytes += len(JSON.to_json(row))
            if rows and nbytes > _PAGE_BYTES:
                break
            rows.append(row)
        run, reports = self.report_count()
        return {"run": run, "reports": reports, "sessions": rows, "is_last": len(rows) == len(sessions)}

    # From the other nodes

    def arrived(self, node: str, report: list[Any], now: float) -> None:
        """Take a node's report about a session (`state.SESSION`).

        That of a node which is not there, as far as is known, is dropped: the node is asked when it is. So is a report
        that comes again or too late: the list has what it says, or is asked for.
        """
        run, number, name, uri, args = report[:5]  # a later version may add something
        other = self._nodes.get(node)
        if other is None or other.is_gone or other.run != run or number <= other.at:
            return
        other.is_right = other.is_right and number == other.at + 1
        other.at = number
        if uri == ON_JOIN:
            session = self._known(name, args[0])
            if session is not None:
                self._add(other, session, now)
        elif uri == ON_LEAVE:
            self._remove(other, args[0], now)

    def sweep(self, now: float) -> bool:
        """See which nodes are there, publish what is due, and ask for a list; called a few times a second.

        Returns whether there is more to do, in the next turn of the event loop and with the same time.
        """
        if now != self._checked_at:
            self._checked_at, self._room = now, _AT_ONCE
            others = self._others.alive()
            for name, heartbeat in others.items():
                if name not in self._nodes:
                    self._nodes[name] = _Node(name)
                self._nodes[name].seen(heartbeat.get(REPORT_COUNT))
            for name, other in self._nodes.items():
                if name not in others:
                    other.lost()
        return self._work(now)

    def _work(self, now: float) -> bool:
        """Change lists for a turn, then ask for what is to be known next; whether there is more for another turn."""
        work = 0
        for name, other in [*self._nodes.items()]:
            while self._room > 0 and (other.ended or other.begun):
                if work >= _IN_A_TURN:
                    return True
                deliveries = self._change(other, now)
                work += 1 + deliveries
                self._room -= deliveries > 0
            if other.is_gone and not other.ended:
                del self._nodes[name]
        due = [other for other in self._nodes.values() if other.is_due(now)]
        if due and not self._is_asking:
            self._ask(min(due, key=lambda other: other.asked_at), now)
        return False

    def _change(self, other: _Node, now: float) -> int:
        """Remove a session that has ended from a node's list, or add one of the page; returns the deliveries."""
        if other.ended:
            return self._remove(other, other.ended.pop(), now)
        deliveries = self._add(other, other.begun.pop(), now)
        other.finish()
        return deliveries

    def _ask(self, other: _Node, now: float) -> None:
        """Ask a node for the next page of its sessions."""
        if other.question is None:
            other.ended = []
            other.question = _Question()
        other.asked_at = now
        self._is_asking = True
        asked = self._others.ask_one(other.name, LIST, {"after": other.question.after})
        self._state.environment.wait(asked, _WAIT_S, partial(self._answered, other, other.question))

    def _answered(self, other: _Node, question: _Question, page: Any, _error: Exception | None, now: float) -> None:
        self._is_asking = False
        if other.question is not question:  # it is gone, or was started again
            return
        try:
            self._take(other, question, page)
        except (KeyError, TypeError, ValueError):  # no answer, or that of another version
            other.forget_question()
        else:
            self._work(now)

    def _take(self, other: _Node, question: _Question, page: Any) -> None:
        """Take a page of a node's sessions. Raises `KeyError`, `TypeError`, `ValueError` for one of another form."""
        run, reports, rows, is_last = (page[name] for name in ("run", "reports", "sessions", "is_last"))
        if run != other.run or not (rows or is_last):
            raise ValueError(run)
        found = [self._known(name, details) for name, details in rows]
        if question.after == 0:
            other.is_right = other.at <= reports  # else the page is older than reports before which some may be missing
            other.at = max(other.at, reports)
            question.unconfirmed = {*other.sessions}
        if rows:
            question.after = max(details["session"] for _, details in rows)
        question.is_answered = bool(is_last)
        other.begun = [each for each in found if each is not None]
        other.begun.reverse()
        other.finish()

    # The lists

    def _known(self, name: str, details: dict[str, Any]) -> _Known | None:
        """A session as it is reported; None in a realm that is not here. Raises what a wrong form does."""
        realm = self._state.realms.get(name)
        number, authid, authrole = details["session"], details["authid"], details["authrole"]
        if not (isinstance(number, int) and isinstance(authid, str) and isinstance(authrole, str)):
            raise TypeError(details)
        return None if realm is None else _Known(realm, number, authid, sys.intern(authrole), details)

    def _add(self, other: _Node, session: _Known, now: float) -> int:
        """Add a session to a node's list, and publish that if it is new; returns the deliveries."""
        realm, number, authid, authrole, details = session
        if other.question is not None:
            other.question.unconfirmed.discard(number)
            if number in other.question.ended_numbers:  # the page was made before
                return 0
        if number in other.sessions or len(other.sessions) >= _MOST:
            return 0
        other.sessions[number] = realm.name, authid, authrole
        return self._state.meta.arrived(realm, ON_JOIN, [details], None, now)

    def _remove(self, other: _Node, number: int, now: float) -> int:
        """Remove a session from a node's list, and publish that if it was there; returns the deliveries."""
        if other.question is not None:
            other.question.unconfirmed.discard(number)
            other.question.ended_numbers.add(number)
        known = other.sessions.pop(number, None)
        if known is None:
            return 0
        name, authid, authrole = known
        return self._state.meta.arrived(self._state.realms[name], ON_LEAVE, [number, authid, authrole], None, now)


class _Known(NamedTuple):
    """A session at another node, with the arguments of its on_join."""

    realm: Realm
    number: int
    authid: str
    authrole: str
    details: dict[str, Any]


class _Question:
    """A question for a node's list, page by page.

    `after` is the greatest number in the pages until now; `is_answered` if there are no more. `unconfirmed` are the
    sessions that were known before the first one, and are in none and not reported since; those in `ended_numbers` have
    ended.
    """

    def __init__(self) -> None:
        self.after = 0
        self.is_answered = False
        self.unconfirmed: set[int] = set()
        self.ended_numbers: set[int] = set()


class _Node:
    """Another node: its `sessions`, by number, each as (realm, authid, authrole).

    `run` stands for a start of the node, 0 if it has not said which; `reports` is how many it has sent since, and `at`
    the number of the last one that has arrived. `is_right` is false if any before that may be missing. `begun` are
    sessions of the last page that are to be added, and `ended` those that are to be removed.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.run = self.reports = self.at = 0
        self.is_right = self.is_gone = False
        self.sessions: dict[int, tuple[str, str, str]] = {}
        self.begun: list[_Known] = []
        self.ended: list[int] = []
        self.question: _Question | None = None
        self.asked_at = -inf

    def seen(self, count: Any) -> None:
        """Take the node's `REPORT_COUNT`, which it need not have sent."""
        if self.is_gone:
            self.is_gone = False
            self.ended = []
        if not (isinstance(count, list) and len(count) >= 2 and all(isinstance(each, int) for each in count[:2])):
            return
        run, self.reports = count[0], count[1]
        if run != self.run:
            self.run, self.at = run, 0
            self.forget_question()

    def lost(self) -> None:
        """Note that the node is gone: all of its sessions are to be removed."""
        if not self.is_gone:
            self.is_gone = True
            self.forget_question()
            self.ended = [*self.sessions]
            self.ended.reverse()  # the oldest is the first to be taken

    def forget_question(self) -> None:
        """Forget a question, and what of its answer is not used yet: the list has to be asked for from its start."""
        self.question, self.begun = None, []
        self.is_right = False

    def finish(self) -> None:
        """End a question when all of its answer is used: what is in no page has ended."""
        question = self.question
        if question is not None and question.is_answered and not self.begun:
            self.question, self.ended = None, [*question.unconfirmed]

    def is_due(self, now: float) -> bool:
        """Whether the node is to be asked for its list, or for the next page of it."""
        if self.is_gone or self.run == 0 or self.begun:
            return False
        return self.question is not None or (
            now - self.asked_at >= _AGAIN_S and not (self.is_right and self.reports <= self.at)
        )
