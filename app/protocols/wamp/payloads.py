r"""A publication's arguments as the broker keeps them, and back as each serializer writes them.

One positional argument alone is a bare value, which is what the other protocols publish and see. Everything else they
see as `{"args": [...], "kwargs": {...}}`, always with both, and always in this order and without spaces: so the two can
be found in the text again. The event's `shape` tells which of them had been sent, and whoever speaks WAMP gets just
these, empty ones too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from app.broker.events import BARE

if TYPE_CHECKING:
    from app.protocols.wamp.serializers import Serializer

NONE, ARGS, ARGS_AND_KWARGS = "none", "args", "args+kwargs"
"""The shapes of payloads that are not bare: which elements the PUBLISH had."""

_BEGIN, _BETWEEN, _END = b'{"args":', b',"kwargs":', b"}"
_NO_KWARGS = b',"kwargs":{}}'
_BORDER = b'],"kwargs":{'
_NOTHING = b'{"args":[],"kwargs":{}}'


def stored(args: list[Any] | None, kwargs: dict[str, Any] | None, serializer: Serializer) -> tuple[bytes, str]:
    """The payload, as JSON text, and the shape of what was unpacked from a message; None: it had no such element.

    Raises `Unportable`.
    """
    if kwargs is not None:
        return _text(serializer.to_json(args or []), serializer.to_json(kwargs)), ARGS_AND_KWARGS
    if args is None:
        return _NOTHING, NONE
    if len(args) == 1:
        return bytes(memoryview(serializer.to_json(args[0]))), BARE  # orjson's own keeps kilobytes behind its end
    return _text(serializer.to_json(args), b"{}"), ARGS


def parts(payload: bytes, shape: str) -> tuple[bytes | None, bytes | None]:
    """The JSON texts of the arguments; None for what was not sent."""
    if shape == NONE:
        return None, None
    if shape == ARGS:
        return payload[len(_BEGIN) : -len(_NO_KWARGS)], None
    if shape != ARGS_AND_KWARGS:
        return b"[%b]" % payload, None
    if payload.count(_BORDER) == 1:  # no text can have it, since there its quotes are escaped
        args, _, kwargs = payload[len(_BEGIN) : -len(_END)].partition(_BORDER)
        return args + b"]", b"{" + kwargs
    whole = orjson.loads(payload)  # some argument has such members itself
    return orjson.dumps(whole["args"]), orjson.dumps(whole["kwargs"])


def elements(payload: bytes, shape: str) -> bytes:
    """The end of a JSON message: its last elements, each behind a comma, if there are any."""
    return b"".join(b"," + each for each in parts(payload, shape) if each is not None)


def shown(payload: bytes, shape: str, serializer: Serializer) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """The arguments as values for that serializer; None for what was not sent."""
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
