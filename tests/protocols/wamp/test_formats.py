"""Batched messages: both separators, lengths, and malformed batches (W60, Basic Profile)."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.wamp.errors import Undecodable
from halley.protocols.wamp.serializers import SUBPROTOCOLS, Format

MOST = 5
messages = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=MOST)


def a_format(subprotocol):
    """A format that writes `<` and `>` around each frame."""
    return Format(subprotocol, lambda message: b"<" + message + b">")


def lengths(*parts):
    """A binary batch of these messages."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def test_the_subprotocols():
    """Three serializers are spoken, each with and without batches (W58)."""
    assert sorted(SUBPROTOCOLS) == [
        "wamp.2.cbor",
        "wamp.2.cbor.batched",
        "wamp.2.json",
        "wamp.2.json.batched",
        "wamp.2.msgpack",
        "wamp.2.msgpack.batched",
    ]


@pytest.mark.parametrize("subprotocol", ["wamp.2.json", "wamp.2.msgpack", "wamp.2.cbor"])
@pytest.mark.parametrize("data", [b"", b"[1]", b"\x1e", b"[1]\x1e[2]\x1e", b"\0\0\0\1a"])
def test_without_batches_a_transport_message_is_one_message(subprotocol, data):
    """Without batching any data is one message, even separators and lengths."""
    assert a_format(subprotocol).split(data, MOST) == [data]
    assert a_format(subprotocol).frame(data) == b"<" + data + b">"


@given(messages)
def test_binary_batches(parts):
    """Each message is preceded by its length, and a single one is a batch of one (W60)."""
    batched = a_format("wamp.2.msgpack.batched")
    assert batched.split(lengths(*parts), MOST) == parts
    assert batched.frame(parts[0]) == b"<" + lengths(parts[0]) + b">"


@given(messages, st.data())
def test_a_binary_batch_that_is_cut(parts, data):
    """A batch that is cut is refused, unless it is cut between two messages."""
    whole = lengths(*parts)
    at = data.draw(st.integers(0, len(whole) - 1))
    ends = [len(lengths(*parts[:count])) for count in range(1, len(parts))]
    batched = a_format("wamp.2.cbor.batched")
    if at in ends:
        assert batched.split(whole[:at], MOST) == parts[: ends.index(at) + 1]
    else:
        with pytest.raises(Undecodable):
            batched.split(whole[:at], MOST)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\0\0\0\0",
        lengths(b"a", b""),
        lengths(b"a") + b"\0",
        lengths(b"a") + b"b",
        b"\xff\xff\xff\xffa",
        b"\0\0\0\2a",
        lengths(*[b"a"] * (MOST + 1)),
    ],
)
def test_what_is_no_binary_batch(data):
    """Empty batches and messages, trailing bytes, wrong lengths and too many messages are refused (W60)."""
    with pytest.raises(Undecodable):
        a_format("wamp.2.msgpack.batched").split(data, MOST)


@pytest.mark.parametrize("mark", [b"\x1e", b"\x18"])
def test_a_peer_gets_the_separator_that_it_used_first(mark):
    """The server writes the separator that the peer used first: 0x1e, or 0x18 as in the first implementations (W60)."""
    batched = a_format("wamp.2.json.batched")
    assert batched.split(b"[1]" + mark + b"[2]" + mark, MOST) == [b"[1]", b"[2]"]
    assert batched.write([3]) == b"<[3]" + mark + b">"
    other = {b"\x1e": b"\x18", b"\x18": b"\x1e"}[mark]
    assert batched.split(b"[4]" + other, MOST) == [b"[4]"]
    assert batched.write([5]) == b"<[5]" + mark + b">"


def test_links_with_different_separators_share_no_bytes():
    """Formats with different separators have different keys, so that no bytes are shared between them."""
    one, other = a_format("wamp.2.json.batched"), a_format("wamp.2.json.batched")
    one.split(b"[1]\x1e", MOST)
    other.split(b"[1]\x18", MOST)
    assert len({one.key, other.key, a_format("wamp.2.json").key}) == 3


def test_before_a_peer_has_said_anything_the_specification_holds():
    """Before a peer has sent a valid batch, 0x1e is written (W60)."""
    batched = a_format("wamp.2.json.batched")
    with pytest.raises(Undecodable):
        batched.split(b"\x18", MOST)
    assert batched.write(["\x1e\x18"]) == b'<["\\u001e\\u0018"]\x1e>'


@pytest.mark.parametrize(
    "data", [b"", b"[1]", b"\x1e", b"\x18", b"[1]\x1e[2]", b"[1]\x1e\x1e", b"\x1e[1]\x1e", b"[1]\x1e" * (MOST + 1)]
)
def test_what_is_no_batch_of_json(data):
    """Empty batches and messages, a missing separator and too many messages are refused (W60)."""
    with pytest.raises(Undecodable):
        a_format("wamp.2.json.batched").split(data, MOST)


def test_mixed_separators_are_no_json():
    """The second separator becomes part of a message, which is not JSON then, as it has a raw control character."""
    batched = a_format("wamp.2.json.batched")
    (message,) = batched.split(b"[1]\x1e[2]\x18", MOST)
    with pytest.raises(json.JSONDecodeError):
        json.loads(message)
