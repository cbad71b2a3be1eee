"""Realms and their topic spaces: a rule of one realm does not affect another."""

from __future__ import annotations

import pytest
from support.broker import session

from halley.access.rules import AccessRules
from halley.broker.names import REALM_MARK, Match, Pattern
from halley.broker.ports import Durability
from halley.configuration.protection import rights_of
from halley.history.rules import DEFAULT_AGE_S, Rules
from halley.protocols.wamp.names import Grammar, realms_of, spaces_of, to_pattern, to_topic, within
from halley.server.recording import BadRecord, rules_of
from halley.settings import Access, Realm, Record, Settings

GRAMMAR = Grammar(255, 16, is_strict=False)
REALMS = (Realm("first"), Realm("com.more"), Realm("other"))
MORE, OTHER = ":com!2e.more", ":other"
FIRST = ""


def of_role(role):
    """A session of this role."""
    found = session()
    found.role = role
    return found


def rights(*rules):
    """The rights that these access rules grant."""
    return rights_of(Settings(realm=REALMS, access=rules))


def may(granted, verb, uri, space, match=None, role="user"):
    """Whether a session of the realm with this space has the right for a topic or pattern."""
    what = to_topic(uri, space, GRAMMAR) if match is None else to_pattern(uri, match, space, GRAMMAR)
    return granted.may(of_role(role), verb, what)


def test_without_any_there_is_one():
    """Without realms in the settings there is realm1, which shares its topics with the other protocols."""
    assert [realm.name for realm in realms_of(Settings())] == ["realm1"]
    assert spaces_of(Settings()) == {"": "", "realm1": ""}


def test_every_realm_but_the_first_has_a_space_of_its_own():
    """The first realm has no space of its own; each other realm has one, for any name."""
    assert spaces_of(Settings(realm=REALMS)) == {"": "", "first": "", "com.more": MORE, "other": OTHER}
    names = [Realm("a"), *(Realm(name) for name in ("b.c", "b!c", "b-c", "b_c", "bc", "é", "/", "b/c"))]
    spaces = set(spaces_of(Settings(realm=tuple(names))).values())
    assert len(spaces) == len(names)
    assert all(space == "" or (space.startswith(REALM_MARK) and space.count("/") == 0) for space in spaces)


@pytest.mark.parametrize("match", [Match.EXACT, Match.CHILDREN, Match.DESCENDANTS])
def test_a_pattern_within_a_space(match):
    """The root of a pattern within a space is the space."""
    assert within(Pattern(match, "a/b"), "") == Pattern(match, "a/b")
    assert within(Pattern(match, "a/b"), MORE) == Pattern(match, f"{MORE}/a/b")
    assert within(Pattern(match, ""), MORE) == Pattern(match, MORE)


@pytest.mark.parametrize("verb", ["publish", "subscribe"])
def test_a_rule_reaches_its_own_realm_alone(verb):
    """A rule for `/**` applies to its own realm only; without a realm it applies to the first."""
    for realm, space in (("", FIRST), ("first", FIRST), ("com.more", MORE), ("other", OTHER)):
        granted = rights(Access("*", verb, "/**", realm=realm))
        assert isinstance(granted, AccessRules)
        for other in (FIRST, MORE, OTHER):
            assert may(granted, verb, "com.topic", other) is (other == space)
            assert may(granted, verb, "topic", other) is (other == space)


@pytest.mark.parametrize(
    ("uri", "match"), [("", Match.PREFIX), ("a.", Match.PREFIX), (".", Match.WILDCARD), ("a..", Match.WILDCARD)]
)
def test_everything_of_a_realm_covers_its_patterns(uri, match):
    """`/**` of a realm covers all its patterns (W19), unless an earlier rule denies a part of them."""
    for realm, space in (("", FIRST), ("com.more", MORE)):
        all_of_it = Access("*", "subscribe", "/**", realm=realm)
        assert may(rights(all_of_it), "subscribe", uri, space, match)
        assert not may(
            rights(Access("*", "subscribe", "/a/**", False, realm), all_of_it), "subscribe", uri, space, match
        )
        assert may(
            rights(Access("*", "subscribe", "/b", False, realm), all_of_it), "subscribe", "a.", space, Match.PREFIX
        )
        other = Access("*", "subscribe", "/a/**", False, "other")
        assert may(rights(other, all_of_it), "subscribe", uri, space, match)


def test_the_servers_own_names_need_a_rule_in_a_realm_too():
    """`/**` does not cover the topics below `halley`, in any realm."""
    for realm, space in (("", FIRST), ("com.more", MORE)):
        everything = rights(Access("*", "*", "/**", realm=realm))
        assert not may(everything, "subscribe", "halley.x", space)
        named = rights(Access("*", "*", "/**", realm=realm), Access("*", "*", "/halley/**", realm=realm))
        assert may(named, "subscribe", "halley.x", space)


