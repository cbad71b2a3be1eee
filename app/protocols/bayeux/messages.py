"""Bayeux messages: what a JSON object from outside means, and how replies and events are written.

Whatever passes `Message` is typed; nobody checks again. A field of the wrong type makes the message a `Fault`, which
its sender is told; it never makes the request fail.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import orjson

from app.broker.timestamps import to_text
from app.broker.values import shown
from app.protocols.bayeux import errors
from app.protocols.bayeux.names import to_channel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.broker.events import Event
    from app.protocols.bayeux.exchanges import HttpContext

ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
ECHOED_CHARS = 255
_ECHOED_SUBSCRIPTIONS = 128

ABSENT: Any = object()
"""Stands for a field that was not sent, where `null` is a value of its own."""


class Fault(Exception):
    """A message that is refused: its reply's error text, and what else a hook wants to say in it."""

    def __init__(self, error: str, advice: dict[str, Any] | None = None, ext: dict[str, Any] | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.advice = advice
        self.ext = ext


class Message:
    """One message from a client, checked.

    `fields` is the whole JSON object as extensions have left it, for listeners; `sent` as its client sent it, for its
    reply. `data` is `ABSENT` if there was none; listeners may replace it. `context` is what is known of the request
    that brought it.
    """

    __slots__ = ("advice", "channel", "client_id", "context", "data", "ext", "fields", "id", "sent")

    def __init__(
        self, fields: dict[str, Any], context: HttpContext | None = None, sent: dict[str, Any] | None = None
    ) -> None:
        """Read `fields`; `sent` is given where they are not what was sent. Raises `Fault`."""
        self.fields = fields
        self.sent = fields if sent is None else sent
        self.context = context
        self.id = _message_id(fields.get("id"))
        self.channel = _channel(fields)
        self.client_id = fields.get("clientId")
        if self.client_id is not None and not isinstance(self.client_id, str):
            raise Fault(errors.SESSION_UNKNOWN)
        self.ext = _object(fields.get("ext"), errors.EXT_INVALID)
        self.advice = _object(fields.get("advice"), errors.ADVICE_INVALID)
        self.data = fields.get("data", ABSENT)

    def milliseconds(self, name: str) -> float | None:
        """A number from the client's advice, at least 0; None if it gave none. Raises `Fault`."""
        value = (self.advice or {}).get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Fault(errors.ADVICE_INVALID)
        return max(0.0, float(value))

    def subscriptions(self) -> list[str]:
        """What is subscribed to or no longer; never empty. Raises `Fault`."""
        value = self.fields.get("subscription")
        if value is None:
            raise Fault(errors.SUBSCRIPTION_MISSING)
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) for name in names):
            raise Fault(errors.SUBSCRIPTION_INVALID)
        return names


def _message_id(value: object) -> str | int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and ID.fullmatch(value):
        return value
    raise Fault(errors.MESSAGE_ID_INVALID)


def _channel(fields: dict[str, Any]) -> str:
    channel = fields.get("channel")
    if channel is None:
        raise Fault(errors.CHANNEL_MISSING)
    if not isinstance(channel, str):
        raise Fault(errors.CHANNEL_INVALID)
    return channel


def _object(value: object, error: str) -> dict[str, Any] | None:
    if value is None or isinstance(value, dict):
        return value
    raise Fault(error)


def reply_to(fields: dict[str, Any], *, successful: bool) -> dict[str, Any]:
    """The beginning of the reply to `fields`: `id`, `channel` and `subscription` as they came, where they are sound.

    What is echoed is bounded, and clients find their request again even where its channel is refused.
    """
    reply: dict[str, Any] = {}
    try:
        message_id = _message_id(fields.get("id"))
    except Fault:
        message_id = None
    if message_id is not None:
        reply["id"] = message_id
    channel = fields.get("channel")
    if isinstance(channel, str) and len(channel) <= ECHOED_CHARS:
        reply["channel"] = channel
    reply["successful"] = successful
    if channel in ("/meta/subscribe", "/meta/unsubscribe"):
        subscription = fields.get("subscription")
        if _is_echoable(subscription):
            reply["subscription"] = subscription
    return reply


def _is_echoable(subscription: object) -> bool:
    names = subscription if isinstance(subscription, list) else [subscription]
    return len(names) <= _ECHOED_SUBSCRIPTIONS and all(
        isinstance(name, str) and len(name) <= ECHOED_CHARS for name in names
    )


def encode(message: dict[str, Any]) -> bytes:
    """A reply as JSON. What it echoes can never be read as markup: `<` is escaped."""
    return orjson.dumps(message).replace(b"<", b"\\u003c")


def encode_data(data: object) -> bytes:
    """An event's data as JSON text."""
    return bytes(memoryview(orjson.dumps(data)))  # a copy: orjson's own keeps kilobytes behind its end


def decode_data(payload: bytes) -> Any:
    """The opposite of `encode_data`."""
    return orjson.loads(payload)


def event_frame(event: Event) -> bytes:
    """An event as its subscribers get it, made once and kept on the event.

    From scratch: a publisher's `advice`, `successful` or `id` must not reach subscribers, who would obey them.
    """
    frame = event.frames.get("bayeux")
    if frame is None:
        event.frames["bayeux"] = frame = _frame(event, event.payload)
    return frame


def replay_frame(event: Event) -> bytes:
    """Likewise as those get it who replay: its position stands in its data too, if that has a place for it."""
    frame = event.frames.get("bayeux+replay")
    if frame is None:
        frame = event_frame(event) if not _has_place(event) else _frame(event, _with_position(event))
        event.frames["bayeux+replay"] = frame
    return frame


def _frame(event: Event, payload: bytes) -> bytes:
    if event.nt4_type is not None:
        replay = b'"replay":%d,' % event.position if event.position else b""
        ext = b',"ext":{%b"nt4":%b}' % (replay, shown(event))
    else:
        ext = b',"ext":{"replay":%d}' % event.position if event.position else b""
    return b'{"channel":%b,"data":%b%b}' % (orjson.dumps(to_channel(event.topic)), payload, ext)


def _has_place(event: Event) -> bool:
    payload = event.payload
    if not event.position or payload[:1] != b"{":
        return False
    return b'"event"' not in payload or "event" not in orjson.loads(payload)


def _with_position(event: Event) -> bytes:
    created = to_text(event.time_us)[: -len("000Z")].encode() + b"Z"  # Salesforce's has milliseconds
    comma = b"," if len(event.payload) > len(b"{}") else b""
    return b'%b%b"event":{"replayId":%d,"createdDate":"%b"}}' % (event.payload[:-1], comma, event.position, created)


def body_of(parts: Iterable[bytes]) -> bytes:
    """A response body: always an array (Bayeux 1.0, 3.1; cometd.js takes nothing else)."""
    return b"[%b]" % b",".join(parts)
