"""The access rules: the first that applies to a role, a verb and a topic decides; without one the request is denied.

For a pattern, that is a subscription, an allow rule grants if it covers all that the pattern matches, and a deny rule
denies if it overlaps any of that. An allow rule that covers only a part is skipped.

A rule with placeholders (`placeholders.py`) has a pattern for each client. For one that has not proved the values, an
allow rule grants nothing, and a deny rule denies what it could deny to anybody.

A wildcard at the root of a rule leaves out the server's own topics: `/**` does not cover `/halley/**`, nor, for
publishing, `/stats`, `/alerts` and `/replay`. Nor does it cover meta topics and procedures: those of WAMP's router are
`/wamp/**`, the meta topics of NetworkTables `/$nt4/$...`. They must be named. A wildcard at the root of a space, which
is a WAMP realm's own, covers all else that is in that space, and one at the root of all topics covers no space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from halley.access.placeholders import filled, placeholders_of, value_of
from halley.broker.names import PLACEHOLDER, REALM_MARK, RESERVED, Match, Pattern, encloses, excludes, meet
from halley.broker.policy import (
    ANONYMOUS,
    ANONYMOUS_ROLE,
    META_NAMES,
    SERVER,
    SERVERS_OWN,
    Principal,
    Proof,
    as_in_rules,
)
from halley.broker.remembered import Remembered
from halley.settings import Verb

ANY = "*"
"""In a rule: every role, or every verb."""

_RESERVED_SEGMENTS = frozenset({RESERVED})
_DEPENDS: Final = "depends"
"""Remembered in place of a decision that depends on what the client has proved, not on its role alone."""


class Rule(NamedTuple):
    """One access rule; its role and verb may be `ANY`."""

    role: str
    verb: str
    pattern: Pattern
    allow: bool

    def is_about(self, role: str, verb: Verb) -> bool:
        """Whether this rule applies to that role and verb."""
        return self.role in (ANY, role) and self.verb in (ANY, verb)

    def decides(self, role: str, verb: Verb, what: Pattern, proof: Proof) -> bool:
        """Whether this rule decides about `what`: it allows all of it, or denies a part of it."""
        if not self.is_about(role, verb):
            return False
        pattern = filled(self.pattern, proof)
        if self.allow:
            return pattern is not None and covers(pattern, what, _own(verb))
        return meets(pattern or self.pattern, what, _own(verb))


class AccessRules:
    """An operator's rules, for every protocol (`broker.policy.Rights`).

    `sessionless`: whether anonymous clients may publish without a session, where a rule allows it.
    """

    is_configured = True

    def __init__(self, rules: Sequence[Rule], *, sessionless: bool = True) -> None:
        self._rules = tuple(rules)
        self._sessionless = sessionless
        self._placeholders = sorted({name for rule in self._rules for name in placeholders_of(rule.pattern)})
        self._decisions: Remembered[tuple[object, ...], bool | Literal["depends"]] = Remembered()

    def may(self, session: Principal | None, verb: Verb, what: str | Pattern, visitor: Proof = ANONYMOUS) -> bool:
        """See `Rights.may`. Called for every publish, so decisions are cached."""
        role = visitor.role if session is None else session.role
        if session is None and verb == "publish" and self.needs_session(visitor):
            return False
        question: tuple[object, ...] = (role, verb, what)
        decision = self._decisions.get(question)
        if isinstance(decision, bool):
            return decision
        proof = visitor if session is None else session.proof
        if decision is None and self.depends(role, verb, what):
            self._decisions.remember(question, _DEPENDS)
            decision = _DEPENDS
        if decision is not None:
            question = (*question, *(value_of(name, proof) for name in self._placeholders))
            decision = self._decisions.get(question)
        if not isinstance(decision, bool):
            decision = self.decide(role, verb, what, proof)[0]
            self._decisions.remember(question, decision)
        return decision

    def needs_session(self, visitor: Proof) -> bool:
        """See `Rights.needs_session`."""
        return not self._sessionless and visitor.role == ANONYMOUS_ROLE

    def grants_any(self, verb: Verb, visitor: Proof) -> bool:
        """See `Rights.grants_any`. An allow rule does not count if an earlier rule denies all of it."""
        denied: list[Pattern] = []
        for rule in self._rules:
            if not rule.is_about(visitor.role, verb) or rule.pattern.topic.startswith(REALM_MARK):
                continue
            pattern = filled(rule.pattern, visitor)
            if not rule.allow:
                denied.append(pattern or rule.pattern)
            elif pattern is not None and not any(_denies_all(each, pattern, _own(verb)) for each in denied):
                return True
        return False

    def decide(self, role: str, verb: Verb, what: str | Pattern, proof: Proof = ANONYMOUS) -> tuple[bool, int | None]:
        """Whether a client may do `verb` to `what`, and the index of the rule that decides; None if none does.

        `role` is the client's, and `proof` what it has proved.
        """
        if role == SERVER:
            return True, None
        pattern = _asked(what)
        for number, rule in enumerate(self._rules):
            if rule.decides(role, verb, pattern, proof):
                return rule.allow, number
        return False, None

    def depends(self, role: str, verb: Verb, what: str | Pattern) -> bool:
        """Whether what a client of this role has proved may matter: a rule with a placeholder can be about `what`."""
        if not self._placeholders:
            return False
        pattern = _asked(what)
        return any(
            PLACEHOLDER in rule.pattern.topic and rule.is_about(role, verb) and meet(rule.pattern, pattern)
            for rule in self._rules
        )


def _asked(what: str | Pattern) -> Pattern:
    """What is asked about, as rules name it."""
    return as_in_rules(what if isinstance(what, Pattern) else Pattern(Match.EXACT, what))


def covers(over: Pattern, what: Pattern, own: frozenset[str]) -> bool:
    """Whether a rule's pattern covers all that `what` matches; `own` are first segments that it must name."""
    if not encloses(over, what):
        return False
    if _is_everything(over):
        if _in_space(what):
            return _first(what) not in own and not _is_meta(what)
        return own <= _RESERVED_SEGMENTS  # subscribers of /** do not receive events of /halley either
    return True


def meets(over: Pattern, what: Pattern, own: frozenset[str]) -> bool:
    """Whether a rule's pattern overlaps what `what` matches; `own` are first segments that the rule must name."""
    if not meet(over, what) or excludes(what, over):
        return False
    return not (_is_everything(over) and _first(what) in own)


def _own(verb: Verb) -> frozenset[str]:
    return SERVERS_OWN if verb == "publish" else _RESERVED_SEGMENTS


def _denies_all(denied: Pattern, allowed: Pattern, own: frozenset[str]) -> bool:
    """Whether a rule that denies `denied` leaves nothing of what a later rule allows."""
    if not encloses(denied, allowed):
        return False
    if not _is_everything(denied) or _is_everything(allowed):
        return True
    left_out = (Pattern(match, name) for name in own for match in (Match.EXACT, Match.DESCENDANTS))
    return not any(meet(allowed, each) for each in left_out)


def _is_everything(pattern: Pattern) -> bool:
    return not _in_space(pattern)


def _first(pattern: Pattern) -> str:
    return _in_space(pattern).partition("/")[0]


def _is_meta(pattern: Pattern) -> bool:
    return f"{_in_space(pattern)}/".startswith(META_NAMES)


def _in_space(pattern: Pattern) -> str:
    """A pattern's topic without the space that it is in, if it is in one."""
    return pattern.topic.partition("/")[2] if pattern.topic.startswith(REALM_MARK) else pattern.topic
