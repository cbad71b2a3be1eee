"""The three serializers: how values are read and written, and what is refused (W64, S28, S29)."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import gc
import json
import math
import resource
import struct
import sys
from types import SimpleNamespace

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.wamp.errors import Undecodable, Unportable, Violation
from halley.protocols.wamp.messages import read
from halley.protocols.wamp.serializers import (
    CBOR,
    JSON,
    MSGPACK,
    SERIALIZERS,
    is_absent,
)

BOUNDS = SimpleNamespace(nesting=64, nodes=20_000)
ALL = list(SERIALIZERS.values())
BINARY = [MSGPACK, CBOR]
EXT = msgspec.msgpack.Ext
pack = {"json": lambda value: json.dumps(value).encode(), "msgpack": msgspec.msgpack.encode, "cbor": cbor2.dumps}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda text: text[:1] != "\0")
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
with_bytes = st.recursive(
    scalars | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def same(one, other):
    """Whether two values are equal and of the same types, also 0.0 and -0.0."""
    return repr(one) == repr(other)


def unpack(serializer, value):
    """A value that a foreign encoder has written, read by this serializer."""
    return serializer.unpack(pack[serializer.name](value), BOUNDS)


@pytest.mark.parametrize("serializer", ALL, ids=lambda each: each.name)
@given(plain)
def test_values_pass_unchanged(serializer, value):
    """A value from a foreign encoder, stored as JSON and written again, is the same for a foreign decoder."""
    came = unpack(serializer, value)
    assert same(came, value)
    rests = serializer.to_json(came)
    assert same(json.loads(rests), value)
    sent = serializer.pack(serializer.from_json(rests))
    foreign = {"json": json.loads, "msgpack": msgspec.msgpack.decode, "cbor": cbor2.loads}[serializer.name]
    assert same(foreign(sent), value)


@pytest.mark.parametrize("source", BINARY, ids=lambda each: each.name)
@pytest.mark.parametrize("target", BINARY, ids=lambda each: each.name)
@given(with_bytes)
def test_bytes_pass_between_binary_serializers(source, target, value):
    """Bytes are stored as the string that WAMP prescribes, and are bytes again in binary serializers (W64)."""
    rests = source.to_json(unpack(source, value))
    assert same(target.from_json(rests), value)


@pytest.mark.parametrize("serializer", BINARY, ids=lambda each: each.name)
@pytest.mark.parametrize("value", [b"", b"\0", b"\xff\xfe", b"a" * 1_000])
def test_how_json_shows_bytes(serializer, value):
    """JSON has a NUL and base64 for bytes, in both directions (Basic Profile, binary support in JSON)."""
    text = "\0" + base64.b64encode(value).decode()
    assert json.loads(serializer.to_json(unpack(serializer, [value]))) == [text]
    assert serializer.from_json(JSON.to_json([text, {"k": text}])) == [value, {"k": value}]
    assert JSON.from_json(serializer.to_json([value])) == [text]


@pytest.mark.parametrize("text", ["\0?", "\0é", "\0a", "a\0YQ==", "\0YQ==\n", "\\u0000YQ=="])
def test_texts_that_only_look_like_bytes(text):
    """Strings that are not NUL and valid base64 stay unchanged."""
    for serializer in BINARY:
        assert serializer.from_json(serializer.to_json(unpack(serializer, [text]))) == [text]


@pytest.mark.parametrize("serializer", ALL, ids=lambda each: each.name)
@pytest.mark.parametrize(
    "number", [-0.0, 0.0, 2**53 + 1, -(2**63), 2**64 - 1, 5e-324, 1.7976931348623157e308, 1.0, 0.1]
)
def test_numbers_at_the_edges(serializer, number):
    """Integers of 64 bits and doubles are unchanged (W64)."""
    rests = serializer.to_json(unpack(serializer, [number]))
    for reader in ALL:
        assert same(reader.from_json(rests), [number])


UNPORTABLE = [
    (MSGPACK, msgspec.msgpack.encode([math.nan])),
    (MSGPACK, msgspec.msgpack.encode([{"a": [math.inf]}])),
    (MSGPACK, msgspec.msgpack.encode([-math.inf])),
    (MSGPACK, msgspec.msgpack.encode([{1: 2}])),
    (MSGPACK, msgspec.msgpack.encode([{b"a": 2}])),
    (MSGPACK, msgspec.msgpack.encode([{None: 2}])),
    (MSGPACK, msgspec.msgpack.encode([{(1, 2): 2}])),
    (MSGPACK, msgspec.msgpack.encode([EXT(1, b"x")])),
    (MSGPACK, msgspec.msgpack.encode([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)])),
    (CBOR, cbor2.dumps([math.nan])),
    (CBOR, bytes.fromhex("81f97e00")),
    (CBOR, cbor2.dumps([[-math.inf]])),
    (CBOR, cbor2.dumps([2**64])),
    (CBOR, cbor2.dumps([-(2**64)])),
    (CBOR, bytes.fromhex("813bffffffffffffffff")),
    (CBOR, cbor2.dumps([{1: 2}])),
    (CBOR, cbor2.dumps([{b"a": 2}])),
    (CBOR, cbor2.dumps([{(1, 2): 2}])),
    (CBOR, cbor2.dumps([cbor2.CBORSimpleValue(99)])),
    (JSON, b"[18446744073709551616]"),
    (JSON, b"[-9223372036854775809]"),
    (JSON, b'[{"a": [1e400]}]'),
    (JSON, b"[-1e400]"),
    (JSON, b"[" + b"9" * 5_000 + b"]"),
]


@pytest.mark.parametrize(("serializer", "data"), UNPORTABLE)
def test_what_not_every_protocol_can_carry(serializer, data):
    """A value that JSON does not have is read, but cannot be stored; so it fails its publish only."""
    value = serializer.unpack(data, BOUNDS)
    with pytest.raises(Unportable):
        serializer.to_json(value)
    message = serializer.unpack(_publish_of(serializer, data), BOUNDS)
    assert read(message).topic == "a.b"


def _publish_of(serializer, data):
    """The bytes of `[16, 1, {}, "a.b", data]`."""
    if serializer is JSON:
        return b'[16, 1, {}, "a.b", ' + data + b"]"
    start = b"\x95\x10\x01\x80\xa3a.b" if serializer is MSGPACK else b"\x85\x10\x01\xa0\x63a.b"
    return start + data


@pytest.mark.parametrize(
    "tag", [*range(7), *range(21, 38), *range(250, 270), 100, 1004, 1_000, 43_000, 55_799, 2**64 - 1]
)
def test_no_tag_of_cbor_is_followed(tag):
    """CBOR's tags for dates, big numbers, references and the like are not interpreted, and refused as payload (W64)."""
    for inner in ([1, 2], "2013-03-21T20:04:00Z", 1, b"\xff" * 16, "(a+)+$"):
        value = CBOR.unpack(cbor2.dumps([{"a": cbor2.CBORTag(tag, inner)}]), BOUNDS)
        with pytest.raises(Unportable):
            CBOR.to_json(value)
        with pytest.raises(Undecodable):
            CBOR.unpack(cbor2.dumps({cbor2.CBORTag(tag, 1): 1}), BOUNDS)
    with pytest.raises(Violation):
        read(CBOR.unpack(cbor2.dumps(cbor2.CBORTag(tag, [1, "realm1", {}])), BOUNDS))


