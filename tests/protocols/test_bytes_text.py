"""Bytes in JSON, for all protocols alike (W64)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.bytes_text import NotBytes, from_text, is_for_bytes, to_text


def test_the_example_of_the_specification():
    """Basic Profile 3.2: its own bytes, and what stands for them."""
    data = bytes.fromhex("10e3ff9053075c526f5fc06d4fe37cdb")
    assert to_text(data) == "\0EOP/kFMHXFJvX8BtT+N82w=="


@given(st.binary(max_size=50))
def test_bytes_come_back(data):
    """Nothing is lost on the way through JSON."""
    assert is_for_bytes(to_text(data))
    assert from_text(to_text(data)) == data


@pytest.mark.parametrize("text", ["", "aGk=", "\0a", "\0aGk", "\0a k=", "\0aGk=\n", "\0\u00fc\u00fc==", "\0\0"])
def test_other_texts_stand_for_none(text):
    """They are what they are."""
    with pytest.raises(NotBytes):
        from_text(text)
