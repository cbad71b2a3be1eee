"""How deeply a JSON text is nested, compared with what a parser builds of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.broker.nesting import PARSED_LEVELS, has_more_levels
from halley.broker.ports import Erasure
from halley.protocols.json_text import NotJson, loads

TEXTS = st.text(st.sampled_from('[]{}"\\,:ax\u00e9\ud800'), max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
)


def levels(value):
    if not isinstance(value, list | dict):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(levels, inner), default=0)


@given(VALUES)
def test_levels_are_those_of_the_parsed_value(value):
    """Whatever brackets, quotes and escapes its strings have."""
    text = json.dumps(value)
    assert not has_more_levels(text, levels(value))
    assert levels(value) == 0 or has_more_levels(text.encode(), levels(value) - 1)


@pytest.mark.parametrize("text", [b'"' + b'\\"' * 500_000 + b"[" * 10, b'"' * 999_999 + b"[" * 10, b"[" * 1_000_000])
def test_hostile_texts_are_read_once(text):
    """A search for the end of each string, or a step back for each bracket, would take hours."""
    assert has_more_levels(text, 9) in (True, False)


@pytest.mark.parametrize("beyond", [1, 400, 5_000, 100_000])
def test_what_is_parsed_does_not_depend_on_the_interpreter(beyond):
    """Of texts with numbers for which the exact parser is used, and of events that may be to erase."""
    erasure = Erasure(None, "ada")
    for most, is_parsed in ((PARSED_LEVELS - 1, True), (PARSED_LEVELS - 1 + beyond, False)):
        huge = b"[" * most + b"[18446744073709551616]" + b"]" * most
        about_ada = '{"authid":"ada","x":' + "[" * most + "]" * most + "}"
        assert erasure.concerns("halley/sessions", None, about_ada) is is_parsed
        if is_parsed:
            assert loads(huge)[1]
        else:
            with pytest.raises(NotJson):
                loads(huge)
