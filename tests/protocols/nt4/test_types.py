"""Types, and how values are converted to JSON and back (NA22, NA23, G5)."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.nt4.types import (
    BadValue,
    Unportable,
    accept,
    from_json,
    number_of,
    to_json,
    type_of,
)

INF, NAN = float("inf"), float("nan")


def int_of(number):
    """The nearest whole number within 65 bits."""
    return int(max(-(2.0**65), min(number, 2.0**65)))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=10)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | FINITE
    | st.integers(-(2**53), 2**53)  # beyond, doubles are not exact
    | TEXTS
    | st.sampled_from(["\0", "\0aGk=", "\0a", "\0aGk=\n"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
PLAIN_TEXTS = TEXTS.filter(lambda text: not text.startswith("\0"))
VALUES = {
    "boolean": st.booleans(),
    "double": FINITE,
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "string": PLAIN_TEXTS,
}
TYPED = st.one_of(
    *(st.tuples(st.just(name), values) for name, values in VALUES.items()),
    *(st.tuples(st.just(f"{name}[]"), st.lists(values, max_size=5)) for name, values in VALUES.items()),
    *(st.tuples(st.just(name), st.binary(max_size=9)) for name in ("raw", "msgpack", "struct:Pose2d", "")),
)


@pytest.mark.parametrize(
    ("type_name", "number"),
    [("boolean", 0), ("double", 1), ("int", 2), ("float", 3), ("string", 4), ("json", 4)]
    + [(name, 5) for name in ("raw", "rpc", "msgpack", "protobuf", "struct:Pose2d", "", "json[]", "raw[]", "Double")]
    + [("boolean[]", 16), ("double[]", 17), ("int[]", 18), ("float[]", 19), ("string[]", 20)],
)
def test_the_number_of_a_type(type_name, number):
    """NA22: each known type has its number, and unknown types have the number of bytes."""
    assert number_of(type_name) == number


@pytest.mark.parametrize(
    ("type_name", "value", "accepted"),
    [
        ("double", 5, 5.0),
        ("double", NAN, NAN),
        ("double", -INF, -INF),
        ("float", 5, 5.0),
        ("float", 0.1, 0.10000000149011612),
        ("float", 1e300, INF),
        ("float", -1e300, -INF),
        ("float", NAN, NAN),
        ("double[]", [1, 2.5], [1.0, 2.5]),
        ("float[]", [1, 1e300], [1.0, INF]),
        ("int[]", [], []),
        ("int", -(2**63), -(2**63)),
        ("string", "a\0b", "a\0b"),
        ("json", "no JSON", "no JSON"),
    ],
)
def test_what_is_accepted(type_name, value, accepted):
    """NA23: numbers are converted as C does; any string is accepted for `json`, even if it is not JSON."""
    found = accept(number_of(type_name), value)
    assert repr(found) == repr(accepted)


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("boolean", 0),
        ("boolean", None),
        ("double", True),
        ("double", "1"),
        ("int", 1.0),
        ("int", True),
        ("int", 2**63),
        ("int", -(2**63) - 1),
        ("float", False),
        ("string", b"a"),
        ("raw", "a"),
        ("raw", bytearray()),
        ("int[]", 1),
        ("int[]", (1,)),
        ("int[]", [True]),
        ("int[]", [1, 2**63]),
        ("double[]", [1.0, None]),
        ("string[]", ["a", 1]),
        ("boolean[]", [[True]]),
        ("string", {}),
        ("string[]", "ab"),
    ],
)
def test_what_is_no_value_of_its_type(type_name, value):
    """NA23, G11: floats are refused for int, booleans for numbers, and arrays of mixed types."""
    with pytest.raises(BadValue, match="beyond 64 bits|" + type_name.replace("[]", r"\[\]")):
        accept(number_of(type_name), value)


@pytest.mark.parametrize("number", [-1, 6, 15, 21, 32, 2**70])
def test_there_are_no_other_types(number):
    """NA22: an unknown type number is refused."""
    with pytest.raises(BadValue):
        accept(number, 1)


@given(TYPED)
def test_a_value_comes_back_from_its_json(typed):
    """A value that is converted to JSON and back is the same, of the same type."""
    type_name, value = typed
    payload = to_json(type_name, value)
    assert orjson.loads(payload) is not None
    found = from_json(type_name, payload)
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    ("type_name", "value", "payload"),
    [
        ("double", 5.0, b"5.0"),
        ("int", 2**63 - 1, b"9223372036854775807"),
        ("raw", b"hi", b'"\\u0000aGk="'),
        ("struct:Pose2d", b"", b'"\\u0000"'),
        ("json", ' {"a": [1, 2.0, null]} ', b'{"a":[1,2.0,null]}'),
        ("json", '"text"', b'"text"'),
        ("string", '{"a": 1}', b'"{\\"a\\": 1}"'),
        ("string[]", ["a", "b\0"], b'["a","b\\u0000"]'),
    ],
)
def test_the_json_of_a_value(type_name, value, payload):
    """Bytes become a string as WAMP prescribes, and a `json` value becomes the JSON that it contains."""
    assert to_json(type_name, value) == payload


@pytest.mark.parametrize(
    ("type_name", "value"),
    [("double", NAN), ("double", INF), ("float", -INF), ("double[]", [1.0, NAN]), ("float[]", [INF])]
    + [("string", "\0"), ("string", "\0aGk="), ("string[]", ["a", "\0"])]
    + [("json", text) for text in ("", "no JSON", "NaN", "1e999", str(2**64), "[1] 2", '"\\ud800"', "{'a':1}")]
    + [("json", "[" * 300 + "]" * 300), ("json", "[" * 100_000)],
)
def test_what_stays_in_networktables(type_name, value):
    """G5: values that are not JSON, or would be read as another value, are not converted."""
    with pytest.raises(Unportable):
        to_json(type_name, value)


@pytest.mark.parametrize(
    ("type_name", "payload", "value"),
    [
        ("double", b"5", 5.0),
        ("double", b"9007199254740992", 2.0**53),
        ("double", b"9007199254740994", 2.0**53 + 2),
        ("double", b"18446744073709549568", 2.0**64 - 2048),
        ("double", b"1e308", 1e308),
        ("double[]", b"[9007199254740992,0.1]", [2.0**53, 0.1]),
        ("float", b"0.1", 0.10000000149011612),
        ("float", b"16777216", 2.0**24),
        ("float", b"16777218.0", 2.0**24 + 2),
        ("float", b"3.4028234663852886e38", 3.4028234663852886e38),
        ("float", b"1e-300", 0.0),
        ("float[]", b"[0.5,16777216]", [0.5, 2.0**24]),
        ("int", b"5.0", 5),
        ("int", b"9007199254740993", 2**53 + 1),
        ("int", b"-0.0", 0),
        ("int", b"-9223372036854775808", -(2**63)),
        ("int[]", b"[1,2.0]", [1, 2]),
        ("double[]", b"[1,2.5]", [1.0, 2.5]),
        ("double[]", b"[]", []),
        ("json", b'{"a": 1}', '{"a": 1}'),
        ("json", b"null", "null"),
        ("raw", b'"\\u0000aGk="', b"hi"),
        ("boolean", b"true", True),
    ],
)
def test_what_json_is_to_a_topic(type_name, payload, value):
    """JSON is converted to the topic's type: a whole number that the type holds exactly, and a rounded fraction."""
    assert repr(from_json(type_name, payload)) == repr(value)


