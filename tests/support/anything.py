"""Any value that a peer can send, in the place of any part of a valid message: strategies for Hypothesis."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import msgpack
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

    Path = tuple[str | int, ...]

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_TELLING_TEXTS = st.sampled_from(
    ["", "\0", "\0aGk=", "*", "/", "/a", "/a/**", "/meta/connect", "$", "1.0", "long-polling"]
)
_SCALARS = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS | _TELLING_TEXTS

JSON_VALUES = st.recursive(
    _SCALARS | st.integers(-(2**70), 2**70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS | _TELLING_TEXTS, inner, max_size=3),
    max_leaves=6,
)
"""Any JSON, with numbers that not every protocol can carry."""

MSGPACK_VALUES = st.recursive(
    _SCALARS
    | st.floats()
    | st.integers(-(2**63), 2**64 - 1)
    | st.binary(max_size=8)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=16))
    | st.builds(msgpack.Timestamp, st.integers(0, 2**34), st.integers(0, 999_999_999)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_SCALARS | st.binary(max_size=3), inner, max_size=3),
    max_leaves=6,
)
"""Anything that MessagePack has, with keys of maps that are not strings."""


def paths(value: object, before: Path = ()) -> Iterator[Path]:
    """Yield the path of a value and of every value in it."""
    yield before
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in members:
        yield from paths(each, (*before, name))


@st.composite
def spoilt(draw: st.DrawFn, message: Any, values: st.SearchStrategy[Any] = JSON_VALUES) -> Any:
    """Draw a message in which up to three parts, each a member or a whole list or object, are any value."""
    message = deepcopy(message)
    for path in draw(st.lists(st.sampled_from(list(paths(message))), min_size=1, max_size=3)):
        message = _replaced(message, path, draw(values))
    return message


def _replaced(message: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    inner = message
    for name in path[:-1]:
        inner = inner[name] if _has(inner, name) else None
    if _has(inner, path[-1]):
        inner[path[-1]] = value
    return message


def _has(inner: Any, name: str | int) -> bool:
    if isinstance(inner, list):
        return isinstance(name, int) and name < len(inner)
    return isinstance(inner, dict) and name in inner
