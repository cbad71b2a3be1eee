"""Types of values: their names and numbers, what is a value of each, and what JSON it is (nt4.md A22, A23, G5).

In Python a value is a bool, a float, an int, a str or bytes, or a list of one of the first five.
"""

from __future__ import annotations

from array import array
from math import isfinite
from typing import TYPE_CHECKING, Any

import orjson

from app.protocols.bytes_text import NotBytes, from_text, is_for_bytes, to_text
from app.protocols.json_text import NotJson, loads

if TYPE_CHECKING:
    from collections.abc import Callable

BOOLEAN, DOUBLE, INT, FLOAT, STRING, RAW = 0, 1, 2, 3, 4, 5
ARRAY = 16
"""Added to the number of the elements' type, but for RAW."""

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


class BadValue(Exception):
    """What came is no value of its type; the text says so, and nothing of what came."""


class Unportable(Exception):
    """A value that is no JSON: not finite, text in a `json` topic that is none, or text that would be read as bytes."""


class WrongType(Exception):
    """JSON that is no value of a topic's type."""


def number_of(type_name: str) -> int:
    """The wire number of a type: `double` is 1, `json` 4, and all that nobody knows, such as `struct:Pose2d`, 5."""
    return _NUMBERS.get(type_name, RAW)


def accept(number: int, value: object) -> object:
    """A decoded MessagePack value as a value of that type: an int is good as a double, a double as a float.

    A float is rounded to the 32 bits that it is sent in, and infinite where it has no place in them, as C has it.
    Raises `BadValue`, also where no type has that number. int is 64 bits, signed.
    """
    if number not in _NAMES:
        raise BadValue(f"no type has the number {number}")
    if number < ARRAY:
        return _accept_all(number, number, [value])[0]
    if not isinstance(value, list):
        raise BadValue(f"no value of type {_NAMES[number]}")
    return _accept_all(number, number - ARRAY, value)


def _accept_all(number: int, element: int, values: list[Any]) -> list[Any]:
    """Likewise many of one type. Each step is one call for all, since arrays are long."""
    if not _CLASSES[element].issuperset(map(type, values)):
        raise BadValue(f"no value of type {_NAMES[number]}")
    if element == DOUBLE:
        return list(map(float, values))
    if element == FLOAT:
        return array("f", values).tolist()
    if element == INT and values and not LEAST_INT <= min(values) <= max(values) <= LARGEST_INT:
        raise BadValue("an int beyond 64 bits")
    return values


def to_json(type_name: str, value: Any) -> bytes:
    """An accepted value as JSON text: bytes as WAMP has them (`bytes_text.py`), of a `json` topic the value itself.

    Raises `Unportable`.
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
    """The value of a `json` topic, without spaces, and not deeper than orjson writes."""
    try:
        return _dump(loads(text.encode())[0])
    except (NotJson, TypeError):  # or a number that not every protocol can carry
        raise Unportable from None


def _dump(value: object) -> bytes:
    return bytes(memoryview(orjson.dumps(value)))  # orjson's own keeps kilobytes behind its end


def from_json(type_name: str, payload: bytes) -> object:
    """JSON text as a value of a topic of that type. Raises `WrongType`."""
    if type_name == "json":
        return payload.decode()
    number = number_of(type_name)
    value = loads(payload)[0]
    of_json = _OF_JSON.get(number % ARRAY, _itself)
    try:
        if number >= ARRAY and isinstance(value, list):
            return accept(number, [of_json(each) for each in value])
        return accept(number, of_json(value))
    except (BadValue, NotBytes):
        raise WrongType from None


def type_of(payload: bytes) -> str:
    """The type of a topic that begins with this JSON: numbers are `double`, what no other type has is `json`."""
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
    """A JSON number as an int: `2.0` and `2` are the same number there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _plain_text(value: object) -> object:
    if isinstance(value, str) and is_for_bytes(value):
        raise NotBytes
    return value


def _bytes(value: object) -> object:
    return from_text(value) if isinstance(value, str) else value


def _itself(value: object) -> object:
    return value


_OF_JSON: dict[int, Callable[[object], object]] = {INT: _integral, STRING: _plain_text, RAW: _bytes}
"""What JSON stands for by type, where that is not itself."""
