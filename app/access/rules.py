"""The access rules: the first that applies to a role, a verb and a topic decides; without one the request is denied.

For a pattern, that is a subscription, an allow rule grants if it covers all that the pattern matches, and a deny rule
denies if it overlaps any of that. An allow rule that covers only a part is skipped.

A wildcard at the root of a rule leaves out the server's own topics: `/**` does not cover `/halley/**`, nor, for
publishing, `/stats`, `/alerts` and `/replay`. Nor does it cover meta topics and procedures: those of WAMP's router are
`/wamp/**`, the meta topics of NetworkTables `/$nt4/$...`. They must be named. A wildcard at the root of a space, which
is a WAMP realm's own, covers all else that is in that space, and one at the root of all topics covers no space.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from app.broker.names import RESERVED, SPACE, Match, Pattern, encloses, leaves_out, meet
from app.broker.policy import ANONYMOUS, META_NAMES, NOBODY, SERVER, SERVERS_OWN, Identity, Principal, as_rules_name_it
from app.settings import Verb

ANY = "*"
"""In a rule: every role, or every verb."""

_SERVERS_ROOM = frozenset({RESERVED})
_REMEMBERED_DECISIONS = 65_536


class Rule(NamedTuple):
    """One access rule; its role and verb may be `ANY`."""

    role: str
    verb: str
    pattern: Pattern
    allow: bool

    def is_about(self, role: str, verb: Verb) -> bool:
        """Whether this rule applies to that role and verb."""
        return self.role in (ANY, role) and self.verb in (ANY, verb)

    def decides(self, role: str, verb: Verb, what: Pattern) -> bool:
        """Whether this rule decides about `what`: it allows all of it, or denies a part of it."""
        if not self.is_about(role, verb):
            return False
        if self.allow:
            return covers(self.pattern, what, _own(verb))
        return meets(self.pattern, what, _own(verb))


class AccessRules:
    """An operator's rules, for every protocol (`broker.policy.Rights`).

    `sessionless`: whether anonymous clients may publish without a session, where a rule allows it.
    """

    are_written = True

    def __init__(self, rules: Sequence[Rule], *, sessionless: bool = True) -> None:
        self._rules = tuple(rules)
        self._sessionless = sessionless
        self._decisions: OrderedDict[tuple[str, Verb, str | Pattern], bool] = OrderedDict()

    def may(self, session: Principal | None, verb: Verb, what: str | Pattern, visitor: Identity = ANONYMOUS) -> bool:
        """See `Rights.may`. Called for every publish, so decisions are cached."""
        role = visitor.role if session is None else session.role
        if session is None and role == NOBODY and verb == "publish" and not self._sessionless:
            return False
        question = (role, verb, what)
        decision = self._decisions.get(question)
        if decision is None:
            if len(self._decisions) >= _REMEMBERED_DECISIONS:  # clients make up topics: the cache must be bounded
                self._decisions.popitem(last=False)
            decision = self._decisions[question] = self.decide(role, verb, what)[0]
        return decision

    def grants_any(self, verb: Verb, role: str) -> bool:
        """See `Rights.grants_any`. An allow rule does not count if an earlier rule denies all of it."""
        denied: list[Pattern] = []
        for rule in self._rules:
            if not rule.is_about(role, verb) or rule.pattern.topic.startswith(SPACE):
                continue
            if not rule.allow:
                denied.append(rule.pattern)
            elif not any(_denies_all(pattern, rule.pattern, _own(verb)) for pattern in denied):
                return True
        return False

    def decide(self, role: str, verb: Verb, what: str | Pattern) -> tuple[bool, int | None]:
        """Whether `role` may do `verb` to `what`, and the index of the rule that decides; None if none does."""
        if role == SERVER:
            return True, None
        pattern = as_rules_name_it(what if isinstance(what, Pattern) else Pattern(Match.EXACT, what))
        for number, rule in enumerate(self._rules):
            if rule.decides(role, verb, pattern):
                return rule.allow, number
        return False, None


def covers(over: Pattern, what: Pattern, own: frozenset[str]) -> bool:
    """Whether a rule's pattern covers all that `what` matches; `own` are first segments that it must name."""
    if not encloses(over, what):
        return False
    if _is_everything(over):
        if _in_space(what):
            return _first(what) not in own and not _is_meta(what)
        return own <= _SERVERS_ROOM  # subscribers of /** do not receive events of /halley either
    return True


def meets(over: Pattern, what: Pattern, own: frozenset[str]) -> bool:
    """Whether a rule's pattern overlaps what `what` matches; `own` are first segments that the rule must name."""
    if not meet(over, what) or leaves_out(what, over):
        return False
    return not (_is_everything(over) and _first(what) in own)


def _own(verb: Verb) -> frozenset[str]:
    """The first segments that a rule for all topics leaves out."""
    return SERVERS_OWN if verb == "publish" else _SERVERS_ROOM


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
    return pattern.topic.partition("/")[2] if pattern.topic.startswith(SPACE) else pattern.topic
