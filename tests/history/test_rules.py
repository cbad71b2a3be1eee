"""The rules of the history: which topics are recorded, whether durably, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import patterns as world

from halley.broker.names import Match, Pattern, matches, patterns_over, span
from halley.broker.ports import Durability
from halley.history.rules import DEFAULT_AGE_S, NEVER, Rules, parse_age

ALL = Pattern(Match.DESCENDANTS, "")
SEGMENTS = st.sampled_from(["a", "b", "ab", "service", "meta", "halley", "a-", "a_"])
TOPICS = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join)
PATTERNS = st.one_of(
    st.builds(Pattern, st.just(Match.EXACT), TOPICS),
    st.builds(Pattern, st.sampled_from([Match.CHILDREN, Match.DESCENDANTS]), st.one_of(st.just(""), TOPICS)),
)


def under(topic, match=Match.DESCENDANTS):
    return Pattern(match, topic)


@pytest.mark.parametrize(
    ("topic", "keeping"),
    [
        ("chat/room", Durability.DURABLE),
        ("service", Durability.DURABLE),
        ("halley/sessions", Durability.ASYNC),
        ("halley", Durability.ASYNC),
        ("halley/rates", Durability.NONE),
        ("halley/topics", Durability.NONE),
        ("halley/cluster", Durability.NONE),
        ("halley/pipeline", Durability.NONE),
        ("service/x", Durability.NONE),
        ("meta/connect", Durability.NONE),
    ],
)
def test_without_a_rule_the_house_decides(topic, keeping):
    """All topics are durable except the server's own, written afterwards, its ticks, and the protocols' own topics."""
    assert Rules().durability_of(topic) is keeping


def test_the_first_rule_that_matches_decides():
    """Rules are tried in the order of the [[record]] tables."""
    rules = Rules([(under("a/b"), 60, False), (under("a"), 0, True), (ALL, 30, True)])
    assert rules.durability_of("a/b/c") is Durability.ASYNC
    assert rules.durability_of("a/c") is Durability.NONE
    assert rules.durability_of("b") is Durability.DURABLE
    assert rules.of("b").age_s == 30


def test_a_wildcard_above_reaches_neither_service_nor_the_servers_own_topics():
    """/** does not apply to /service/** and /halley/**; rules that name them do."""
    assert Rules([(ALL, 60, True)]).durability_of("service/x") is Durability.NONE
    assert Rules([(ALL, 60, True)]).of("halley/sessions").age_s == DEFAULT_AGE_S
    rules = Rules([(under("service/x"), 60, True), (under("halley"), 60, True)])
    assert rules.durability_of("service/x/y") is Durability.DURABLE
    assert rules.durability_of("service/z") is Durability.NONE
    assert rules.durability_of("halley/sessions") is Durability.DURABLE
    assert rules.durability_of("halley/rates") is Durability.NONE


def test_where_several_rules_decide_the_one_that_reaches_back_furthest_counts():
    """A subscriber of /** can resume from an hour ago although one channel is kept for half a minute."""
    rules = Rules([(under("ticks"), 30, True), (under("never"), 0, True)])
    rules.of("ticks/x").start = 900
    rules.of("chat").start = 100
    assert rules.start_of(ALL) == 100
    assert rules.start_of(under("ticks")) == 900
    assert rules.start_of(Pattern(Match.EXACT, "ticks/x")) == 900
    assert rules.start_of(under("never")) == 1
    assert rules.of("never/x").start == NEVER


@pytest.mark.parametrize(
    ("topic", "keeping"),
    [
        (":r/chat/room", Durability.DURABLE),
        (":r/news", Durability.ASYNC),
        (":r/deep/news", Durability.DURABLE),
        ("::/wamp/session/on_join", Durability.NONE),
        ("::r/wamp/session/on_join", Durability.NONE),
    ],
)
def test_another_realm_has_rules_of_its_own(topic, keeping):
    """Another realm has its own history; the router's meta events are in none (W48)."""
    rules = Rules([(under("chat"), 0, True), (under(":r", Match.CHILDREN), 60, False)], [":r"])
    assert rules.durability_of(topic) is keeping


@pytest.mark.parametrize(
    ("text", "age_s"), [("0", 0), ("90s", 90), ("30m", 1800), ("72h", 259_200), ("7d", 604_800), ("1.5h", 5400)]
)
def test_an_age_is_a_number_and_a_unit(text, age_s):
    assert parse_age(text) == age_s


@pytest.mark.parametrize("text", ["", "72", "h", "-1h", "1 h", "1w", "1e3s", "10H", "\u0661h", "0\n"])
def test_any_other_age_is_refused_in_words(text):
    """The error for an invalid age has an example of a valid one."""
    with pytest.raises(ValueError, match="expected an age such as"):
        parse_age(text)


@given(PATTERNS, TOPICS)
def test_a_pattern_matches_what_its_subscribers_hear(pattern, topic):
    """`matches` agrees with the index of subscriptions, and `span` contains all that a pattern matches."""
    heard = any(over == pattern for over in patterns_over(topic))
    apart = topic.split("/")[0] == "halley" or (topic.split("/")[0] in {"meta", "service"} and "/" in topic)
    assert matches(pattern, topic) == (heard and (bool(pattern.topic) or not apart))
    if matches(pattern, topic):
        low, high = span(pattern)
        assert low <= topic < high


@given(
    st.lists(PATTERNS | world.bayeux_patterns, max_size=5),
    PATTERNS | world.patterns,
    st.lists(TOPICS | world.topics, max_size=10),
)
def test_a_pattern_starts_no_later_than_any_topic_it_matches(patterns, pattern, topics):
    """A pattern's start is the earliest of all rules for topics that the pattern matches."""
    rules = Rules([(each, 60, True) for each in patterns])
    for number, rule in enumerate(rules.all):
        if rule.durability is not Durability.NONE:
            rule.start = 10 + number
    for topic in topics:
        if matches(pattern, topic) and rules.durability_of(topic) is not Durability.NONE:
            assert rules.start_of(pattern) <= rules.of(topic).start
