"""JSON from outside: parsed fast where that is right, exactly where it matters, and bounded in what it becomes.

Not every protocol and peer can carry every number: integers beyond 64 bits and numbers that are infinite as doubles are
marked `OutOfRange`, so that only the message that has one need be refused.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_NINETEEN_DIGITS = b"0" * 19
_TWENTY_DIGITS = b"0" * 20
_BEFORE_NUMBERS = b"[:, \t\r\n"
_MAYBE_HUGE_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """A text is no JSON; lone surrogates, NaN and bytes that are not UTF-8 are none either."""


class NestedTooDeeply(ValueError):
    """A value has more levels than anyone needs."""


class OutOfRange:
    """Stands in parsed JSON for a number that not every protocol can carry: beyond 64 bits, or infinite as a double."""


def loads(text: bytes) -> tuple[Any, bool]:
    """A JSON value, and whether some number in it may be an `OutOfRange`. Raises `NotJson`.

    orjson reads integers beyond 64 bits as floats and refuses infinities; so a text that may have any is read again
    with them marked.
    """
    try:
        value = orjson.loads(text)
        if not may_have_huge_integer(text):
            return value, False
    except orjson.JSONDecodeError:
        if not may_have_huge_integer(text) and not _MAYBE_HUGE_EXPONENT.search(text):
            raise NotJson from None
    try:
        value = json.loads(text.decode(), parse_int=_integer, parse_float=_float, parse_constant=_constant)
        if _MAYBE_SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except (ValueError, RecursionError):
        raise NotJson from None
    return value, True


def may_have_huge_integer(text: bytes) -> bool:
    """Whether some integer is beyond 64 bits, or stands in a string that looks like it.

    That takes 20 digits, or 19 behind a minus; so the nanoseconds of our time are no reason to look closely.
    """
    zeros = text.translate(_DIGITS_AS_ZERO)
    at = zeros.find(_NINETEEN_DIGITS)
    while at >= 0:
        before = text[at - 1 : at]
        if before == b"-" or (before in _BEFORE_NUMBERS and zeros.startswith(_TWENTY_DIGITS, at)):
            return True
        at = zeros.find(_NINETEEN_DIGITS, at + len(_NINETEEN_DIGITS))
    return False


def has_out_of_range(value: object) -> bool:
    """Whether an `OutOfRange` stands anywhere in a parsed value."""
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
    """About how many values there are, never too few; no closer look where there are at most `enough`.

    Raises `NestedTooDeeply`.
    """
    containers = text.count(b"[") + text.count(b"{")
    most_nodes = 1 + containers + text.count(b",")
    if containers <= most_levels and most_nodes <= enough:
        return most_nodes
    return count_values(value, most_levels, enough)


def count_values(value: object, most_levels: int, enough: int | None = None) -> int:
    """How many values there are in lists and dictionaries, they included. Raises `NestedTooDeeply`.

    Counts no further where there are more than `enough`.
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
    raise ValueError("NaN and Infinity are no JSON")
