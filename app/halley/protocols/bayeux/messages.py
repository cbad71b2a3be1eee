"""Bayeux messages: validation of received JSON objects, and encoding of replies and events.

The fields of a `Message` have the right types and are not checked again. A field of the wrong type raises a
`BayeuxError`, which becomes the reply to that message; it never makes the request fail.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from orjson import dumps, loads

from halley.broker.events import Event, to_text
from halley.broker.policy import ANONYMOUS, Identity, Proof
from halley.broker.ports import type_and_time
from halley.broker.remembered import remembered
from halley.broker.sessions import Session
from halley.protocols.bayeux import errors
from halley.protocols.bayeux.binary import data_of_bytes
from halley.protocols.bayeux.errors import BayeuxError
from halley.protocols.bayeux.names import to_channel
from halley.protocols.contract import Context

_ID_CHARS: Final = 64
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
ECHOED_CHARS: Final = 255
_ECHOED_SUBSCRIPTIONS = 128

ReplyMessage = dict[str, Any] | bytes
"""A reply to one message, which may be encoded already."""

ABSENT: Any = object()
"""A placeholder for a field that was not sent, as distinct from `null`."""


class HttpContext(Context, Protocol):
    """The HTTP request that carried a message, for use by hooks."""

    @property
    def cookies(self) -> Mapping[str, str]:
        """The request's cookies by name."""

    @property
    def query(self) -> Mapping[str, str]:
        """The URL's query parameters by name; the first of each name."""


class Message:
    """One validated message from a client.

    `fields` is the whole JSON object as the extensions returned it, for listeners; `sent` is the object as the client
    sent it, for the reply. `data` is `ABSENT` if there was none; listeners may replace it. `context` is the HTTP
    request that carried the message, if there was one. `sender` is the session that sent it, or, without a session,
    what the request has proved; it is set before the hooks of a program are asked about the message. `sent_digest` is
    that of the data as the client sent them with an idempotency key, if an extension may have changed them.
    """

    __slots__ = (
        "advice",
        "channel",
        "client_id",
        "context",
        "data",
        "ext",
        "fields",
        "id",
        "sender",
        "sent",
        "sent_digest",
    )

    def __init__(
        self, fields: dict[str, Any], context: HttpContext | None = None, sent: dict[str, Any] | None = None
    ) -> None:
        """Validate `fields`; `sent` is given if an extension may have changed them. Raises `BayeuxError`."""
        self.fields = fields
        self.sent = fields if sent is None else sent
        self.context = context
        self.sent_digest: bytes | None = None
        self.sender: Session | Proof = ANONYMOUS
        self.id = fields.get("id")
        if not is_id(self.id) and self.id is not None:
            raise BayeuxError(errors.MESSAGE_ID_INVALID)
        channel = fields.get("channel")
        if not isinstance(channel, str):
            raise BayeuxError(errors.CHANNEL_MISSING if channel is None else errors.CHANNEL_INVALID)
        client_id = fields.get("clientId")
        if client_id is not None and not isinstance(client_id, str):
            raise BayeuxError(errors.SESSION_UNKNOWN)
        ext = fields.get("ext")
        if ext is not None and not isinstance(ext, dict):
            raise BayeuxError(errors.EXT_INVALID)
        advice = fields.get("advice")
        if advice is not None and not isinstance(advice, dict):
            raise BayeuxError(errors.ADVICE_INVALID)
        self.channel: str = channel
        self.client_id: str | None = client_id
        self.ext: dict[str, Any] | None = ext
        self.advice: dict[str, Any] | None = advice
        self.data = fields.get("data", ABSENT)

    @property
    def identity(self) -> Identity:
        """Who sent the message, in any protocol."""
        address = "" if self.context is None else self.context.address
        sender = self.sender
        return sender.identity("http", address) if isinstance(sender, Proof) else sender.identity(address)

    def milliseconds(self, name: str) -> float | None:
        """A number from the client's advice in milliseconds, at least 0; None if there is none.

        Raises `BayeuxError`.
        """
        value = (self.advice or {}).get(name)
        if value is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value):
            raise BayeuxError(errors.ADVICE_INVALID)
        return max(0.0, float(value))

    def subscriptions(self) -> list[str]:
        """The names in a subscribe or unsubscribe; never empty. Raises `BayeuxError`."""
        value = self.fields.get("subscription")
        if value is None:
            raise BayeuxError(errors.SUBSCRIPTION_MISSING)
        names = value if isinstance(value, list) else [value]
        if not names or not all(isinstance(name, str) for name in names):
            raise BayeuxError(errors.SUBSCRIPTION_INVALID)
        return names


def is_id(value: object) -> bool:
    """Whether a value can be a message's id. Bayeux wants strings; some clients number their messages."""
    if isinstance(value, str):
        is_plain = len(value) <= _ID_CHARS and value.isascii() and value.isalnum()
        return is_plain or _ID.fullmatch(value) is not None
    return type(value) is int


