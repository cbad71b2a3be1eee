"""A publication's arguments, kept as JSON text and given back (W25, W64, W65)."""

import cbor2
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.wamp.payloads import elements, parts, shown, stored
from app.protocols.wamp.serializers import CBOR, JSON, MSGPACK, SERIALIZERS, Unportable

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


def message_of(args, kwargs):
    """The end of an EVENT as it must be."""
    return [each for each in (args, kwargs) if each is not None]


@given(BOTH, st.sampled_from([*SERIALIZERS.values()]))
def test_what_was_sent_is_sent_on(both, serializer):
    """W25: exactly as published, with as many elements, to peers of every serializer."""
    payload, shape = stored(*both, serializer)
    assert orjson.loads(b"[0" + elements(payload, shape) + b"]")[1:] == message_of(*both)
    assert shown(payload, shape, serializer) == both


@pytest.mark.parametrize(
    ("args", "kwargs", "shape", "payload"),
    [
        (None, None, "none", b'{"args":[],"kwargs":{}}'),
        ([], None, "args", b'{"args":[],"kwargs":{}}'),
        ([], {}, "args+kwargs", b'{"args":[],"kwargs":{}}'),
        ([7], None, "bare", b"7"),
        ([{"args": [1], "kwargs": {}}], None, "bare", b'{"args":[1],"kwargs":{}}'),
        ([7], {}, "args+kwargs", b'{"args":[7],"kwargs":{}}'),
        ([1, 2], None, "args", b'{"args":[1,2],"kwargs":{}}'),
        ([], {"a": 1}, "args+kwargs", b'{"args":[],"kwargs":{"a":1}}'),
        ([None], None, "bare", b"null"),
    ],
)
def test_what_other_protocols_see(args, kwargs, shape, payload):
    """One argument alone is a bare value, all else has both members."""
    assert stored(args, kwargs, JSON) == (payload, shape)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ([{"x": [], "kwargs": {}}], {"a": 1}),
        ([1], {"args": [[]], "kwargs": {"b": 2}}),
        (['],"kwargs":{'], {'],"kwargs":{': '],"kwargs":{'}),
    ],
)
def test_arguments_that_look_like_the_border_are_told_from_it(args, kwargs):
    """The two texts are cut where they were joined."""
    assert [orjson.loads(each) for each in parts(*stored(args, kwargs, JSON))] == [args, kwargs]


def test_no_arguments_before_keyword_arguments_are_an_empty_list():
    """A message has them by their place (a testament's `args` may be null)."""
    assert elements(*stored(None, {"a": 1}, JSON)) == b',[],{"a":1}'


def test_a_value_of_another_protocol_is_the_one_argument():
    """W65: `args: [data]`, its text as it was."""
    assert elements(b'{"a": 1.50}', "bare") == b',[{"a": 1.50}]'


@pytest.mark.parametrize("serializer", [MSGPACK, CBOR])
@pytest.mark.parametrize(("args", "kwargs"), [([b"\x00\xff"], None), ([1, b"x"], None), ([b""], {"k": [b"\x01"]})])
def test_bytes_are_text_in_json_and_bytes_again_in_the_others(args, kwargs, serializer):
    """W64: a NUL and base64."""
    payload, shape = stored(args, kwargs, serializer)
    assert shown(payload, shape, serializer) == (args, kwargs)
    assert b"\\u0000" in elements(payload, shape)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [([float("nan")], None), ([1, float("inf")], None), ([], {"a": 2**64}), ([cbor2.CBORTag(4000, 1)], None)],
)
def test_what_no_other_protocol_could_carry_is_refused(args, kwargs):
    """W64."""
    with pytest.raises(Unportable):
        stored(args, kwargs, CBOR)