@pytest.mark.parametrize(
    "data",
    [
        "81d81c81d81d00",  # a list that has itself
        "81d81ca16161d81d00",  # a dictionary that has itself
        "82d81c820101d81c82d81d00d81d00",  # two references each to what has two: 60 of these would be 2^60 values
    ],
)
def test_references_of_cbor_lead_nowhere(data):
    """CBOR's references are not followed, so no value is larger than its bytes."""
    value = CBOR.unpack(bytes.fromhex(data), BOUNDS)
    with pytest.raises(Unportable):
        CBOR.to_json(value)


def test_what_counts_as_absent():
    """CBOR's undefined, its form in msgpack, and null count as absent; in a payload they are null (W18, W64)."""
    for serializer, data in ((CBOR, b"\x81\xf7"), (MSGPACK, b"\x91\xd4\x00\x00"), (MSGPACK, b"\x91\xc7\x00\x00")):
        value = serializer.unpack(data, BOUNDS)
        assert is_absent(value[0])
        assert serializer.to_json(value) == b"[null]"
    assert is_absent(None)
    assert not any(map(is_absent, [0, False, "", [], {}, b"", EXT(1, b""), cbor2.CBORSimpleValue(99)]))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1",
        b"[1]]",
        b"[1] x",
        b"[NaN]",
        b"[Infinity]",
        b"[01]",
        b"['a']",
        b"\xef\xbb\xbf[1]",
        b'["\xff"]',
        b'["\xed\xa0\x80"]',
        b'["\\ud800"]',
        b'["\\udc00", 18446744073709551616]',
        b'["\x1e"]',
        "[1]".encode("utf-16"),
        b"[1, 1e400, NaN]",
    ],
)
def test_what_is_no_json(text):
    """Malformed JSON, byte order marks, lone surrogates, other bytes than UTF-8 and NaN are refused (S28)."""
    with pytest.raises(Undecodable):
        JSON.unpack(text, BOUNDS)


