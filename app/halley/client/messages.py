"""Bayeux messages on the client's side: written as JSON text, and read from a server's responses.

A server's values are not trusted to have the right type: one that has the wrong type counts as absent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JSON = dict[str, Any]

_OWN_FIELDS = ("replay", "nt4")  # what the server itself adds to an event's `ext`
_USUAL_TIMEOUT_S = 60.0  # cometd.js' default, without advice from the server
_LONGEST_MS = 600_000.0  # the longest time that advice can make this client wait


@dataclass(frozen=True, slots=True)
class Event:
    """A published event: the channel's name and the data, any JSON value.

    `position` is the event's place in the server's history; None if the server sent none. `ext` is what its publisher's
    `ext` had for subscribers (`bayeux.forwarded_ext`), and the `traceparent` of any publisher; None if nothing.
    """

    channel: str
    data: Any
    position: int | None = field(default=None, compare=False)
    ext: JSON | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class IdempotentPublish:
    """An event to publish once, even if it is sent several times with its key.

    `data` is any JSON value, `key` an idempotency key of up to 128 characters. `audience` has the form of
    `ext.audience` (`halley/history/README.md`); None: all subscribers. With `after`, another key, the server refuses it
    with `412:...` unless it remembers a publish with either of the two keys. `traceparent` is the trace that it is
    published in, in the form of W3C Trace Context.
    """

    channel: str
    data: Any
    key: str
    audience: Mapping[str, Any] | None = None
    after: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """How to reconnect (Bayeux 1.0, "advice"), in seconds; `reconnect` is "" if the server does not advise it."""

    reconnect: str = ""
    interval_s: float = 0.0
    timeout_s: float = _USUAL_TIMEOUT_S

    @classmethod
    def read(cls, message: JSON) -> Advice | None:
        """Return the advice in a message, which replaces all of the previous one; None without advice."""
        fields = message.get("advice")
        if not isinstance(fields, dict):
            return None
        reconnect = fields.get("reconnect")
        interval_s = _seconds(fields.get("interval"), 0.0)
        if interval_s < 0:  # Bayeux 1.0 on advice: a negative interval forbids reconnecting
            return cls("none")
        known = reconnect if reconnect in ("retry", "handshake", "none") else ""
        return cls(known, interval_s, max(0.0, _seconds(fields.get("timeout"), _USUAL_TIMEOUT_S)))


def _seconds(milliseconds: object, otherwise: float) -> float:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return otherwise
    if isinstance(milliseconds, float) and math.isnan(milliseconds):  # Python's JSON parser accepts NaN
        return otherwise
    return min(max(milliseconds, -1), _LONGEST_MS) / 1000  # bounded first: JSON has integers that no float can hold


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that needs a reply: its id, and its members as JSON text without the clientId, which may change."""

    id: str
    members: str

    @classmethod
    def of(cls, message_id: str, fields: JSON) -> Outgoing:
        """Return the message with these fields. Raises `ValueError` or `TypeError` if they are not JSON."""
        return cls(message_id, encode({"id": message_id, **fields})[1:-1])

    def text(self, client_id: str) -> str:
        """Return the message as JSON text, for the session `client_id`."""
        return f'{{{self.members},"clientId":{encode(client_id)}}}'


@dataclass(frozen=True, slots=True)
class Incoming:
    """The content of a response: replies by their request's id, events in order, and what the server has ended.

    `revoked` are the patterns of subscriptions that the server has ended; `is_goodbye`: the session is over.
    """

    replies: dict[str, JSON] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    is_goodbye: bool = False
    revoked: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, messages: list[JSON]) -> Incoming:
        """Sort a response's messages into replies and events.

        A reply has `successful` and the id of its request; an event has data. The answer of a service, which has both
        an id and data, is an event.
        """
        replies: dict[str, JSON] = {}
        events: list[Event] = []
        revoked: list[str] = []
        is_goodbye = False
        for message in messages:
            channel, message_id = message.get("channel"), message.get("id")
            if isinstance(message_id, str) and "successful" in message:
                replies[message_id] = message
            elif channel == "/meta/disconnect":
                is_goodbye = True
            elif channel == "/meta/unsubscribe" and isinstance(message.get("subscription"), str):
                revoked.append(message["subscription"])
            elif isinstance(channel, str) and not channel.startswith("/meta/") and "data" in message:
                ext = _ext(message)
                forwarded = {name: value for name, value in ext.items() if name not in _OWN_FIELDS}
                events.append(Event(channel, message["data"], _position(ext.get("replay")), forwarded or None))
        return cls(replies, events, is_goodbye, revoked)


def error_of(reply: JSON) -> str | None:
    """Return the error of a reply; None if it is successful."""
    if reply.get("successful") is True:
        return None
    error = reply.get("error")
    return error if isinstance(error, str) and error else "refused without a reason"


def positions_of(reply: JSON, name: Literal["replay", "replay_start"]) -> dict[str, int]:
    """Return the positions in a reply's `ext.NAME`, by pattern ("Replay" in `halley/protocols/bayeux/README.md`).

    `replay`: those up to which the client has all events. `replay_start`: those at which the history begins, if a
    subscription from an older one was refused.
    """
    positions = _ext(reply).get(name)
    found = positions.items() if isinstance(positions, dict) else ()
    return {pattern: position for pattern, value in found if (position := _position(value)) is not None}


def gaps_of(reply: JSON) -> list[str]:
    """Return a text for each range of missing positions that a reply reports."""
    gaps = _ext(reply).get("replay_gap")
    if not isinstance(gaps, dict):
        return []
    return [f"{name}, positions {gap[0]} to {gap[-1]}" for name, gap in gaps.items() if isinstance(gap, list) and gap]


def log_of(reply: JSON) -> str | None:
    """Return the name of the log to which the positions in a reply belong; None without replay."""
    return text_of(_ext(reply).get("replay_log"))


def text_of(value: object) -> str | None:
    """Return a text that can be sent back, else None: JSON can express half of a character (a surrogate)."""
    try:
        return value if isinstance(value, str) and value.encode() else None
    except UnicodeEncodeError:
        return None


def _position(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ext(message: JSON) -> JSON:
    ext = message.get("ext")
    return ext if isinstance(ext, dict) else {}


def batch_of(reply: JSON) -> int | None:
    """Return the number of the batch that a reply ends; None without the acknowledge extension.

    CometD's handshake replies have `ack: true`, or `ack: {"enabled": true, "batch": N}` if they carry events.
    """
    ack = _ext(reply).get("ack")
    if isinstance(ack, dict):
        ack = ack.get("batch")
    return 0 if ack is True else _position(ack)


def encode(value: Any) -> str:
    """Return a value as JSON text. Raises `ValueError` or `TypeError` if it is not JSON or UTF-8 (NaN, surrogates)."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()
    return text
