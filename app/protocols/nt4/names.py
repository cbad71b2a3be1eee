"""Topic names as NetworkTables has them: any text, shown plain; and which canonical topic they are, if any.

A name is shared with the other protocols if it begins with `/`, has no empty segment, is within the others' bounds and
is not one that a protocol keeps for itself: what lies below `/meta/`, `/service/` and `/wamp/`. Every other one is
NetworkTables' own. The other way about, topics that no name here could be are hidden from NetworkTables: a segment of
WAMP may have a slash within, and realms have spaces of their own.

Names map one to one: `to_name(to_topic(name)) == name`, and the reverse, wherever neither is None.
"""

from __future__ import annotations

from app.broker.names import SPACE, escaped, from_segment, is_plain_in_channel, unescaped

_OWN_BELOW = ("meta/", "service/", "wamp/")
_SLASH_WITHIN = "!2f"
_OWN = escaped("$nt4")


def to_topic(name: str, most_chars: int, most_segments: int) -> str | None:
    """The canonical topic; None where the name is NetworkTables' own.

    `most_chars` bounds the name as Bayeux shows it, which is the longest of all.
    """
    if not name.startswith("/") or len(name) > most_chars or name.count("/") > most_segments:
        return None
    segments = [escaped(segment) for segment in name[1:].split("/")]
    topic = "/".join(segments)
    if not all(segments) or topic.startswith(_OWN_BELOW):
        return None
    shown_chars = sum(1 + len(from_segment(segment, is_plain_in_channel)) for segment in segments)
    return topic if shown_chars <= most_chars else None


def to_name(topic: str) -> str | None:
    """The name of a canonical topic; None where there is none: nobody here sees such a topic."""
    if topic.startswith((SPACE, *_OWN_BELOW)) or _SLASH_WITHIN in topic:
        return None
    return "/" + "/".join(map(unescaped, topic.split("/")))


def to_own(name: str) -> str:
    """What rules know a name by that is NetworkTables' own: one segment below `/$nt4`, or, if it is empty, that."""
    return f"{_OWN}/{escaped(name)}" if name else _OWN


def is_reserved(name: str) -> bool:
    """Whether only the server may publish it: meta topics, which begin with `$`."""
    return name.startswith("$")
