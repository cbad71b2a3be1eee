"""Canonical names: one for each topic, however a protocol writes it."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from app.broker.errors import InvalidName, Refusal
from app.broker.names import from_segment, to_segment

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


texts = st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=8) | st.text(
    st.sampled_from("a!09fF~.$ é\U0001f30d"), min_size=1, max_size=8
)
grammars = st.sampled_from(sorted(GRAMMARS))


def shown(text, grammar):
    """Return `text` as a protocol of this grammar writes it, without using the code under test."""
    plain = shows(grammar)
    parts = []
    for at, char in enumerate(text):
        if char == "!":
            parts.append("!21" if re.match(r"[0-9a-f]{2}", text[at + 1 :]) else "!")
        elif re.match(r"[A-Za-z0-9_-]", char) or plain(char):
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
def test_only_the_shortest_form_is_a_name(text, grammar):
    """Only the form that would be written out is accepted, so no topic has a second name."""
    try:
        canonical = to_segment(text, shows(grammar))
    except InvalidName:
        return
    assert from_segment(canonical, shows(grammar)) == text


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
        ("!2e", "!2e"),
        ("caf!c3!a9", "caf!c3!a9"),
        ("!2121", "!2121"),
    ],
)
def test_how_bayeux_writes_it(name, canonical):
    """A16: Bayeux's own marks are written plainly and escaped internally; `!` is plain unless two hex digits follow."""
    assert to_segment(name, shows("Bayeux")) == canonical
    assert from_segment(canonical, shows("Bayeux")) == name


@pytest.mark.parametrize(
    "name", ["", ".", " ", "é", "a.b", "a*", "!21", "!21b", "!61", "!7e", "!ff", "!c3", "!80", "a\n"]
)
def test_what_bayeux_must_not_write(name):
    """`/a!21b` is refused, as its shortest form is `/a!b`; so are other characters and bytes that are not UTF-8."""
    with pytest.raises(InvalidName):
        to_segment(name, shows("Bayeux"))


def test_a_refused_name_is_the_peers_fault():
    """An invalid name is a `Refusal`, with a reason for counters and replies."""
    assert issubclass(InvalidName, Refusal)
    assert InvalidName.reason == "invalid_name"
