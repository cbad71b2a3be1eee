r"""What a publication looks like in the broker and on the wire: its payload there, and its EVENT messages.

A single positional argument is stored as a bare value, which is what the other protocols publish and receive. Anything
else is stored as `{"args": [...], "kwargs": {...}}`, always with both members, in this order and without spaces, so
that the two can be found in the text again. The event's `shape` records which of them were sent; WAMP subscribers
receive exactly those, including empty ones.

An EVENT (Basic Profile, 6.2) is encoded once for all subscribers of a subscription that have the same format. JSON
messages are assembled from existing JSON texts; only the binary serializers decode values.
"""

from __future__ import annotations

from typing import Any

import orjson

from halley.broker.events import BARE, Event
from halley.broker.names import Match, Pattern
from halley.protocols.wamp.messages import EVENT
from halley.protocols.wamp.names import to_uri
from halley.protocols.wamp.serializers import Format, Serializer

NONE, ARGS, ARGS_AND_KWARGS = "none", "args", "args+kwargs"
"""The shapes of payloads that are not bare, by the elements that the PUBLISH had."""

_BEGIN, _BETWEEN, _END = b'{"args":', b',"kwargs":', b"}"
_NO_KWARGS = b',"kwargs":{}}'
_BORDER = b'],"kwargs":{'
_NOTHING = b'{"args":[],"kwargs":{}}'


def to_payload(args: list[Any] | None, kwargs: dict[str, Any] | None, serializer: Serializer) -> tuple[bytes, str]:
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


def reshaped(payload: bytes, shape: str) -> tuple[bytes, str]:
    """Return a payload that a listener has made, and its shape; `shape` is that of the payload that it replaces.

    An object of arguments stays one if it still has the same two members; anything else is the only argument now.
    """
    value = orjson.loads(payload) if shape != BARE else None
    if isinstance(value, dict) and value.keys() == {"args", "kwargs"}:
        args, kwargs = value["args"], value["kwargs"]
        if isinstance(args, list) and isinstance(kwargs, dict):
            has_kwargs = bool(kwargs) or shape == ARGS_AND_KWARGS
            return _text(orjson.dumps(args), orjson.dumps(kwargs)), ARGS_AND_KWARGS if has_kwargs else ARGS
    return payload, BARE


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


def arguments(payload: bytes, shape: str, serializer: Serializer) -> tuple[list[Any] | None, dict[str, Any] | None]:
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


_RETAINED = '"retained":true'


def event_frame(event: Event, number: int, pattern: Pattern, form: Format) -> bytes:
    """Encode an EVENT for the subscribers of a pattern, in the format `form`; the bytes are kept in `event.frames`.

    `number` is the subscription's id.
    """
    frame = event.frames[(number, form.key)] = _encode(event, number, details_of(event, pattern), form)
    return frame


def retained_frame(event: Event, number: int, pattern: Pattern, form: Format) -> bytes:
    """Encode an EVENT for a retained event, with `retained` in its details; the bytes are not kept."""
    return _encode(event, number, details_of(event, pattern, _RETAINED), form)


def details_of(event: Event, pattern: Pattern, *more: str) -> bytes:
    """Return EVENT.Details as JSON text: what the publisher disclosed, and `topic` unless the pattern is exact.

    A NetworkTables value also has its type and its time in microseconds. `more` are further members as JSON text.
    """
    members = [event.details[1:-1]] if event.details and event.protocol == "wamp" else []
    if event.nt4_type is not None:
        members.append(f'"_nt4_type":{orjson.dumps(event.nt4_type).decode()},"_nt4_time":{event.nt4_time_us or 0}')
    if pattern.match is not Match.EXACT:
        members.append(f'"topic":{orjson.dumps(to_uri(event.topic)).decode()}')
    return f"{{{','.join((*members, *more))}}}".encode()


def _encode(event: Event, number: int, details: bytes, form: Format) -> bytes:
    serializer = form.serializer
    if not serializer.is_binary:
        head = b"[%d,%d,%d,%b" % (EVENT, number, event.publication, details)
        return form.frame(b"%b%b]" % (head, elements(event.payload, event.shape)))
    args, kwargs = arguments(event.payload, event.shape, serializer)
    message = [EVENT, number, event.publication, serializer.from_json(details)]
    return form.write(message + [each for each in (args, kwargs) if each is not None])
