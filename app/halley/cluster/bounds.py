"""The bounds of what comes from another node: those that clients have, as constants that all nodes share.

What does not keep to them was made by a stranger with a node's rights, or by a fault. All nodes must make the same of a
frame of the stream, so its bounds are constants and not a node's settings. They are above what settings allow
(`limits.topic_chars` and `limits.topic_segments` are bounded for that), and above what is in clients' tokens and
messages. So no node of another version sends what is refused here; one of this version refuses its client
(`is_within_bounds`).

To read a payload costs as much as to count ten events that nobody here has subscribed to. So it is read where an event
is made, to be stored or delivered. An event whose payload is not valid has its place in the order like any other, and
`null` as its payload, at all nodes alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from sys import maxsize
from typing import Final

import orjson

from halley.broker.errors import HistoryUnavailable
from halley.broker.events import BARE, LAST_PUBLICATION, Event
from halley.broker.names import REALM_MARK, unescaped
from halley.broker.remembered import remembered
from halley.protocols.json_text import NestedTooDeeply, count_nodes
from halley.protocols.shapes import ARGS, ARGS_AND_KWARGS, args_and_kwargs_in, args_in, has_shape

TOPIC_CHARS: Final = 16_384
"""Of a topic in its canonical form, which has up to twelve characters for one that a client has sent, and a space."""

TOPIC_SEGMENTS: Final = 256
"""The names of all wildcards that match a topic are as long together as the topic times this, at most."""

TEXT_CHARS: Final = 65_536
"""Of an authid, a role, a key, details, and the names of an audience; each."""

NAME_CHARS: Final = 255
"""Of a node, or of a run, which begins with the node's name; that has up to 63."""

LAST_TIME_US: Final = 253_402_300_799_999_999
"""The end of the year 9999: a later time cannot be written (RFC 3339)."""

_NESTING: Final = 254
"""Levels of JSON: what `orjson` writes at most; `limits.nesting` is below that."""

_SHORT_BYTES: Final = 2 * _NESTING
"""A payload that is not longer is not nested too deeply."""

_CANONICAL: Final = b"/!:.-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The bytes of topics (`broker/names.py`), and of the spaces of realms. Pages have them as they are."""

_SECRET: Final = secrets.randbits(50)
_BETWEEN: Final = b",%d," % _SECRET

NULL: Final = b"null"
"""In place of a payload that is not valid."""


def are_topics(topics: Sequence[str]) -> bool:
    """Whether all of these are topics in their canonical form and bounds. Raises `TypeError` for what is not text."""
    whole = "".join(topics)
    if whole.encode("utf-8", "replace").translate(None, _CANONICAL) or (
        "!" in whole and not all(map(_is_spelled, topics))
    ):
        return False
    return _are_short(topics, whole)


def are_short(topics: Sequence[str]) -> bool:
    """Whether all of these, of topics or patterns, are as long as a topic may be, and have as many segments.

    Raises `TypeError` for what is not text.
    """
    return _are_short(topics, "".join(topics))


def _are_short(topics: Sequence[str], whole: str) -> bool:
    if len(whole) <= TOPIC_CHARS and whole.count("/") < TOPIC_SEGMENTS:
        return True
    return max(map(len, topics)) <= TOPIC_CHARS and max([topic.count("/") for topic in topics]) < TOPIC_SEGMENTS


@remembered()  # topics of events that have such characters
def _is_spelled(topic: str) -> bool:
    """Whether what a topic has as `!hh` are characters, but in a space: else no protocol could show it."""
    try:
        unescaped(topic.partition("/")[2] if topic.startswith(REALM_MARK) else topic, errors="strict")
    except ValueError:
        return False
    return True


def is_protocol(text: str) -> bool:
    """Whether a text can name a protocol, in pages as it is."""
    return 0 < len(text) <= NAME_CHARS and text.isascii() and text.isidentifier()


def are_details(text: str) -> bool:
    """Whether a text is that of a JSON object which is not empty, without white space around it."""
    try:
        return len(text) <= TEXT_CHARS and text[0] + text[-1] == "{}" and len(orjson.loads(text)) > 0
    except (ValueError, IndexError):
        return False


def is_key(text: str) -> bool:
    """Whether a text can be an idempotency key: printable ASCII."""
    return 0 < len(text) <= TEXT_CHARS and text.isascii() and text.isprintable()


def is_stamp(time_us: int, publication: int) -> bool:
    """Whether an event can have this time and publication, 0 for one that is still to be published."""
    return 0 <= time_us <= LAST_TIME_US and 0 <= publication <= LAST_PUBLICATION


def keep_payloads(events: Sequence[Event]) -> None:
    """Give those of the events `null` as their payload whose payload is not JSON as clients may publish it.

    What has another shape than it says is taken for one bare value. On the hot path.
    """
    if not _are_plain(events):
        for event in events:
            _keep_payload(event)


def _are_plain(events: Sequence[Event]) -> bool:
    """Whether each payload is JSON of its shape that is not nested too deeply; false also where that is doubtful.

    To read them together takes half the time. A number is between them that only this process knows: what reads as that
    many values with these numbers in between, has none of them within a value, or two values in one text.
    """
    texts: list[bytes] = []
    for event in events:
        payload = event.payload
        if len(payload) > _SHORT_BYTES:
            return False
        if event.shape == ARGS:
            texts.append(args_in(payload))
        elif event.shape == ARGS_AND_KWARGS:
            texts += args_and_kwargs_in(payload)
        else:
            texts.append(payload)
    try:
        values = orjson.loads(b"[" + _BETWEEN.join(texts) + b"]")
    except ValueError:
        return False
    return len(values) == max(2 * len(texts) - 1, 0) and values[1::2] == [_SECRET] * (len(texts) - 1)


def _keep_payload(event: Event) -> None:
    try:
        count_nodes(event.payload, orjson.loads(event.payload), _NESTING, maxsize)
    except (ValueError, NestedTooDeeply):
        event.payload = NULL
    if not has_shape(event.payload, event.shape):
        event.shape = BARE


class EventTooLarge(HistoryUnavailable):
    """The event's topic, or what is known of its publisher, is longer than other nodes take."""


def is_within_bounds(event: Event) -> bool:
    """Whether an event of this node keeps to the bounds, so that the other nodes take it."""
    chars = len(event.topic) + len(event.authid or "") + len(event.role or "")
    if event.details is not None:
        chars += len(event.details)
    if event.idempotency_key is not None:
        chars += len(event.idempotency_key)
    if event.audience is not None:
        chars += event.audience.chars
    return chars <= TOPIC_CHARS or (chars <= TEXT_CHARS and len(event.topic) <= TOPIC_CHARS)
