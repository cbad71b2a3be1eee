"""Two JSON texts have the same digest if, and only if, they are the same value."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halley.protocols.value_digest import digest_of

SAME = [
    [b'{"a":1,"b":[true,null]}', b' { "b" : [ true , null ] ,\n"a" : 1.0 } ', b'{"\\u0061":1e0,"b":[true,null]}'],
    [b"0", b"-0", b"0.0", b"-0.0", b"0e5", b"1e-400"],
    [b"100", b"1e2", b"100.00", b"1E+2", b"10000e-2"],
    [b"0.1", b"1e-1", b"0.10000000000000000"],
    [b'"\\u00e9/"', '"\u00e9\\/"'.encode()],
    [b"9223372036854775808", b"9.223372036854775808e18", b"9223372036854775808.0"],
    [b"-9223372036854775808", b"-9.223372036854775808e18"],
    [b"18446744073709549568", b"1.8446744073709549568e19"],
    [b"1e20", b"100000000000000000000.0"],
    [b'{"x":{"b":2.0,"a":[1.5,3.0]}}', b'{"x":{"a":[1.5,3],"b":2}}'],
]
"""Values, each as several texts."""

OTHERS = [
    *(
        b"9007199254740992",
        b"9007199254740993",
        b"9223372036854775807",
        b"9223372036854775809",
        b"18446744073709551615",
    ),
    *(b'"1"', b"1", b"true", b"[1]", b"[]", b"{}", b"null", b"false", b'""', b'"null"', b"-1", b"1e300", b"-1e300"),
    *(
        b"[1,2]",
        b"[2,1]",
        b"[[1],2]",
        b'{"a":null}',
        b'{"b":null}',
        b'{"1":1}',
        b'"1.0"',
        b'"\\u0000AP8="',
        b'"e\\u0301"',
    ),
]
"""Texts of values that differ from each other, and from those above."""


@pytest.mark.parametrize("texts", SAME)
def test_how_a_value_is_spelled_does_not_count(texts):
    assert len({digest_of(text) for text in texts}) == 1


def test_other_values_have_other_digests():
    texts = [texts[0] for texts in SAME] + OTHERS
    assert [(one, other) for one, other in combinations(texts, 2) if digest_of(one) == digest_of(other)] == []


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(max_size=3), parts, max_size=4),
    max_leaves=20,
)


def respelled(value, choice):
    """Return a JSON text of a value, in which all that may be is otherwise."""
    space = choice.choice(["", " ", "\n\t"])
    if isinstance(value, dict):
        members = [f"{respelled(name, choice)}{space}:{respelled(each, choice)}" for name, each in value.items()]
        choice.shuffle(members)
        return "{" + space + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + f"{space},".join(respelled(each, choice) for each in value) + space + "]"
    if type(value) is int and (abs(value) < 2**53 or int(float(value)) == value):
        return choice.choice([str(value), f"{Decimal(value):e}", f"{value}.0"])
    if isinstance(value, float):
        exact = Decimal(value)
        return choice.choice([repr(value), f"{exact:e}", str(int(value)) if is_an_integer(value) else repr(value)])
    return json.dumps(value, ensure_ascii=choice.random() < 0.5)


def is_an_integer(value):
    return value.is_integer() and -(2.0**63) <= value < 2.0**64


def exact(value):
    """Return a value that is equal to another exactly if both are the same in JSON."""
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list):
        return [exact(each) for each in value]
    return (type(value) is bool, value)


@given(values.filter(lambda value: "\ud800" not in repr(value)), st.randoms(use_true_random=False))
def test_any_spelling_of_any_value_has_the_same_digest(value, choice):
    assert digest_of(respelled(value, choice).encode()) == digest_of(json.dumps(value).encode())


@given(values, values)
def test_two_values_have_the_same_digest_only_if_they_are_equal(one, other):
    digests = {digest_of(json.dumps(each).encode()) for each in (one, other)}
    assert (len(digests) == 1) == (exact(one) == exact(other))


@given(st.integers(2**53, 2**64 - 2))
def test_neighbours_beyond_the_integers_of_a_double_are_two(number):
    assert digest_of(b"%d" % number) != digest_of(b"%d" % (number + 1))


def test_as_deep_as_a_payload_may_be():
    """`limits.nesting` is 250 at most, and WAMP's arguments are two levels further in."""
    deep = b"[" * 252 + b"1.0" + b"]" * 252
    assert digest_of(deep) == digest_of(deep.replace(b"1.0", b"1"))
