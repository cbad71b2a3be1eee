"""CometD's `binary` extension: bytes in a message's data, where they are to be bytes for all protocols.

Its clients exchange `{"ext": {"binary": {}}, "data": {"data": Z85, "last": true, "meta": {...}}}`; `last` says which is
the last of several parts, and `meta` is anything else about them. Such a message that has just bytes is the same here
as bytes of any other protocol, if `bayeux.bytes` is "z85"; else, and with `meta` or in parts, it is passed on unread.
"""

from __future__ import annotations

from typing import Any, Final

from orjson import loads

from halley.broker.events import BARE, Event
from halley.protocols.bytes_text import NotBytes, from_text, from_z85, to_text, to_z85

_BEGIN: Final = b'"\\u0000'
"""What the payload of bytes begins with."""

_MEMBERS: Final = frozenset(("data", "last"))


def data_of_bytes(event: Event) -> bytes | None:
    """The data, as JSON text, of the message for an event whose payload is bytes; None if it is anything else."""
    if not event.payload.startswith(_BEGIN) or event.shape != BARE:
        return None
    try:
        return b'{"data":"%b","last":true}' % to_z85(from_text(loads(event.payload))).encode()
    except NotBytes:  # a text that begins like one for bytes
        return None


def bytes_of(data: object, ext: dict[str, Any] | None) -> str | None:
    """The text for the bytes (`bytes_text.py`) of a message that has just bytes; None if it is any other."""
    if ext is None or ext.get("binary") != {} or not isinstance(data, dict) or data.get("last") is not True:
        return None
    text = data.get("data")
    if not isinstance(text, str) or any(value is not None for name, value in data.items() if name not in _MEMBERS):
        return None
    try:
        return to_text(from_z85(text))
    except NotBytes:
        return None
