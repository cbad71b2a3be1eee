"""Errors: why sessions end, and what is wrong with a value.

NetworkTables has no message that refuses something. What a client may not do, or does wrong, is ignored and counted by
its reason (`Tables.ignore`); only what makes the rest of a connection unreadable, or too expensive, ends it.
"""

from __future__ import annotations

LOST = "connection_lost"
SLOW_CONSUMER = "slow_consumer"
UNDECODABLE = "binary_decode_error"
DRAINED = "drained"
MOVED = "moved"
"""The reasons why a session ended."""

LIMITS = {
    "array_too_long": "elements",
    "name_too_long": "name_bytes",
    "options_too_large": "properties_bytes",
    "properties_too_large": "properties_bytes",
    "too_fast": "values_per_s",
    "too_many_publishers": "publishers",
    "too_many_topics": "topics",
    "value_too_large": "message_bytes",
}
"""The reasons for ignoring something that is beyond a limit, each with the key of the setting.

A subscription can be beyond several limits (`too_many_subscriptions`). All other reasons are mistakes of the client:
members of a message that are not as they should be (`bad_...`), ids and topics that do not exist (`unknown_...`),
values of another type than the topic's (`wrong_type`), names that only the server may publish (`reserved`), or a lack
of rights (`denied`).
"""


class Undecodable(Exception):
    """A binary message that cannot be decoded; the text says why, and is sent to the peer."""


class BadValue(Exception):
    """A value, in MessagePack or JSON, is not of its type; the text says so, and quotes nothing of the value."""


class Unportable(Exception):
    """A value without a JSON form: not finite, invalid text in a `json` topic, or a string that would read as bytes."""
