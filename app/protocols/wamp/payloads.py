r"""Conversion of a publication's arguments to the broker's payload, and back for each serializer.

A single positional argument is stored as a bare value, which is what the other protocols publish and receive. Anything
else is stored as `{"args": [...], "kwargs": {...}}`, always with both members, in this order and without spaces, so
that the two can be found in the text again. The event's `shape` records which of them were sent; WAMP subscribers
receive exactly those, including empty ones.
"""

from __future__ import annotations

from typing import Any

import orjson

from app.broker.events import BARE
from app.protocols.wamp.serializers import Serializer

NONE, ARGS, ARGS_AND_KWARGS = "none", "args", "args+kwargs"
"""The shapes of payloads that are not bare, by the elements that the PUBLISH had."""

_BEGIN, _BETWEEN, _END = b'{"args":', b',"kwargs":', b"}"
_NO_KWARGS = b',"kwargs":{}}'
_BORDER = b'],"kwargs":{'
_NOTHING = b'{"args":[],"kwargs":{}}'


def stored(args: list[Any] | None, kwargs: dict[str, Any] | None, serializer: Serializer) -> tuple[bytes, str]:
    """Return the payload as JSON text, and its shape, for arguments that `serializer` has unpacked.

    None stands for an element that was not sent. Raises `Unportable`.
    """
    if kwargs is not None:
        return _text(serializer.to_json(args or []), serializer.to_json(kwargs)), ARGS_AND_KWARGS
    if args is None:
        return _NOTHING, NONE
    if len(args) == 1:
        return bytes(memoryview(serializer.to_json(args[0]))), BARE  # orjson's bytes keep kilobytes beyond their end
    return _text(serializer.to_json(args), b"{}"), ARGS


def parts(payload: bytes, shape: str) -> tuple[bytes | None, bytes | None]:
    """Return the JSON texts of the positional and keyword arguments; None for each that was not sent."""
    if shape == NONE:
        return None, None
    if shape == ARGS:
        return payload[len(_BEGIN) : -len(_NO_KWARGS)], None
    if shape != ARGS_AND_KWARGS:
        return b"[%b]" % payload, None
    if payload.count(_BORDER) == 1:  # it cannot stand within a JSON string, whose quotes are escaped
        args, _, kwargs = payload[len(_BEGIN) : -len(_END)].partition(_BORDER)
        return args + b"]", b"{" + kwargs
    whole = orjson.loads(payload)  # an argument has such members itself
    return orjson.dumps(whole["args"]), orjson.dumps(whole["kwargs"])


def elements(payload: bytes, shape: str) -> bytes:
    """Return the payload elements at the end of a JSON message, each preceded by a comma; empty if there are none."""
    return b"".join(b"," + each for each in parts(payload, shape) if each is not None)


def shown(payload: bytes, shape: str, serializer: Serializer) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """Return the arguments as values for `serializer` to pack; None for each that was not sent."""
    value = serializer.from_json(payload)
    if shape == NONE:
        return None, None
    if shape == ARGS:
        return value["args"], None
    if shape == ARGS_AND_KWARGS:
        return value["args"], value["kwargs"]
    return [value], None


def _text(args: bytes, kwargs: bytes) -> bytes:
    return _BEGIN + args + _BETWEEN + kwargs + _END
