"""Eight bytes that stand for a JSON value: with the same idempotency key, another digest is that of another publish.

Two texts have the same digest if they are the same value: the order of an object's members, white space and escapes do
not count, nor how a number is spelled. Numbers are compared as what was read of them: `1`, `1.0` and `1e0` are one, as
are `-0.0` and `0`, while 2^53 and 2^53 + 1 are two. Bytes are the text that stands for them (`bytes_text.py`), so they
are the same from each protocol.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import orjson
from msgspec.json import Decoder

DIGEST_BYTES: Final = 8

_LEAST_INTEGER, _ABOVE_INTEGERS = -(2.0**63), 2.0**64
"""The range of integers in JSON texts from outside (`json_text.py`)."""


def digest_of(text: bytes) -> bytes:
    """The digest of a JSON text, whose depth and numbers are within the bounds of `json_text.py`."""
    return blake2b(orjson.dumps(_decode(text), None, orjson.OPT_SORT_KEYS), digest_size=DIGEST_BYTES).digest()


def _number(text: str) -> object:  # mypyc would make a float of an integer
    """A number that is not written as an integer; as one, if it is one that a JSON text may have."""
    value = float(text)
    return int(value) if value.is_integer() and _LEAST_INTEGER <= value < _ABOVE_INTEGERS else value


_decode = Decoder(float_hook=_number).decode
