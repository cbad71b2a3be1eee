"""An event's arguments: stored as JSON and read back (W25, W64, W65)."""

import cbor2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.shapes import parts
from halley.protocols.wamp.errors import Unportable
from halley.protocols.wamp.events import arguments, elements, to_payload
from halley.protocols.wamp.serializers import CBOR, JSON, MSGPACK, SERIALIZERS

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["args", "kwargs", '],"kwargs":{', '"', "\\", ',"kwargs":{}}']
)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda deeper: st.lists(deeper, max_size=3) | st.dictionaries(TEXTS, deeper, max_size=3),
    max_leaves=12,
)
ARGS = st.lists(VALUES, max_size=3)
KWARGS = st.none() | st.dictionaries(TEXTS, VALUES, max_size=3)
BOTH = st.tuples(st.none(), st.none()) | st.tuples(ARGS, KWARGS)


def received(args, kwargs):
    """The arguments of an EVENT: empty keyword arguments are none, and empty arguments before them."""
    return (args, kwargs) if kwargs else ((args or None) if kwargs is not None else args, None)


def message_of(args, kwargs):
    """The payload elements at the end of an EVENT."""
    return [each for each in received(args, kwargs) if each is not None]


@given(BOTH, st.sampled_from([*SERIALIZERS.values()]))
def test_what_was_sent_is_sent_on(both, serializer):
    """W25: arguments are delivered as published, but for empty keyword arguments, in every serializer."""
    payload, shape = to_payload(*both, serializer)
    assert orjson.loads(b"[0" + elements(payload, shape) + b"]")[1:] == message_of(*both)
    assert arguments(payload, shape, serializer) == received(*both)


@pytest.mark.parametrize(
    ("args", "kwargs", "shape", "payload"),
    [
        (None, None, "none", b'{"args":[],"kwargs":{}}'),
        ([], None, "args", b'{"args":[],"kwargs":{}}'),
        ([], {}, "none", b'{"args":[],"kwargs":{}}'),
        (None, {}, "none", b'{"args":[],"kwargs":{}}'),
        ([7], None, "bare", b"7"),
        ([{"args": [1], "kwargs": {}}], None, "bare", b'{"args":[1],"kwargs":{}}'),
        ([7], {}, "bare", b"7"),
        ([1, 2], {}, "args", b'{"args":[1,2],"kwargs":{}}'),
        ([1, 2], None, "args", b'{"args":[1,2],"kwargs":{}}'),
        ([], {"a": 1}, "args+kwargs", b'{"args":[],"kwargs":{"a":1}}'),
        ([None], None, "bare", b"null"),
    ],
)
def test_what_other_protocols_see(args, kwargs, shape, payload):
    """A single argument is shown as a bare value, everything else as an object with `args` and `kwargs`."""
    assert to_payload(args, kwargs, JSON) == (payload, shape)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ([{"x": [], "kwargs": {}}], {"a": 1}),
        ([1], {"args": [[]], "kwargs": {"b": 2}}),
        (['],"kwargs":{'], {'],"kwargs":{': '],"kwargs":{'}),
    ],
)
def test_arguments_that_look_like_the_border_are_told_from_it(args, kwargs):
    """Stored args and kwargs are separated correctly, even if values look like the separator."""
    assert [orjson.loads(each) for each in parts(*to_payload(args, kwargs, JSON))] == [args, kwargs]


def test_no_arguments_before_keyword_arguments_are_an_empty_list():
    """Kwargs without args (null in a testament) are sent behind an empty list, as elements have fixed places."""
    assert elements(*to_payload(None, {"a": 1}, JSON)) == b',[],{"a":1}'


def test_a_value_of_another_protocol_is_the_one_argument():
    """W65: another protocol's data becomes the only argument, with its JSON unchanged."""
    assert elements(b'{"a": 1.50}', "bare") == b',[{"a": 1.50}]'


@pytest.mark.parametrize("serializer", [MSGPACK, CBOR])
@pytest.mark.parametrize(("args", "kwargs"), [([b"\x00\xff"], None), ([1, b"x"], None), ([b""], {"k": [b"\x01"]})])
def test_bytes_are_text_in_json_and_bytes_again_in_the_others(args, kwargs, serializer):
    """W64: bytes are stored as a string of NUL and base64, and are bytes again for binary serializers."""
    payload, shape = to_payload(args, kwargs, serializer)
    assert arguments(payload, shape, serializer) == (args, kwargs)
    assert b"\\u0000" in elements(payload, shape)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [([float("nan")], None), ([1, float("inf")], None), ([], {"a": 2**64}), ([cbor2.CBORTag(4000, 1)], None)],
)
def test_what_no_other_protocol_could_carry_is_refused(args, kwargs):
    """W64: NaN, infinities, integers beyond 64 bits and unknown CBOR tags are refused."""
    with pytest.raises(Unportable):
        to_payload(args, kwargs, CBOR)
