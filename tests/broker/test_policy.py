"""The house rules: the rights that hold where no access rules are written."""

from __future__ import annotations

import pytest
from support.broker import session

from halley.broker.names import Match, Pattern
from halley.broker.policy import SERVER, DefaultRules, as_in_rules

OWN = ["halley", "halley/sessions", "stats/1m/a", "alerts/a", "replay/a"]
FREE = ["a", "a/halley", "halleyx", "statsx/a", "Halley/x", ""]


def rules(*, loopback, anonymous_publish=True):
    return DefaultRules(loopback, anonymous_publish)


@pytest.mark.parametrize("topic", OWN + FREE)
@pytest.mark.parametrize("verb", ["publish", "subscribe"])
def test_where_only_this_machine_connects_everyone_may_do_everything(verb, topic):
    """On a loopback listener without access rules every client has every right."""
    assert rules(loopback=True).may(session(), verb, topic) is True


@pytest.mark.parametrize("topic", OWN)
def test_elsewhere_only_the_server_publishes_its_own_topics(topic):
    """S15: the server's own topics are `/halley`, `/stats`, `/alerts` and `/replay`, and all below them."""
    elsewhere = rules(loopback=False)
    server = session()
    server.role = SERVER
    assert elsewhere.may(session(), "publish", topic) is False
    assert elsewhere.may(None, "publish", topic) is False
    assert elsewhere.may(server, "publish", topic) is True


@pytest.mark.parametrize("topic", FREE)
@pytest.mark.parametrize("verb", ["publish", "subscribe"])
def test_elsewhere_other_topics_are_everyones(verb, topic):
    """Names that only resemble the server's own topics are open to all."""
    assert rules(loopback=False).may(session(), verb, topic) is True


@pytest.mark.parametrize(("topic", "expected"), [("halley", False), ("halley/rates", False), ("stats/1m/a", True)])
def test_elsewhere_the_servers_own_room_is_not_heard(topic, expected):
    """`/halley` can be subscribed to on loopback only, elsewhere by a rule; statistics and alerts are open to all."""
    assert rules(loopback=False).may(session(), "subscribe", topic) is expected


@pytest.mark.parametrize("loopback", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_publishing_without_a_session_is_a_right_of_its_own(loopback, allowed):
    """A48: the setting for anonymous publishes affects no other right."""
    house = rules(loopback=loopback, anonymous_publish=allowed)
    assert house.may(None, "publish", "a") is allowed
    assert house.may(None, "subscribe", "a") is True


@pytest.mark.parametrize("topic", ["a", "halley", "halley/sessions", "stats/1m/a"])
@pytest.mark.parametrize("loopback", [False, True])
def test_history_is_read_without_a_session_by_whoever_could_open_one(loopback, topic):
    """Reading the history without a session needs the same rights as subscribing."""
    house = rules(loopback=loopback)
    assert house.may(None, "subscribe", topic) is house.may(session(), "subscribe", topic)


@pytest.mark.parametrize("verb", ["export", "erase"])
@pytest.mark.parametrize("loopback", [False, True])
def test_the_whole_log_is_only_this_machines(verb, loopback):
    """The log can contain events that were meant for few; elsewhere a rule must grant export and erasure."""
    assert rules(loopback=loopback).may(session(), verb, "a") is loopback
    assert rules(loopback=loopback).may(None, verb, Pattern(Match.DESCENDANTS, "")) is loopback


def test_a_pattern_is_asked_for_as_a_topic_is():
    """Patterns below `/halley` are refused elsewhere; `/**` is granted, since it does not match topics there."""
    elsewhere = rules(loopback=False)
    assert elsewhere.may(session(), "subscribe", Pattern(Match.DESCENDANTS, "halley")) is False
    assert elsewhere.may(session(), "subscribe", Pattern(Match.DESCENDANTS, "")) is True


@pytest.mark.parametrize("space", ["", ":more/", "::/", "::more/"])
@pytest.mark.parametrize(
    ("procedure", "expected"),
    [
        ("wamp/session/count", True),
        ("wamp/session/get", True),
        ("wamp/subscription/list_subscribers", True),
        ("wamp/session/kill", False),
        ("wamp/session/kill_all", False),
        ("wamp/session/kill_by_authrole", False),
        ("com/more", False),
    ],
)
def test_procedures_that_end_sessions_are_this_machines(procedure, expected, space):
    """W47: the other meta procedures can be called by all, in every realm."""
    assert rules(loopback=False).may(session(), "call", space + procedure) is expected
    assert rules(loopback=True).may(session(), "call", space + procedure) is True


@pytest.mark.parametrize(
    ("match", "name", "expected"),
    [
        (Match.DESCENDANTS, "wamp", False),
        (Match.DESCENDANTS, "wamp/session", False),
        (Match.CHILDREN, "wamp/session", False),
        (Match.DESCENDANTS, "wamp/subscription", True),
        (Match.DESCENDANTS, "", False),
    ],
)
def test_a_pattern_of_procedures_is_granted_as_a_whole(match, name, expected):
    """A pattern of procedures is granted only if all that it matches are; `check-config` checks rules this way."""
    assert rules(loopback=False).may(session(), "call", Pattern(match, name)) is expected


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("a/b", "a/b"),
        (":more/a", ":more/a"),
        ("::/wamp/session/on_join", "wamp/session/on_join"),
        ("::more/wamp/session/on_join", ":more/wamp/session/on_join"),
    ],
)
def test_meta_topics_as_rules_name_them(topic, named):
    """In access rules, meta topics of a realm are named below the realm, as its other topics are."""
    for match in Match:
        assert as_in_rules(Pattern(match, topic)) == Pattern(match, named)
