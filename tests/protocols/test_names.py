"""Names as the publishers of each protocol write them: from and to topics, and by their beginnings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.names import ODD_NAMES

from halley.broker.errors import InvalidName
from halley.broker.names import Match, Pattern
from halley.protocols.bayeux.names import NameLimits, to_channel
from halley.protocols.names import beginning_of, name_of, to_pattern, topic_of
from halley.protocols.wamp.names import Grammar, space_of, to_topic

BOUNDS = NameLimits(255, 16)
NAMED = [(protocol, name) for protocol, names in ODD_NAMES.items() for name in names]

texts = st.text(st.sampled_from("a2!e0c.~ %é\U0001f30d/"), max_size=12)
names = texts | st.lists(
    st.sampled_from(["!", "21", "!2e", "2e", "!c3!a9", "c2!a0", "e2!80!a8", "/", ".", "a", " "]), max_size=8
).map("".join)


def test_there_are_thirty_of_each_protocol():
    """Each list has at least thirty names, each once."""
    assert all(len({*each}) == len(each) >= 30 for each in ODD_NAMES.values())


@pytest.mark.parametrize(("protocol", "name"), NAMED)
def test_a_name_has_a_topic_and_comes_back_from_it(protocol, name):
    """A name's topic is shown to the publishers of its protocol as they have written it."""
    topic = topic_of(name, protocol)
    assert topic is not None
    assert name_of(topic, protocol) == name


@pytest.mark.parametrize("protocol", ["http", "local", "halley", None])
def test_other_protocols_have_channels(protocol):
    """Requests without a session, the program and the server name topics as Bayeux does."""
    assert name_of("robot/weird!20name", protocol) == "/robot/weird!20name"


def test_a_uri_is_the_same_in_every_realm():
    """The space of a realm, and that of WAMP's own topics, is not a part of a URI."""
    assert [name_of(topic, "wamp") for topic in (":lab/com/x", "::/wamp/session/on_join", "com/x")] == [
        "com.x",
        "wamp.session.on_join",
        "com.x",
    ]


@given(st.sampled_from([*ODD_NAMES]), names | names.map("/{}".format), st.integers(0, 20))
def test_a_topic_begins_as_every_beginning_of_its_name_says(protocol, name, chars):
    """Whatever follows a beginning, the topic begins as is said of it; a protocol without such names has no topic."""
    topic = topic_of(name, protocol)
    if topic is None:
        return
    assert name_of(topic, protocol) == name
    beginning = beginning_of(name[:chars], protocol)
    assert beginning is not None
    assert topic.startswith((beginning, ":"))


@pytest.mark.parametrize(
    ("name", "protocol", "beginning"),
    [
        ("com.shop.", "wamp", "com/shop/"),
        ("com.shop.or", "wamp", "com/shop/or"),
        ("", "wamp", ""),
        ("a!2e.b!2", "wamp", "a!2e/b"),
        ("a b", "wamp", "a!20b"),
        ("a#.b", "wamp", None),
        ("a..b", "wamp", None),
        ("/robot/weird name %", "nt4", "robot/weird!20name!20!25"),
        ("/a!2", "nt4", "a!212"),
        ("/a//", "nt4", None),
        ("robot", "nt4", None),
        ("/chat/", "bayeux", "chat/"),
        ("/~a/~", "bayeux", "!7ea/!7e"),
        ("/caf!c3!a9/x", "bayeux", "caf!c3!a9/x"),
        ("/caf!c3", "bayeux", "caf"),
        ("/a b/c", "bayeux", None),
        ("chat", "bayeux", None),
    ],
)
def test_a_beginning_is_as_long_as_it_can_be(name, protocol, beginning):
    """Whole segments are converted, and of the last one what does not depend on what follows."""
    assert beginning_of(name, protocol) == beginning


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("com.shop.order", Pattern(Match.EXACT, "com/shop/order")),
        ("chat", Pattern(Match.EXACT, "chat")),
        ("/com/shop/order", Pattern(Match.EXACT, "com/shop/order")),
        ("/com/shop/**", Pattern(Match.DESCENDANTS, "com/shop")),
        ("/robot/weird name %d.x", Pattern(Match.EXACT, "robot/weird!20name!20!25d!2ex")),
        ("/robot/weird name %d.x/*", Pattern(Match.CHILDREN, "robot/weird!20name!20!25d!2ex")),
        ("/a.b/**", Pattern(Match.DESCENDANTS, "a!2eb")),
        ("/a/b", Pattern(Match.EXACT, "a/b")),
        ("/a!2eb", Pattern(Match.EXACT, "a!2eb")),
        ("/*", Pattern(Match.CHILDREN, "")),
        ("wamp.session.on_join", Pattern(Match.EXACT, "::/wamp/session/on_join")),
    ],
)
def test_what_a_name_stands_for(name, pattern):
    """A channel or a pattern, else a name of NetworkTables, else a URI of WAMP's first realm."""
    assert to_pattern(name, BOUNDS) == pattern


@pytest.mark.parametrize(
    "name", ["", "chat/lobby", "chat/**", "com.*", "a b", "a..b", "/", "/a//b c", "//**", "/x/\ud800", "x" * 256]
)
def test_what_is_no_name_is_refused(name):
    """What is most likely a mistake is refused: a URI with a slash or a wildcard, an empty segment, white space."""
    with pytest.raises(InvalidName):
        to_pattern(name, BOUNDS)


@pytest.mark.parametrize(("protocol", "name"), NAMED)
def test_each_topic_has_a_channel_by_which_it_is_found(protocol, name):
    """What cannot be given by its name, such as a URI with a slash, can be given by its channel."""
    topic = topic_of(name, protocol)
    assert to_pattern(to_channel(topic), NameLimits(1_000, 16)) == Pattern(Match.EXACT, topic)


@pytest.mark.parametrize("realm", ["caf\u00e9", "lab.2", "\u6771\u4eac", "\U0001f30d", "a b!c"])
def test_a_topic_of_any_realm_has_a_channel_and_a_uri(realm):
    """What shows all topics, such as a page of the history, shows those of realms too."""
    topic = to_topic("com.shop.order", space_of(realm), Grammar(255, 16, is_strict=False))
    assert to_channel(topic).endswith("/com/shop/order")
    assert name_of(topic, "wamp") == "com.shop.order"
