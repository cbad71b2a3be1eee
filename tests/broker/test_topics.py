"""Who hears a topic: the index against a matcher that looks at every subscription (bayeux.md A17, A18, A50)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from support.broker import session

from app.broker import topics as topics_module
from app.broker.topics import Match, Pattern, TopicIndex, is_apart, patterns_over

WORDS = ["a", "b", "halley", "meta", "service"]


def is_own(topic):
    """Whether it is traffic that wildcards over everything do not see, as design 3 puts it in words."""
    if topic == "halley" or topic.startswith("halley/"):
        return True
    return topic.startswith(("meta/", "service/"))


def matches(pattern, topic):
    """A17 and A18, word by word."""
    if pattern.match is Match.EXACT:
        return pattern.topic == topic
    if not pattern.topic:
        return not is_own(topic) and (pattern.match is Match.DESCENDANTS or "/" not in topic)
    if not topic.startswith(f"{pattern.topic}/"):
        return False
    below = topic[len(pattern.topic) + 1 :]
    return pattern.match is Match.DESCENDANTS or "/" not in below


topics = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("/".join)
patterns = st.builds(Pattern, st.sampled_from([Match.CHILDREN, Match.DESCENDANTS]), topics | st.just("")) | st.builds(
    Pattern, st.just(Match.EXACT), topics
)


class Index(RuleBasedStateMachine):
    """The index under any sequence of subscribing, unsubscribing and asking."""

    sessions = Bundle("sessions")

    def __init__(self):
        super().__init__()
        self.index = TopicIndex()
        self.subscribed = []  # (pattern, session)
        self.count = 0

    @rule(target=sessions, first=patterns)
    def someone_new(self, first):
        self.count += 1
        new = session(str(self.count))
        self.index.add(first, new)
        self.subscribed.append((first, new))
        return multiple(new)

    @rule(who=sessions, pattern=patterns)
    def subscribe(self, who, pattern):
        if (pattern, who) not in self.subscribed:
            subscription = self.index.add(pattern, who)
            assert subscription is self.index.subscriptions[pattern]
            self.subscribed.append((pattern, who))

    @rule(which=st.integers(0, 99))
    def unsubscribe(self, which):
        if self.subscribed:
            pattern, who = self.subscribed.pop(which % len(self.subscribed))
            self.index.remove(pattern, who)

    @rule(topic=topics)
    def ask(self, topic):
        """A50: each session once, however many of its patterns match."""
        heard_by = self.index.hearers(topic)
        assert len(heard_by) == len(set(heard_by))
        assert set(heard_by) == {who for pattern, who in self.subscribed if matches(pattern, topic)}

    @invariant()
    def subscriptions_are_shared_and_never_empty(self):
        kept = {pattern: set(found.sessions) for pattern, found in self.index.subscriptions.items()}
        wanted = {}
        for pattern, who in self.subscribed:
            wanted.setdefault(pattern, set()).add(who)
        assert kept == wanted


TestIndex = Index.TestCase


@given(topics, patterns)
def test_the_patterns_over_a_topic_are_those_that_match_it(topic, pattern):
    """A17: every one of them, and no other; what is apart is a matter of the index."""
    if not is_own(topic) or pattern.topic:
        assert (pattern in set(patterns_over(topic))) is matches(pattern, topic)


@given(topics)
def test_the_patterns_over_a_topic_go_from_wide_to_narrow(topic):
    """B21: `/**` first, the topic itself last, none twice."""
    over = list(patterns_over(topic))
    assert len(over) == len(set(over)) == topic.count("/") + 3
    assert over[0] == Pattern(Match.DESCENDANTS, "")
    assert over[-1] == Pattern(Match.EXACT, topic)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("halley", True),
        ("halley/sessions", True),
        ("halleyx", False),
        ("meta/connect", True),
        ("service/x/y", True),
        ("meta", False),
        ("service", False),
        ("metal/x", False),
        ("a/meta/b", False),
        ("a/halley", False),
    ],
)
def test_what_wildcards_over_everything_do_not_hear(topic, expected):
    """A18, design 3: `/meta/**`, `/service/**`, and `/halley` with all below it; what only looks alike is heard."""
    index = TopicIndex()
    everything = session("everything")
    index.add(Pattern(Match.DESCENDANTS, ""), everything)
    assert is_apart(topic) is expected
    assert index.hearers(topic) == (() if expected else (everything,))


def test_one_who_names_the_servers_own_room_hears_it():
    """Design 3: no wildcard above `/halley` matches it; one below, or its name, does."""
    index = TopicIndex()
    below, named = session("below"), session("named")
    index.add(Pattern(Match.DESCENDANTS, "halley"), below)
    index.add(Pattern(Match.EXACT, "halley/rates"), named)
    assert index.hearers("halley/rates") == (below, named)


def test_subscribers_hear_in_the_order_of_their_subscribing():
    """Deliveries come in an order that can be told beforehand."""
    index = TopicIndex()
    everyone = [session(str(number)) for number in range(20)]
    for who in everyone:
        index.add(Pattern(Match.EXACT, "a"), who)
    assert index.hearers("a") == tuple(everyone)


def test_made_up_topics_do_not_grow_the_index_without_end(monkeypatch):
    """Design 5.3: what is kept about topics is bounded, and answers stay right when it is thrown away."""
    monkeypatch.setattr(topics_module, "_CACHED_TOPICS", 10)
    index = TopicIndex()
    who = session()
    index.add(Pattern(Match.DESCENDANTS, ""), who)
    for number in range(100):
        assert index.hearers(f"made/up/{number}") == (who,)
        assert len(index._hearers) <= 10
