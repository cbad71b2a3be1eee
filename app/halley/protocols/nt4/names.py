"""Names: of topics and their canonical topics, of clients in the path that they connect to, and of the subprotocols.

A topic's name may be any text. It is shared with the other protocols if it begins with `/`, has no empty segment, is
within the other protocols' limits, and is not below `/meta/`, `/service/` or `/wamp/`, which a protocol reserves. Any
other name is NetworkTables' own. In the other direction, topics that have no name here are hidden from NetworkTables:
those with a slash within a segment, as WAMP allows, and those in the spaces of further realms.

Names map one to one: `to_name(to_topic(name)) == name`, and the reverse, where neither is None.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from halley.broker.names import REALM_MARK, escaped, from_segment, is_plain_in_channel, unescaped

BASE = "/nt"
"""The path `/nt/<name>` below which NetworkTables clients connect (NA1)."""

V41, RTT, V40 = (
    "v4.1.networktables.first.wpi.edu",
    "rtt.networktables.first.wpi.edu",
    "networktables.first.wpi.edu",
)
"""The subprotocols, the preferred first; RTT serves only requests for the time (NA2, NA6)."""

_OWN_BELOW = ("meta/", "service/", "wamp/")
_SLASH_WITHIN = "!2f"
_OWN = escaped("$nt4")


def to_topic(name: str, max_chars: int, max_segments: int) -> str | None:
    """Return the canonical topic of a name; None if the name is NetworkTables' own.

    `max_chars` bounds the name as a Bayeux channel, which is its longest form.
    """
    if not name.startswith("/") or len(name) > max_chars or name.count("/") > max_segments:
        return None
    segments = [escaped(segment) for segment in name[1:].split("/")]
    topic = "/".join(segments)
    if not all(segments) or topic.startswith(_OWN_BELOW):
        return None
    channel_chars = sum(1 + len(from_segment(segment, is_plain_in_channel)) for segment in segments)
    return topic if channel_chars <= max_chars else None


def to_name(topic: str) -> str | None:
    """Return the name of a canonical topic; None for a topic that is hidden from NetworkTables."""
    if topic.startswith((REALM_MARK, *_OWN_BELOW)) or _SLASH_WITHIN in topic:
        return None
    return "/" + "/".join(map(unescaped, topic.split("/")))


def to_own(name: str) -> str:
    """Return the topic in access rules of a name that is NetworkTables' own: `/$nt4/NAME`, or `/$nt4` for ""."""
    return f"{_OWN}/{escaped(name)}" if name else _OWN


def acl_name(name: str, max_chars: int, max_segments: int) -> str:
    """Return the topic in access rules for a name, and for erasing it; the bounds are those of `to_topic`."""
    return to_topic(name, max_chars, max_segments) or to_own(name)


def is_reserved(name: str) -> bool:
    """Return whether a name begins with `$`: only the server may publish such topics, the meta topics."""
    return name.startswith("$")


def client_name(path: str) -> str:
    """Return the client's name in a path as it was sent (`contract.Context.path`), percent-decoded.

    The name may contain slashes; it is empty if the path has none. Raises `UnicodeDecodeError` if it is not UTF-8.
    """
    below = f"{BASE}/"
    return unquote_to_bytes(path.removeprefix(below).encode("latin-1")).decode() if path.startswith(below) else ""
