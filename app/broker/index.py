"""The index that answers "who hears this topic".

The answer for a topic is kept until a subscription that could change it changes, so a publish to a known topic costs
one dictionary look-up whatever the number of subscriptions. For an unknown one every pattern that could match it is
looked up: Bayeux' are as many as the topic has segments, WAMP's as many as there are lengths of prefixes, and sets of
positions at which wildcards have a name.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from app.broker.names import SPACE, component
from app.broker.topics import UNHEARD_UNNAMED, Match, Pattern, patterns_heard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.broker.sessions import Session

Key = TypeVar("Key")
_CACHED_TOPICS = 100_000


class Subscription:
    """One pattern and all the sessions that subscribed to it; shared, so that an event is matched and encoded once.

    `number` is the id that WAMP sessions know it by, 0 while there are none.
    """

    __slots__ = ("number", "pattern", "sessions")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.number = 0
        self.sessions: dict[Session, None] = {}  # a set that keeps the order of subscribing


class Heard(NamedTuple):
    """Whoever hears a topic: the sessions, each once, and the subscriptions by which they do."""

    sessions: tuple[Session, ...]
    subscriptions: tuple[Subscription, ...]


class TopicIndex:
    """All subscriptions, by pattern, and for each topic lately published who hears it."""

    def __init__(self) -> None:
        self.subscriptions: dict[Pattern, Subscription] = {}
        self._heard: dict[str, Heard] = {}
        # How many prefixes there are with so many whole segments and so long a rest, and how many wildcards with so
        # many segments and names at those places.
        self._prefix_chars: dict[int, Counter[int]] = {}
        self._forms: dict[int, Counter[tuple[bool, ...]]] = {}

    @property
    def wildcard_forms(self) -> int:
        """How many look-ups wildcards cost at most."""
        return sum(map(len, self._forms.values()))

    def has_form(self, pattern: Pattern) -> bool:
        """Whether a wildcard is empty where another is, and so costs no look-up more."""
        segments = pattern.topic.split("/")
        return tuple(map(bool, segments)) in self._forms.get(len(segments), ())

    def add(self, pattern: Pattern, session: Session) -> Subscription:
        """Let `session` hear `pattern`."""
        subscription = self.subscriptions.get(pattern)
        if subscription is None:
            subscription = self.subscriptions[pattern] = Subscription(pattern)
            self._count(pattern, 1)
        subscription.sessions[session] = None
        self._forget(pattern)
        return subscription

    def remove(self, pattern: Pattern, session: Session) -> None:
        """Undo `add`; a subscription without sessions goes."""
        subscription = self.subscriptions[pattern]
        del subscription.sessions[session]
        if not subscription.sessions:
            del self.subscriptions[pattern]
            self._count(pattern, -1)
        self._forget(pattern)

    def hearers(self, topic: str) -> tuple[Session, ...]:
        """The sessions that hear `topic`: each once, however many of its patterns match."""
        return self.heard(topic).sessions

    def heard(self, topic: str) -> Heard:
        """Who hears `topic`, and by which subscriptions."""
        found = self._heard.get(topic)
        if found is None:
            if len(self._heard) >= _CACHED_TOPICS:  # topics are made up by clients: never without end
                self._heard.clear()
            found = self._heard[topic] = self._match(topic)
        return found

    def count_hearers(self, topic: str) -> int:
        """How many hear `topic`. For topics that rest: it takes no room, and little time where one pattern has most."""
        found = self._heard.get(topic)
        if found is not None:
            return len(found.sessions)
        most, *others = sorted((each.sessions for each in self._found(topic)), key=len, reverse=True) or [{}]
        return len(most) + len({session for sessions in others for session in sessions if session not in most})

    def _match(self, topic: str) -> Heard:
        sessions: dict[Session, None] = {}
        found = self._found(topic)
        for subscription in found:
            sessions.update(subscription.sessions)
        return Heard(tuple(sessions), tuple(found))

    def _found(self, topic: str) -> list[Subscription]:
        """The subscriptions that match `topic`."""
        return [self.subscriptions[pattern] for pattern in self._patterns(topic) if pattern in self.subscriptions]

    def _patterns(self, topic: str) -> Iterator[Pattern]:
        """Every pattern that could be there and matches `topic`."""
        yield from patterns_heard(topic)
        segments = topic.split("/")
        is_own = segments[0] in UNHEARD_UNNAMED or segments[0].startswith(SPACE)  # which has to be named
        for depth, lengths in self._prefix_chars.items():
            if depth < len(segments):
                whole, cut = "".join(f"{segment}/" for segment in segments[:depth]), component(segments[depth])
                for chars in lengths if len(lengths) < len(cut) else range(len(cut) + 1):
                    is_there = chars in lengths and chars <= len(cut)
                    if is_there and (depth or not is_own or cut[:chars] in UNHEARD_UNNAMED):
                        yield Pattern(Match.PREFIX, whole + cut[:chars])
        for form in self._forms.get(len(segments), ()):
            if form[0] or not is_own:
                named = zip(segments, form, strict=True)
                yield Pattern(Match.WILDCARD, "/".join(segment if is_named else "" for segment, is_named in named))

    def _count(self, pattern: Pattern, by: int) -> None:
        """Know of one pattern more, or less, that is not found by the topic alone."""
        segments = pattern.topic.split("/")
        if pattern.match is Match.PREFIX:
            _add(self._prefix_chars, len(segments) - 1, len(segments[-1]), by)
        elif pattern.match is Match.WILDCARD:
            _add(self._forms, len(segments), tuple(map(bool, segments)), by)

    def _forget(self, pattern: Pattern) -> None:
        if pattern.match is Match.EXACT:
            self._heard.pop(pattern.topic, None)
        else:
            self._heard.clear()


def _add(counts: dict[int, Counter[Key]], outer: int, inner: Key, by: int) -> None:
    """Count within two levels, and keep nothing that is zero."""
    counter = counts.setdefault(outer, Counter())
    counter[inner] += by
    if not counter[inner]:
        del counter[inner]
    if not counter:
        del counts[outer]
