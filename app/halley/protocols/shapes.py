"""The shapes of payloads: what of a publish with WAMP's arguments was sent, and where that stands in the JSON text.

A payload is one bare JSON value (`broker.events.BARE`), or `{"args": [...], "kwargs": {...}}`, always with both
members, in this order and without spaces, so that the two can be found in the text again.
"""

from __future__ import annotations

from typing import Final

import orjson

NONE: Final = "none"
ARGS: Final = "args"
ARGS_AND_KWARGS: Final = "args+kwargs"
"""The shapes of payloads that are not bare, by the elements that the PUBLISH had."""

NOTHING = b'{"args":[],"kwargs":{}}'
_BEGIN: Final = b'{"args":'
_BETWEEN, _END = b',"kwargs":', b"}"
_NO_KWARGS: Final = b',"kwargs":{}}'
_BORDER: Final = b'],"kwargs":{'
_BEGIN_LIST: Final = _BEGIN + b"["
_END_LIST: Final = b"]" + _NO_KWARGS
_ARGS_AT: Final = len(_BEGIN)
_ARGS_END: Final = -len(_NO_KWARGS)


def text_of(args: bytes, kwargs: bytes = b"{}") -> bytes:
    """The payload with these positional and keyword arguments, which are JSON texts."""
    return _BEGIN + args + _BETWEEN + kwargs + _END


def parts(payload: bytes, shape: str) -> tuple[bytes | None, bytes | None]:
    """The JSON texts of the positional and keyword arguments; None for each that was not sent."""
    if shape == NONE:
        return None, None
    if shape == ARGS:
        return payload[_ARGS_AT:_ARGS_END], None
    if shape != ARGS_AND_KWARGS:
        return b"[" + payload + b"]", None
    if payload.count(_BORDER) == 1:  # it cannot stand within a JSON string, whose quotes are escaped
        args, _, kwargs = payload[len(_BEGIN) : -len(_END)].partition(_BORDER)
        return args + b"]", b"{" + kwargs
    whole = orjson.loads(payload)  # an argument has such members itself
    return orjson.dumps(whole["args"]), orjson.dumps(whole["kwargs"])


def args_in(payload: bytes) -> bytes:
    """The arguments in a payload of the shape `ARGS`, as it says: it has that shape if they are JSON. Empty if not."""
    if payload.startswith(_BEGIN_LIST) and payload.endswith(_END_LIST):
        return payload[_ARGS_AT:_ARGS_END]
    return b""


def args_and_kwargs_in(payload: bytes) -> list[bytes]:
    """The same of a payload of the shape `ARGS_AND_KWARGS`; also empty where it would take longer to find them."""
    if payload.startswith(_BEGIN_LIST) and payload.endswith(_END) and payload.count(_BORDER) == 1:
        return [text or b"" for text in parts(payload, ARGS_AND_KWARGS)]
    return [b""]


def has_shape(payload: bytes, shape: str) -> bool:
    """Whether `parts` finds in a payload what its shape says; true of every bare one."""
    if shape not in (ARGS, ARGS_AND_KWARGS):
        return True
    if not (payload.startswith(_BEGIN) and payload.endswith(_NO_KWARGS if shape == ARGS else _END)):
        return False
    try:
        args, kwargs = parts(payload, shape)
        return type(orjson.loads(args or b"")) is list and type(orjson.loads(kwargs or b"{}")) is dict
    except (ValueError, TypeError, LookupError):
        return False
