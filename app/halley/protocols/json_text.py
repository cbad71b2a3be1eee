"""Parsing of JSON from outside: fast where that is exact, exact for huge numbers, and bounded in depth and size.

Not every protocol and peer can carry every number. Integers beyond 64 bits and numbers that are infinite as doubles are
replaced by `OutOfRange`, so that only the message that has one need be refused.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

from halley.broker.nesting import has_more_levels

_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_NINETEEN_DIGITS = b"0" * 19
_TWENTY_DIGITS = b"0" * 20
_MINUS, _SPACE = b"- "
_BEFORE_NUMBERS = b"[:, \t\r\n"
_FEW: Final = 8
_WITHOUT_FLOATS: Final = frozenset((str, int, bool, type(None)))
_LARGE: Final = 2.0**63
_MAYBE_HUGE_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """The text is not JSON, or has lone surrogates, NaN, Infinity, bytes that are not UTF-8, or far too many levels."""


class NestedTooDeeply(ValueError):
    """The value has more levels of nesting than are allowed."""


class OutOfRange:
    """A placeholder in parsed JSON for an integer beyond 64 bits, or a number that is infinite as a double."""


def loads(text: bytes) -> tuple[Any, bool]:
    """Parse a JSON text; return the value, and whether it may contain an `OutOfRange`. Raises `NotJson`.

    orjson reads integers beyond 64 bits as floats and refuses infinities. So a text that may have either is parsed
    again by `json`, which marks them.
    """
    try:
        value = orjson.loads(text)
        if not may_have_huge_integer(text):
            return value, False
    except orjson.JSONDecodeError:
        if not may_have_huge_integer(text) and not _MAYBE_HUGE_EXPONENT.search(text):
            raise NotJson from None
    if has_more_levels(text):
        raise NotJson
    try:
        value = json.loads(text.decode(), parse_int=_integer, parse_float=_float, parse_constant=_constant)
        if _MAYBE_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except (ValueError, RecursionError):  # a program that embeds Halley may have left little of the stack
        raise NotJson from None
    return value, True


def may_have_huge_integer(text: bytes) -> bool:
    """Whether the text may have an integer beyond 64 bits, also when a string only looks like one.

    Such an integer has 20 digits, or 19 after a minus; so present times in nanoseconds do not cause a second parse.
    """
    zeros = text.translate(_DIGITS_AS_ZERO)
    at = zeros.find(_NINETEEN_DIGITS)
    while at >= 0:
        before = text[at - 1] if at else _SPACE
        if before == _MINUS or (before in _BEFORE_NUMBERS and zeros.startswith(_TWENTY_DIGITS, at)):
            return True
        at = zeros.find(_NINETEEN_DIGITS, at + len(_NINETEEN_DIGITS))
    return False


def is_usual(container: dict[str, Any] | list[Any], most_levels: int) -> bool:
    """Whether JSON that orjson has parsed has at most `most_levels` levels (one or more), and no float of 2^63 or more.

    As such it reads integers beyond 64 bits. Where little was parsed, this is found out faster than from its text.
    """
    values = list(container.values()) if isinstance(container, dict) else container
    if len(values) > _FEW and _WITHOUT_FLOATS.issuperset(map(type, values)):
        return True
    for value in values:
        kind = type(value)
        if kind is str:
            continue
        if kind is dict or kind is list:
            if most_levels == 1 or not is_usual(value, most_levels - 1):
                return False
        elif kind is float and not -_LARGE < value < _LARGE:
            return False
    return True


def has_out_of_range(value: object) -> bool:
    """Whether a parsed value contains an `OutOfRange` at any level."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, OutOfRange):
            return True
    return False


def count_nodes(text: bytes, value: object, most_levels: int, enough: int) -> int:
    """An upper bound on the number of values in a JSON text; they are counted only if it may exceed `enough`.

    `value` is the parsed text. Raises `NestedTooDeeply` if it has more than `most_levels` levels.
    """
    containers = text.count(b"[") + text.count(b"{")
    most_nodes = 1 + containers + text.count(b",")
    if containers <= most_levels and most_nodes <= enough:
        return most_nodes
    return count_values(value, most_levels, enough)


def has_too_many(text: bytes, value: object, most_levels: int, most_nodes: int) -> bool:
    """Whether a JSON text has more than `most_nodes` values; `value` is the parsed text.

    Raises `NestedTooDeeply` if it has more than `most_levels` levels.
    """
    if len(text) <= most_nodes:  # each value takes a byte
        # Few brackets are counted faster so than by `count`, which looks at each byte in turn.
        brackets = len(text) - len(text.replace(b"[", b"").replace(b"{", b""))
        if brackets <= most_levels:
            return False
    return count_nodes(text, value, most_levels, most_nodes) > most_nodes


def count_values(value: object, most_levels: int, enough: int | None = None) -> int:
    """Count the values in a parsed JSON value, the lists and dictionaries included. Raises `NestedTooDeeply`.

    Counting stops once there are more than `enough`.
    """
    nodes = 1
    level = [value]
    for _ in range(most_levels):
        deeper: list[object] = []
        for container in level:
            if isinstance(container, dict):
                deeper.extend(container.values())
            elif isinstance(container, list):
                deeper.extend(container)
        nodes += len(deeper)
        if enough is not None and nodes > enough:
            return nodes
        level = [child for child in deeper if isinstance(child, dict | list)]
        if not level:
            return nodes
    raise NestedTooDeeply


def _integer(digits: str) -> int | OutOfRange:
    if len(digits) > 20:
        return OutOfRange()
    value = int(digits)
    return value if -(2**63) <= value < 2**64 else OutOfRange()


def _float(digits: str) -> float | OutOfRange:
    value = float(digits)
    return OutOfRange() if value in (float("inf"), float("-inf")) else value


def _constant(_: str) -> float:
    raise ValueError("NaN and Infinity are not JSON")
