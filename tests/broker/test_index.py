"""The subscribers of a topic: the index compared with a matcher that looks at every subscription (A50, W17, W20)."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule
from support.broker import session
from support.patterns import matches_by_the_word, patterns, topics

from halley.broker import subscriptions as index_module
from halley.broker.names import Match, Pattern
from halley.broker.subscriptions import TopicIndex


class Index(RuleBasedStateMachine):
    """The index under any sequence of subscribing, unsubscribing and looking topics up."""

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
        """A50, W20: each session and each subscription is found once, however many patterns match."""
        counted = self.index.count_subscribers(topic)
        matched = self.index.match(topic)
        assert counted == self.index.count_subscribers(topic) == len(matched.subscribers)
        expected = {(pattern, who) for pattern, who in self.subscribed if matches_by_the_word(pattern, topic)}
        assert len(matched.subscribers) == len(set(matched.subscribers))
        assert set(matched.subscribers) == {who for _, who in expected}
        assert {each.pattern for each in matched.subscriptions} == {pattern for pattern, _ in expected}
        assert len(matched.subscriptions) == len({pattern for pattern, _ in expected})

    @invariant()
    def subscriptions_are_shared_and_never_empty(self):
        kept = {pattern: set(found.sessions) for pattern, found in self.index.subscriptions.items()}
        wanted = {}
        for pattern, who in self.subscribed:
            wanted.setdefault(pattern, set()).add(who)
        assert kept == wanted

    @invariant()
    def only_patterns_that_are_there_cost_look_ups(self):
        wildcards = {p.topic for p, _ in self.subscribed if p.match is Match.WILDCARD}
        forms = {tuple(bool(segment) for segment in topic.split("/")) for topic in wildcards}
        assert self.index.wildcard_forms == len(forms)


TestIndex = Index.TestCase


def test_one_who_names_the_servers_own_room_hears_it():
    """Wildcards above `/halley` do not match its topics; wildcards at or below it match, and so do exact names."""
    index = TopicIndex()
    below, named = session("below"), session("named")
    index.add(Pattern(Match.DESCENDANTS, "halley"), below)
    index.add(Pattern(Match.EXACT, "halley/rates"), named)
    assert index.subscribers("halley/rates") == (below, named)


def test_subscribers_hear_in_the_order_of_their_subscribing():
    """Subscribers are found in the order in which they subscribed, so the order of deliveries is predictable."""
    index = TopicIndex()
    everyone = [session(str(number)) for number in range(20)]
    for who in everyone:
        index.add(Pattern(Match.EXACT, "a"), who)
    assert index.subscribers("a") == tuple(everyone)


@pytest.mark.parametrize("match", [Match.DESCENDANTS, Match.PREFIX])
def test_made_up_topics_do_not_grow_the_index_without_end(monkeypatch, match):
    """The cache of topics is bounded, and results stay correct when it is emptied."""
    monkeypatch.setattr(index_module, "_CACHED_TOPICS", 10)
    index = TopicIndex()
    who = session()
    index.add(Pattern(match, ""), who)
    for number in range(100):
        assert index.subscribers(f"made/up/{number}") == (who,)
        assert len(index.cache) <= 10


def test_long_topics_count_more_than_once(monkeypatch):
    """So the bound is one of bytes, however long the topics are that clients make up."""
    monkeypatch.setattr(index_module, "_CACHED_TOPICS", 100)
    index = TopicIndex()
    for number in range(1_000):
        index.match(f"{number:0200}")
        assert len(index.cache) <= 50
    assert index.match("0" * 300) == ((), ())
    assert "0" * 300 not in index.cache


def test_lists_of_many_subscribers_do_not_grow_the_index_without_end():
    """Where several subscriptions match, each topic has its own list of the subscribers."""
    index = TopicIndex()
    for number in range(10_000):
        index.add(Pattern(Match.DESCENDANTS, ""), session(str(number)))
    index.add(Pattern(Match.DESCENDANTS, "a"), session("one more"))
    tracemalloc.start()
    try:
        for number in range(500):
            assert len(index.subscribers(f"a/{number}")) == 10_001
        assert tracemalloc.get_traced_memory()[0] < 25_000_000
    finally:
        tracemalloc.stop()
    assert index.subscribers("b") == index.subscribers("c")


def test_a_hundred_thousand_topics_stay_cached():
    """So many can be in use on one server, which publishes to topics of its own too: none is looked up again."""
    index = TopicIndex()
    topics = ["halley/sessions", "halley/subscriptions", *(f"bench/{number}" for number in range(100_000))]
    first = index.match(topics[0])
    found = [index.match(topic) for topic in topics]
    assert all(index.match(topic) is before for topic, before in zip(topics, found, strict=True))
    assert index.match(topics[0]) is first


def test_counting_the_hearers_of_resting_topics_keeps_nothing():
    """The console counts the subscribers of hundreds of topics each second; that must not fill the cache."""
    index = TopicIndex()
    for number in range(3):
        index.add(Pattern(Match.DESCENDANTS, "a"), session(str(number)))
    assert [index.count_subscribers(f"a/{number}") for number in range(100)] == [3] * 100
    assert index.cache == {}


@pytest.mark.parametrize("topics", [["a/1", "a/2"], ["b", "c/d"]], ids=["one wildcard", "nobody"])
def test_topics_with_the_same_subscribers_share_the_answer(topics):
    """Of 100,000 topics of one wildcard with 1,000 subscribers not each has a list of its own."""
    index = TopicIndex()
    index.add(Pattern(Match.DESCENDANTS, "a"), session("1"))
    assert index.match(topics[0]) is index.match(topics[1])


@pytest.mark.parametrize("match", [Match.DESCENDANTS, Match.CHILDREN, Match.EXACT, Match.PREFIX, Match.WILDCARD])
def test_a_shared_answer_follows_its_subscription(match):
    """A session that comes or leaves is in the next answer for each topic, and in no answer that was given before."""
    index, pattern, first, second = TopicIndex(), Pattern(match, "a/b"), session("1"), session("2")
    topic = "a/b/c" if match in {Match.DESCENDANTS, Match.CHILDREN} else "a/b"
    index.add(pattern, first)
    before = index.match(topic)
    index.add(pattern, second)
    assert index.subscribers(topic) == (first, second)
    index.remove(pattern, first)
    assert index.subscribers(topic) == (second,)
    index.remove(pattern, second)
    assert index.subscribers(topic) == ()
    assert before.subscribers == (first,)
