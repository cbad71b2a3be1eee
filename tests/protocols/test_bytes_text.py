"""Bytes in JSON, for all protocols alike (W64)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.bytes_text import NotBytes, from_text, from_z85, is_for_bytes, to_text, to_z85


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


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("864fd26fb559f75b", "HelloWorld"),  # ZeroMQ RFC 32
        (
            "8e0bdd697628b91d8f245587ee95c5b04d48963f79259877b49cd9063aead3b7",
            "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6",  # the second key of the same page
        ),
        ("", ""),  # from here on four does not divide the length: cometd.js 9 has written these
        ("00", "00"),
        ("ff", "@@"),
        ("0001", "009"),
        ("ffffff", "%nS9"),
        ("000102030405060708", "009c61o!#m2M"),
    ],
)
def test_z85_is_what_cometd_writes(data, text):
    """The vectors of Z85's own page, and of CometD for what is left at the end."""
    assert to_z85(bytes.fromhex(data)) == text
    assert from_z85(text) == bytes.fromhex(data)


@given(st.binary(max_size=50))
def test_bytes_come_back_from_z85(data):
    """Nothing is lost, and each byte beyond a multiple of four takes one character more."""
    text = to_z85(data)
    assert from_z85(text) == data
    assert len(text) == len(data) + (len(data) + 3) // 4
    assert not {*text} & {*'"\\'}


@given(st.text(max_size=20))
def test_any_text_is_bytes_or_is_refused(text):
    """No text of a peer makes it fail in another way."""
    with suppress(NotBytes):
        assert len(from_z85(text)) == len(text) * 4 // 5


@pytest.mark.parametrize(
    "text", ["0", "HelloWorld0", "#####", "Hell~", "Hell;", "Hell ", "Hel\u00e9o", "\0aGk=", '"0000']
)
def test_what_z85_cannot_be(text):
    """A character too many, a number beyond 32 bits, and characters of other alphabets."""
    with pytest.raises(NotBytes):
        from_z85(text)
