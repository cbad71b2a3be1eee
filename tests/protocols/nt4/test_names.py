"""How NetworkTables' names map to canonical topics and back (NA13, G2, G3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.broker.errors import InvalidName
from halley.protocols.bayeux import names as bayeux
from halley.protocols.nt4.names import is_reserved, to_name, to_topic
from halley.protocols.wamp import names as wamp

CHARS, SEGMENTS = 255, 16
TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.text(st.sampled_from("a!21b/.$~ é\0:"), max_size=10)
TEXT |= st.lists(st.sampled_from(["!", "21", "20", "2e", "41", "c3!a9", "c2!a0", "ff", "/", "a", "."]), max_size=8).map(
    "".join
)
NAMES = TEXT | TEXT.map(lambda text: "/" + text)
BOUNDS = bayeux.NameLimits(CHARS, SEGMENTS)
GRAMMAR = wamp.Grammar(CHARS, SEGMENTS, is_strict=False)


def topic_of(name):
    """The canonical topic of a name, with the limits of these tests; None if the name is not shared."""
    return to_topic(name, CHARS, SEGMENTS)


@given(NAMES)
def test_a_name_comes_back_from_its_topic(name):
    """G2: the mapping of any name to a topic can be reversed."""
    topic = topic_of(name)
    assert topic is None or to_name(topic) == name


@given(NAMES)
def test_a_shared_name_is_the_same_topic_in_every_protocol(name):
    """G2: a shared name's channel and URI are legal in Bayeux and WAMP, and map back to the same topic."""
    topic = topic_of(name)
    if topic is not None:
        assert bayeux.to_topic(bayeux.to_channel(topic), BOUNDS) == topic
        assert wamp.to_topic(wamp.to_uri(topic), "", GRAMMAR) == topic


@given(st.text(st.sampled_from("abm/!f2e."), max_size=8) | TEXT)
def test_a_topic_comes_back_from_its_name(uri):
    """G2: no two topics have the same name; a topic without a name is hidden."""
    try:
        topic = wamp.to_topic(uri, "", GRAMMAR)
    except InvalidName:
        return
    name = to_name(topic)
    if name is not None and len(bayeux.to_channel(topic)) <= CHARS:
        assert topic_of(name) == topic


@given(st.from_regex(r"/[A-Za-z0-9\-_!~()$@]{1,9}(/(![0-9a-f]{2}|21|a){1,5})?", fullmatch=True))
def test_every_channel_of_the_grammar_has_a_topic_and_is_shown_as_it_was_sent(channel):
    """G2: a `!` before two digits is no reason to refuse a channel; WAMP and NetworkTables show the same topic."""
    topic = bayeux.to_topic(channel, BOUNDS)
    assert bayeux.to_channel(topic) == channel
    assert wamp.to_topic(wamp.to_uri(topic), "", GRAMMAR) == topic
    name = to_name(topic)
    assert name is None or topic_of(name) == topic


@given(st.from_regex(r"[a-z0-9!é/]{1,9}(\.(![0-9a-f]{2}|21|a){1,5})?", fullmatch=True))
def test_every_uri_of_the_grammar_has_a_topic_and_is_shown_as_it_was_sent(uri):
    """The same for WAMP."""
    topic = wamp.to_topic(uri, "", GRAMMAR)
    assert wamp.to_uri(topic) == uri
    assert bayeux.to_topic(bayeux.to_channel(topic), BOUNDS) == topic


@pytest.mark.parametrize(
    ("name", "topic", "channel"),
    [
        ("/a/b", "a/b", "/a/b"),
        ("/SmartDashboard/Auto Chooser", "SmartDashboard/Auto!20Chooser", "/SmartDashboard/Auto!20Chooser"),
        ("/x/.type", "x/!2etype", "/x/!2etype"),
        ("/a.b/c", "a!2eb/c", "/a!2eb/c"),
        ("/a!b", "a!21b", "/a!b"),
        ("/a!21b", "a!2121b", "/a!21b"),
        ("/v2!41", "v2!2141", "/v2!41"),
        ("/weird!20name", "weird!2120name", "/weird!2120name"),
        ("/~($@)", "!7e!28!24!40!29", "/~($@)"),
        ("/\0", "!00", "/!00"),
        ("/ü", "!c3!bc", "/!c3!bc"),
        ("/\U0001f916", "!f0!9f!a4!96", "/!f0!9f!a4!96"),
        ("/$x", "!24x", "/$x"),
        ("/meta", "meta", "/meta"),
        ("/service", "service", "/service"),
        ("/wamp", "wamp", "/wamp"),
        ("/metal/x", "metal/x", "/metal/x"),
        ("/a/meta/x", "a/meta/x", "/a/meta/x"),
        ("/:a/b", "!3aa/b", "/!3aa/b"),
    ],
)
def test_what_a_name_is_elsewhere(name, topic, channel):
    """Characters that Bayeux' grammar does not allow are escaped byte by byte."""
    assert topic_of(name) == topic
    assert bayeux.to_channel(topic) == channel


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "//", "a", "a/b", "/a/", "//a", "/a//b", "$clients", "$pub$/x"),
        *("/meta/connect", "/service/x", "/wamp/x", "/meta/x/y"),
        *("/" + "a" * CHARS, "/" + "ü" * 50, "/a" * (SEGMENTS + 1)),
    ],
)
def test_names_of_networktables_own(name):
    """G2, G3, S16: a name is not shared if other protocols cannot show it, or reserve it for themselves."""
    assert topic_of(name) is None


@pytest.mark.parametrize("name", ["/" + "a" * (CHARS - 1), "/" + "ü" * 42 + "aa", "/a" * SEGMENTS])
def test_the_longest_names_that_are_shared(name):
    """S16: a name is shared up to the maximum length of a channel, counted as Bayeux shows it."""
    assert topic_of(name) is not None


@pytest.mark.parametrize("topic", ["a!2fb", "meta/x", "service/x", "wamp/x", "::/wamp/session", ":realm2/a"])
def test_topics_without_a_name(topic):
    """G2, G3: a topic has no name if it could be mistaken for another, or if a protocol reserves it."""
    assert to_name(topic) is None


def test_only_the_server_publishes_meta_topics():
    """NA13, ND7: names that begin with `$` are reserved for the server."""
    assert is_reserved("$clients")
    assert not is_reserved("/$clients")
    assert not is_reserved("")
