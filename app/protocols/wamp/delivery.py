"""EVENT messages (Basic Profile, 6.2), encoded once for all subscribers of a subscription that have the same format.

JSON messages are assembled from existing JSON texts; only the binary serializers decode values.
"""

from __future__ import annotations

import orjson

from app.broker.events import Event
from app.broker.topics import Match, Pattern
from app.protocols.wamp.formats import Format
from app.protocols.wamp.messages import EVENT
from app.protocols.wamp.payloads import elements, shown
from app.protocols.wamp.uris import to_uri

_RETAINED = '"retained":true'


def event_frame(event: Event, number: int, pattern: Pattern, form: Format) -> bytes:
    """Return the bytes of an EVENT for the subscribers of a pattern, in the format `form`.

    `number` is the subscription's id. The bytes are kept on the event, in `event.frames`.
    """
    key = (number, form.key)
    frame = event.frames.get(key)
    if frame is None:
        frame = event.frames[key] = _frame(event, number, details_of(event, pattern), form)
    return frame


def retained_frame(event: Event, number: int, pattern: Pattern, form: Format) -> bytes:
    """Return the bytes of an EVENT for a retained event, with `retained` in its details; they are not kept."""
    return _frame(event, number, details_of(event, pattern, _RETAINED), form)


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


def _frame(event: Event, number: int, details: bytes, form: Format) -> bytes:
    serializer = form.serializer
    if not serializer.is_binary:
        head = b"[%d,%d,%d,%b" % (EVENT, number, event.publication, details)
        return form.frame(b"%b%b]" % (head, elements(event.payload, event.shape)))
    args, kwargs = shown(event.payload, event.shape, serializer)
    message = [EVENT, number, event.publication, serializer.from_json(details)]
    return form.write(message + [each for each in (args, kwargs) if each is not None])
