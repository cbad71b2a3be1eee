"""Bayeux messages as a client sees them: written as JSON text, read from what a server answered.

Nothing that a server sends is trusted to have the right type: what does not fit counts as absent.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

JSON = dict[str, Any]

_USUAL_TIMEOUT_S = 60.0  # cometd.js' own, where the server says nothing
_LONGEST_MS = 600_000.0  # what any advice may make this client wait


@dataclass(frozen=True, slots=True)
class Event:
    """What was published: the channel's name and its data, any JSON value.

    `position` is its place in the server's history; None where the server has or shows none.
    """

    channel: str
    data: Any
    position: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Advice:
    """How to come back (Bayeux 1.0, "advice"), in seconds; `reconnect` is "" where the server does not say."""

    reconnect: str = ""
    interval_s: float = 0.0
    timeout_s: float = _USUAL_TIMEOUT_S

    @classmethod
    def read(cls, message: JSON) -> Advice | None:
        """The advice in a message; new advice replaces all of the old."""
        fields = message.get("advice")
        if not isinstance(fields, dict):
            return None
        reconnect = fields.get("reconnect")
        interval_s = _seconds(fields.get("interval"), 0.0)
        if interval_s < 0:  # Bayeux 1.0 on advice: a negative interval forbids to come back
            return cls("none")
        known = reconnect if reconnect in ("retry", "handshake", "none") else ""
        return cls(known, interval_s, max(0.0, _seconds(fields.get("timeout"), _USUAL_TIMEOUT_S)))


def _seconds(milliseconds: object, otherwise: float) -> float:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
        return otherwise
    if isinstance(milliseconds, float) and math.isnan(milliseconds):  # Python's JSON parser knows NaN
        return otherwise
    return min(max(milliseconds, -1), _LONGEST_MS) / 1000  # bounded first: JSON has integers that no float can hold


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message that wants a reply: its id, and its members as JSON text but for the clientId, which may change."""

    id: str
    members: str

    @classmethod
    def of(cls, message_id: str, fields: JSON) -> Outgoing:
        """The message with these fields. Raises `ValueError` or `TypeError` where they are no JSON."""
        return cls(message_id, encode({"id": message_id, **fields})[1:-1])

    def text(self, client_id: str) -> str:
        """The message as JSON text, in the name of a session."""
        return f'{{{self.members},"clientId":{encode(client_id)}}}'


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a response brought: replies by the id of their request, events in order, and whether the session is over."""

    replies: dict[str, JSON] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    is_goodbye: bool = False

    @classmethod
    def read(cls, messages: list[JSON]) -> Incoming:
        """Sort a response's messages.

        A reply says `successful` and has the id of its request; an event has data. An answer of a service, which has
        both an id and data, is an event.
        """
        replies: dict[str, JSON] = {}
        events: list[Event] = []
        is_goodbye = False
        for message in messages:
            channel, message_id = message.get("channel"), message.get("id")
            if isinstance(message_id, str) and "successful" in message:
                replies[message_id] = message
            elif channel == "/meta/disconnect":
                is_goodbye = True
            elif isinstance(channel, str) and not channel.startswith("/meta/") and "data" in message:
                events.append(Event(channel, message["data"], _position(_ext(message).get("replay"))))
        return cls(replies, events, is_goodbye)


def error_of(reply: JSON) -> str | None:
    """Why a reply says no; None if it says yes."""
    if reply.get("successful") is True:
        return None
    error = reply.get("error")
    return error if isinstance(error, str) and error else "refused without a reason"


def positions_of(reply: JSON) -> dict[str, int]:
    """How far a reply says that the client has come in the history, by pattern; see the README on replay."""
    return _by_pattern(reply, "replay")


def starts_of(reply: JSON) -> dict[str, int]:
    """With which positions the history begins, by pattern, where a subscription was refused for being too old."""
    return _by_pattern(reply, "replay_start")


def gaps_of(reply: JSON) -> list[str]:
    """What a reply says is missing, in words."""
    gaps = _ext(reply).get("replay_gap")
    if not isinstance(gaps, dict):
        return []
    return [f"{name}, positions {gap[0]} to {gap[-1]}" for name, gap in gaps.items() if isinstance(gap, list) and gap]


def log_of(reply: JSON) -> str | None:
    """The name of the log that positions belong to; None without replay."""
    name = _ext(reply).get("replay_log")
    return name if isinstance(name, str) else None


def _by_pattern(reply: JSON, field_name: str) -> dict[str, int]:
    told = _ext(reply).get(field_name)
    positions = {name: _position(value) for name, value in told.items()} if isinstance(told, dict) else {}
    return {name: position for name, position in positions.items() if position is not None}


def _position(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ext(message: JSON) -> JSON:
    ext = message.get("ext")
    return ext if isinstance(ext, dict) else {}


def batch_of(reply: JSON) -> int | None:
    """The number of the batch that a reply closes; None without the acknowledge extension.

    CometD's handshake replies say `ack: true`, or `ack: {"enabled": true, "batch": N}` if they carry events.
    """
    ack = _ext(reply).get("ack")
    if isinstance(ack, dict):
        ack = ack.get("batch")
    if ack is True:
        return 0
    return ack if isinstance(ack, int) and not isinstance(ack, bool) else None


def encode(value: Any) -> str:
    """JSON text. Raises `ValueError` or `TypeError` for what JSON or UTF-8 cannot hold (NaN, a lone surrogate)."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text.encode()
    return text
