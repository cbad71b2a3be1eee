"""The index that finds the subscribers of a topic.

The answer for a topic is cached until a subscription that could change it changes. So a publish to a known topic costs
one dictionary look-up, regardless of the number of subscriptions. For an unknown one every pattern that could match is
looked up: for Bayeux one for each segment of the topic; for WAMP one for each length of prefix in use, and one for each
set of positions at which wildcards have a name.

A change of a wildcard makes the whole cache useless: to find out which topics it matches would take longer, and where
there are 100,000 in use, nearly every publish is the first to its topic since the last change. So looking up must be
cheap, too: keys are plain tuples, and all topics that only one subscription matches share the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from halley.broker.names import NAMED_ONLY, REALM_MARK, Match, Pattern, component, is_excluded_from_root

Key = TypeVar("Key")
Subscriber = TypeVar("Subscriber", bound=Hashable)
"""A session; the index needs nothing of it."""

_Key = tuple[Match, str]
"""A `Pattern` without its class, which takes long to make and is found by the same."""

# An attribute of an enum costs CPython 3.11 a call.
_EXACT, _CHILDREN, _DESCENDANTS, _PREFIX, _WILDCARD = Match

_CACHED_TOPICS = 110_000  # a server may well have 100,000 that are in use, and some of its own, too
_CACHED_CHARS = 256  # of a topic: clients make up their names, of which each character may take twelve
_USUAL_CHARS = 50
_USUAL_BYTES = 220  # of a topic of that length in the cache, at most
_UNION_BYTES = 170  # of what a topic has of its own, where several subscriptions match it

DROPPED_AT_ONCE = 4_096
"""Topics that a cache may drop at once: about 1 ms."""


class Subscription(Generic[Subscriber]):
    """One pattern and all the sessions that subscribed to it; shared, so that an event is matched and encoded once.

    `sessions` are in the order of subscribing, each with whether the program has subscribed it: rules have not granted
    that, so they do not take it away.
    `number` is the subscription's id in WAMP, 0 while no WAMP session has it. `alone` is what is found of a topic that
    no other subscription matches, None if that was not asked for since `sessions` changed.
    """

    __slots__ = ("alone", "number", "pattern", "sessions")

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.number = 0
        self.sessions: dict[Subscriber, bool] = {}
        self.alone: Matched[Subscriber] | None = None


class Matched(NamedTuple, Generic[Subscriber]):
    """The subscribers of a topic, each once, and the subscriptions that match it."""

    subscribers: tuple[Subscriber, ...]
    subscriptions: tuple[Subscription[Subscriber], ...]


_NO_MATCH: Matched[Any] = Matched((), ())


class TopicIndex(Generic[Subscriber]):
    """All subscriptions by pattern, and a cache of the subscribers of recently published topics."""

    def __init__(self) -> None:
        self.subscriptions: dict[_Key, Subscription[Subscriber]] = {}  # by pattern
        self.cache: dict[str, Matched[Subscriber]] = {}  # for the hot path to look at before it calls `match`
        self._most_topics = _CACHED_TOPICS  # in the cache; fewer, where some take more than usual ones
        self._stale: list[dict[str, Matched[Subscriber]]] = []  # former caches, which are dropped in pieces
        # Those to /a/** and /a/*, once more by the topic above, a: a tuple for each level costs 1 % of a publish.
        self._below: dict[str, Subscription[Subscriber]] = {}
        self._children: dict[str, Subscription[Subscriber]] = {}
        # The number of prefixes by their count of whole segments and the length of the rest, and the number of
        # wildcards by their count of segments and the positions that have a name.
        self._prefix_chars: dict[int, Counter[int]] = {}
        self._forms: dict[int, Counter[tuple[bool, ...]]] = {}

    @property
    def wildcard_forms(self) -> int:
        """The most look-ups that wildcards cost for one topic."""
        return sum(map(len, self._forms.values()))

    def has_form(self, pattern: Pattern) -> bool:
        """Whether another wildcard is empty in the same places, so that this one does not cost a further look-up."""
        segments = pattern.topic.split("/")
        return tuple(map(bool, segments)) in self._forms.get(len(segments), ())

    def add(self, pattern: Pattern, session: Subscriber) -> Subscription[Subscriber]:
        """Subscribe `session` to `pattern`."""
        subscription = self.subscriptions.get(pattern)
        if subscription is None:
            subscription = self.subscriptions[pattern] = Subscription(pattern)
            if pattern.match is _DESCENDANTS:
                self._below[pattern.topic] = subscription
            elif pattern.match is _CHILDREN:
                self._children[pattern.topic] = subscription
            else:
                self._count(pattern, 1)
        subscription.sessions[session] = False
        self._forget(subscription)
        return subscription

    def remove(self, pattern: Pattern, session: Subscriber) -> None:
        """Unsubscribe `session` from `pattern`; a subscription without sessions is deleted."""
        subscription = self.subscriptions[pattern]
        del subscription.sessions[session]
        if not subscription.sessions:
            del self.subscriptions[pattern]
            if pattern.match is _DESCENDANTS:
                del self._below[pattern.topic]
            elif pattern.match is _CHILDREN:
                del self._children[pattern.topic]
            else:
                self._count(pattern, -1)
        self._forget(subscription)

    def subscribers(self, topic: str) -> tuple[Subscriber, ...]:
        """The subscribers of `topic`: each session once, even if several of its patterns match."""
        return self.match(topic).subscribers

    def match(self, topic: str) -> Matched[Subscriber]:
        """The subscribers of `topic`, and the subscriptions that match it."""
        found = self.cache.get(topic)
        if found is None:
            subscriptions = self._found(topic)
            found = _merge(subscriptions) if subscriptions else _NO_MATCH
            if len(topic) > _USUAL_CHARS or len(subscriptions) > 1:
                if len(topic) > _CACHED_CHARS:
                    return found
                self._most_topics -= 1 + _more_bytes(topic, found) // _USUAL_BYTES
            if len(self.cache) >= self._most_topics:
                self._empty()
            self.cache[topic] = found
        return found

    @property
    def has_stale(self) -> bool:
        """Whether `drop_stale` has something to do."""
        return bool(self._stale)

    def drop_stale(self) -> None:
        """Drop a piece of former caches; to be called in each turn of the loop while there is something left."""
        former = self._stale[-1]
        for _ in range(min(len(former), DROPPED_AT_ONCE)):
            former.popitem()
        if not former:
            self._stale.pop()

    def count_subscribers(self, topic: str) -> int:
        """Count the subscribers of `topic` without caching them, for idle topics.

        It takes little time where one pattern has most of the subscribers.
        """
        found = self.cache.get(topic)
        if found is not None:
            return len(found.subscribers)
        most, *others = sorted((each.sessions for each in self._found(topic)), key=len, reverse=True) or [{}]
        return len(most) + len({session for sessions in others for session in sessions if session not in most})

    def _found(self, topic: str) -> list[Subscription[Subscriber]]:
        """The subscriptions that match `topic`: Bayeux's from `/**` down to the topic itself, and then WAMP's."""
        below, above, end = self._below, "", topic.find("/")
        found = [below[""]] if "" in below else []
        while end >= 0:
            above = topic[:end]
            if above in below:
                found.append(below[above])
            end = topic.find("/", end + 1)
        if above in self._children:
            found.append(self._children[above])
        if found and not found[0].pattern.topic and is_excluded_from_root(topic):  # `/**` and `/*` do not match it
            found = [wide for wide in found if wide.pattern.topic]
        if (exact := (_EXACT, topic)) in self.subscriptions:
            found.append(self.subscriptions[exact])
        if self._prefix_chars or self._forms:
            found += filter(None, map(self.subscriptions.get, self._keys_in_wamp(topic.split("/"))))
        return found

    def _keys_in_wamp(self, segments: list[str]) -> Iterator[_Key]:
        """The prefixes and wildcards that may exist in the index and match a topic with these segments."""
        # A pattern matches one of these first segments only if it names it.
        is_own = segments[0] in NAMED_ONLY or segments[0].startswith(REALM_MARK)
        for depth, lengths in self._prefix_chars.items():
            if depth < len(segments):
                whole, cut = "".join(f"{segment}/" for segment in segments[:depth]), component(segments[depth])
                for chars in lengths if len(lengths) < len(cut) else range(len(cut) + 1):
                    is_there = chars in lengths and chars <= len(cut)
                    if is_there and (depth or not is_own or cut[:chars] in NAMED_ONLY):
                        yield _PREFIX, whole + cut[:chars]
        for form in self._forms.get(len(segments), ()):
            if form[0] or not is_own:
                named = zip(segments, form, strict=True)
                yield _WILDCARD, "/".join(segment if is_named else "" for segment, is_named in named)

    def _count(self, pattern: Pattern, by: int) -> None:
        """Add `by` (1 or -1) to the count of a pattern that is not found from the topic alone."""
        segments = pattern.topic.split("/")
        if pattern.match is _PREFIX:
            _add(self._prefix_chars, len(segments) - 1, len(segments[-1]), by)
        elif pattern.match is _WILDCARD:
            _add(self._forms, len(segments), tuple(map(bool, segments)), by)

    def _forget(self, changed: Subscription[Subscriber]) -> None:
        changed.alone = None
        if changed.pattern.match is _EXACT:
            self.cache.pop(changed.pattern.topic, None)
        else:
            self._empty()

    def _empty(self) -> None:
        """Begin a new cache; a former one that is too large to be dropped at once is left to `drop_stale`."""
        self._most_topics = _CACHED_TOPICS
        if len(self.cache) > DROPPED_AT_ONCE:
            self._stale.append(self.cache)
            self.cache = {}
        else:
            self.cache.clear()


def _merge(subscriptions: Sequence[Subscription[Subscriber]]) -> Matched[Subscriber]:
    """What is found of a topic that these subscriptions match."""
    if len(subscriptions) > 1:
        subscribers = {session: None for subscription in subscriptions for session in subscription.sessions}
        return Matched(tuple(subscribers), tuple(subscriptions))
    only = subscriptions[0]
    if only.alone is None:
        only.alone = Matched(tuple(only.sessions), (only,))
    return only.alone


def _more_bytes(topic: str, found: Matched[Subscriber]) -> int:
    own = len(found.subscriptions) > 1 and _UNION_BYTES + 8 * (len(found.subscribers) + len(found.subscriptions))
    return own + max(0, len(topic) - _USUAL_CHARS)


def _add(counts: dict[int, Counter[Key]], outer: int, inner: Key, by: int) -> None:
    """Add to a count at two levels of keys, and delete what has become zero."""
    counter = counts.setdefault(outer, Counter())
    counter[inner] += by
    if not counter[inner]:
        del counter[inner]
    if not counter:
        del counts[outer]
