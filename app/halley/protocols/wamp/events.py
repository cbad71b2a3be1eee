"""What a publication looks like in the broker and on the wire: its payload there, and its EVENT messages.

A single positional argument is stored as a bare value, which is what the other protocols publish and receive. Anything
else is stored as an object of arguments (`protocols/shapes.py`). The event's `shape` records which of them were sent,
and WAMP subscribers receive those. Empty keyword arguments count as not sent, since many clients send them where there
are none, and so do empty arguments in front of them: autobahn's callers get `{}` for both.

An EVENT (Basic Profile, 6.2) is encoded once for all subscribers of a subscription that have the same format. JSON
messages are assembled from existing JSON texts; only the binary serializers decode values.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from halley.broker.events import BARE, Event
from halley.broker.names import Match, Pattern
from halley.broker.traceparent import IN_WAMP
from halley.protocols.shapes import ARGS, ARGS_AND_KWARGS, NONE, NOTHING, parts, text_of
from halley.protocols.wamp.messages import EVENT
from halley.protocols.wamp.names import to_uri
from halley.protocols.wamp.serializers import Format, Serializer


def to_payload(args: list[Any] | None, kwargs: dict[str, Any] | None, serializer: Serializer) -> tuple[bytes, str]:
    """Return the payload as JSON text, and its shape, for arguments that `serializer` has unpacked.

    None stands for an element that was not sent. Raises `Unportable`.
    """
    if kwargs:
        return text_of(serializer.to_json(args or []), serializer.to_json(kwargs)), ARGS_AND_KWARGS
    if args is None or (not args and kwargs is not None):
        return NOTHING, NONE
    if len(args) == 1:
        return bytes(memoryview(serializer.to_json(args[0]))), BARE  # orjson's bytes keep kilobytes beyond their end
    return text_of(serializer.to_json(args)), ARGS


def reshaped(payload: bytes, shape: str) -> tuple[bytes, str]:
    """Return a payload that a listener has made, and its shape; `shape` is that of the payload that it replaces.

    An object of arguments stays one if it still has the same two members; anything else is the only argument now.
    """
    value = orjson.loads(payload) if shape != BARE else None
    if isinstance(value, dict) and value.keys() == {"args", "kwargs"}:
        args, kwargs = value["args"], value["kwargs"]
        if isinstance(args, list) and isinstance(kwargs, dict):
            has_kwargs = bool(kwargs) or shape == ARGS_AND_KWARGS
            return text_of(orjson.dumps(args), orjson.dumps(kwargs)), ARGS_AND_KWARGS if has_kwargs else ARGS
    return payload, BARE


def elements(payload: bytes, shape: str) -> bytes:
    """Return the payload elements at the end of a JSON message, each preceded by a comma; empty if there are none."""
    args, kwargs = parts(payload, shape)
    if args is None:
        return b""
    return b"," + args if kwargs is None else b"," + args + b"," + kwargs


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


_HEAD: Final = b"[%d,%%d,%%d,%%b%%b]" % EVENT
_NO_DETAILS: Final = b"{}"
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

    They have `_traceparent` from any protocol. A NetworkTables value also has its type and its time in microseconds.
    `more` are further members as JSON text.
    """
    members = [] if event.details is None else _details_from(event, event.details)
    if event.nt4_type is not None:
        members.append(f'"_nt4_type":{orjson.dumps(event.nt4_type).decode()},"_nt4_time":{event.nt4_time_us or 0}')
    if pattern.match is not Match.EXACT:
        members.append(f'"topic":{orjson.dumps(to_uri(event.topic)).decode()}')
    return f"{{{','.join((*members, *more))}}}".encode() if members or more else _NO_DETAILS


def _details_from(event: Event, details: str) -> list[str]:
    if event.protocol == "wamp":
        return [details[1:-1]]
    traceparent = event.traceparent
    return [] if traceparent is None else [f'"{IN_WAMP}":"{traceparent}"']


def _encode(event: Event, number: int, details: bytes, form: Format) -> bytes:
    serializer = form.serializer
    if not serializer.is_binary:
        return form.frame(_HEAD % (number, event.publication, details, elements(event.payload, event.shape)))
    args, kwargs = arguments(event.payload, event.shape, serializer)
    message = [EVENT, number, event.publication, serializer.from_json(details)]
    return form.write(message + [each for each in (args, kwargs) if each is not None])
