"""Access rules: the first one that covers role, verb and topic decides; without one, access is denied."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.broker import session

from halley.access.rules import AccessRules, Rule
from halley.broker.names import Match, Pattern, escaped, is_excluded_from_root
from halley.broker.policy import ANONYMOUS, ANONYMOUS_ROLE, SERVER, Proof
from halley.configuration.protection import pattern_of_rule
from halley.protocols.bayeux.names import NameLimits, to_pattern

BOUNDS = NameLimits(255, 16)
SEGMENTS = ("a", "b", "halley", "stats", "service", "new")
TOPICS = ["/".join(names) for depth in (1, 2, 3, 4) for names in product(SEGMENTS, repeat=depth)]
"""Every topic of up to four of these segments. Patterns have at most two segments and none is "new", so deeper topics
or other names would not show any differences.
"""


def rule(pattern, *, role="*", verb="*", allow=True):
    return Rule(role, verb, to_pattern(pattern, BOUNDS), allow)


def rules(*patterns, **more):
    return AccessRules([rule(pattern) if isinstance(pattern, str) else pattern for pattern in patterns], **more)


def of_role(role):
    found = session()
    found.role = role
    return found


def deny(pattern, **more):
    return rule(pattern, allow=False, **more)


def may(access, verb, what, role="user"):
    return access.may(of_role(role), verb, to_pattern(what, BOUNDS) if "*" in what else what.removeprefix("/"))


# Which rule decides


@pytest.mark.parametrize(
    ("role", "verb", "expected"),
    [
        ("sensor", "publish", True),
        ("sensor", "subscribe", False),
        ("user", "publish", False),
        ("user", "subscribe", True),
        (ANONYMOUS_ROLE, "subscribe", True),
        (ANONYMOUS_ROLE, "erase", False),
    ],
)
def test_a_rule_speaks_of_a_role_and_a_verb(role, verb, expected):
    """A rule applies to a role and a verb, or to all with `*`."""
    deny_sensor = deny("/a", role="sensor", verb="subscribe")
    access = rules(rule("/a", role="sensor", verb="publish"), deny_sensor, rule("/a", verb="subscribe"))
    assert may(access, verb, "/a", role) is expected


def test_the_first_rule_that_speaks_decides():
    """An exception works before the rule that it is an exception from, and has no effect after it."""
    assert may(rules(deny("/a/b"), "/a/**"), "publish", "/a/b") is False
    assert may(rules("/a/**", deny("/a/b")), "publish", "/a/b") is True


def test_what_no_rule_allows_is_denied():
    """If there are rules, what none of them allows is denied."""
    assert may(rules("/a"), "publish", "/b") is False
    assert may(rules(deny("/a")), "publish", "/b") is False


def test_the_servers_own_sessions_may_do_everything():
    """The server's own sessions have a role that no rule can restrict."""
    access = rules(deny("/**"))
    assert may(access, "publish", "/a", SERVER) is True
    assert may(access, "subscribe", "/halley/**", SERVER) is True


@pytest.mark.parametrize(
    ("what", "verb", "expected"),
    [
        ("/halley", "subscribe", False),
        ("/halley/sessions", "subscribe", False),
        ("/halley/sessions", "publish", False),
        ("/stats/1m/a", "publish", False),
        ("/alerts/a", "publish", False),
        ("/replay/a", "publish", False),
        ("/stats/1m/a", "subscribe", True),
        ("/alerts/**", "subscribe", True),
        ("/service/a", "publish", True),
        ("/service/a", "subscribe", True),
        ("/halley/**", "subscribe", False),
        ("/**", "subscribe", True),
    ],
)
def test_a_wildcard_above_does_not_reach_the_servers_own_topics(what, verb, expected):
    """S15: `/**` does not grant the server's own topics, which must be named; it does grant `/service/**`."""
    assert may(rules("/**"), verb, what) is expected


def test_the_servers_own_topics_can_be_granted_by_name():
    """The server's own topics can be published and read by roles that have a rule naming them."""
    access = rules(rule("/stats/**", role="pipeline"), rule("/halley/**", verb="subscribe"))
    assert may(access, "publish", "/stats/1m/a", "pipeline") is True
    assert may(access, "publish", "/stats/1m/a") is False
    assert may(access, "subscribe", "/halley/**") is True
    assert may(access, "publish", "/halley/x") is False


META = [
    ("subscribe", "/wamp/session/on_join"),
    ("subscribe", "/wamp/**"),
    ("call", "/wamp/session/kill"),
    ("call", "/wamp/subscription/list"),
    ("subscribe", "/$nt4/$clients"),
]


