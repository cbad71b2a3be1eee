"""Names of topics as their publishers write them: WAMP's URIs, NetworkTables' names, and Bayeux' channels for the rest.

The conversions are those of each protocol's own `names.py`; here is which of them a name needs.
"""

from __future__ import annotations

from halley.broker.errors import InvalidName
from halley.broker.names import Match, Pattern, escaped, is_plain_in_channel, is_plain_in_uri, to_segment
from halley.protocols.bayeux import names as bayeux
from halley.protocols.nt4 import names as nt4
from halley.protocols.wamp import names as wamp

WAMP, NT4, BAYEUX = "wamp", "nt4", "bayeux"
"""The protocols with names of their own; what any other publishes to has the name of a channel, as in Bayeux."""

_MOST = 1 << 20
_NO_BOUNDS = bayeux.NameLimits(_MOST, _MOST)


def name_of(topic: str, protocol: str | None) -> str:
    """Return the name of a canonical topic for a publisher's protocol, if that is known; that of WAMP has no realm."""
    if protocol == WAMP:
        return wamp.to_uri(topic)
    name = nt4.to_name(topic) if protocol == NT4 else None
    return bayeux.to_channel(topic) if name is None else name


def topic_of(name: str, protocol: str) -> str | None:
    """Return the only topic with that name in a protocol; None if there is none.

    WAMP's further realms, which have topics with this name too, are left out. Raises `UnicodeEncodeError` for half of a
    surrogate pair.
    """
    try:
        if protocol == WAMP:
            return wamp.to_topic(name, "", wamp.Grammar(_MOST, _MOST, is_strict=False))
        return nt4.to_topic(name, _MOST, _MOST) if protocol == NT4 else bayeux.to_topic(name, _NO_BOUNDS)
    except InvalidName:
        return None


def beginning_of(name: str, protocol: str) -> str | None:
    """Return the longest beginning of all topics whose names in a protocol begin with `name`; None if there is none.

    WAMP's further realms are left out. Raises `UnicodeEncodeError` for half of a surrogate pair.
    """
    if protocol != WAMP and name[:1] not in ("", "/"):
        return None
    *above, last = name.split(".") if protocol == WAMP else name[1:].split("/")
    if protocol == NT4:
        return None if "" in above else "/".join(map(escaped, [*above, last]))
    is_plain = is_plain_in_uri if protocol == WAMP else is_plain_in_channel
    try:
        segments = [to_segment(each, is_plain) for each in above]
    except InvalidName:
        return None
    return "/".join([*segments, escaped(last.partition("!")[0])])  # a `!` may begin an escape, by what follows it


def to_pattern(name: str, bounds: bayeux.NameLimits) -> Pattern:
    """Return the pattern that a name stands for which is given without its protocol. Raises `InvalidName`.

    What begins with a slash is a channel or a pattern of channels. If Bayeux has no such channel, it is a name of
    NetworkTables, which may also end in `/*` or `/**`. Anything else is a URI of WAMP's first realm. A URI with `/` or
    `*` is refused: it is more likely to be a channel whose first slash is missing.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidName(name) from None
    if not name.startswith("/"):
        if "/" in name or "*" in name:
            raise InvalidName(name)
        return wamp.to_pattern(name, Match.EXACT, "", wamp.Grammar(bounds.chars, bounds.segments, is_strict=False))
    try:
        return bayeux.to_pattern(name, bounds)
    except InvalidName:
        parent, _, last = name.rpartition("/")
        match = bayeux.WILDCARDS.get(last)
        topic = nt4.to_topic(name if match is None else parent, bounds.chars, bounds.segments)
        if topic is None:
            raise
        return Pattern(match or Match.EXACT, topic)