def test_of_a_key_that_comes_twice_the_last_holds():
    """Of a duplicate key all serializers keep the last value."""
    for serializer, data in (
        (JSON, b'{"a": 1, "a": 2}'),
        (MSGPACK, b"\x82\xa1a\x01\xa1a\x02"),
        (CBOR, b"\xa2\x61a\x01\x61a\x02"),
    ):
        assert serializer.to_json(serializer.unpack(data, BOUNDS)) == b'{"a":2}'


LYING = [
    *((MSGPACK, first + b"\xff\xff\xff\xff") for first in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")),
    *((CBOR, first + b"\xff\xff\xff\xff") for first in (b"\x9a", b"\xba", b"\x7a", b"\x5a")),
    *((CBOR, first + b"\x3f" + b"\xff" * 7) for first in (b"\x9b", b"\xbb", b"\x7b", b"\x5b")),
]
BROKEN = [
    *LYING,
    (MSGPACK, b""),
    (MSGPACK, b"\xc1"),
    (MSGPACK, b"\x01\x01"),
    (MSGPACK, b"\xa1\xff"),
    (MSGPACK, b"\xa3\xed\xa0\x80"),
    (CBOR, b""),
    (CBOR, b"\x01\x01"),
    (CBOR, b"\x01\x83"),
    (CBOR, b"\xff"),
    (CBOR, b"\x9f\x01"),
    (CBOR, b"\x1c"),
    (CBOR, b"\x61\xff"),
    (CBOR, b"\x63\xed\xa0\x80"),
    (CBOR, b"\xa1\xa0"),
]


@pytest.mark.parametrize(("serializer", "data"), BROKEN)
def test_what_is_no_message_of_a_binary_serializer(serializer, data):
    """Lengths that claim 4 GB, bytes behind a value and strings that are not UTF-8 are refused (S28, S29)."""
    with pytest.raises(Undecodable):
        serializer.unpack(data, BOUNDS)


@pytest.mark.parametrize("serializer", ALL, ids=lambda each: each.name)
def test_messages_cut_anywhere(serializer):
    """A message that is cut at any byte is refused (S29)."""
    value = [16, 1, {"acknowledge": True}, "a.b", [1.5, "é", None, {"k": [2**40, -7]}], {"x": "y" * 300}]
    data = pack[serializer.name](value)
    assert serializer.unpack(data, BOUNDS) == value
    for at in range(len(data)):
        with pytest.raises(Undecodable):
            serializer.unpack(data[:at], BOUNDS)


def nested(serializer, levels, wide=None):
    """The bytes of `levels` nested lists; `wide` is the innermost value."""
    data = pack[serializer.name](wide) if wide is not None else b""
    if serializer is JSON:
        return b"[" * levels + data + b"]" * levels
    return (b"\x91" if serializer is MSGPACK else b"\x81") * (levels - (not data)) + (data or pack[serializer.name]([]))


@pytest.mark.parametrize("serializer", ALL, ids=lambda each: each.name)
def test_nesting_is_bounded(serializer):
    """Values nested deeper than the limit are refused by all serializers; 200,000 levels do not crash (S29)."""
    for innermost in (None, 1):
        assert serializer.unpack(nested(serializer, BOUNDS.nesting, innermost), BOUNDS)
        for levels in (BOUNDS.nesting + 1, 300, 1_000, 200_000):
            with pytest.raises(Undecodable):
                serializer.unpack(nested(serializer, levels, innermost), BOUNDS)
    assert serializer.to_json(serializer.unpack(nested(serializer, BOUNDS.nesting), BOUNDS))


@pytest.mark.parametrize("serializer", ALL, ids=lambda each: each.name)
@pytest.mark.parametrize("element", [0, [], {}, {"a": 1}, "é" * 4])
def test_values_are_counted(serializer, element):
    """A message with more values than the limit is refused; keys and values of objects both count (S29)."""
    each = 2 if element == {"a": 1} else 1
    bounds = SimpleNamespace(nesting=64, nodes=3_001)
    assert serializer.unpack(pack[serializer.name]([element] * (3_000 // each)), bounds)
    with pytest.raises(Undecodable):
        serializer.unpack(pack[serializer.name]([element] * (3_000 // each + 1)), bounds)


def keys_of_one_hash(count):
    """Pairs of integers that have the same hash as Python tuples."""
    whole = 2**64
    first, second, start, wanted = 11400714785074694791, 14029467366897019727, 2870177450012600261, 1
    inverse = pow(second, -1, whole)
    found = []
    for number in range(1, 10**6):
        mixed = (start + number * second) % whole
        mixed = ((mixed << 31) | (mixed >> 33)) % whole * first % whole
        other = (wanted - mixed) * inverse % whole
        other -= whole * (other >= whole // 2)
        if abs(other) < 2**61 - 1:
            found.append((number, other))
            if len(found) == count:
                return found
    raise AssertionError


@pytest.mark.parametrize("serializer", BINARY, ids=lambda each: each.name)
def test_keys_that_are_made_to_collide(serializer):
    """A dictionary with colliding keys, which would block the server for seconds, is refused before it is built."""
    keys = keys_of_one_hash(1_000)
    assert len({hash(key) for key in keys}) == 1
    few, many = ([16, 1, {}, "a.b", [dict.fromkeys(keys[:count], 1)]] for count in (50, 1_000))
    with pytest.raises(Unportable):
        serializer.to_json(unpack(serializer, few)[4])
    with pytest.raises(Undecodable):
        unpack(serializer, many)


@pytest.mark.parametrize("serializer", BINARY, ids=lambda each: each.name)
@given(with_bytes)
def test_large_messages_are_read_alike(serializer, value):
    """Messages with many containers, whose keys are checked more closely, are read like others."""
    large = [value, [[]] * 1_000, {"é": [{}] * 10}]
    assert same(unpack(serializer, large), large)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        *BROKEN,
        *((serializer, nested(serializer, 1_000)) for serializer in BINARY),
        *((serializer, pack[serializer.name]([[]] * 30_000)) for serializer in BINARY),
        (MSGPACK, msgspec.msgpack.encode([{1: 2, b"a": 3}, EXT(5, b"abc")])),
        (CBOR, cbor2.dumps([{1: 2, b"a": 3}, cbor2.CBORTag(35, "a*"), 2**70])),
        (CBOR, bytes.fromhex("81d81c81d81d00")),
        (JSON, b'["' + b"9" * 40 + b'", 1e400, {"a": 18446744073709551616}]'),
        (JSON, b"[" * 1_000 + b"]" * 1_000),
    ],
)
def test_nothing_stays_behind(serializer, data):
    """Reading hundreds of malformed messages leaks no memory (S29)."""
    times = 600 if len(data) < 2_000 else 10

    def again(times):
        for _ in range(times):
            with contextlib.suppress(Undecodable, Unportable):
                serializer.to_json(serializer.unpack(data, BOUNDS))
        gc.collect()
        return sys.getallocatedblocks()

    before = again(50)
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert again(times) - before < 300
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss_before < 1_024  # KiB


@given(st.binary(max_size=64))
def test_any_bytes_at_all(data):
    """Any bytes are read, or raise `Undecodable` or `Unportable` and nothing else."""
    for serializer in ALL:
        try:
            value = serializer.unpack(data, BOUNDS)
            rests = serializer.to_json(value)
        except (Undecodable, Unportable):
            continue
        for other in ALL:
            assert other.unpack(other.pack(other.from_json(rests)), BOUNDS) is not ...


OCTETS = {  # written by hand, as in wamp-proto's test suite: a message, and its forms in each serializer
    "HELLO": (
        [1, "a.b", {"roles": {}}],
        '[1,"a.b",{"roles":{}}]',
        "93 01 a3612e62 81 a5726f6c6573 80",
        "83 01 63612e62 a1 65726f6c6573 a0",
    ),
    "PUBLISH": (
        [16, 2, {"exclude_me": False}, "a.b", [-1], {"k": 1.5}],
        '[16, 2, {"exclude_me":false}, "a.b", [-1], {"k": 1.5}]',
        "96 10 02 81 aa6578636c7564655f6d65 c2 a3612e62 91 ff 81 a16b cb3ff8000000000000",
        "86 10 02 a1 6a6578636c7564655f6d65 f4 63612e62 81 20 a1 616b f93e00",
    ),
    "UNSUBSCRIBE": (
        [34, 3, 2**40],
        "[34,3,1099511627776]",
        "93 22 03 cf0000010000000000",
        "83 1822 03 1b0000010000000000",
    ),
    "an id as JavaScript writes it": (
        [34, 3, 2**40],
        "[34,3,1099511627776.0]",
        "93 22 03 cb4270000000000000",
        "83 1822 03 fb4270000000000000",
    ),
    "lengths without need": (
        [34, 3, 5],
        " [34 , 3\n, 5 ]\t",
        "dc0003 cc22 ce00000003 cd0005",
        "9a00000003 1822 190003 1a00000005",
    ),
    "CBOR without lengths": ([6, {}, "a.b"], '[6,{},"a.b"]', "93 06 80 a3612e62", "9f 06 bf ff 7f 61 61 62 2e62 ff ff"),
}


@pytest.mark.parametrize("name", OCTETS)
def test_octets(name):
    """Messages are read the same from every way to write them."""
    value, text, msgpack, cbor = OCTETS[name]
    for serializer, data in ((JSON, text.encode()), (MSGPACK, bytes.fromhex(msgpack)), (CBOR, bytes.fromhex(cbor))):
        assert read(serializer.unpack(data, BOUNDS)) == read(value)


def test_a_4_gb_length_takes_no_memory():
    """A length of 4 GB allocates no memory if the bytes are missing (S29)."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for serializer, data in LYING:
        with pytest.raises(Undecodable):
            serializer.unpack(data + struct.pack(">I", 0) * 8, BOUNDS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_024  # KiB