@pytest.mark.parametrize(("verb", "what"), META)
def test_meta_topics_and_procedures_must_be_named(verb, what):
    """`/**` does not grant meta topics and procedures, which tell of what other rules deny; a rule must name them."""
    named = {"wamp": "/wamp/**", "$nt4": "/$nt4/**"}[what.split("/")[1]]
    asked = to_pattern(what, BOUNDS)
    assert not rules("/**").decide("user", verb, asked)[0]
    assert rules("/**", named).decide("user", verb, asked)[0]
    assert not rules(deny(named), "/**", named).decide("user", verb, asked)[0]
    assert not rules(deny("/**"), named).decide("user", verb, asked)[0]
    assert may(rules("/**"), verb, "/wampum/session") is True


# Patterns


@pytest.mark.parametrize(
    ("written", "asked", "expected"),
    [
        (["/a/**"], "/a/**", True),
        (["/a/**"], "/a/*", True),
        (["/a/**"], "/a/b/**", True),
        (["/a/*"], "/a/**", False),
        (["/a/b", "/a/c"], "/a/*", False),
        (["/a/**"], "/**", False),
        (["/**"], "/*", True),
        (["/*"], "/**", False),
        ([deny("/a/b"), "/a/**"], "/a/*", False),
        ([deny("/a/b"), "/a/**"], "/a/c/**", True),
        (["/a/*", deny("/a/b")], "/a/*", True),
        ([deny("/halley/**"), "/**"], "/**", True),
        ([deny("/service/x"), "/**"], "/**", True),
        ([deny("/a/**"), "/**"], "/*", True),
    ],
)
def test_a_pattern_is_granted_whole_or_not_at_all(written, asked, expected):
    """A pattern is granted if a rule allows all of it and no earlier one denies any part of it."""
    assert may(rules(*written), "subscribe", asked) is expected


def topics_of(pattern):
    for topic in TOPICS:
        parent = topic.rpartition("/")[0]
        if pattern.match is Match.EXACT:
            matches = topic == pattern.topic
        elif pattern.match is Match.CHILDREN:
            matches = parent == pattern.topic
        else:
            matches = not pattern.topic or topic.startswith(pattern.topic + "/")
        if matches:
            yield topic


def reached(entry, verb):
    """Return the set of topics that a rule covers, by checking each topic."""
    own = {"halley", "stats", "alerts", "replay"} if verb == "publish" else {"halley"}
    found = set(topics_of(entry.pattern))
    return found if entry.pattern.topic else {topic for topic in found if topic.partition("/")[0] not in own}


def heard(what):
    """Return the set of topics that a subscriber of a pattern gets, by checking each topic."""
    found = set(topics_of(what))
    return found if what.topic else {topic for topic in found if not is_excluded_from_root(topic)}


def naive(access, role, verb, what):
    for entry in access:
        if entry.role in ("*", role) and entry.verb in ("*", verb):
            asked, ruled = heard(what), reached(entry, verb)
            if asked <= ruled if entry.allow else asked & ruled:
                return entry.allow
    return False


NAMES = st.lists(st.sampled_from(SEGMENTS[:-1]), min_size=1, max_size=2).map("/".join)
PATTERNS = st.one_of(
    st.builds(Pattern, st.just(Match.EXACT), NAMES),
    st.builds(Pattern, st.sampled_from([Match.CHILDREN, Match.DESCENDANTS]), st.one_of(st.just(""), NAMES)),
)
RULES = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["*", "user", "x"]),
        st.sampled_from(["*", "publish", "subscribe"]),
        PATTERNS,
        st.booleans(),
    ),
    max_size=4,
)


@given(RULES, st.sampled_from(["publish", "subscribe", "export"]), PATTERNS)
def test_rules_agree_with_a_list_of_all_topics(written, verb, what):
    """Decisions that compare patterns are the same as those that check every topic of a small set."""
    access = AccessRules(written)
    assert access.may(of_role("user"), verb, what) is naive(written, "user", verb, what)


@given(RULES, st.sampled_from(["publish", "subscribe"]), st.sampled_from(TOPICS))
def test_a_topic_and_the_pattern_of_that_topic_are_one_question(written, verb, topic):
    """A topic and the exact pattern of that topic get the same decision, since protocols use either."""
    access = AccessRules(written)
    asked = access.may(of_role("user"), verb, topic)
    assert asked is access.may(of_role("user"), verb, Pattern(Match.EXACT, topic))
    assert asked is naive(written, "user", verb, Pattern(Match.EXACT, topic))


# Without a session


