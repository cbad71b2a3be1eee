"""The types of values: their names, wire numbers and checks, and the conversion from and to JSON (NA22, NA23, G5).

In Python a value is a bool, a float, an int, a str or bytes, or a list of values of one of these types except bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import isfinite, isinf
from typing import Any

import orjson

from halley.protocols.bytes_text import NotBytes, from_text, is_for_bytes, to_text
from halley.protocols.json_text import NotJson, loads
from halley.protocols.nt4.errors import BadValue, Unportable

BOOLEAN, DOUBLE, INT, FLOAT, STRING, RAW = 0, 1, 2, 3, 4, 5
ARRAY = 16
"""Added to the number of the elements' type for an array; there are no arrays of RAW."""

LEAST_INT, LARGEST_INT = -(2**63), 2**63 - 1

_ELEMENTS = {"boolean": BOOLEAN, "double": DOUBLE, "int": INT, "float": FLOAT, "string": STRING}
_NUMBERS = _ELEMENTS | {"json": STRING} | {f"{name}[]": ARRAY + number for name, number in _ELEMENTS.items()}

_NAMES = {number: name for name, number in _NUMBERS.items() if name != "json"} | {RAW: "raw"}

_CLASSES: dict[int, set[type]] = {
    BOOLEAN: {bool},
    DOUBLE: {float, int},
    INT: {int},
    FLOAT: {float, int},
    STRING: {str},
    RAW: {bytes},
}


def number_of(type_name: str) -> int:
    """Return the wire number of a type: 1 for `double`, 4 for `json`, 5 for unknown types such as `struct:Pose2d`."""
    return _NUMBERS.get(type_name, RAW)


def accept(number: int, value: object) -> object:
    """Return a decoded MessagePack value as a value of a type: an int is accepted as a double, a double as a float.

    A float is rounded to the 32 bits that it is sent in, and becomes infinite where they cannot hold it, as in C. An
    int has 64 bits and a sign. Raises `BadValue`, also for an unknown type number.
    """
    if number not in _NAMES:
        raise BadValue(f"unknown type number {number}")
    if number < ARRAY:
        return _accept_all(number, number, [value])[0]
    if not isinstance(value, list):
        raise BadValue(f"not a value of type {_NAMES[number]}")
    return _accept_all(number, number - ARRAY, value)


def _accept_all(number: int, element: int, values: list[Any]) -> list[Any]:
    """Check and convert many values of one type; each step is one call for all, since arrays are long."""
    if not _CLASSES[element].issuperset(map(type, values)):
        raise BadValue(f"not a value of type {_NAMES[number]}")
    if element == DOUBLE:
        return list(map(float, values))
    if element == FLOAT:
        return array("f", values).tolist()
    if element == INT and values and not LEAST_INT <= min(values) <= max(values) <= LARGEST_INT:
        raise BadValue("an int beyond 64 bits")
    return values


def to_json(type_name: str, value: Any) -> bytes:
    """Return an accepted value as JSON text. Raises `Unportable`.

    Bytes become WAMP's string for them (`bytes_text.py`); the text of a `json` topic becomes the JSON that it contains.
    """
    number = number_of(type_name)
    if type_name == "json":
        return _same_json(value)
    if number == RAW:
        return orjson.dumps(to_text(value))
    values = value if number >= ARRAY else [value]
    element = number % ARRAY
    if (element in (DOUBLE, FLOAT) and not all(map(isfinite, values))) or (
        element == STRING and any(map(is_for_bytes, values))
    ):
        raise Unportable
    return _dump(value)


def _same_json(text: str) -> bytes:
    """Return the JSON of a `json` topic without spaces; it must not be nested deeper than orjson can write."""
    try:
        return _dump(loads(text.encode())[0])
    except (NotJson, TypeError):  # or a number that not every protocol can carry
        raise Unportable from None


def _dump(value: object) -> bytes:
    return bytes(memoryview(orjson.dumps(value)))  # orjson's bytes keep kilobytes beyond their end


def from_json(type_name: str, payload: bytes) -> object:
    """Return JSON text as a value of a topic's type. Raises `BadValue`, also for a number that would become another.

    A fraction is rounded to the type's bits, as decimals always are; a whole number must be held exactly.
    """
    if type_name == "json":
        return payload.decode()
    number = number_of(type_name)
    value = loads(payload)[0]
    of_json = _OF_JSON.get(number % ARRAY, _itself)
    try:
        if number >= ARRAY and isinstance(value, list):
            return accept(number, [of_json(each) for each in value])
        return accept(number, of_json(value))
    except NotBytes:
        raise BadValue(f"not a value of type {type_name}") from None


def type_of(payload: bytes) -> str:
    """Return the type of a topic whose first value is this JSON: numbers are `double`, the fallback is `json`."""
    value = loads(payload)[0]
    if not isinstance(value, list):
        return _type_of_one(value)
    kinds = set(map(_type_of_one, value))
    kind = kinds.pop() if len(kinds) == 1 else ""
    return f"{kind}[]" if kind in _ELEMENTS else "json"


def _type_of_one(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "double"
    if not isinstance(value, str):
        return "json"
    if not is_for_bytes(value):
        return "string"
    try:
        from_text(value)
    except NotBytes:
        return "json"
    return "raw"


def _integral(value: object) -> object:
    """Return a JSON number as an int if it is integral: `2.0` and `2` are the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _double(value: object) -> object:
    if type(value) is int and int(float(value)) != value:
        raise BadValue("a number that would become another")
    return value


def _single(value: object) -> object:
    if isinstance(value, int | float):
        (held,) = array("f", [value])
        if isinf(held) or (held != value and float(value).is_integer()):
            raise BadValue("a number that would become another")
    return value


def _plain_text(value: object) -> object:
    if isinstance(value, str) and is_for_bytes(value):
        raise NotBytes
    return value


def _bytes(value: object) -> object:
    return from_text(value) if isinstance(value, str) else value


def _itself(value: object) -> object:
    return value


_OF_JSON: dict[int, Callable[[object], object]] = {
    DOUBLE: _double,
    INT: _integral,
    FLOAT: _single,
    STRING: _plain_text,
    RAW: _bytes,
}
"""The check and conversion of a JSON value, by type, where it is needed."""
