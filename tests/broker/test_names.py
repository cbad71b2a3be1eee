"""Canonical names: one for each topic, however a protocol writes it."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halley.broker.errors import InvalidName, Refusal
from halley.broker.names import from_segment, to_segment

GRAMMARS = {
    "none": frozenset(),
    "Bayeux": frozenset("~()$@"),
    "dots": frozenset("."),
    "all": None,
}
CANONICAL = re.compile(r"(?:[A-Za-z0-9_-]|![0-9a-f]{2})+")


def shows(grammar):
    """Return a function that is true of the additional characters that a protocol of this grammar writes unescaped."""
    marks = GRAMMARS[grammar]
    return (lambda _: True) if marks is None else marks.__contains__


spelled = st.sampled_from("aA~. #é\u00a0€\U0001f30d!").map(
    lambda char: "".join(f"!{byte:02x}" for byte in char.encode())
)
pieces = spelled | st.sampled_from(["!", "21", "!21", "!ff", "!c3", "!a9", "!2E", "!e2!82", "!c0!80", "!ed!a0!80"])
texts = (
    st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8)
    | st.text(st.sampled_from("a!09fF~.$ é\U0001f30d"), min_size=1, max_size=8)
    | st.lists(pieces | st.sampled_from("a .é"), min_size=1, max_size=6).map("".join)
)
grammars = st.sampled_from(sorted(GRAMMARS))


def is_plain(char, grammar):
    return re.fullmatch(r"[A-Za-z0-9_!-]", char) is not None or shows(grammar)(char)


def begins_an_escape(text, grammar):
    """Whether a protocol of this grammar would read `!` before this text as an escape, or as an escaped `!`."""
    for count in range(1, 5):
        found = re.match(r"[0-9a-f]{2}" + r"![0-9a-f]{2}" * (count - 1), text)
        with suppress(UnicodeDecodeError):
            char = bytes.fromhex(found[0].replace("!", "")).decode() if found else ""
            if len(char) == 1 and not is_plain(char, grammar):
                return True
    return text.startswith("21") and begins_an_escape(text[2:], grammar)


def shown(text, grammar):
    """Return `text` as a protocol of this grammar writes it, without using the code under test."""
    parts = []
    for at, char in enumerate(text):
        if char == "!":
            parts.append("!21" if begins_an_escape(text[at + 1 :], grammar) else "!")
        elif is_plain(char, grammar):
            parts.append(char)
        else:
            parts.append("".join(f"!{byte:02x}" for byte in char.encode()))
    return "".join(parts)


@given(texts, grammars)
def test_a_name_survives_the_way_in_and_out(text, grammar):
    """A name that a protocol can write is returned as it was written; its internal form is canonical."""
    name = shown(text, grammar)
    canonical = to_segment(name, shows(grammar))
    assert CANONICAL.fullmatch(canonical)
    assert from_segment(canonical, shows(grammar)) == name


@given(texts, grammars, grammars)
def test_a_name_is_the_same_topic_in_every_protocol(text, one, other):
    """Two protocols' forms of the same text have one canonical name, and each form can be made from the other."""
    canonical = to_segment(shown(text, one), shows(one))
    assert canonical == to_segment(shown(text, other), shows(other))
    assert from_segment(canonical, shows(other)) == shown(text, other)


@given(texts, texts, grammars)
def test_different_names_are_different_topics(one, other, grammar):
    assume(one != other)
    assert to_segment(shown(one, grammar), shows(grammar)) != to_segment(shown(other, grammar), shows(grammar))


@given(texts, grammars)
def test_every_name_of_a_grammar_is_a_topic_s(text, grammar):
    """Whatever has only a protocol's plain characters is a name, and is shown as it was sent; nothing else is one."""
    if all(is_plain(char, grammar) for char in text):
        assert from_segment(to_segment(text, shows(grammar)), shows(grammar)) == text
    else:
        with pytest.raises(InvalidName):
            to_segment(text, shows(grammar))


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("abc-_Z9", "abc-_Z9"),
        ("a!b", "a!21b"),
        ("!", "!21"),
        ("!!", "!21!21"),
        ("a!2", "a!212"),
        ("!xx", "!21xx"),
        ("!AB", "!21AB"),
        ("~", "!7e"),
        ("$x@(y)", "!24x!40!28y!29"),
        ("v2!41", "v2!2141"),
        ("rails!4b", "rails!214b"),
        ("!7e!2d!5f", "!217e!212d!215f"),
        ("a!21b", "a!2121b"),
        ("!2121", "!212121"),
        ("!2e", "!2e"),
        ("!212e", "!212e"),
        ("!21212e", "!21212e"),
        ("!21!2e", "!2121!2e"),
        ("!7c!20", "!7c!20"),
        ("caf!c3!a9", "caf!c3!a9"),
        ("caf!21c3!a9", "caf!21c3!21a9"),
        ("!ff!c3!80", "!21ff!c3!80"),
        ("!c3!a9!a9", "!c3!a9!21a9"),
        ("!e2!82", "!21e2!2182"),
        ("!ed!a0!80", "!21ed!21a0!2180"),
        ("!c0!ae", "!21c0!21ae"),
    ],
)
def test_how_bayeux_writes_it(name, canonical):
    """A16: what spells a character that Bayeux cannot write is an escape; any other `!` is plain."""
    assert to_segment(name, shows("Bayeux")) == canonical
    assert from_segment(canonical, shows("Bayeux")) == name


@pytest.mark.parametrize("name", ["", ".", " ", "é", "a.b", "a*", "a\n", "!2e.", "\ud800"])
def test_what_bayeux_must_not_write(name):
    with pytest.raises(InvalidName):
        to_segment(name, shows("Bayeux"))


def test_half_a_surrogate_pair_is_in_no_name():
    """It is no text, even where a grammar has any character."""
    with pytest.raises(InvalidName):
        to_segment("a\ud800", shows("all"))


def test_a_refused_name_is_the_peers_fault():
    """An invalid name is a `Refusal`, with a reason for counters and replies."""
    assert issubclass(InvalidName, Refusal)
    assert InvalidName.reason == "invalid_name"
