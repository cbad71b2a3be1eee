"""Patterns of five kinds, compared with what their protocols' specifications say (A17, A18, W11, W19, G4)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from support.patterns import TOPICS, bayeux_patterns, matches_by_the_word, patterns, topics

from halley.broker.names import (
    Match,
    Pattern,
    encloses,
    excludes,
    is_excluded_from_root,
    matcher,
    matches,
    meet,
    patterns_over,
    span,
)

MORE_TOPICS = [
    *TOPICS,
    *dict.fromkeys(
        "/".join((*names[:place], longer, *names[place + 1 :]))
        for names in (topic.split("/") for topic in TOPICS if topic.count("/") < 3)
        for place, name in enumerate(names)
        for longer in {"halley": ("hat", "halleys"), "wamp": ("wampum",), "service": ("services",)}.get(name, ())
    ),
]
"""With topics that only begin as others do, which a prefix matches as well."""


def raw(pattern, topic):
    """Return whether the pattern matches, without the exception for topics that wildcards leave out."""
    return matches_by_the_word(pattern, topic, is_own=lambda _pattern, _topic: False)


@given(patterns, topics)
def test_a_pattern_matches_what_its_protocol_says(pattern, topic):
    """A17, A18, W19: a pattern matches what its protocol defines, and all of that lies within the pattern's span."""
    assert matches(pattern, topic) is matches_by_the_word(pattern, topic)
    assert matcher(pattern)(topic) is matches(pattern, topic)
    if matches(pattern, topic):
        low, high = span(pattern)
        assert low <= topic < high


@given(patterns, patterns)
@example(Pattern(Match.PREFIX, "halley/halley"), Pattern(Match.PREFIX, "halley/ha"))
def test_one_pattern_takes_in_another_where_it_matches_all_that_the_other_does(wide, narrow):
    """Compared with all topics of a small set."""
    assert encloses(wide, narrow) is all(raw(wide, topic) for topic in MORE_TOPICS if raw(narrow, topic))


@given(patterns, patterns)
@example(Pattern(Match.WILDCARD, "/a"), Pattern(Match.WILDCARD, "ab/"))
@example(Pattern(Match.PREFIX, "a"), Pattern(Match.DESCENDANTS, "ab"))
@example(Pattern(Match.CHILDREN, ""), Pattern(Match.PREFIX, "ha"))
@example(Pattern(Match.PREFIX, ""), Pattern(Match.PREFIX, "wamp"))
@example(Pattern(Match.WILDCARD, "/halley"), Pattern(Match.PREFIX, "ha"))
@example(Pattern(Match.DESCENDANTS, ""), Pattern(Match.WILDCARD, "service"))
def test_two_patterns_meet_where_a_topic_is_matched_by_both(one, other):
    """`meet` is symmetric, and `leaves_out` is true where subscribers get none of the topics that both match."""
    both = [topic for topic in MORE_TOPICS if raw(one, topic) and raw(other, topic)]
    assert meet(one, other) is meet(other, one) is bool(both)
    if both:
        assert excludes(one, other) is not any(matches(one, topic) for topic in both)


@given(topics, bayeux_patterns)
@example(":r/a", Pattern(Match.CHILDREN, ""))
@example(":r", Pattern(Match.CHILDREN, ""))
def test_the_patterns_over_a_topic_are_those_that_match_it(topic, pattern):
    """A17: exactly the patterns that match are listed, without the exception for topics that wildcards leave out."""
    whole = topic.replace(":", "r")  # nothing is left out of it
    assert (pattern in set(patterns_over(topic))) is (
        raw(pattern, topic) or (not pattern.topic and raw(pattern, whole))
    )


@given(topics)
def test_the_patterns_over_a_topic_go_from_wide_to_narrow(topic):
    """B21: `/**` is first and the topic itself last, and no pattern is repeated."""
    over = list(patterns_over(topic))
    assert len(over) == len(set(over)) == topic.count("/") + 3
    assert over[0] == Pattern(Match.DESCENDANTS, "")
    assert over[-1] == Pattern(Match.EXACT, topic)


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("com/hist/pre", "com/hist/prefixed", True),
        ("com/myapp/topic/emergency", "com/myapp/topic/emergency-low", True),
        ("com/myapp/topic/emergency", "com/myapp/topic/emergency", True),
        ("com/myapp/", "com/myapp", False),
        ("com/myapp/", "com/myapp/x/y", True),
        ("a/b!2", "a/b!2ec", True),
        ("a/b!2", "a/b!21gc", False),
        ("a/b!", "a/b!2ec", True),
        ("a/b:", "a/b!3ac", True),
        ("a/b:", "a/b!2ec", False),
        ("a/é", "a/!c3!a9t!c3!a9", True),
    ],
)
def test_a_prefix_ends_anywhere_in_a_name_as_wamp_shows_it(pattern, topic, expected):
    """W19: a prefix is compared as a string, not by component, with the name as WAMP writes it."""
    prefix = Pattern(Match.PREFIX, pattern)
    assert matches(prefix, topic) is expected
    assert matcher(prefix)(topic) is expected
    low, high = span(prefix)
    assert not expected or low <= topic < high


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
        (":realm2/a", True),
    ],
)
def test_what_bayeux_wildcards_over_everything_do_not_hear(topic, expected):
    """A18: `/**` leaves out `/meta/**`, `/service/**`, and `/halley` with all below it, but not similar names."""
    assert is_excluded_from_root(topic) is expected
    assert matches(Pattern(Match.DESCENDANTS, ""), topic) is not expected


@pytest.mark.parametrize("pattern", ["", "h", "ha", "halle"])
def test_a_prefix_hears_the_servers_own_topics_only_by_their_name(pattern):
    """A prefix that is shorter than `halley` does not match `/halley`; one that begins with it does."""
    assert not matches(Pattern(Match.PREFIX, pattern), "halley/sessions")
    assert matches(Pattern(Match.PREFIX, "halley"), "halley/sessions")
    assert matches(Pattern(Match.PREFIX, "halley/s"), "halley/sessions")
    assert matches(Pattern(Match.PREFIX, pattern), "halleluja" if pattern != "" else "x")


CROSSBARS = """"" . a..c a.b. a.. .b. .. x.. .x. ..x x..x x.x. .x.x x.x.x""".replace('""', "").split(" ")
"""Patterns from a table in crossbar's tests; which of them match the topics below was worked out by hand."""


@pytest.mark.parametrize(
    ("topic", "heard_by"),
    [
        ("abc", [""]),
        ("a.b", ["."]),
        ("a.b.c", ["a..c", "a.b.", "a..", ".b.", ".."]),
        ("a.x.c", ["a..c", "a..", "..", ".x."]),
        ("a.b.x", ["a.b.", "a..", ".b.", "..", "..x"]),
        ("a.x.x", ["a..", "..", ".x.", "..x", ".x.x"]),
        ("x.y.z", ["..", "x.."]),
        ("x.x.x", ["..", "x..", ".x.", "..x", "x..x", "x.x.", ".x.x", "x.x.x"]),
        ("a.b.c.d", []),
    ],
)
def test_a_wildcard_stands_for_one_component_each(topic, heard_by):
    """WD12: a wildcard matches topics with as many components as it has; its empty components match any."""
    canonical = topic.replace(".", "/")
    found = [each for each in CROSSBARS if matches(Pattern(Match.WILDCARD, each.replace(".", "/")), canonical)]
    assert found == heard_by
