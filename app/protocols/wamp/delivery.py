"""EVENTs (Basic Profile, 6.2): encoded once for all subscribers of a subscription whose links write alike.

JSON is put together from texts that are there already; only the binary serializers see values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from app.broker.topics import Match
from app.protocols.wamp.messages import EVENT
from app.protocols.wamp.payloads import elements, shown
from app.protocols.wamp.uris import to_uri

if TYPE_CHECKING:
    from app.broker.events import Event
    from app.broker.topics import Pattern
    from app.protocols.wamp.formats import Format

_RETAINED = '"retained":true'


def event_frame(event: Event, number: int, pattern: Pattern, form: Format) -> bytes:
    """An event for the subscribers of a pattern, as that form writes it, kept on the event."""
    key = (number, form.key)
    frame = event.frames.get(key)
    if frame is None:
        frame = event.frames[key] = _frame(event, number, details_of(event, pattern), form)
    return frame


def retained_frame(event: Event, number: int, pattern: Pattern, form: Format) -> bytes:
    """The same for one who came later."""
    return _frame(event, number, details_of(event, pattern, _RETAINED), form)


def details_of(event: Event, pattern: Pattern, *more: str) -> bytes:
    """EVENT.Details as JSON text: what its publisher disclosed, the topic where the pattern does not tell it.

    Of a value its type and time (nt4.md G).
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
