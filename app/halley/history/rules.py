"""The [[record]] rules: which topics are kept, how, and for how long.

The first rule whose pattern matches a topic decides. Behind the operator's rules are built-in ones, which differ in
nothing but their place. A rule also has the offset from which on its events are visible; `retention.py` moves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from halley.broker.names import REALM_MARK, RESERVED, Match, Pattern, encloses, excludes, matches, meet
from halley.broker.ports import Durability
from halley.broker.remembered import remembered

DEFAULT_AGE_S = 72 * 3600.0
NEVER = (1 << 63) - 1
"""A first visible offset that no event reaches: nothing is visible."""

GRACE_S = 600.0
"""Seconds that hidden segments stay on disk: time to correct a clock that was wrong when the server started."""

_AGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

# Ticks are not kept: they are of no use to a later reader.
_NOT_RECORDED = (
    Pattern(Match.DESCENDANTS, "meta"),
    Pattern(Match.EXACT, f"{RESERVED}/rates"),
    Pattern(Match.EXACT, f"{RESERVED}/queues"),
    Pattern(Match.EXACT, f"{RESERVED}/topics"),
    Pattern(Match.EXACT, f"{RESERVED}/cluster"),
    Pattern(Match.EXACT, f"{RESERVED}/pipeline"),
)


def parse_age(text: str) -> float:
    """The seconds of an age such as "90s", "30m", "72h" or "7d"; 0.0 for "0" (keep nothing).

    Raises `ValueError`, whose text says what was expected.
    """
    found = _AGE.fullmatch(text)
    if found is not None:
        return float(found[1]) * _UNIT_S[found[2]]
    if text == "0":
        return 0.0
    raise ValueError(f'expected an age such as "90s", "30m", "72h" or "7d", or "0" for none, found "{text}"')


class Rule:
    """How the topics that `pattern` matches are kept.

    age_s       how long, in seconds
    durability  whether, and whether durably
    start       the first visible offset: events before it are too old
    """

    __slots__ = ("age_s", "durability", "pattern", "start")

    def __init__(self, pattern: Pattern, age_s: float, durability: Durability) -> None:
        self.pattern = pattern
        self.age_s = age_s
        self.durability = durability if age_s > 0 else Durability.NONE
        self.start = NEVER if self.durability is Durability.NONE else 1


class Rules:
    """All rules: the operator's (pattern, age in seconds, whether durable), then the built-in ones.

    `spaces` are the topic spaces of the realms that have their own. A space whose realm is no longer in the settings is
    kept for the longest of all ages. The meta events of WAMP routers (`::`) are not kept. `recording` are the rules
    that keep something. For the event loop and readers; one thread sets each `start`.
    """

    def __init__(self, records: Iterable[tuple[Pattern, float, bool]] = (), spaces: Iterable[str] = ()) -> None:
        self.all = (
            *(Rule(pattern, 0, Durability.NONE) for pattern in _NOT_RECORDED),
            *(
                Rule(pattern, age_s, Durability.DURABLE if is_durable else Durability.ASYNC)
                for pattern, age_s, is_durable in records
            ),
            Rule(Pattern(Match.DESCENDANTS, "service"), 0, Durability.NONE),
            Rule(Pattern(Match.EXACT, RESERVED), DEFAULT_AGE_S, Durability.ASYNC),
            Rule(Pattern(Match.DESCENDANTS, RESERVED), DEFAULT_AGE_S, Durability.ASYNC),
            Rule(Pattern(Match.DESCENDANTS, ""), DEFAULT_AGE_S, Durability.DURABLE),
            *(Rule(Pattern(Match.DESCENDANTS, space), DEFAULT_AGE_S, Durability.DURABLE) for space in spaces),
        )
        self._routers = Rule(Pattern(Match.DESCENDANTS, REALM_MARK + REALM_MARK), 0, Durability.NONE)
        self.recording = [rule for at, rule in enumerate(self.all) if self._records(rule.pattern, at, rule.pattern)]
        longest_s = max((rule.age_s for rule in self.recording), default=0)
        self._elsewhere = Rule(Pattern(Match.DESCENDANTS, REALM_MARK), longest_s, Durability.DURABLE)
        if self.recording:
            self.recording.append(self._elsewhere)
        self.of = remembered()(self._decide)
        """Returns the rule that decides for a topic."""

    def durability_of(self, topic: str) -> Durability:
        """How a topic's events are kept."""
        return self.of(topic).durability

    def start_of(self, pattern: Pattern) -> int:
        """The first offset from which on a reader of `pattern` misses nothing by age.

        Where several rules decide for the topics that `pattern` matches, the one that reaches back furthest counts: a
        reader of everything may resume from an hour ago although some topics are kept for a minute only. It is 1 where
        no rule keeps anything, since nothing can be missed.
        """
        if pattern.match is Match.EXACT:
            rule = self.of(pattern.topic)
            return 1 if rule.durability is Durability.NONE else rule.start
        starts = (rule.start for at, rule in enumerate(self.all) if self._records(rule.pattern, at, pattern))
        return min(starts, default=1)

    @property
    def starts(self) -> list[int]:
        """The first visible offset of each rule that keeps events."""
        return [rule.start for rule in self.recording]

    def raise_starts(self, starts: Sequence[int]) -> None:
        """Take over another server's `starts`; none goes back. Where its rules are others, all take the highest."""
        if len(starts) != len(self.recording):
            starts = [max(starts, default=1)] * len(self.recording)
        for rule, start in zip(self.recording, starts, strict=True):
            rule.start = max(rule.start, start)

    def _decide(self, topic: str) -> Rule:
        # Any topic outside of a space is matched by the root rule, also one without a slash.
        last = self._routers if topic.startswith(REALM_MARK + REALM_MARK) else self._elsewhere
        return next((rule for rule in self.all if matches(rule.pattern, topic)), last)

    def _records(self, part: Pattern, at: int, within: Pattern) -> bool:
        """Whether the rule at index `at`, and none before it, keeps events of a topic that both patterns match."""
        if self.all[at].durability is Durability.NONE or not meet(part, within):
            return False
        if excludes(part, within) or excludes(within, part):
            return False
        return not any(_covers(rule.pattern, part) or _covers(rule.pattern, within) for rule in self.all[:at])


def _covers(rule: Pattern, what: Pattern) -> bool:
    """Whether a rule's pattern matches every topic that `what` matches."""
    return encloses(rule, what) and not excludes(rule, what)