def test_without_a_session_the_visitors_role_counts():
    """Publishing without a session is decided by the role of the visitor's identity."""
    access = rules(rule("/a", role="sensor"))
    assert access.may(None, "publish", "a", Proof("s1", "sensor")) is True
    assert access.may(None, "publish", "a", ANONYMOUS) is False


def test_the_anonymous_can_be_kept_to_sessions():
    """With `bayeux.anonymous_publish = "off"`, the anonymous need a session to publish; bearers of tokens do not."""
    access = rules("/a", sessionless=False)
    assert access.may(None, "publish", "a", ANONYMOUS) is False
    assert access.may(None, "publish", "a", Proof("s1", "sensor")) is True
    assert access.may(of_role(ANONYMOUS_ROLE), "publish", "a") is True


def test_decisions_are_remembered_within_bounds():
    """The cache of decisions is bounded, since clients can invent topics, and its decisions stay correct."""
    access = rules("/a/**")
    access._decisions.most_bytes = 4_000
    for number in range(100):
        assert may(access, "publish", f"/a/{number}") is True
        assert may(access, "publish", f"/b/{number}") is False
        assert len(access._decisions) <= 10


# Whether anything is granted


PATTERNS = ["/a", "/*", "/**", "/a/*", "/a/**", "/halley/**", "/halley/a", "/stats/**", "/service/**", "/new/**"]


@given(
    st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(["publish", "*"]), st.booleans()), max_size=4),
    st.sampled_from(["publish", "call"]),
)
def test_something_is_granted_where_a_topic_is(written, verb):
    """`grants_any` is true if and only if the rules grant the verb for any topic."""
    access = rules(*[rule(pattern, verb=of, allow=allow) for pattern, of, allow in written])
    assert access.grants_any(verb, Proof(None, "user")) == any(
        access.decide("user", verb, topic)[0] for topic in TOPICS
    )


@pytest.mark.parametrize("named", ["/halley/rates", "/stats/**"])
def test_what_a_denial_of_all_leaves_out_can_be_granted_after_it(named):
    """`/**` does not cover the server's own topics, neither in a rule that allows nor in one that denies."""
    assert rules(deny("/**"), named).grants_any("publish", Proof(None, "user"))
    assert not rules(deny("/**"), "/a").grants_any("publish", Proof(None, "user"))


# Placeholders


def own(pattern, **more):
    """A rule whose pattern may have placeholders."""
    fields = {"role": "*", "verb": "*", "allow": True, **more}
    return Rule(fields["role"], fields["verb"], pattern_of_rule(pattern, BOUNDS), fields["allow"])


def user(authid, role="user", **claims):
    return Proof(authid, role, claims=claims)


def can(access, proof, verb, what):
    """Whether a client may do that: the same with a session as by a request without one."""
    asked = to_pattern(what, BOUNDS)
    found = of_role(proof.role)
    found.proof = proof
    decision = access.may(None, verb, asked, proof)
    assert access.may(found, verb, asked) is decision
    assert access.may(None, verb, asked, proof) is decision, "as it was remembered"
    assert access.decide(proof.role, verb, asked, proof)[0] is decision
    return decision


ADA, BOB = user("ada"), user("bob")


def test_each_has_what_is_named_after_it():
    """Two users of one role, in turn: the decision for one is never that for the other."""
    access = AccessRules([own("/user/{authid}/**")])
    for _ in range(2):
        for each, theirs, other in ((ADA, "/user/ada/inbox", "/user/bob/inbox"), (BOB, "/user/bob/**", "/user/ada/*")):
            assert can(access, each, "subscribe", theirs)
            assert not can(access, each, "subscribe", other)
            assert not can(access, each, "subscribe", "/user/**")
    assert not can(access, ANONYMOUS, "subscribe", "/user/ada/inbox")


@pytest.mark.parametrize(
    ("authid", "segment"),
    [
        ("ada@example.org", "ada@example!2eorg"),
        ("auth0|7", "auth0!7c7"),
        ("a/b", "a!2fb"),
        ("**", "!2a!2a"),
        ("*", "!2a"),
        ("..", "!2e!2e"),
        (":realm", "!3arealm"),
        ("{authid}", "!7bauthid!7d"),
        ("é" * 255, "!c3!a9" * 255),
    ],
)
def test_a_name_is_one_segment_whatever_it_has(authid, segment):
    """Its own segment and nothing else: no wildcard, no other level, no other space."""
    wide = NameLimits(4_096, 16)
    access = AccessRules([own("/user/{authid}/box")])
    proof = user(authid)
    assert access.may(None, "publish", to_pattern(f"/user/{segment}/box", wide), proof)
    for other in ("/user/ada/box", "/user/a/b/box", "/user/x/box", "/user/**", "/user/*", "/box"):
        assert not access.may(None, "publish", to_pattern(other, wide), proof)