@pytest.mark.parametrize(
    ("type_name", "payload"),
    [("int", text) for text in (b"5.5", b"9223372036854775808", b"1e300", b"9.3e18", b"true", b'"5"', b"null", b"[1]")]
    + [("int", b"1" * 40), ("double", b"true"), ("double", b'"5"'), ("double", b"null"), ("double", b"[1]")]
    + [("boolean", b"1"), ("string", b"1"), ("string", b"null"), ("string", b'"\\u0000aGk="'), ("string", b"{}")]
    + [("raw", text) for text in (b'"a"', b'"\\u0000a"', b'"\\u0000\\u00e9"', b"1", b"[]", b"{}")]
    + [("int[]", b"[1,2.5]"), ("int[]", b"1"), ("boolean[]", b"[1]"), ("string[]", b'["a",1]'), ("double[]", b"{}")]
    + [("double", b"9007199254740993"), ("double", b"-9007199254740993"), ("double", b"18446744073709551615")]
    + [("double", b"9223372036854775807"), ("double[]", b"[9007199254740993]"), ("double[]", b"[0,-9007199254740995]")]
    + [("float", b"16777217"), ("float", b"-16777217"), ("float", b"16777217.0"), ("float", b"9223372036854775807")]
    + [("float", b"3.5e38"), ("float", b"-1e300"), ("float[]", b"[0.1,16777217]"), ("float[]", b"[1e39]")]
    + [("string[]", b'["\\u0000aGk="]'), ("double[]", b"[[1]]"), ("double[]", b"[" + b"1" * 40 + b"]")],
)
def test_json_of_another_type(type_name, payload):
    """G5: JSON that does not fit the topic's type raises `BadValue`, by which the publisher is notified."""
    with pytest.raises(BadValue):
        from_json(type_name, payload)


@pytest.mark.parametrize(
    ("payload", "type_name"),
    [
        (b"1", "double"),
        (b"1.5", "double"),
        (b"true", "boolean"),
        (b'""', "string"),
        (b'"\\u0000aGk="', "raw"),
        (b'"\\u0000a"', "json"),
        (b"null", "json"),
        (b"{}", "json"),
        (b"[]", "json"),
        (b"[1,2.5]", "double[]"),
        (b"[true,false]", "boolean[]"),
        (b'["a"]', "string[]"),
        (b"[true,1]", "json"),
        (b'["a",1]', "json"),
        (b"[[1]]", "json"),
        (b"[null]", "json"),
        (b'["a","\\u0000aGk="]', "json"),
        (b'["\\u0000aGk="]', "json"),
        (b"1" * 40, "json"),
    ],
)
def test_the_type_of_a_topic_that_another_protocol_begins(payload, type_name):
    """G5: numbers are always `double`, and other types are those that clients know."""
    assert type_of(payload) == type_name


WHOLE = st.integers(-(2**65), 2**65) | st.floats(allow_nan=False).map(int_of)


@given(st.sampled_from(["double", "float", "int"]), WHOLE)
def test_a_whole_number_is_held_exactly_or_refused(type_name, number):
    """G5: a subscriber never gets another whole number than the one that was published."""
    for name, payload in ((type_name, b"%d" % number), (f"{type_name}[]", b"[%d]" % number)):
        try:
            value = from_json(name, payload)
        except BadValue:
            assert type_name != "int" or not -(2**63) <= number < 2**63
            assert type_name != "double" or int(float(number)) != number or not -(2**63) <= number < 2**64
        else:
            assert (value[0] if name.endswith("[]") else value) == number


@given(JSON_VALUES)
def test_what_begins_a_topic_is_a_value_of_it(value):
    """G5: JSON fits the type that it gives to a new topic, and is the same when it is converted back."""
    payload = orjson.dumps(value)
    type_name = type_of(payload)
    back = to_json(type_name, from_json(type_name, payload))
    assert orjson.loads(back) == value