def test_procedures_and_meta_topics_are_named_like_others():
    """Rules name procedures as `/wamp/session/kill` and meta topics as `/wamp/session/on_join` (W47, W48)."""
    for realm, space in (("", FIRST), ("com.more", MORE)):
        granted = rights(
            Access("admin", "call", "/wamp/session/**", realm=realm),
            Access("*", "call", "/wamp/session/count", realm=realm),
            Access("*", "subscribe", "/wamp/session/on_join", realm=realm),
        )
        assert may(granted, "call", "wamp.session.kill", space, role="admin")
        assert not may(granted, "call", "wamp.session.kill", space)
        assert may(granted, "call", "wamp.session.count", space)
        assert not may(granted, "call", "wamp.subscription.list", space, role="admin")
        assert not may(granted, "call", "wamp.session.count", OTHER, role="admin")
        assert not may(granted, "subscribe", "wamp.session.count", space)
        assert may(granted, "subscribe", "wamp.session.on_join", space)
        assert not may(granted, "subscribe", "wamp.session.on_leave", space)
        assert not may(granted, "subscribe", "wamp.", space, Match.PREFIX)


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        ("wamp.session.on_join", Match.EXACT),
        ("wamp.", Match.PREFIX),
        ("wamp", Match.PREFIX),
        ("wamp..on_join", Match.WILDCARD),
    ],
)
def test_everything_of_a_realm_leaves_out_its_meta_topics(uri, match):
    """`/**` of a realm does not cover the router's own topics and procedures by any pattern: a rule must name them."""
    for realm, space in (("", FIRST), ("com.more", MORE)):
        everything = Access("*", "*", "/**", realm=realm)
        assert not may(rights(everything), "subscribe", uri, space, match)
        assert not may(rights(everything), "call", "wamp.session.kill", space)
        named = rights(everything, Access("*", "*", "/wamp/**", realm=realm))
        assert may(named, "subscribe", uri, space, match) is (uri != "wamp")  # the prefix `wamp` is `wampum` too
        assert may(named, "call", "wamp.session.kill", space)


# What is recorded


def test_every_realms_events_are_kept_alike():
    """All realms' events are kept for 72 h and durable; meta events are not recorded."""
    rules = rules_of(Settings(realm=REALMS))
    for space in (FIRST, MORE, OTHER):
        rule = rules.of(to_topic("com.topic", space, GRAMMAR))
        assert (rule.durability, rule.age_s) == (Durability.DURABLE, DEFAULT_AGE_S)
        assert rules.of(to_topic("topic", space, GRAMMAR)) is rule
        assert rule in rules.recording
        assert rules.durability_of(to_topic("wamp.session.on_join", space, GRAMMAR)) is Durability.NONE
    assert len({rules.of(f"{space}x").pattern for space in ("", f"{MORE}/", f"{OTHER}/")}) == 3


def test_a_realm_that_is_no_longer_named_keeps_what_it_has():
    """Events of a realm that is no longer in the settings stay until they are too old."""
    for rules in (Rules(), rules_of(Settings(realm=REALMS))):
        rule = rules.of(":gone/com/topic")
        assert (rule.durability, rule.age_s) == (Durability.DURABLE, DEFAULT_AGE_S)
        assert rule in rules.recording
        assert rules.durability_of("::/wamp/session/on_join") is Durability.NONE
        assert rules.durability_of("::gone/wamp/session/on_join") is Durability.NONE


def test_what_a_realm_left_behind_holds_up_nothing():
    """Events of a realm that was removed have the longest age of all rules, so they delay no deletion of files."""
    records = (Record("/short", "1m"), Record("/**", "1h"), Record("/halley", "0"), Record("/halley/**", "0"))
    rules = rules_of(Settings(record=records))
    assert rules.of(":gone/com/topic").age_s == 3600 == max(rule.age_s for rule in rules.recording)
    nothing = rules_of(Settings(record=tuple(Record(name, "0") for name in ("/**", "/halley", "/halley/**"))))
    assert nothing.durability_of(":gone/com/topic") is Durability.NONE
    assert nothing.recording == []


def test_a_record_rule_is_about_its_realm():
    """A record rule with a realm applies to that realm only."""
    rules = rules_of(
        Settings(realm=REALMS, record=(Record("/a/*", "1m", False, "com.more"), Record("/**", "0", realm="com.more")))
    )
    assert rules.durability_of(f"{MORE}/a/b") is Durability.ASYNC
    assert rules.durability_of(f"{MORE}/b") is Durability.NONE
    assert (
        rules.durability_of("a/b")
        is rules.durability_of("b")
        is rules.durability_of(f"{OTHER}/a/b")
        is Durability.DURABLE
    )


def test_how_far_back_a_realm_can_be_read():
    """The first readable offset of a pattern depends on rules of its own realm only."""
    rules = rules_of(Settings(realm=REALMS, record=(Record("/short", "1m", realm="com.more"),)))
    rules.of("x").start, rules.of(f"{MORE}/x").start, rules.of(f"{MORE}/short").start = 100, 50, 900
    rules.of(f"{OTHER}/x").start = 7
    for uri, match in (("", Match.PREFIX), (".", Match.WILDCARD), ("x", Match.EXACT), ("x.", Match.PREFIX)):
        assert rules.start_of(to_pattern(uri, match, FIRST, GRAMMAR)) == 100
        assert rules.start_of(to_pattern(uri, match, MORE, GRAMMAR)) == 50
        assert rules.start_of(to_pattern(uri, match, OTHER, GRAMMAR)) == 7
    assert rules.start_of(to_pattern("short", Match.EXACT, MORE, GRAMMAR)) == 900
    assert rules.start_of(Pattern(Match.DESCENDANTS, "")) == 100


def test_a_rule_for_a_realm_that_is_none():
    """A rule for an unknown realm is refused; settings made by a program may have one."""
    with pytest.raises(BadRecord, match=r"record\[0\]\.realm: there is no realm 'more'"):
        rules_of(Settings(record=(Record("/a", realm="more"),)))