@pytest.mark.parametrize("value", [None, "", 7, True, ["acme"], {"a": 1}, "x" * 256])
def test_who_has_no_usable_value_is_granted_nothing_and_denied_all(value):
    """Absent, empty, not text or too long: an allow rule is not about that client, and a deny rule denies."""
    proof = user("ada") if value is None else user("ada", org=value)
    allowed = AccessRules([own("/org/{claim.org}/**"), own("/open/**")])
    assert not can(allowed, proof, "publish", "/org/acme/x")
    assert not can(allowed, proof, "publish", "/org/x")
    assert can(allowed, proof, "publish", "/open/x")
    denied = AccessRules([own("/org/{claim.org}/private/**", allow=False), own("/**")])
    for what, expected in (
        ("/org/acme/private/x", False),
        ("/org/acme/public", True),
        ("/org/**", False),
        ("/a", True),
    ):
        assert can(denied, proof, "publish" if "*" not in what else "subscribe", what) is expected
    mine = user("ada", org="acme")
    assert not can(denied, mine, "publish", "/org/acme/private/x")
    assert can(denied, mine, "publish", "/org/other/private/x")


def test_several_placeholders_are_of_one_client():
    """All of them have to be its own."""
    access = AccessRules([own("/org/{claim.org}/{authid}/*")])
    assert can(access, user("ada", org="acme"), "publish", "/org/acme/ada/x")
    assert not can(access, user("bob", org="acme"), "publish", "/org/acme/ada/x")
    assert not can(access, user("ada", org="other"), "publish", "/org/acme/ada/x")
    assert not can(access, user("ada"), "publish", "/org/acme/ada/x")


@pytest.mark.parametrize("name", ["halley", "stats", "alerts", "replay", "wamp", "$nt4", "service", "meta"])
def test_no_name_is_one_of_the_servers_own(name):
    """At the root a placeholder stands for nothing that a rule must name, whoever has that name."""
    access = AccessRules([own("/{authid}/**")])
    channel = f"/{escaped(name)}/x" if name != "$nt4" else "/$nt4/x"
    assert can(access, user("ada"), "publish", "/ada/x")
    assert not access.may(None, "publish", to_pattern(channel, BOUNDS), user(name))
    assert not access.may(None, "subscribe", Pattern(Match.DESCENDANTS, escaped(name)), user(name))


@given(st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=12))
def test_no_name_reaches_what_is_anothers(one, other):
    """Whatever two users are called, neither reaches what is named after the other, nor a wildcard over both."""
    access = AccessRules([own("/user/{authid}/**")])
    if one == other:
        return
    theirs = Pattern(Match.EXACT, f"user/{escaped(other)}/x")
    assert not access.may(None, "subscribe", theirs, user(one))
    assert access.may(None, "subscribe", theirs, user(other))
    for match in (Match.CHILDREN, Match.DESCENDANTS, Match.PREFIX):
        assert not access.may(None, "subscribe", Pattern(match, "user"), user(one))


def test_decisions_by_name_are_kept_apart_only_where_a_name_matters():
    """A thousand users share what their role may do; what is their own is remembered for each, within the bound."""
    access = AccessRules([own("/user/{authid}/**"), own("/chat/**")])
    for number in range(1_000):
        assert access.may(None, "publish", "chat/lobby", user(f"u{number}"))
    assert len(access._decisions) == 1
    access._decisions.clear()
    access._decisions.most_bytes = 4_000
    for number in range(100):
        assert access.may(None, "publish", f"user/u{number}/x", user(f"u{number}"))
        assert not access.may(None, "publish", f"user/u{number}/x", user("eve"))
        assert len(access._decisions) <= 10


def test_whether_anything_is_granted_depends_on_who_asks():
    """`grants_any` counts a rule with a placeholder for those who have the value."""
    access = AccessRules([own("/user/{authid}/**", role="user", verb="subscribe")])
    assert access.grants_any("subscribe", user("ada"))
    assert not access.grants_any("subscribe", user("ada", role="sensor"))
    assert not access.grants_any("subscribe", ANONYMOUS)
    shut = AccessRules([own("/user/{authid}/**", allow=False), own("/user/bob/a")])
    assert shut.grants_any("subscribe", user("ada"))
    assert not shut.grants_any("subscribe", user("bob"))
    assert not shut.grants_any("subscribe", ANONYMOUS), "a deny rule denies those without a name"
