"""The access rules: the first that speaks of a role, a verb and a topic decides; what none allows is denied.

For a pattern, that is a subscription: an allow grants if it covers all that the pattern matches, a deny refuses if it
meets any of that, and an allow that only meets some of it is passed over.

A wildcard at the root of a rule leaves the server's own topics out: `/**` does not reach `/halley/**`, and for
publishing neither `/stats`, `/alerts` nor `/replay`; nor does it reach NetworkTables' meta topics, `/$nt4/$...`. They
must be named. The root of a space, a WAMP realm's own, is all that is in that space, and the root of all reaches into
none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from app.broker.names import SPACE
from app.broker.policy import ANONYMOUS, NOBODY, NT4_META, SERVER, SERVERS_OWN, as_rules_name_it
from app.broker.topics import RESERVED, Match, Pattern, encloses, leaves_out, meet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.broker.policy import Identity
    from app.broker.sessions import Session
    from app.settings import Verb

ANY = "*"
"""Every role, or every verb."""

_SERVERS_ROOM = frozenset({RESERVED})
_REMEMBERED_DECISIONS = 65_536


class Rule(NamedTuple):
    """One rule; role and verb may be `ANY`."""

    role: str
    verb: str
    pattern: Pattern
    allow: bool

    def is_about(self, role: str, verb: Verb) -> bool:
        """Whether this rule speaks of that role and verb."""
        return self.role in (ANY, role) and self.verb in (ANY, verb)

    def decides(self, role: str, verb: Verb, what: Pattern) -> bool:
        """Whether this rule speaks of all that is asked for, or denies a part of it."""
        if not self.is_about(role, verb):
            return False
        if self.allow:
            return covers(self.pattern, what, _own(verb))
        return meets(self.pattern, what, _own(verb))


class AccessRules:
    """An operator's rules, asked on behalf of every protocol (`broker.policy.Rights`).

    `sessionless`: whether the anonymous may publish without a session, where a rule allows it.
    """

    are_written = True

    def __init__(self, rules: Sequence[Rule], *, sessionless: bool = True) -> None:
        self._rules = tuple(rules)
        self._sessionless = sessionless
        self._decisions: dict[tuple[str, Verb, str | Pattern], bool] = {}

    def may(self, session: Session | None, verb: Verb, what: str | Pattern, visitor: Identity = ANONYMOUS) -> bool:
        """See `Rights`. Asked for every publish, so decisions are remembered."""
        role = visitor.role if session is None else session.role
        if session is None and role == NOBODY and verb == "publish" and not self._sessionless:
            return False
        question = (role, verb, what)
        decision = self._decisions.get(question)
        if decision is None:
            if len(self._decisions) >= _REMEMBERED_DECISIONS:  # topics are made up by clients: never without end
                self._decisions.clear()
            decision = self._decisions[question] = self.decide(role, verb, what)[0]
        return decision

    def grants_any(self, verb: Verb, role: str) -> bool:
        """See `Rights`. What an earlier rule denies as a whole is not granted by a later one."""
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
        """Whether a role may do it, and the number of the rule that says so; None where none does."""
        if role == SERVER:
            return True, None
        pattern = as_rules_name_it(what if isinstance(what, Pattern) else Pattern(Match.EXACT, what))
        for number, rule in enumerate(self._rules):
            if rule.decides(role, verb, pattern):
                return rule.allow, number
        return False, None


def covers(over: Pattern, what: Pattern, own: frozenset[str]) -> bool:
    """Whether a rule's pattern reaches all that `what` matches; `own` are the first segments it must name."""
    if not encloses(over, what):
        return False
    if _is_everything(over):
        if _in_space(what):
            return _first(what) not in own and not what.topic.startswith(NT4_META)
        return own <= _SERVERS_ROOM  # subscribers of /** do not hear that one either
    return True


def meets(over: Pattern, what: Pattern, own: frozenset[str]) -> bool:
    """Whether a rule's pattern reaches any of what `what` matches; `own` as above."""
    if not meet(over, what) or leaves_out(what, over):
        return False
    return not (_is_everything(over) and _first(what) in own)


def _own(verb: Verb) -> frozenset[str]:
    """The first segments that a rule on all must leave out."""
    return SERVERS_OWN if verb == "publish" else _SERVERS_ROOM


def _denies_all(denied: Pattern, allowed: Pattern, own: frozenset[str]) -> bool:
    """Whether nothing is left of what one rule allows once another has denied its own."""
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


def _in_space(pattern: Pattern) -> str:
    """What a pattern says behind the space that it lies in, if it does."""
    return pattern.topic.partition("/")[2] if pattern.topic.startswith(SPACE) else pattern.topic
