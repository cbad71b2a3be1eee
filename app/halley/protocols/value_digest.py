"""Eight bytes that stand for a JSON value: with the same idempotency key, another digest is that of another publish.

Two texts have the same digest if they are the same value: the order of an object's members, white space and escapes do
not count, nor how a number is spelled. Numbers are compared as what was read of them: `1`, `1.0` and `1e0` are one, as
are `-0.0` and `0`, while 2^53 and 2^53 + 1 are two. Bytes are the text that stands for them (`bytes_text.py`), so they
are the same from each protocol.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final

import orjson

DIGEST_BYTES: Final = 8

_MAYBE_FLOAT = re.compile(rb"[0-9][.eE]")
_LEAST_INTEGER, _ABOVE_INTEGERS = -(2.0**63), 2.0**64
"""The range of integers in JSON texts from outside (`json_text.py`)."""


def digest_of(text: bytes) -> bytes:
    """The digest of a JSON text, whose depth and integers are within the bounds of `json_text.py`."""
    value = orjson.loads(text)
    if _MAYBE_FLOAT.search(text):
        value = _with_integers(value)
    return blake2b(orjson.dumps(value, option=orjson.OPT_SORT_KEYS), digest_size=DIGEST_BYTES).digest()


def _with_integers(value: Any) -> Any:
    """The value with each float that is an integer as one, if a JSON text may have that integer."""
    if isinstance(value, float):
        is_integer = value.is_integer() and _LEAST_INTEGER <= value < _ABOVE_INTEGERS
        return int(value) if is_integer else value
    if isinstance(value, dict):
        return {name: _with_integers(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_with_integers(element) for element in value]
    return value
