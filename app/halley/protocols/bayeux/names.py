"""Channel names (Bayeux 1.0, 2.1): validation, and conversion to and from topics and patterns.

A name is `/segment(/segment)*`, and a segment is one or more of `A-Z a-z 0-9 - _ ! ~ ( ) $ @`; nothing is trimmed. A
wildcard is the whole last segment: `/a/*` is one level, `/a/**` one or more. Characters beyond the grammar, which other
protocols' topics may have, are shown as `!hh`; any other `!` is plain (see `broker/names.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from halley.broker.errors import InvalidName, NameTooDeep, NameTooLong
from halley.broker.names import (
    NAMED_ONLY,
    WIDE_IN_WAMP,
    Match,
    Pattern,
    from_segment,
    is_plain_in_channel,
    shape_of,
    to_segment,
)
from halley.broker.remembered import remembered

_PLAIN = re.compile(r"(?:/[A-Za-z0-9_-]+)+")
_SEGMENTS = re.compile(r"(?:/[A-Za-z0-9\-_!~()$@]+)+", re.ASCII)
WILDCARDS = {"*": Match.CHILDREN, "**": Match.DESCENDANTS}
"""The last segments of patterns."""

META = "/meta/"
SERVICE = "/service/"
CONNECT: Final = "/meta/connect"
HANDSHAKE: Final = "/meta/handshake"
SUBSCRIBE: Final = "/meta/subscribe"


class NameLimits(NamedTuple):
    """The limits on a name's length and number of segments; a part of `settings.Limits`."""

    chars: int
    segments: int


def topics(bounds: NameLimits) -> Callable[[str], str]:
    """Return `to_topic` with these bounds, as a function that remembers names; only a name is to be looked up in it."""
    return remembered()(partial(to_topic, bounds=bounds))


def patterns(bounds: NameLimits) -> Callable[[str], Pattern]:
    """Return `to_pattern` with these bounds, as a function that remembers names."""
    return remembered()(partial(to_pattern, bounds=bounds))


def to_topic(channel: str, bounds: NameLimits) -> str:
    """The canonical topic of a channel name. Raises `InvalidName`, also for a wildcard."""
    _check_length(channel, bounds)
    if _PLAIN.fullmatch(channel):  # as nearly all are
        return channel[1:]
    if not _SEGMENTS.fullmatch(channel):
        raise InvalidName(channel)
    return "/".join(to_segment(segment, is_plain_in_channel) for segment in channel[1:].split("/"))


def to_pattern(subscription: str, bounds: NameLimits) -> Pattern:
    """The pattern that a `subscription` stands for. Raises `InvalidName`."""
    parent, slash, last = subscription.rpartition("/")
    match = WILDCARDS.get(last)
    if match is None:
        return Pattern(Match.EXACT, to_topic(subscription, bounds))
    if not slash:
        raise InvalidName(subscription)
    _check_length(subscription, bounds)
    return Pattern(match, to_topic(parent, bounds) if parent else "")


def _check_length(name: str, bounds: NameLimits) -> None:
    if len(name) > bounds.chars:
        raise NameTooLong(name)
    if name.count("/") > bounds.segments:
        raise NameTooDeep(name)


@remembered()
def to_channel(topic: str) -> str:
    """The channel name of a canonical topic."""
    if "!" not in topic:
        return f"/{topic}"
    return "/" + "/".join(from_segment(segment, is_plain_in_channel) for segment in topic.split("/"))


def is_wildcard(channel: str) -> bool:
    """Whether a name ends in a wildcard segment."""
    return channel.rpartition("/")[2] in WILDCARDS


def to_subscription(pattern: Pattern) -> str:
    """The `subscription` that stands for a pattern; the inverse of `to_pattern`."""
    match, topic = pattern
    if match is Match.EXACT:
        return to_channel(topic)
    wildcard = "/*" if match is Match.CHILDREN else "/**"
    return to_channel(topic) + wildcard if topic else wildcard


def covering_channels(pattern: Pattern) -> Pattern | None:
    """The narrowest channel pattern that covers everything that a pattern of any protocol matches.

    None where there is none: a prefix such as `halley` covers the server's own topics, which `/**` leaves out, and
    other topics as well.
    """
    if pattern.match not in WIDE_IN_WAMP:
        return pattern
    shape = shape_of(pattern)
    parts, named = shape.parts, shape.named
    above = "/".join(part.text for part in parts[:named])
    if named == len(parts):
        return Pattern(Match.EXACT, above)
    if not named and parts[0].text in NAMED_ONLY:
        return None
    return Pattern(Match.DESCENDANTS, above)