def reply_to(fields: dict[str, Any], *, successful: bool) -> dict[str, Any]:
    """Begin the reply to `fields`, with their `id`, `channel` and `subscription` where these are valid.

    The echo lets clients find their request even if its channel is refused. Its length is bounded.
    """
    reply: dict[str, Any] = {}
    message_id = fields.get("id")
    if is_id(message_id):
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


def encode(message: ReplyMessage) -> bytes:
    """Encode a reply as JSON, unless it is. `<` is escaped, so that echoed text can never be read as markup."""
    if type(message) is bytes:
        return message
    return dumps(message).replace(b"<", b"\\u003c")


def encode_data(data: object) -> bytes:
    """Encode an event's data as JSON text. Raises `TypeError` if it is not JSON."""
    return dumps((data,))[1:-1]  # a copy: orjson's own object keeps kilobytes of spare capacity


def decode_data(payload: bytes) -> Any:
    """Decode an event's data; the inverse of `encode_data`."""
    return loads(payload)


def event_frame(event: Event, in_z85: bool = False) -> bytes:  # noqa: FBT001, FBT002 - by keyword it would cost more
    """Encode an event as its subscribers receive it, once; the result is kept on the event.

    Only channel, data and an `ext` that has our own fields and those that may be forwarded are in it: clients would
    obey a publisher's `advice`, `successful` or `id`. If `in_z85`, bytes are written as CometD's `binary` extension
    writes them; it is the same for all events of a server.
    """
    frame = event.frames.get("bayeux")
    if frame is None:
        event.frames["bayeux"] = frame = _frame(event, event.payload, in_z85)
    return frame


def replay_frame(event: Event, in_z85: bool = False) -> bytes:  # noqa: FBT001, FBT002 - as above
    """Encode an event for sessions that replay: its position is added to its data too, if that is an object.

    Data that already has a field `event` is left as it is. The result is kept on the event.
    """
    frame = event.frames.get("bayeux+replay")
    if frame is None:
        frame = event_frame(event, in_z85) if not _has_place(event) else _frame(event, _with_position(event), in_z85)
        event.frames["bayeux+replay"] = frame
    return frame


def _frame(event: Event, payload: bytes, in_z85: bool) -> bytes:  # noqa: FBT001 - as above
    ext = b',"ext":{"replay":%d}' % event.position if event.position else b""
    if in_z85 or event.details is not None or event.nt4_type is not None:
        payload, ext = _with_marks(event, payload, in_z85)
    return b'{"channel":%b,"data":%b%b}' % (dumps(to_channel(event.topic)), payload, ext)


def _with_marks(event: Event, payload: bytes, in_z85: bool) -> tuple[bytes, bytes]:  # noqa: FBT001 - as above
    """The data and the `ext` of an event for which there may be more to say than its position."""
    marks = [b'"replay":%d' % event.position] if event.position else []
    if event.nt4_type is not None:
        marks.append(b'"nt4":%b' % type_and_time(event))
    if event.ext is not None:
        marks.append(event.ext[1:-1].encode())
    data = data_of_bytes(event) if in_z85 else None
    if data is not None:
        marks.append(b'"binary":{}')
    return payload if data is None else data, b',"ext":{%b}' % b",".join(marks) if marks else b""


def _has_place(event: Event) -> bool:
    payload = event.payload
    if not event.position or not (payload.startswith((b'{"', b"{}")) and payload.endswith(b"}")):  # as nodes write it
        return False
    return b'"event"' not in payload or "event" not in loads(payload)


def _with_position(event: Event) -> bytes:
    created = to_text(event.time_us)[: -len("000Z")].encode() + b"Z"  # Salesforce's times have milliseconds
    comma = b"," if len(event.payload) > len(b"{}") else b""
    return b'%b%b"event":{"replayId":%d,"createdDate":"%b"}}' % (event.payload[:-1], comma, event.position, created)


@remembered(100_000)  # a rule usually takes the same few subscriptions from very many sessions
def revocation_frame(name: str) -> bytes:
    """The message by which a client learns that its subscription to `name` was taken away."""
    return encode({"channel": "/meta/unsubscribe", "subscription": name, "successful": True, "ext": {"revoked": True}})


SCRIPT_ESCAPES = ((b"<", b"\\u003c"), ("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"))
"""What is escaped in a script: JSON allows the last two in strings, older JavaScript does not; `<` may begin a tag."""


def escaped_bytes(text: bytes) -> int:
    """The length of a text once it is escaped for a script."""
    return len(text) + sum(text.count(char) * (len(escaped) - len(char)) for char, escaped in SCRIPT_ESCAPES)


def body_of(parts: Iterable[bytes]) -> bytes:
    """The response body of encoded messages: always an array (Bayeux 1.0, 3.1; cometd.js accepts only that)."""
    return b"[%b]" % b",".join(parts)
